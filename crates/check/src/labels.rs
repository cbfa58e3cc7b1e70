//! Labels and uberblocks, at both ends of a device.
//!
//! LABEL-B1: the labels differ in nothing, or one is out of date: a crash leaves it so while
//! features change (FEATURE-F1), and the next mount writes it again. A slot of the uberblock ring
//! is zero, or an uberblock that is the same at both ends. The slot that would be written next may
//! be torn: a crash does that, and the one before it is still good.

use copyhold_device::DynDevice;
use copyhold_format::label::{AREA_BLOCKS, Label, RING_SLOTS, RING_START};
use copyhold_format::uberblock::Uberblock;
use copyhold_types::{Buf, PoolId, Purpose};
use futures_util::future::join_all;

use crate::problem::{End, Problem};
use crate::report::Draft;

/// Magic of an uberblock: it shows that a device whose labels are gone has been a pool.
const UBERBLOCK_MAGIC: &[u8] = b"CHUBERBL";

/// The content of one end of a device.
pub(crate) struct Area {
    pub(crate) label: Result<Label, String>,
    /// The slots of the ring of uberblocks, as far as they can be read.
    pub(crate) ring: Vec<Option<Buf>>,
}

impl Area {
    /// The slots of the ring that can be read.
    fn blocks(&self) -> impl Iterator<Item = &[u8]> {
        self.ring.iter().flatten().map(|block| &block[..])
    }
}

/// Reads both ends. Where the second is, a good label at the start says, else one at the end of the
/// device: it is the second, or a copy of it.
pub(crate) async fn read_areas(device: &DynDevice) -> [Area; 2] {
    let start = read_area(device, 0).await;
    let size = device.geometry().blocks;
    let Some(last) = size.checked_sub(AREA_BLOCKS) else {
        let why = || "the device is too small".to_owned();
        return [start, Area { label: Err(why()), ring: Vec::new() }];
    };
    let end = match &start.label {
        Ok(label) => read_area(device, label.blocks - AREA_BLOCKS).await,
        Err(_) => match read_area(device, last).await {
            Area { label: Ok(label), .. } if label.blocks < size => {
                read_area(device, label.blocks - AREA_BLOCKS).await
            }
            area => area,
        },
    };
    [start, end]
}

async fn read_area(device: &DynDevice, at: u64) -> Area {
    let label = match device.read(at, 1, Purpose::Label).await {
        Ok(block) => Label::parse(&block).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let slots = (0..RING_SLOTS).map(|slot| device.read(at + RING_START + slot, 1, Purpose::Label));
    let ring = join_all(slots).await.into_iter().map(Result::ok).collect();
    Area { label, ring }
}

/// Whether uberblocks say that this was a pool, although no label does.
pub(crate) fn was_a_pool(areas: &[Area; 2]) -> bool {
    areas.iter().flat_map(Area::blocks).any(|block| block.starts_with(UBERBLOCK_MAGIC))
}

pub(crate) fn check_labels(device: &str, areas: &[Area; 2], report: &mut Draft) {
    for (end, area) in End::BOTH.into_iter().zip(areas) {
        match &area.label {
            Ok(_) => report.verified.labels += 1,
            Err(why) => {
                report.add(Problem::Label { device: device.into(), end, why: why.clone() });
            }
        }
    }
    let [Ok(a), Ok(b)] = [&areas[0].label, &areas[1].label] else { return };
    let device = device.to_owned();
    if let Some(end) = out_of_date(a, b) {
        let why = "it is out of date".into();
        report.add(Problem::Label { device, end, why });
    } else if let Some(what) = difference(a, b) {
        report.add(Problem::LabelsDiffer { device, what });
    }
}

/// The end whose label the power cut left while the features of the pool changed.
fn out_of_date(start: &Label, end: &Label) -> Option<End> {
    let Label { generation, features, namespace, .. } = *end;
    let changed = Label { generation, features, namespace, ..start.clone() };
    if start.generation == end.generation || changed != *end {
        return None;
    }
    Some(if start.generation < end.generation { End::Start } else { End::End })
}

fn difference(a: &Label, b: &Label) -> Option<&'static str> {
    match () {
        () if a == b => None,
        () if a.pool != b.pool => Some("the pool that they name"),
        () if a.generation != b.generation => Some("their generation"),
        () if a.blocks != b.blocks => Some("the size of the device"),
        () => Some("their settings"),
    }
}

/// The content of one slot of the ring at one end.
#[derive(PartialEq, Eq)]
enum Slot {
    Nothing,
    Good(Uberblock),
    Bad,
}

impl Slot {
    fn good(&self) -> Option<&Uberblock> {
        if let Slot::Good(uberblock) = self { Some(uberblock) } else { None }
    }
}

fn slot(area: &Area, slot: u64, pool: PoolId) -> Slot {
    let Some(Some(block)) = area.ring.get(slot as usize) else { return Slot::Bad };
    match Uberblock::parse(block, pool) {
        Ok(uberblock) if uberblock.number % RING_SLOTS == slot => Slot::Good(uberblock),
        Err(_) if block.iter().all(|&byte| byte == 0) => Slot::Nothing,
        _ => Slot::Bad,
    }
}

pub(crate) fn check_uberblocks(device: &str, areas: &[Area; 2], label: &Label, report: &mut Draft) {
    for at in 0..RING_SLOTS {
        let found = [slot(&areas[0], at, label.pool), slot(&areas[1], at, label.pool)];
        report.verified.uberblocks += found.iter().filter_map(Slot::good).count() as u64;
        if found[0] == found[1] && found[0] != Slot::Bad {
            continue;
        }
        let Some(newer) =
            found.iter().filter_map(Slot::good).max_by_key(|uberblock| uberblock.number)
        else {
            report.add(Problem::Uberblock { device: device.into(), slot: at });
            continue;
        };
        let number = newer.number;
        for (end, found) in End::BOTH.into_iter().zip(&found) {
            if found.good() != Some(newer) {
                report.add(Problem::UberblockCopy { device: device.into(), end, slot: at, number });
            }
        }
    }
}
