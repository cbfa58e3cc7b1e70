//! Labels and uberblocks (`docs/format.md`, 2 to 4): where the log is, and where to read it from.
//!
//! Both are at both ends of the device. Of two good labels that differ, the one of the higher
//! generation counts; of all good uberblocks, the one of the highest number; older ones serve a
//! damaged log.

use std::collections::BTreeMap;

use crate::bytes::{Bytes, digest_fits};
use crate::damage::{Damage, Parse, demand};
use crate::namespace::{Header, Named};
use crate::source::{Source, read};

/// Blocks of the label area at either end.
const AREA: u64 = 64;
/// The ring of uberblocks in it.
const RING: u64 = 16;
const SLOTS: u64 = 32;
/// Uberblocks whose log is still there.
pub(crate) const UBERBLOCKS_KEPT: usize = 3;
const VERSION: u32 = 2;
/// A feature: nodes may lie in fragments.
const FRAGMENTS: u64 = 1 << 0;
/// A feature: the checksums of an extent's blocks may be beside them, or nowhere.
const CHECKSUM_MODES: u64 = 1 << 1;
/// A feature: the device has protection information beside the blocks, at whose numbers they stay.
const PROTECTED: u64 = 1 << 2;
/// A feature: space maps, which no file is found by, may have deltas.
const MAP_DELTAS: u64 = 1 << 3;
const LEAF_BYTES_MAX: u64 = 512 << 10;
const BLOCKS_MAX: u64 = 1 << 48;

/// A device's description of its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub pool: [u8; 16],
    pub name: String,
    pub(crate) secret: u64,
    generation: u64,
    /// Most bytes of a leaf with several items.
    pub(crate) leaf_bytes: u64,
    pub(crate) blocks: u64,
    /// First blocks of the copies of the log.
    pub(crate) log: [u64; 2],
    pub(crate) log_blocks: u64,
    /// Whether extents may have their checksums elsewhere.
    pub(crate) has_checksums_elsewhere: bool,
    /// Format and identity of the protection information that the device must have.
    pub(crate) protection: Option<Named>,
}

/// Where in an area an uberblock is.
fn slot_of(number: u64) -> u64 {
    RING + number % SLOTS
}

impl Label {
    /// First blocks of the areas at both ends.
    pub(crate) fn areas(&self) -> [u64; 2] {
        [0, self.blocks - AREA]
    }

    /// The good copies of the pool's label: their places and bytes.
    pub(crate) fn copies(&self, source: &dyn Source) -> Vec<(u64, Vec<u8>)> {
        let copy = |at| {
            let block = read(source, at, 1).ok()?;
            let label = Label::parse(&block).ok()?;
            (label.pool == self.pool).then_some((at, block))
        };
        self.areas().into_iter().filter_map(copy).collect()
    }

    fn parse(block: &[u8]) -> Parse<Label> {
        let mut bytes = Bytes(block);
        bytes.magic(b"COPYHOLD")?;
        let version = bytes.u32()?;
        demand(version == VERSION, "a version that this program does not know")?;
        digest_fits(block, 32, 0)?;
        demand(bytes.u16()? == 0, "a device that is not the first")?;
        demand(bytes.u16()? == 1, "a pool of several devices")?;
        let pool = bytes.array()?;
        bytes.take(16)?;
        let (secret, generation) = (bytes.u64()?, bytes.u64()?);
        bytes.take(16)?; // compat and ro-compat: it is only read
        let incompat = bytes.u64()?;
        let unknown = incompat & !(FRAGMENTS | CHECKSUM_MODES | PROTECTED | MAP_DELTAS);
        demand(unknown == 0, "it uses features that this program does not know")?;
        bytes.take(12)?;
        let leaf_bytes = u64::from(bytes.u32()?);
        let blocks = bytes.u64()?;
        let log = [bytes.u64()?, bytes.u64()?];
        let log_blocks = bytes.u64()?;
        bytes.take(12)?;
        let name = bytes.u32()? as usize;
        demand(name <= 64, "its name is too long")?;
        let room = bytes.take(64)?;
        let name = String::from_utf8_lossy(&room[..name]).into_owned();
        let protection = (bytes.array()?, bytes.array()?);
        demand(leaf_bytes.is_power_of_two(), "no size of a leaf")?;
        demand((4 << 10..=LEAF_BYTES_MAX).contains(&leaf_bytes), "no size of a leaf")?;
        demand((2048..=BLOCKS_MAX).contains(&blocks), "no size of a device")?;
        demand((16..=blocks).contains(&log_blocks), "no size of a log")?;
        let fits = |start: u64| start >= AREA && start <= blocks - AREA - log_blocks.min(blocks);
        demand(log_blocks < blocks - 2 * AREA, "a log as large as the device")?;
        demand(log.into_iter().all(fits), "a log that is not on the device")?;
        Ok(Label {
            pool,
            name,
            secret,
            generation,
            leaf_bytes,
            blocks,
            log,
            log_blocks,
            has_checksums_elsewhere: incompat & CHECKSUM_MODES != 0,
            protection: (incompat & PROTECTED != 0).then_some(protection),
        })
    }

    /// The label of a pool that has only a log.
    #[cfg(test)]
    pub(crate) fn with_log(log: [u64; 2], log_blocks: u64) -> Label {
        Label {
            pool: [0; 16],
            name: String::new(),
            secret: 0,
            generation: 0,
            leaf_bytes: 4096,
            blocks: BLOCKS_MAX,
            log,
            log_blocks,
            has_checksums_elsewhere: false,
            protection: None,
        }
    }

    /// The label of a device, and the damage of its copies.
    pub(crate) fn find(source: &dyn Source) -> Result<(Label, Vec<Damage>), Damage> {
        let mut damage = Vec::new();
        let mut at = |block: u64| match label_at(source, block) {
            Ok(label) => Some(label),
            Err(bad) => {
                damage.push(bad);
                None
            }
        };
        let first = at(0);
        let hint = match &first {
            Some(first) => Some(first.blocks),
            // Where a pool is smaller than its device, a copy there says where the second is.
            None => {
                let header = Header::find(source);
                let size = header.map_or(source.blocks(), |header| header.data_blocks);
                size.checked_sub(AREA).and_then(&mut at).map(|label| label.blocks)
            }
        };
        let second = hint.and_then(|blocks| at(blocks - AREA));
        let best = [first, second].into_iter().flatten().max_by_key(|label| label.generation);
        match best {
            Some(label) => Ok((label, damage)),
            None => Err(damage.pop().unwrap_or_else(|| Damage::new("the device", "too small"))),
        }
    }
}

fn label_at(source: &dyn Source, block: u64) -> Result<Label, Damage> {
    let what = || format!("the label in block {block}");
    let bytes = read(source, block, 1).map_err(|damage| Damage::new(what(), damage.why))?;
    Label::parse(&bytes).map_err(|why| Damage::new(what(), why))
}

/// From where recovery reads the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uberblock {
    pub(crate) number: u64,
    pub(crate) durable: u64,
    pub(crate) head: u64,
    pub(crate) before_txg: u64,
    pub(crate) before_digest: u128,
    /// The partition descriptor of the table of tables.
    pub(crate) tables: Vec<u8>,
}

impl Uberblock {
    fn parse(block: &[u8], label: &Label) -> Parse<Uberblock> {
        let mut bytes = Bytes(block);
        bytes.magic(b"CHUBERBL")?;
        digest_fits(block, 32, 0)?;
        let number = bytes.u64()?;
        demand(number > 0 && number <= 1 << 63, "a number that none has")?;
        demand(bytes.array()? == label.pool, "of another pool")?;
        bytes.take(24)?;
        let (durable, head) = (bytes.u64()?, bytes.u64()?);
        let (before_txg, before_digest) = (bytes.u64()?, bytes.u128()?);
        let length = bytes.u32()? as usize;
        demand(length <= 1024, "its descriptor is too long")?;
        bytes.take(4)?;
        let tables = bytes.take(length)?.to_vec();
        Ok(Uberblock { number, durable, head, before_txg, before_digest, tables })
    }

    /// The one in the slot of `number` at one end, if it is good.
    fn at(source: &dyn Source, label: &Label, area: u64, number: u64) -> Option<Uberblock> {
        let bytes = read(source, area + slot_of(number), 1).ok()?;
        let found = Uberblock::parse(&bytes, label).ok()?;
        (slot_of(found.number) == slot_of(number)).then_some(found)
    }

    /// Whether so many newer ones than this one may be lost that its log is perhaps overwritten.
    pub(crate) fn may_be_old(&self, source: &dyn Source, label: &Label) -> bool {
        let areas = label.areas();
        let at = |area, number| Uberblock::at(source, label, area, number);
        // An end that is whole shows which slots were never used.
        let is_unused = |area: u64, number: u64| {
            let is_zero = |block: Vec<u8>| block.iter().all(|byte| *byte == 0);
            at(area, self.number).is_some()
                && read(source, area + slot_of(number), 1).is_ok_and(is_zero)
        };
        let is_lost = |number: u64| {
            let is_new = number <= SLOTS && areas.iter().any(|area| is_unused(*area, number));
            !is_new && areas.iter().all(|area| at(*area, number).is_none())
        };
        (1..=UBERBLOCKS_KEPT as u64).all(|n| is_lost(self.number + n))
    }

    /// Whether it may serve in place of a newer one: it says something else, and knows no more. One
    /// that knows more was discarded.
    pub(crate) fn is_older_than(&self, newest: &Uberblock) -> bool {
        let is_copy = *self == Uberblock { number: self.number, ..newest.clone() };
        !is_copy && self.durable <= newest.durable && self.head <= newest.head
    }

    /// The good ones of both ends, the newest first.
    pub(crate) fn all(source: &dyn Source, label: &Label) -> Vec<Uberblock> {
        let slots = |area: u64| (0..SLOTS).map(move |number| (area, number));
        let slots = label.areas().into_iter().flat_map(slots);
        let parsed = slots.filter_map(|(area, slot)| Uberblock::at(source, label, area, slot));
        let found: BTreeMap<u64, Uberblock> = parsed.map(|found| (found.number, found)).collect();
        found.into_values().rev().collect()
    }
}
