//! The inode item: all fields that `stat` shows, and those that lead to the other items.
//!
//! ```text
//!   0 mode u16 · what there is u16 · links u32 · uid u32 · gid u32
//!  16 size u64 · allocated u64
//!  32 seconds of atime, mtime, ctime, btime: i64 each
//!  64 nanoseconds of the same: u32 each
//!  80 flags u32 · project u32 · rdev u32 · generation u32
//!  96 parent u64 · attributes u32 · checksum mode u8 · 0 u8 · 0 u16
//! ```

use copyhold_types::{InodeNo, Timestamp};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ChecksumMode;
use crate::FormatError;

const WHAT: &str = "inode item";
const KIND_MASK: u16 = 0o170000;

/// Other items of the inode that exist, so that they need not be looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags(pub u16);

impl InodeFlags {
    /// Block 0 is in an INLINE item.
    pub const INLINE: u16 = 1;
    /// There is an access ACL among the attributes.
    pub const ACCESS_ACL: u16 = 2;
    /// There is a default ACL among the attributes.
    pub const DEFAULT_ACL: u16 = 4;
    const KNOWN: u16 = 7;

    pub fn has(self, bit: u16) -> bool {
        self.0 & bit != 0
    }

    pub fn set(&mut self, bit: u16, on: bool) {
        if on { self.0 |= bit } else { self.0 &= !bit }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeItem {
    /// Type and permissions, as `st_mode`; the type is one of the seven that exist.
    pub mode: u16,
    pub has: InodeFlags,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes; of a directory, the number of its entries.
    pub size: u64,
    /// Bytes of its extents, with preallocated ones; inline data is not counted.
    pub allocated: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// Bits of `FS_IOC_GETFLAGS`.
    pub flags: u32,
    pub project: u32,
    pub rdev: u32,
    pub generation: u32,
    /// The directory that holds a directory, itself for the root. Of another file, the directory in
    /// which its latest name was made: it may have gone again. 0: unknown.
    pub parent: InodeNo,
    /// How many extended attributes there are.
    pub xattrs: u32,
    /// Of new extents; of a directory, of new files in it.
    pub checksum_mode: ChecksumMode,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct InodeDisk {
    mode: U16,
    has: U16,
    nlink: U32,
    uid: U32,
    gid: U32,
    size: U64,
    allocated: U64,
    secs: [I64; 4],
    nanos: [U32; 4],
    flags: U32,
    project: U32,
    rdev: U32,
    generation: U32,
    parent: U64,
    xattrs: U32,
    checksum_mode: u8,
    reserved: [u8; 3], // written as zero
}
const _: () = assert!(size_of::<InodeDisk>() == InodeItem::BYTES);

impl InodeItem {
    pub const BYTES: usize = 112;

    /// Links of a directory that has, or once had, more than can be counted: it stays.
    pub const LINKS_SATURATED: u32 = u32::MAX;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let times = [self.atime, self.mtime, self.ctime, self.btime];
        let disk = InodeDisk {
            mode: self.mode.into(),
            has: self.has.0.into(),
            nlink: self.nlink.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            size: self.size.into(),
            allocated: self.allocated.into(),
            secs: times.map(|time| time.secs.into()),
            nanos: times.map(|time| time.nanos.into()),
            flags: self.flags.into(),
            project: self.project.into(),
            rdev: self.rdev.into(),
            generation: self.generation.into(),
            parent: self.parent.0.into(),
            xattrs: self.xattrs.into(),
            checksum_mode: self.checksum_mode.code(),
            reserved: [0; 3],
        };
        zerocopy::transmute!(disk)
    }

    pub fn parse(value: &[u8]) -> Result<InodeItem, FormatError> {
        let disk = InodeDisk::ref_from_bytes(value)
            .map_err(|_| FormatError::Short { what: WHAT, len: value.len() })?;
        let mut times = [Timestamp::default(); 4];
        for (n, time) in times.iter_mut().enumerate() {
            *time = Timestamp { secs: disk.secs[n].get(), nanos: disk.nanos[n].get() };
            check("nanoseconds", time.nanos.into(), time.nanos < 1_000_000_000)?;
        }
        let mode = disk.mode.get();
        let kind = (mode & KIND_MASK) >> 12;
        check("mode", mode.into(), matches!(kind, 1 | 2 | 4 | 6 | 8 | 10 | 12))?;
        let has = disk.has.get();
        check("content flags", has.into(), has & !InodeFlags::KNOWN == 0)?;
        let parent = disk.parent.get();
        check("parent", parent, parent >> InodeNo::BITS == 0 && (kind != 4 || parent != 0))?;
        let checksum_mode = ChecksumMode::of_code(disk.checksum_mode);
        check("checksum mode", disk.checksum_mode.into(), checksum_mode.is_some())?;
        check("reserved field", disk.reserved[0].into(), disk.reserved == [0; 3])?;
        let [atime, mtime, ctime, btime] = times;
        Ok(InodeItem {
            mode,
            has: InodeFlags(has),
            nlink: disk.nlink.get(),
            uid: disk.uid.get(),
            gid: disk.gid.get(),
            size: disk.size.get(),
            allocated: disk.allocated.get(),
            atime,
            mtime,
            ctime,
            btime,
            flags: disk.flags.get(),
            project: disk.project.get(),
            rdev: disk.rdev.get(),
            generation: disk.generation.get(),
            parent: InodeNo(parent),
            xattrs: disk.xattrs.get(),
            checksum_mode: checksum_mode.unwrap_or_default(),
        })
    }

    pub fn is_dir(&self) -> bool {
        self.mode & KIND_MASK == 0o040000
    }
}

fn check(field: &'static str, value: u64, good: bool) -> Result<(), FormatError> {
    if good { Ok(()) } else { Err(FormatError::Field { what: WHAT, field, value }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> InodeItem {
        let time = |secs| Timestamp { secs, nanos: 999_999_999 };
        InodeItem {
            mode: 0o040755,
            has: InodeFlags(InodeFlags::DEFAULT_ACL),
            nlink: 3,
            uid: 1000,
            gid: u32::MAX,
            size: u64::MAX,
            allocated: 1 << 40,
            atime: time(-5),
            mtime: time(1),
            ctime: time(2),
            btime: time(i64::MAX),
            flags: 0x10,
            project: 9,
            rdev: 0x0103,
            generation: 7,
            parent: InodeNo(1),
            xattrs: 2,
            checksum_mode: ChecksumMode::None,
        }
    }

    #[test]
    fn an_inode_comes_back_as_it_was() {
        assert_eq!(InodeItem::parse(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = sample();
        let bad = |change: fn(&mut InodeItem)| {
            let mut item = good;
            change(&mut item);
            InodeItem::parse(&item.encode()).is_err()
        };
        assert!(bad(|item| item.mode = 0o755));
        assert!(bad(|item| item.parent = InodeNo(0)));
        assert!(bad(|item| item.parent = InodeNo(1 << 36)));
        assert!(bad(|item| item.has.0 = 0x8000));
        let with = |at: usize, byte| {
            let mut bytes = good.encode();
            bytes[at] = byte;
            InodeItem::parse(&bytes)
        };
        assert!(with(108, 4).is_err() && with(109, 1).is_err() && with(111, 1).is_err());
        assert!(bad(|item| item.mtime.nanos = 1_000_000_000));
        assert!(InodeItem::parse(&good.encode()[1..]).is_err());
    }
}
