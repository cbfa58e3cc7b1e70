//! The record of an epoch: its place in the tree of its family, and the owner that pays for its
//! blocks.
//!
//! ```text
//!   0 subvolume u32 · state u8 · 3 zeros · current u64
//!  16 first u64 · parent u64 (0: none) · table u64 · deadlist set u64 (0: none)
//! ```
//!
//! A live epoch is a subvolume's; pointers that it writes carry its *current* number, which is its
//! own until it takes a newer one (R25). A sealed one has exactly two children, which name it as
//! their parent. One that is absorbed has no record: its number remains in pointers, and while an
//! owner pays for them, in a row of usage (R26).

use copyhold_types::{EpochId, Key, SubvolId, TableId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::EPOCH;
use crate::FormatError;

/// An epoch's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochItem {
    /// The owner that pays for blocks with this epoch as their origin.
    pub subvol: SubvolId,
    pub state: EpochState,
    /// The number that it stamps on its pointers, or stamped last; not less than its own.
    pub current: EpochId,
    /// Pointers of this epoch or later are shared only with epochs below this one.
    pub first: EpochId,
    pub parent: Option<EpochId>,
    /// The files, as they are or were at the end of this epoch.
    pub table: TableId,
    /// Its deadlist; an epoch without parent has inherited nothing and has none.
    pub deadlist: Option<TableId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EpochState {
    Live = 0,
    Sealed = 1,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EpochDisk {
    subvol: U32,
    state: u8,
    reserved: [u8; 3], // written as zero
    current: U64,
    first: U64,
    parent: U64,
    table: U64,
    deadlist: U64,
}
const _: () = assert!(size_of::<EpochDisk>() == EpochItem::BYTES);

pub fn epoch_key(epoch: EpochId) -> Key {
    Key::new(epoch.0, EPOCH, 0)
}

impl EpochItem {
    pub const BYTES: usize = 48;
    const WHAT: &str = "epoch record";

    /// A live epoch of number `epoch` that begins a family.
    pub fn root(subvol: SubvolId, table: TableId, epoch: EpochId) -> EpochItem {
        let state = EpochState::Live;
        EpochItem {
            subvol,
            state,
            current: epoch,
            first: epoch,
            parent: None,
            table,
            deadlist: None,
        }
    }

    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(EpochDisk {
            subvol: self.subvol.0.into(),
            state: self.state as u8,
            reserved: [0; 3],
            current: self.current.0.into(),
            first: self.first.0.into(),
            parent: self.parent.map_or(0, |parent| parent.0).into(),
            table: self.table.0.into(),
            deadlist: self.deadlist.map_or(0, |set| set.0).into(),
        })
    }

    /// The record of epoch `key.object`.
    pub fn parse(key: Key, value: &[u8]) -> Result<EpochItem, FormatError> {
        let disk = EpochDisk::ref_from_bytes(value)
            .map_err(|_| FormatError::Short { what: Self::WHAT, len: value.len() })?;
        let bad = |field, value| FormatError::Field { what: Self::WHAT, field, value };
        let subvol = disk.subvol.get();
        if subvol == 0 || subvol >> SubvolId::BITS != 0 {
            return Err(bad("subvolume", subvol.into()));
        }
        let [a, b, c] = disk.reserved;
        if [a, b, c] != [0; 3] {
            return Err(bad("reserved field", u32::from_le_bytes([a, b, c, 0]).into()));
        }
        let state = match disk.state {
            0 => EpochState::Live,
            1 => EpochState::Sealed,
            state => return Err(bad("state", state.into())),
        };
        let some = |number: U64| Some(number.get()).filter(|&number| number != 0);
        let (current, first) = (disk.current.get(), disk.first.get());
        let (parent, set) = (some(disk.parent), some(disk.deadlist));
        if first == 0 || first > key.object {
            return Err(bad("first epoch", first));
        }
        if current < key.object {
            return Err(bad("current number", current));
        }
        if parent.is_some_and(|parent| parent >= first) || parent.is_some() != set.is_some() {
            return Err(bad("parent", disk.parent.get()));
        }
        Ok(EpochItem {
            subvol: SubvolId(subvol),
            state,
            current: EpochId(current),
            first: EpochId(first),
            parent: parent.map(EpochId),
            table: TableId(disk.table.get()),
            deadlist: set.map(TableId),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn child() -> EpochItem {
        EpochItem {
            subvol: SubvolId(1),
            state: EpochState::Sealed,
            current: EpochId(9),
            first: EpochId(4),
            parent: Some(EpochId(3)),
            table: TableId(5),
            deadlist: Some(TableId(6)),
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let parse = |item: EpochItem| EpochItem::parse(epoch_key(EpochId(7)), &item.encode());
        assert_eq!(parse(child()), Ok(child()));
        let root = EpochItem::root(SubvolId(2), TableId(5), EpochId(7));
        assert_eq!(parse(root), Ok(root));
    }

    #[test]
    fn a_state_that_nobody_knows_is_refused() {
        let mut bytes = child().encode();
        bytes[4] = 2;
        assert!(EpochItem::parse(epoch_key(EpochId(7)), &bytes).is_err());
    }

    #[test]
    fn a_field_that_nobody_knows_is_refused() {
        let mut bytes = child().encode();
        bytes[7] = 1;
        assert!(EpochItem::parse(epoch_key(EpochId(7)), &bytes).is_err());
    }

    #[test]
    fn a_place_in_the_tree_that_cannot_be_is_refused() {
        let bad = |change: fn(&mut EpochItem)| {
            let mut item = child();
            change(&mut item);
            EpochItem::parse(epoch_key(EpochId(7)), &item.encode()).is_err()
        };
        assert!(bad(|item| item.first = EpochId(8)));
        assert!(bad(|item| item.current = EpochId(6)));
        assert!(bad(|item| item.parent = Some(EpochId(4))));
        assert!(bad(|item| item.deadlist = None));
        assert!(bad(|item| item.subvol = SubvolId(0)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 40..56),
            object in any::<u64>(),
        ) {
            let _ = EpochItem::parse(Key::new(object, EPOCH, 0), &bytes);
        }
    }
}
