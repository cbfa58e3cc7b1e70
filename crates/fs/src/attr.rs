//! The attributes that a file shows, and those that can be set.

use copyhold_types::Timestamp;

use crate::NodeId;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    const MASK: u32 = 0o170000;

    /// The type in the upper bits of a mode; `None` if they mean nothing.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & Self::MASK {
            0o100000 => FileKind::Regular,
            0o040000 => FileKind::Directory,
            0o120000 => FileKind::Symlink,
            0o010000 => FileKind::Fifo,
            0o140000 => FileKind::Socket,
            0o020000 => FileKind::CharDevice,
            0o060000 => FileKind::BlockDevice,
            _ => return None,
        })
    }

    /// The type bits of a mode.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => 0o100000,
            FileKind::Directory => 0o040000,
            FileKind::Symlink => 0o120000,
            FileKind::Fifo => 0o010000,
            FileKind::Socket => 0o140000,
            FileKind::CharDevice => 0o020000,
            FileKind::BlockDevice => 0o060000,
        }
    }

    /// `DT_*`, as directory entries show it.
    pub fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }

    /// The other way of [`Self::dirent_type`].
    pub fn from_dirent_type(kind: u8) -> Option<FileKind> {
        FileKind::from_mode(u32::from(kind) << 12)
    }
}

/// Flags of a file, with the bits of `FS_IOC_GETFLAGS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFlags(pub u32);

impl FileFlags {
    pub const SYNC: FileFlags = FileFlags(0x8);
    pub const IMMUTABLE: FileFlags = FileFlags(0x10);
    pub const APPEND: FileFlags = FileFlags(0x20);
    pub const NODUMP: FileFlags = FileFlags(0x40);
    pub const NOATIME: FileFlags = FileFlags(0x80);
    pub const DIRSYNC: FileFlags = FileFlags(0x1_0000);
    /// Children inherit the project id.
    pub const PROJINHERIT: FileFlags = FileFlags(0x2000_0000);
    /// The flags that can be set; others are refused.
    pub const SETTABLE: FileFlags = FileFlags(0x2001_00f8);

    pub fn contains(self, other: FileFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The result of `stat` and `statx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub node: NodeId,
    pub kind: FileKind,
    /// Permission bits with set-user-id, set-group-id and sticky; no type bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    /// Bytes; of a directory, the number of its entries.
    pub size: u64,
    /// The occupied space, in units of 512 bytes.
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// Of device files, as `makedev` packs it (Linux, 32 bits).
    pub rdev: u32,
    pub flags: FileFlags,
    pub project: u32,
    pub generation: u32,
}

impl Attr {
    /// Type and permissions, as `st_mode`.
    pub fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | self.mode
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(Timestamp),
}

/// The attributes to change; `None` leaves one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Where the front end keeps the change time itself (writeback cache).
    pub ctime: Option<copyhold_types::Timestamp>,
    /// Clear set-user-id and set-group-id with a change of size (`FATTR_KILL_SUIDGID`). A change of
    /// owner clears them in any case.
    pub kill_priv: bool,
    /// The size is 0, and the file is open for writing: the old content goes with the data written
    /// next, or with a close ([`crate::Filesystem::flush`]).
    pub empties: bool,
    /// Times that belong to bytes which a cache in front took earlier (see
    /// [`crate::WriteFlags::accepted`]).
    pub accepted: bool,
}

/// A name's file, found or made. Counts as one look-up: give it back with `forget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub node: NodeId,
    pub attr: Attr,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    pub read: bool,
    pub write: bool,
    pub append: bool,
    pub truncate: bool,
    /// With `truncate`, as in [`SetAttr::kill_priv`].
    pub kill_priv: bool,
}

impl OpenFlags {
    pub const READ: OpenFlags =
        OpenFlags { read: true, write: false, append: false, truncate: false, kill_priv: false };
    pub const READ_WRITE: OpenFlags = OpenFlags { write: true, ..OpenFlags::READ };
}

/// The result of `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    pub block_bytes: u32,
    pub blocks: u64,
    pub blocks_free: u64,
    /// Usable by ordinary writes; includes space that is being freed.
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_max: u32,
    /// Distinguishes this filesystem from others.
    pub fsid: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_survives_the_way_through_mode_and_dirent() {
        for bits in 0..16 {
            if let Some(kind) = FileKind::from_mode(bits << 12) {
                assert_eq!(kind.mode_bits(), bits << 12);
                assert_eq!(FileKind::from_dirent_type(kind.dirent_type()), Some(kind));
            }
        }
    }
}
