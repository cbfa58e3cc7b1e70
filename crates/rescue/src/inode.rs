//! Inodes (`docs/format.md`, 9.2).
//!
//! Types and bits are written out here once more: this crate shares no code with the engine, by
//! design.

use crate::bytes::Bytes;
use crate::damage::{Parse, demand};

/// The root directory of every subvolume.
pub const ROOT_INODE: u64 = 1;

/// Seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    pub seconds: i64,
    pub nanos: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileKind {
    fn bits(self) -> u32 {
        match self {
            FileKind::Fifo => 0o010_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::Directory => 0o040_000,
            FileKind::BlockDevice => 0o060_000,
            FileKind::Regular => 0o100_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Socket => 0o140_000,
        }
    }

    fn of(mode: u16) -> Parse<FileKind> {
        Ok(match mode >> 12 {
            0o01 => FileKind::Fifo,
            0o02 => FileKind::CharDevice,
            0o04 => FileKind::Directory,
            0o06 => FileKind::BlockDevice,
            0o10 => FileKind::Regular,
            0o12 => FileKind::Symlink,
            0o14 => FileKind::Socket,
            _ => return Err("a type of file that does not exist".into()),
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            FileKind::Regular => "file",
            FileKind::Directory => "directory",
            FileKind::Symlink => "symlink",
            FileKind::Fifo => "fifo",
            FileKind::Socket => "socket",
            FileKind::CharDevice => "character device",
            FileKind::BlockDevice => "block device",
        }
    }
}

/// The attributes of a file beside its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub number: u64,
    pub kind: FileKind,
    /// Permissions, setuid, setgid and sticky.
    pub mode: u16,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes of a file, entries of a directory, bytes of a symlink's target.
    pub size: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub born: Time,
    /// As FS_IOC_GETFLAGS shows them.
    pub flags: u32,
    pub project: u32,
    /// Of a special file.
    pub device: u32,
    pub(crate) inline: bool,
}

impl Inode {
    /// Type and permissions.
    pub fn st_mode(&self) -> u32 {
        self.kind.bits() | u32::from(self.mode)
    }

    pub(crate) fn parse(number: u64, value: &[u8]) -> Parse<Inode> {
        let mut bytes = Bytes(value);
        let (mode, bits) = (bytes.u16()?, bytes.u16()?);
        demand(bits <= 7, "bits that this program does not know")?;
        let (links, uid, gid) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
        let size = bytes.u64()?;
        bytes.u64()?;
        let seconds = [bytes.i64()?, bytes.i64()?, bytes.i64()?, bytes.i64()?];
        let nanos = [bytes.u32()?, bytes.u32()?, bytes.u32()?, bytes.u32()?];
        demand(nanos.into_iter().all(|nanos| nanos < 1_000_000_000), "no time")?;
        let time = |nth: usize| Time { seconds: seconds[nth], nanos: nanos[nth] };
        let (flags, project, device) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
        bytes.take(4 + 8 + 4 + 4)?;
        bytes.end()?;
        Ok(Inode {
            number,
            kind: FileKind::of(mode)?,
            mode: mode & 0o7777,
            links,
            uid,
            gid,
            size,
            accessed: time(0),
            modified: time(1),
            changed: time(2),
            born: time(3),
            flags,
            project,
            device,
            inline: bits & 1 == 1,
        })
    }
}
