//! The rings of uberblocks in both label areas: read and repaired at opening, written at creation
//! and when the log's head moves.
//!
//! Problem.  A slot may be lost: torn, rotten or unreadable in both areas. Its number is unknown.
//! Idea.     Number n is in slot n mod 32, so an uberblock newer than the newest that is found can
//!           only be in lost slots directly behind it. The log of three is kept (R6): where no more
//!           than two of those slots are lost, recovery from the newest that is found reaches all
//!           that is durable.
//!
//! UBER-U1  A mount that writes has three again before it writes anything else: where there is no
//!          uberblock of one of the last three numbers, the next one takes that number, too, or
//!          the newest, so that no lost one comes back; and each of the three is in both areas,
//!          unless one refuses it.

use copyhold_device::{DeviceError, DynDevice};
use copyhold_format::label::{AREA_BLOCKS, Label, RING_SLOTS, RING_START};
use copyhold_format::uberblock::Uberblock;
use copyhold_log::UBERBLOCKS_KEPT;
use copyhold_types::{BLOCK_BYTES, Buf, PoolId, Purpose};
use futures_util::TryFutureExt as _;
use futures_util::future::{join, join_all};

use crate::PoolError;

/// Newer uberblocks that may be lost: the log of the newest that is found is still kept (R6).
const LOST_MAX: usize = UBERBLOCKS_KEPT - 1;

/// The uberblocks of a pool, oldest first; at least one.
pub(crate) struct Uberblocks {
    /// Of the last three numbers each has one (UBER-U1).
    pub(crate) all: Vec<Uberblock>,
    lacks: Vec<Lacks>,
}

/// An uberblock that is not in both areas.
struct Lacks {
    uberblock: Uberblock,
    areas: Vec<usize>,
}

impl Lacks {
    fn of(uberblock: Uberblock, rings: &Rings) -> Option<Lacks> {
        let slot = (uberblock.number % RING_SLOTS) as usize;
        let areas = (0..2).filter(|area| rings[*area][slot].good() != Some(&uberblock));
        let areas: Vec<usize> = areas.collect();
        (!areas.is_empty()).then_some(Lacks { uberblock, areas })
    }
}

/// One slot of one ring.
enum Slot {
    /// It has zeros: mostly, nothing was ever written to it.
    Empty,
    Good(Uberblock),
    /// It does not verify, or cannot be read.
    Bad(Option<DeviceError>),
}

impl Slot {
    fn parse(slot: u64, block: &[u8], pool: PoolId) -> Slot {
        match Uberblock::parse(block, pool) {
            Ok(uberblock) if uberblock.number % RING_SLOTS == slot => Slot::Good(uberblock),
            Err(_) if block.iter().all(|byte| *byte == 0) => Slot::Empty,
            _ => Slot::Bad(None),
        }
    }

    fn good(&self) -> Option<&Uberblock> {
        if let Slot::Good(uberblock) = self { Some(uberblock) } else { None }
    }
}

/// Every uberblock that verifies, of both labels, oldest first, without doubles.
///
/// # Errors
/// None verifies.
pub async fn read_uberblocks(
    device: &DynDevice,
    label: &Label,
) -> Result<Vec<Uberblock>, PoolError> {
    let rings = read(device, label).await;
    found(&rings).ok_or_else(|| nothing_found(device, &rings))
}

/// The uberblocks to open a pool with.
///
/// # Errors
/// None verifies, or so many newer ones may be lost that the log of the newest is perhaps
/// overwritten.
pub(crate) async fn find(device: &DynDevice, label: &Label) -> Result<Uberblocks, PoolError> {
    let rings = read(device, label).await;
    let mut all = found(&rings).ok_or_else(|| nothing_found(device, &rings))?;
    let newest = all.last().expect("at least one is found").clone();
    let lost: Vec<u64> = lost_behind(newest.number, &rings).collect();
    if lost.len() > LOST_MAX {
        return Err(too_many_lost(device, &newest, &lost, &rings));
    }
    let last = newest.number + lost.len() as u64;
    let mut three = Vec::new();
    let mut next = &newest;
    for number in (1..=last).rev().take(UBERBLOCKS_KEPT) {
        next = all.iter().find(|uberblock| uberblock.number == number).unwrap_or(next);
        three.push(Uberblock { number, ..next.clone() });
    }
    three.reverse();
    all.retain(|uberblock| uberblock.number < three[0].number);
    all.extend(three.iter().cloned());
    let lacks = three.into_iter().filter_map(|uberblock| Lacks::of(uberblock, &rings)).collect();
    Ok(Uberblocks { all, lacks })
}

/// The one from which a pool is recovered.
///
/// # Errors
/// None verifies, or so many newer ones may be lost that the log of the newest is perhaps
/// overwritten.
pub async fn newest_uberblock(device: &DynDevice, label: &Label) -> Result<Uberblock, PoolError> {
    Ok(find(device, label).await?.newest().clone())
}

type Rings = [Vec<Slot>; 2];

async fn read(device: &DynDevice, label: &Label) -> Rings {
    let [start, end] = Label::areas(label.blocks);
    let rings = join(read_ring(device, start, label.pool), read_ring(device, end, label.pool));
    rings.await.into()
}

/// All that verify, oldest first, without doubles.
fn found(rings: &Rings) -> Option<Vec<Uberblock>> {
    let mut found: Vec<_> = rings.iter().flatten().filter_map(Slot::good).cloned().collect();
    found.sort_by_key(|uberblock| uberblock.number);
    found.dedup_by_key(|uberblock| uberblock.number);
    (!found.is_empty()).then_some(found)
}

/// The numbers behind `newest` up to the first that was certainly not lost.
fn lost_behind(newest: u64, rings: &Rings) -> impl Iterator<Item = u64> {
    let behind = (1..RING_SLOTS).map(move |n| newest + n);
    behind.take_while(move |number| {
        let slots = rings.each_ref().map(|ring| &ring[(number % RING_SLOTS) as usize]);
        // Both areas are written before an uberblock counts, so an area that is whole shows which
        // slots were never used. When the ring has come round, all were.
        let is_unused = |ring: &Vec<Slot>| {
            let has_newest = ring[(newest % RING_SLOTS) as usize].good().is_some();
            has_newest && matches!(ring[(number % RING_SLOTS) as usize], Slot::Empty)
        };
        let has_older = slots.iter().any(|slot| slot.good().is_some());
        !has_older && (*number > RING_SLOTS || !rings.iter().any(is_unused))
    })
}

fn error_of(number: u64, rings: &Rings) -> Option<&DeviceError> {
    rings.iter().find_map(|ring| match &ring[(number % RING_SLOTS) as usize] {
        Slot::Bad(error) => error.as_ref(),
        _ => None,
    })
}

fn too_many_lost(device: &DynDevice, newest: &Uberblock, lost: &[u64], rings: &Rings) -> PoolError {
    let number = newest.number;
    let why = format!(
        "more than {LOST_MAX} uberblocks newer than number {number} may be lost: their slots \
         verify on neither label, and the log that number {number} needs may be overwritten; run \
         `copyhold debug export POOL DIR` to copy what can be read"
    );
    match lost.iter().find_map(|number| error_of(*number, rings)) {
        Some(error) => {
            tracing::error!("{why}");
            error.clone().into()
        }
        None => PoolError::damaged(device.geometry().name, why),
    }
}

fn nothing_found(device: &DynDevice, rings: &Rings) -> PoolError {
    match (0..RING_SLOTS).find_map(|slot| error_of(slot, rings)) {
        Some(error) => error.clone().into(),
        None => PoolError::damaged(
            device.geometry().name,
            "no uberblock verifies on either label; the pool cannot be opened",
        ),
    }
}

/// All slots of one area; one by one where they cannot be read together.
async fn read_ring(device: &DynDevice, area: u64, pool: PoolId) -> Vec<Slot> {
    let at = area + RING_START;
    if let Ok(ring) = device.read(at, RING_SLOTS as u32, Purpose::Label).await {
        let blocks = (0..).zip(ring.chunks(BLOCK_BYTES));
        return blocks.map(|(slot, block)| Slot::parse(slot, block, pool)).collect();
    }
    let slots = (0..RING_SLOTS).map(|slot| async move {
        let read = || device.read(at + slot, 1, Purpose::Label);
        // An error may pass.
        match read().or_else(|_| read()).await {
            Ok(block) => Slot::parse(slot, &block, pool),
            Err(error) => Slot::Bad(Some(error)),
        }
    });
    join_all(slots).await
}

impl Uberblocks {
    pub(crate) fn newest(&self) -> &Uberblock {
        self.all.last().expect("there is at least one")
    }

    /// Establishes UBER-U1, with the next flush, before which nothing else is written. Returns
    /// whether there was anything to write.
    pub(crate) async fn repair(
        &self,
        device: &DynDevice,
        label: &Label,
    ) -> Result<bool, PoolError> {
        for Lacks { uberblock, areas } in &self.lacks {
            let mut failed = None;
            let mut copies = 2 - areas.len();
            for area in areas {
                let at = Label::areas(label.blocks)[*area];
                tracing::warn!("writing uberblock {} of the label at {at} again", uberblock.number);
                let block = Buf::from_bytes(&uberblock.encode());
                match write_at(device, at, uberblock.number, block).await {
                    Ok(()) => copies += 1,
                    Err(error) => failed = Some(error),
                }
            }
            match failed {
                Some(error) if copies == 0 => return Err(error),
                Some(error) => tracing::warn!("an uberblock is in one label only: {error}"),
                None => {}
            }
        }
        Ok(!self.lacks.is_empty())
    }
}

/// Fills the second label area of a pool that grows to `blocks` blocks: with the label of the
/// present size, and a ring of all uberblocks that verify. Durable after the next flush.
pub(crate) async fn copy_area(
    device: &DynDevice,
    label: &Label,
    blocks: u64,
) -> Result<(), PoolError> {
    let mut area = Buf::zeroed(AREA_BLOCKS as usize);
    area.make_mut()[..BLOCK_BYTES].copy_from_slice(&label.encode());
    for uberblock in read_uberblocks(device, label).await? {
        let at = (RING_START + uberblock.number % RING_SLOTS) as usize * BLOCK_BYTES;
        let bytes = uberblock.encode();
        area.make_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    let [_, at] = Label::areas(blocks);
    Ok(device.write(at, area.into(), Purpose::Label).await?)
}

/// Writes an uberblock to both labels of a pool of `blocks` blocks. Durable after the next flush.
pub(crate) async fn write_uberblock(
    device: &DynDevice,
    blocks: u64,
    uberblock: &Uberblock,
) -> Result<(), PoolError> {
    let block = Buf::from_bytes(&uberblock.encode());
    let [start, end] =
        Label::areas(blocks).map(|area| write_at(device, area, uberblock.number, block.clone()));
    let (start, end) = join(start, end).await;
    start.and(end)
}

async fn write_at(device: &DynDevice, area: u64, number: u64, block: Buf) -> Result<(), PoolError> {
    let slot = RING_START + number % RING_SLOTS;
    Ok(device.write(area + slot, block.into(), Purpose::Label).await?)
}
