//! The limits of a memory group: of a subvolume, or of the shared group.
//!
//! ```text
//!   0 min u64 · low u64
//!  16 high u64 · max u64 (all ones: none)
//!  32 weight u32 · 4 zeros
//! ```
//!
//! A group without a record has the defaults. Of subvolumes, only living ones have records; the
//! shared group has the number 0, which no subvolume has. Limits may contradict each other, or
//! those of other groups: the memory decides at each walk.

use copyhold_types::{Key, Kind, SubvolId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;

pub const MEMORY: Kind = Kind(25);

/// The number of the shared group, in the place of a subvolume's.
pub const SHARED_MEMORY: SubvolId = SubvolId(0);

/// Limits in bytes, for the subvolume with all that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryItem {
    /// Reclaimed only if nothing else is left.
    pub min: u64,
    /// Protected from reclaim in proportion.
    pub low: u64,
    /// Above it, reclaim and delays; `u64::MAX`: none.
    pub high: u64,
    /// Never above it; `u64::MAX`: none.
    pub max: u64,
    /// Its share of what is scarce, beside others under the same holder.
    pub weight: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MemoryDisk {
    min: U64,
    low: U64,
    high: U64,
    max: U64,
    weight: U32,
    reserved: U32, // written as zero
}
const _: () = assert!(size_of::<MemoryDisk>() == MemoryItem::BYTES);

impl Default for MemoryItem {
    fn default() -> MemoryItem {
        let weight = MemoryItem::WEIGHT_DEFAULT;
        MemoryItem { min: 0, low: 0, high: u64::MAX, max: u64::MAX, weight }
    }
}

pub fn memory_key(subvol: SubvolId) -> Key {
    Key::new(subvol.0.into(), MEMORY, 0)
}

impl MemoryItem {
    pub const BYTES: usize = 40;
    /// As `cpu.weight` and `io.weight` of control groups have it.
    pub const WEIGHT_DEFAULT: u32 = 100;
    pub const WEIGHT_MAX: u32 = 10_000;
    const WHAT: &str = "memory record";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(MemoryDisk {
            min: self.min.into(),
            low: self.low.into(),
            high: self.high.into(),
            max: self.max.into(),
            weight: self.weight.into(),
            reserved: 0.into(),
        })
    }

    /// The record under `key`, of the subvolume that this returns.
    pub fn parse(key: Key, value: &[u8]) -> Result<(SubvolId, MemoryItem), FormatError> {
        let bad = |field, value| FormatError::Field { what: Self::WHAT, field, value };
        if key.object >> SubvolId::BITS != 0 {
            return Err(bad("subvolume", key.object));
        }
        if key.offset != 0 {
            return Err(bad("place", key.offset));
        }
        let disk = MemoryDisk::ref_from_bytes(value)
            .map_err(|_| FormatError::Short { what: Self::WHAT, len: value.len() })?;
        let weight = disk.weight.get();
        if weight == 0 || weight > Self::WEIGHT_MAX {
            return Err(bad("weight", weight.into()));
        }
        if disk.reserved.get() != 0 {
            return Err(bad("reserved field", disk.reserved.get().into()));
        }
        let [min, low, high, max] =
            [disk.min, disk.low, disk.high, disk.max].map(|bytes| bytes.get());
        Ok((SubvolId(key.object as u32), MemoryItem { min, low, high, max, weight }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_what_was_written_and_refuses_the_rest() {
        let item = MemoryItem { min: 1, low: 2, high: 3, max: u64::MAX, weight: 10_000 };
        let (subvol, bytes) = (SubvolId(7), item.encode());
        assert_eq!(MemoryItem::parse(memory_key(subvol), &bytes).unwrap(), (subvol, item));
        let refused = |key, bytes: &[u8]| MemoryItem::parse(key, bytes).unwrap_err();
        let shared = MemoryItem::parse(memory_key(SHARED_MEMORY), &bytes).unwrap();
        assert_eq!(shared, (SHARED_MEMORY, item));
        refused(Key::new(1 << SubvolId::BITS, MEMORY, 0), &bytes);
        refused(Key::new(7, MEMORY, 1), &bytes);
        refused(memory_key(subvol), &bytes[1..]);
        for weight in [0, MemoryItem::WEIGHT_MAX + 1, u32::MAX] {
            refused(memory_key(subvol), &MemoryItem { weight, ..item }.encode());
        }
        let mut reserved = bytes;
        reserved[39] = 1;
        refused(memory_key(subvol), &reserved);
    }
}
