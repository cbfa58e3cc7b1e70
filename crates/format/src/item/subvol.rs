//! The record of a subvolume, in the pool's system table.
//!
//! ```text
//!   0 table u64 · epoch u64 · first u64 · flags u64 · hash key 16 bytes ·
//!  48 created: seconds i64, nanoseconds u32 · state u8 · 3 zeros · identity 16 bytes ·
//!  80 holder u32 · origin u32 (0: none) · directory u64 ·
//!  96 a deletion's numbers: 3 u64
//! ```
//!
//! The state says how far the deletion of a dying subvolume has come (R18), and defines the
//! numbers: 0 live · 1 to be settled · 2 being walked: object, offset, kind of the key that comes
//! next · 3 its epoch to be absorbed · 4 the heir's inherited list to be released: the heir, the
//! set that names it, the set of the absorbed leaf · 5 to be forgotten: 0, and the same sets or 0.

use copyhold_types::{EpochId, InodeNo, Key, Kind, SubvolId, TableId, Timestamp};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{HashKey, SUBVOL};
use crate::FormatError;

/// Properties of a subvolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubvolFlags(pub u64);

impl SubvolFlags {
    pub const READ_ONLY: u64 = 1;
    const KNOWN: u64 = 1;

    pub fn read_only(self) -> bool {
        self.0 & Self::READ_ONLY != 0
    }
}

/// A subvolume, live or being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubvolItem {
    /// Where its files are.
    pub table: TableId,
    /// Its epoch, the leaf of its family that is its own.
    pub epoch: EpochId,
    /// The start of its unshared pointers, as in its epoch's record.
    pub first: EpochId,
    pub flags: SubvolFlags,
    /// Of its names; snapshots inherit it.
    pub hash_key: HashKey,
    pub created: Timestamp,
    pub state: SubvolState,
    /// A random UUID.
    pub identity: [u8; 16],
    /// Where its entry is; any other entry that names it does not count (R39).
    pub place: ParentDirectory,
    /// The subvolume that it is a snapshot of.
    pub origin: Option<SubvolId>,
}

/// The directory that holds a subvolume's entry. The root subvolume has none and names its own root
/// directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentDirectory {
    pub subvol: SubvolId,
    pub directory: InodeNo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubvolState {
    Live,
    /// Deleted; freed in steps.
    Dying(Step),
}

/// The step of a deletion that comes next. Each is idempotent: the record moves on with its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its table is to be flushed, with all that lies under it.
    Settle,
    /// Its pointers are to be released, from this key on.
    Walk(Key),
    /// Its sibling is to take its parent's place.
    Absorb,
    /// Pointers that the sibling had dropped when it became the heir are to be released once more,
    /// permanently.
    Rebury { heir: EpochId, inherited: TableId, left: TableId },
    /// Its table is to be dropped, these sets too, and the record.
    Forget { sets: Option<[TableId; 2]> },
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
    state: u8,
    reserved: [u8; 3], // written as zero
    identity: [u8; 16],
    holder: U32,
    origin: U32,
    directory: U64,
    numbers: [U64; 3],
}
const _: () = assert!(size_of::<SubvolDisk>() == SubvolItem::BYTES);

pub fn subvol_key(subvol: SubvolId) -> Key {
    Key::new(subvol.0.into(), SUBVOL, 0)
}

impl SubvolState {
    fn encode(self) -> (u8, [u64; 3]) {
        let step = match self {
            SubvolState::Live => return (0, [0; 3]),
            SubvolState::Dying(step) => step,
        };
        match step {
            Step::Settle => (1, [0; 3]),
            Step::Walk(key) => (2, [key.object, key.offset, key.kind.0.into()]),
            Step::Absorb => (3, [0; 3]),
            Step::Rebury { heir, inherited, left } => (4, [heir.0, inherited.0, left.0]),
            Step::Forget { sets: None } => (5, [0; 3]),
            Step::Forget { sets: Some([one, other]) } => (5, [0, one.0, other.0]),
        }
    }

    fn parse(state: u8, numbers: [u64; 3]) -> Option<SubvolState> {
        let [a, b, c] = numbers;
        Some(SubvolState::Dying(match state {
            0 if numbers == [0; 3] => return Some(SubvolState::Live),
            1 if numbers == [0; 3] => Step::Settle,
            2 if c <= u8::MAX.into() => Step::Walk(Key::new(a, Kind(c as u8), b)),
            3 if numbers == [0; 3] => Step::Absorb,
            4 if !numbers.contains(&0) => {
                Step::Rebury { heir: EpochId(a), inherited: TableId(b), left: TableId(c) }
            }
            5 if numbers == [0; 3] => Step::Forget { sets: None },
            5 if a == 0 && b != 0 && c != 0 => {
                Step::Forget { sets: Some([TableId(b), TableId(c)]) }
            }
            _ => return None,
        }))
    }
}

impl SubvolItem {
    pub const BYTES: usize = 120;
    const WHAT: &str = "subvolume record";

    /// The record of a new subvolume that shares nothing.
    pub fn new(
        table: TableId,
        epoch: EpochId,
        place: ParentDirectory,
        hash_key: HashKey,
        created: Timestamp,
        identity: [u8; 16],
    ) -> SubvolItem {
        SubvolItem {
            table,
            epoch,
            first: epoch,
            flags: SubvolFlags::default(),
            hash_key,
            created,
            state: SubvolState::Live,
            identity,
            place,
            origin: None,
        }
    }

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (state, numbers) = self.state.encode();
        zerocopy::transmute!(SubvolDisk {
            table: self.table.0.into(),
            epoch: self.epoch.0.into(),
            first: self.first.0.into(),
            flags: self.flags.0.into(),
            hash_key: self.hash_key.0,
            created_secs: self.created.secs.into(),
            created_nanos: self.created.nanos.into(),
            state,
            reserved: [0; 3],
            identity: self.identity,
            holder: self.place.subvol.0.into(),
            origin: self.origin.map_or(0, |origin| origin.0).into(),
            directory: self.place.directory.0.into(),
            numbers: numbers.map(U64::from),
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
        let [a, b, c] = disk.reserved;
        if [a, b, c] != [0; 3] {
            return Err(bad("reserved field", u32::from_le_bytes([a, b, c, 0]).into()));
        }
        if first == 0 || first > epoch {
            return Err(bad("first epoch", first));
        }
        if disk.created_nanos.get() >= 1_000_000_000 {
            return Err(bad("creation time", disk.created_nanos.get().into()));
        }
        let numbers = disk.numbers.map(U64::get);
        let state =
            SubvolState::parse(disk.state, numbers).ok_or(bad("state", disk.state.into()))?;
        let (holder, origin) = (disk.holder.get(), disk.origin.get());
        if holder == 0 || (holder | origin) >> SubvolId::BITS != 0 {
            return Err(bad("holder or origin", (holder | origin).into()));
        }
        let directory = disk.directory.get();
        if directory == 0 || directory >> InodeNo::BITS != 0 {
            return Err(bad("directory", directory));
        }
        Ok(SubvolItem {
            table: TableId(disk.table.get()),
            epoch: EpochId(epoch),
            first: EpochId(first),
            flags: SubvolFlags(flags),
            hash_key: HashKey(disk.hash_key),
            created: Timestamp { secs: disk.created_secs.get(), nanos: disk.created_nanos.get() },
            state,
            identity: disk.identity,
            place: ParentDirectory { subvol: SubvolId(holder), directory: InodeNo(directory) },
            origin: (origin != 0).then_some(SubvolId(origin)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot(state: SubvolState) -> SubvolItem {
        let place = ParentDirectory { subvol: SubvolId(4), directory: InodeNo(77) };
        let created = Timestamp { secs: -1, nanos: 5 };
        let hash_key = HashKey([9; 16]);
        SubvolItem {
            first: EpochId(2),
            flags: SubvolFlags(SubvolFlags::READ_ONLY),
            state,
            origin: Some(SubvolId(1)),
            ..SubvolItem::new(TableId(5), EpochId(3), place, hash_key, created, [7; 16])
        }
    }

    #[test]
    fn a_record_comes_back_in_every_state() {
        let sets = [TableId(8), TableId(9)];
        let steps = [
            Step::Settle,
            Step::Walk(Key::MIN),
            Step::Walk(Key::MAX),
            Step::Absorb,
            Step::Rebury { heir: EpochId(7), inherited: sets[0], left: sets[1] },
            Step::Forget { sets: None },
            Step::Forget { sets: Some(sets) },
        ];
        let dying = steps.into_iter().map(SubvolState::Dying);
        for state in dying.chain([SubvolState::Live]) {
            assert_eq!(SubvolItem::parse(&snapshot(state).encode()), Ok(snapshot(state)));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let bad = |at: usize, byte: u8| {
            let mut bytes = snapshot(SubvolState::Live).encode();
            bytes[at] = byte;
            SubvolItem::parse(&bytes).is_err()
        };
        assert!(bad(16, 4), "a first epoch behind the current one");
        assert!(bad(24, 2), "a flag that nobody knows");
        assert!(bad(60, 6), "a state that nobody knows");
        assert!(bad(63, 1), "a field that nobody knows");
        assert!(bad(80, 0), "no holder");
        assert!(bad(87, 0x80), "an origin of 32 bits");
        assert!(bad(96, 1), "a live subvolume that is being deleted");
        assert!(!bad(0, 99));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 110..130),
        ) {
            let _ = SubvolItem::parse(&bytes);
        }

        #[test]
        fn a_changed_byte_is_seen_or_refused(
            at in 0..SubvolItem::BYTES, byte in any::<u8>(),
        ) {
            let mut bytes = snapshot(SubvolState::Live).encode();
            bytes[at] = byte;
            if let Ok(item) = SubvolItem::parse(&bytes) {
                prop_assert_eq!(item.encode(), bytes);
            }
        }
    }
}
