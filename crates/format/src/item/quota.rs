//! Records of simple quotas, in the pool's system table: the owners, their usage, and their
//! limits.
//!
//! ```text
//! (0, QUOTA, 0)             mode u8 (0 off, 1 simple) · 7 zeros · enabling epoch u64 ·
//!                           generation u64
//! (origin epoch, USAGE, 0)  owner u32 · 0 u32 · data u64 · metadata u64
//! (group, GROUP, 0)         flags u64 (bit 0: tombstone, bit 1: see below) · limits:
//!                           referenced, exclusive, inodes, snapshots u64 (2⁶⁴ − 1: none) ·
//!                           reserve u64 ·
//!                        48 dead since: seconds i64, nanoseconds u32 · holder u32 (0: none) ·
//!                        64 if bit 1 of the flags is set: limit of subvolumes u64 ·
//!                           last name, at most 255 bytes
//! (child, MEMBER, parent)   empty
//! (owner, HEIR, 0)          heir u32 · 0 u32
//! (subvolume, INODES, 0)    first counted u64 · count u64
//! ```
//!
//! A group is `level << 48 | id`; level 0 is a subvolume. Sizes are bytes. A subvolume without
//! limits, reserve or tombstone has no GROUP record, and an epoch without usage has no USAGE.

use std::fmt;
use std::str::FromStr;

use copyhold_types::{EpochId, InodeNo, Key, Kind, SubvolId, Timestamp};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;

pub const QUOTA: Kind = Kind(30);
pub const USAGE: Kind = Kind(31);
pub const GROUP: Kind = Kind(32);
pub const MEMBER: Kind = Kind(33);
pub const HEIR: Kind = Kind(34);
pub const INODES: Kind = Kind(35);

/// Longest name that a tombstone keeps.
pub const TOMBSTONE_NAME_MAX: usize = 255;

/// A quota group, `level/id`. Groups of level 0 are subvolumes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u64);

/// A text that names no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a quota group is level/id, such as 1/100, with a level below 65536 and an id below 2^48")]
pub struct BadGroupId;

impl GroupId {
    const ID_BITS: u32 = 48;

    /// `None` if `id` has more than 48 bits.
    pub fn new(level: u16, id: u64) -> Option<GroupId> {
        (id >> Self::ID_BITS == 0).then_some(GroupId(u64::from(level) << Self::ID_BITS | id))
    }

    pub fn of(subvol: SubvolId) -> GroupId {
        GroupId(subvol.0.into())
    }

    pub fn level(self) -> u16 {
        (self.0 >> Self::ID_BITS) as u16
    }

    pub fn id(self) -> u64 {
        self.0 & ((1 << Self::ID_BITS) - 1)
    }

    /// The subvolume that a group of level 0 is.
    pub fn subvol(self) -> Option<SubvolId> {
        let is_subvol = self.0 != 0 && self.0 >> SubvolId::BITS == 0;
        is_subvol.then_some(SubvolId(self.0 as u32))
    }

    pub fn raw(self) -> u64 {
        self.0
    }

    /// A place in the order of groups, at which there need not be one.
    pub fn place(raw: u64) -> GroupId {
        GroupId(raw)
    }

    /// A group as a key has it. Level 0 has the ids of subvolumes only.
    pub fn parse(raw: u64) -> Result<GroupId, FormatError> {
        let group = GroupId(raw);
        if group.level() == 0 && group.subvol().is_none() {
            return Err(FormatError::Field { what: "quota group", field: "id", value: raw });
        }
        Ok(group)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level(), self.id())
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for GroupId {
    type Err = BadGroupId;

    fn from_str(text: &str) -> Result<GroupId, BadGroupId> {
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            if plain { digits.parse::<u64>().map_err(|_| BadGroupId) } else { Err(BadGroupId) }
        };
        let (level, id) = text.split_once('/').ok_or(BadGroupId)?;
        let level = u16::try_from(number(level)?).map_err(|_| BadGroupId)?;
        GroupId::new(level, number(id)?).ok_or(BadGroupId)
    }
}

/// Whether quotas are on, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaItem {
    /// On: blocks with an origin from this epoch on are counted, at their birth and their death
    /// (R25).
    pub counted_from: Option<EpochId>,
    /// How often quotas were enabled.
    pub generation: u64,
}

/// Usage of blocks with one epoch as their origin, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageItem {
    /// The subvolume that began the epoch. It pays, or its heir does.
    pub owner: SubvolId,
    pub data: u64,
    pub metadata: u64,
}

/// How much a group may have. `None`: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub referenced: Option<u64>,
    /// Means the same: in simple quotas every byte is exclusively its owner's.
    pub exclusive: Option<u64>,
    pub inodes: Option<u64>,
    pub snapshots: Option<u64>,
    /// Living subvolumes below a group, or inside a subvolume.
    pub subvolumes: Option<u64>,
}

/// A group, or a subvolume with limits or a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupItem {
    pub limits: Limits,
    /// Bytes that a subvolume is sure to get; 0 for none.
    pub reserve: u64,
    /// The subvolume is deleted and still pays.
    pub tombstone: Option<Tombstone>,
}

/// The record of a deleted subvolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tombstone {
    pub since: Timestamp,
    /// The subvolume that held its directory entry.
    pub holder: Option<SubvolId>,
    /// Its name, cut to [`TOMBSTONE_NAME_MAX`] bytes.
    pub name: Box<[u8]>,
}

/// How many files a subvolume has. Numbers of inodes ascend, so those from before it was counted
/// are known by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodesItem {
    pub counted_from: InodeNo,
    pub count: u64,
}

pub fn quota_key() -> Key {
    Key::new(0, QUOTA, 0)
}

pub fn usage_key(origin: EpochId) -> Key {
    Key::new(origin.0, USAGE, 0)
}

pub fn group_key(group: GroupId) -> Key {
    Key::new(group.raw(), GROUP, 0)
}

pub fn member_key(child: GroupId, parent: GroupId) -> Key {
    Key::new(child.raw(), MEMBER, parent.raw())
}

pub fn heir_key(owner: SubvolId) -> Key {
    Key::new(owner.0.into(), HEIR, 0)
}

pub fn inodes_key(subvol: SubvolId) -> Key {
    Key::new(subvol.0.into(), INODES, 0)
}

fn subvol(what: &'static str, raw: u64) -> Result<SubvolId, FormatError> {
    let parsed = GroupId(raw).subvol();
    parsed.ok_or(FormatError::Field { what, field: "subvolume", value: raw })
}

fn fixed<'a, T>(what: &'static str, value: &'a [u8]) -> Result<&'a T, FormatError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_bytes(value).map_err(|_| FormatError::Short { what, len: value.len() })
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct QuotaDisk {
    mode: U64, // one byte and seven zeros
    counted_from: U64,
    generation: U64,
}
const _: () = assert!(size_of::<QuotaDisk>() == QuotaItem::BYTES);

impl QuotaItem {
    pub const BYTES: usize = 24;
    const WHAT: &str = "quota status";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(QuotaDisk {
            mode: u64::from(self.counted_from.is_some()).into(),
            counted_from: self.counted_from.map_or(0, |epoch| epoch.0).into(),
            generation: self.generation.into(),
        })
    }

    pub fn parse(value: &[u8]) -> Result<QuotaItem, FormatError> {
        let disk: &QuotaDisk = fixed(Self::WHAT, value)?;
        let bad = |field, value| FormatError::Field { what: Self::WHAT, field, value };
        let (from, generation) = (disk.counted_from.get(), disk.generation.get());
        let counted_from = match disk.mode.get() {
            0 if from == 0 => None,
            1 if from != 0 && generation != 0 => Some(EpochId(from)),
            0 | 1 => return Err(bad("enabling epoch", from)),
            mode => return Err(bad("mode", mode)),
        };
        Ok(QuotaItem { counted_from, generation })
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct UsageDisk {
    owner: U64, // four bytes and four zeros
    data: U64,
    metadata: U64,
}
const _: () = assert!(size_of::<UsageDisk>() == UsageItem::BYTES);

impl UsageItem {
    pub const BYTES: usize = 24;
    const WHAT: &str = "usage of an epoch";
    /// No sum of numbers on disk comes near the end of 64 bits.
    const MAX: u64 = 1 << 60;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(UsageDisk {
            owner: u64::from(self.owner.0).into(),
            data: self.data.into(),
            metadata: self.metadata.into(),
        })
    }

    pub fn parse(value: &[u8]) -> Result<UsageItem, FormatError> {
        let disk: &UsageDisk = fixed(Self::WHAT, value)?;
        let (data, metadata) = (disk.data.get(), disk.metadata.get());
        if data > Self::MAX || metadata > Self::MAX {
            let value = data.max(metadata);
            return Err(FormatError::Field { what: Self::WHAT, field: "bytes", value });
        }
        Ok(UsageItem { owner: subvol(Self::WHAT, disk.owner.get())?, data, metadata })
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct GroupDisk {
    flags: U64,
    limits: [U64; 4],
    reserve: U64,
    since_secs: I64,
    since_nanos: U32,
    holder: U32,
}
const _: () = assert!(size_of::<GroupDisk>() == GroupItem::BYTES);

impl Limits {
    const NONE: u64 = u64::MAX;

    fn encode(&self) -> [U64; 4] {
        [self.referenced, self.exclusive, self.inodes, self.snapshots]
            .map(|limit| limit.unwrap_or(Self::NONE).into())
    }

    fn parse(disk: [U64; 4]) -> Limits {
        let [referenced, exclusive, inodes, snapshots] =
            disk.map(|limit| (limit.get() != Self::NONE).then_some(limit.get()));
        Limits { referenced, exclusive, inodes, snapshots, subvolumes: None }
    }

    /// The limit of a group in bytes: the lower of the two.
    pub fn bytes(&self) -> Option<u64> {
        [self.referenced, self.exclusive].into_iter().flatten().min()
    }
}

impl GroupItem {
    /// Without a tombstone's name.
    pub const BYTES: usize = 64;
    const WHAT: &str = "quota group";
    const TOMBSTONE: u64 = 1;
    const SUBVOLUMES: u64 = 2;

    pub fn encode(&self) -> Vec<u8> {
        let nobody = Tombstone::default();
        let dead = self.tombstone.as_ref();
        let Tombstone { since, holder, name } = dead.unwrap_or(&nobody);
        let tombstone = dead.map_or(0, |_| Self::TOMBSTONE);
        let subvolumes = self.limits.subvolumes.map_or(0, |_| Self::SUBVOLUMES);
        let disk = GroupDisk {
            flags: (tombstone | subvolumes).into(),
            limits: self.limits.encode(),
            reserve: self.reserve.into(),
            since_secs: since.secs.into(),
            since_nanos: since.nanos.into(),
            holder: holder.map_or(0, |holder| holder.0).into(),
        };
        let name = &name[..name.len().min(TOMBSTONE_NAME_MAX)];
        let limit = self.limits.subvolumes.map(u64::to_le_bytes);
        [disk.as_bytes(), limit.as_ref().map_or(&[], |limit| &limit[..]), name].concat()
    }

    pub fn parse(value: &[u8]) -> Result<GroupItem, FormatError> {
        let (disk, mut name) = GroupDisk::ref_from_prefix(value)
            .map_err(|_| FormatError::Short { what: Self::WHAT, len: value.len() })?;
        let bad = |field, value| FormatError::Field { what: Self::WHAT, field, value };
        let (flags, reserve) = (disk.flags.get(), disk.reserve.get());
        if flags & !(Self::TOMBSTONE | Self::SUBVOLUMES) != 0 {
            return Err(bad("flags", flags));
        }
        if reserve > UsageItem::MAX {
            return Err(bad("reserve", reserve));
        }
        let mut limits = Limits::parse(disk.limits);
        if flags & Self::SUBVOLUMES != 0 {
            let (limit, rest) = U64::ref_from_prefix(name)
                .map_err(|_| FormatError::Short { what: Self::WHAT, len: value.len() })?;
            limits.subvolumes = Some(limit.get());
            name = rest;
        }
        let tombstone = if flags & Self::TOMBSTONE != 0 {
            Some(Tombstone::parse(disk, name)?)
        } else if name.is_empty() && disk.since_secs.get() == 0 && disk.is_alive() {
            None
        } else {
            return Err(bad("what is known of a tombstone, without being one", flags));
        };
        Ok(GroupItem { limits, reserve, tombstone })
    }
}

impl GroupDisk {
    fn is_alive(&self) -> bool {
        self.since_nanos.get() == 0 && self.holder.get() == 0
    }
}

impl Tombstone {
    fn parse(disk: &GroupDisk, name: &[u8]) -> Result<Tombstone, FormatError> {
        let what = GroupItem::WHAT;
        let bad = |field, value| FormatError::Field { what, field, value };
        if name.len() > TOMBSTONE_NAME_MAX {
            return Err(bad("length of the name", name.len() as u64));
        }
        let nanos = disk.since_nanos.get();
        if nanos >= 1_000_000_000 {
            return Err(bad("time", nanos.into()));
        }
        let holder = disk.holder.get();
        let holder = if holder == 0 { None } else { Some(subvol(what, holder.into())?) };
        let since = Timestamp { secs: disk.since_secs.get(), nanos };
        Ok(Tombstone { since, holder, name: name.into() })
    }
}

/// The value of an HEIR record.
pub fn encode_heir(heir: SubvolId) -> [u8; 8] {
    u64::from(heir.0).to_le_bytes()
}

pub fn parse_heir(value: &[u8]) -> Result<SubvolId, FormatError> {
    const WHAT: &str = "heir";
    let bytes =
        value.try_into().map_err(|_| FormatError::Short { what: WHAT, len: value.len() })?;
    subvol(WHAT, u64::from_le_bytes(bytes))
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct InodesDisk {
    counted_from: U64,
    count: U64,
}
const _: () = assert!(size_of::<InodesDisk>() == InodesItem::BYTES);

impl InodesItem {
    pub const BYTES: usize = 16;
    const WHAT: &str = "count of inodes";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(InodesDisk {
            counted_from: self.counted_from.0.into(),
            count: self.count.into(),
        })
    }

    pub fn parse(value: &[u8]) -> Result<InodesItem, FormatError> {
        let disk: &InodesDisk = fixed(Self::WHAT, value)?;
        let (from, count) = (disk.counted_from.get(), disk.count.get());
        if (from | count) >> InodeNo::BITS != 0 {
            let value = from | count;
            return Err(FormatError::Field { what: Self::WHAT, field: "inodes", value });
        }
        Ok(InodesItem { counted_from: InodeNo(from), count })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group(level: u16, id: u64) -> GroupId {
        GroupId::new(level, id).unwrap()
    }

    #[test]
    fn groups_are_written_level_slash_id() {
        assert_eq!("1/100".parse(), Ok(group(1, 100)));
        assert_eq!(group(65535, (1 << 48) - 1).to_string(), "65535/281474976710655");
        assert_eq!(GroupId::of(SubvolId(7)).to_string(), "0/7");
        for bad in
            ["", "1", "/", "1/", "/1", "+1/2", "1/-2", "65536/1", "0/281474976710656", "1/2/3"]
        {
            assert_eq!(bad.parse::<GroupId>(), Err(BadGroupId), "{bad}");
        }
    }

    #[test]
    fn only_subvolumes_are_groups_of_level_0() {
        assert_eq!(group(0, 5).subvol(), Some(SubvolId(5)));
        assert_eq!(group(1, 5).subvol(), None);
        assert!(GroupId::parse(0).is_err());
        assert!(GroupId::parse(1 << 28).is_err());
        assert_eq!(GroupId::parse(1 << 48), Ok(group(1, 0)));
    }

    #[test]
    fn a_live_group_has_no_name_and_no_date() {
        let mut bytes = GroupItem::default().encode();
        assert_eq!(GroupItem::parse(&bytes), Ok(GroupItem::default()));
        bytes[48] = 1;
        assert!(GroupItem::parse(&bytes).is_err());
        bytes[48] = 0;
        bytes.push(b'x');
        assert!(GroupItem::parse(&bytes).is_err());
    }

    #[test]
    fn quotas_that_are_on_say_from_which_epoch() {
        let mut bytes = QuotaItem::default().encode();
        assert_eq!(QuotaItem::parse(&bytes), Ok(QuotaItem::default()));
        bytes[0] = 1;
        assert!(QuotaItem::parse(&bytes).is_err());
        bytes[0] = 2;
        assert!(QuotaItem::parse(&bytes).is_err());
    }

    fn tombstone() -> impl Strategy<Value = Tombstone> {
        (any::<i64>(), 0..1_000_000_000u32, proptest::option::of(1..1u32 << 28), ".{0,60}")
            .prop_map(|(secs, nanos, holder, name)| Tombstone {
                since: Timestamp { secs, nanos },
                holder: holder.map(SubvolId),
                name: name.into_bytes().into(),
            })
    }

    fn limits() -> impl Strategy<Value = Limits> {
        let limit = || proptest::option::of(0..u64::MAX);
        (limit(), limit(), limit(), limit(), limit()).prop_map(
            |(referenced, exclusive, inodes, snapshots, subvolumes)| Limits {
                referenced,
                exclusive,
                inodes,
                snapshots,
                subvolumes,
            },
        )
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were(
            limits in limits(),
            tombstone in proptest::option::of(tombstone()),
            bytes in 0..=UsageItem::MAX,
            small in 1..1u32 << 28,
        ) {
            let item = GroupItem { limits, reserve: bytes, tombstone };
            prop_assert_eq!(GroupItem::parse(&item.encode()), Ok(item));
            let item = UsageItem { owner: SubvolId(small), data: bytes, metadata: 4096 };
            prop_assert_eq!(UsageItem::parse(&item.encode()), Ok(item));
            let item = QuotaItem { counted_from: Some(EpochId(bytes + 1)), generation: 3 };
            prop_assert_eq!(QuotaItem::parse(&item.encode()), Ok(item));
            let item = InodesItem { counted_from: InodeNo(7), count: small.into() };
            prop_assert_eq!(InodesItem::parse(&item.encode()), Ok(item));
            prop_assert_eq!(parse_heir(&encode_heir(SubvolId(small))), Ok(SubvolId(small)));
            let level = u64::from(small % 0xffff + 1) << 48;
            let id = GroupId::parse(level | u64::from(small)).unwrap();
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }

        #[test]
        fn what_parses_is_encoded_again_as_it_was(
            head in proptest::collection::vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..80),
        ) {
            if let Ok(item) = QuotaItem::parse(&head) {
                prop_assert_eq!(&item.encode()[..], &head[..]);
            }
            if let Ok(item) = UsageItem::parse(&head) {
                prop_assert_eq!(&item.encode()[..], &head[..]);
            }
            if let Ok(item) = GroupItem::parse(&head) {
                prop_assert_eq!(&item.encode()[..], &head[..]);
            }
            if let Ok(item) = InodesItem::parse(&head) {
                prop_assert_eq!(&item.encode()[..], &head[..]);
            }
            if let Ok(heir) = parse_heir(&head) {
                prop_assert_eq!(&encode_heir(heir)[..], &head[..]);
            }
        }
    }
}
