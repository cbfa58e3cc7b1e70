//! Records of the pool's system table: subvolumes and their epochs.
//!
//! ```text
//! subvolume:  0 table u64 · epoch u64 · first u64 · flags u64 · hash key 16 bytes ·
//!            48 created: seconds i64, nanoseconds u32 · 0 u32 · identity 16 bytes
//! epoch:      0 subvolume u32 · 0 u32 · table u64 · first u64 · parent u64 (0: none)
//! ```

use copyhold_types::{EpochId, SubvolId, TableId, Timestamp};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::HashKey;
use crate::FormatError;

/// Properties of a subvolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubvolFlags(pub u64);

impl SubvolFlags {
    pub const READ_ONLY: u64 = 1;
    const KNOWN: u64 = 1;
}

/// A live subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubvolItem {
    /// Where its files are.
    pub table: TableId,
    /// Its current epoch.
    pub epoch: EpochId,
    /// The start of what it shares with nobody.
    pub first: EpochId,
    pub flags: SubvolFlags,
    /// Of its names; snapshots inherit it.
    pub hash_key: HashKey,
    pub created: Timestamp,
    /// A random UUID.
    pub identity: [u8; 16],
}

/// An epoch, live or sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochItem {
    pub subvol: SubvolId,
    pub table: TableId,
    pub first: EpochId,
    pub parent: Option<EpochId>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SubvolDisk {
    table: U64,
    epoch: U64,
    first: U64,
    flags: U64,
    hash_key: [u8; 16],
    created_secs: I64,
    created_nanos: U32,
    reserved: U32, // written as zero
    identity: [u8; 16],
}
const _: () = assert!(size_of::<SubvolDisk>() == SubvolItem::BYTES);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EpochDisk {
    subvol: U32,
    reserved: U32, // written as zero
    table: U64,
    first: U64,
    parent: U64,
}
const _: () = assert!(size_of::<EpochDisk>() == EpochItem::BYTES);

impl SubvolItem {
    pub const BYTES: usize = 80;
    const WHAT: &str = "subvolume record";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(SubvolDisk {
            table: self.table.0.into(),
            epoch: self.epoch.0.into(),
            first: self.first.0.into(),
            flags: self.flags.0.into(),
            hash_key: self.hash_key.0,
            created_secs: self.created.secs.into(),
            created_nanos: self.created.nanos.into(),
            reserved: 0.into(),
            identity: self.identity,
        })
    }

    pub fn parse(value: &[u8]) -> Result<SubvolItem, FormatError> {
        let disk = SubvolDisk::ref_from_bytes(value)
            .map_err(|_| FormatError::Short { what: Self::WHAT, len: value.len() })?;
        let bad = |field, value| FormatError::Field { what: Self::WHAT, field, value };
        let (epoch, first, flags) = (disk.epoch.get(), disk.first.get(), disk.flags.get());
        if flags & !SubvolFlags::KNOWN != 0 {
            return Err(bad("flags", flags));
        }
        if first == 0 || first > epoch {
            return Err(bad("first epoch", first));
        }
        if disk.created_nanos.get() >= 1_000_000_000 || disk.reserved.get() != 0 {
            return Err(bad("creation time", disk.created_nanos.get().into()));
        }
        Ok(SubvolItem {
            table: TableId(disk.table.get()),
            epoch: EpochId(epoch),
            first: EpochId(first),
            flags: SubvolFlags(flags),
            hash_key: HashKey(disk.hash_key),
            created: Timestamp { secs: disk.created_secs.get(), nanos: disk.created_nanos.get() },
            identity: disk.identity,
        })
    }
}

impl EpochItem {
    pub const BYTES: usize = 32;
    const WHAT: &str = "epoch record";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(EpochDisk {
            subvol: self.subvol.0.into(),
            reserved: 0.into(),
            table: self.table.0.into(),
            first: self.first.0.into(),
            parent: self.parent.map_or(0, |parent| parent.0).into(),
        })
    }

    pub fn parse(value: &[u8]) -> Result<EpochItem, FormatError> {
        let disk = EpochDisk::ref_from_bytes(value)
            .map_err(|_| FormatError::Short { what: Self::WHAT, len: value.len() })?;
        let subvol = disk.subvol.get();
        if subvol == 0 || subvol >> SubvolId::BITS != 0 || disk.reserved.get() != 0 {
            let value = subvol.into();
            return Err(FormatError::Field { what: Self::WHAT, field: "subvolume", value });
        }
        let parent = disk.parent.get();
        Ok(EpochItem {
            subvol: SubvolId(subvol),
            table: TableId(disk.table.get()),
            first: EpochId(disk.first.get()),
            parent: (parent != 0).then_some(EpochId(parent)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        let subvol = SubvolItem {
            table: TableId(5),
            epoch: EpochId(3),
            first: EpochId(2),
            flags: SubvolFlags(SubvolFlags::READ_ONLY),
            hash_key: HashKey([9; 16]),
            created: Timestamp { secs: -1, nanos: 5 },
            identity: [7; 16],
        };
        assert_eq!(SubvolItem::parse(&subvol.encode()), Ok(subvol));
        let epoch =
            EpochItem { subvol: SubvolId(1), table: TableId(5), first: EpochId(2), parent: None };
        assert_eq!(EpochItem::parse(&epoch.encode()), Ok(epoch));
    }

    #[test]
    fn a_first_epoch_behind_the_current_one_is_refused() {
        let mut bytes = [0; SubvolItem::BYTES];
        bytes[8] = 1;
        bytes[16] = 2;
        assert!(SubvolItem::parse(&bytes).is_err());
    }
}
