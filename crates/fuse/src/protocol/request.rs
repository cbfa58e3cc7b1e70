//! Requests with their meaning: the result of [`super::parse`] on the kernel's bytes.
//!
//! Flags have become `Option`s, `bool`s and enums; names are bytes without NUL, never empty, and
//! borrow from the message. The node of the header is not repeated here: see [`Caller`].

use copyhold_types::Timestamp;

use super::extension::Extensions;
use super::flags::INVALID_ID;

/// The kernel's name for an inode; the filesystem chose it in an entry. [`NodeId::ROOT`] is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    pub const ROOT: NodeId = NodeId(1);
}

/// The filesystem's answer to an open; the kernel repeats it with each use of that file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// Whom a lock belongs to: a process's table of files (POSIX) or an open file (flock).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

/// The caller, and the node that it asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Number of the request on this connection, never used twice.
    pub unique: u64,
    /// None where mounts may map ids ([`super::Settings::idmapped_mounts`]), unless the request
    /// makes a file: CREATE, MKNOD, MKDIR, SYMLINK, TMPFILE, RENAME with a whiteout. There it is
    /// none if the caller has no id in this filesystem.
    pub ids: Option<Ids>,
    /// Thread id in the daemon's pid namespace; 0 for the kernel itself and for strangers.
    pub pid: u32,
}

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

impl Caller {
    pub(crate) fn of(header: &super::wire::InHeader) -> Caller {
        let known = header.uid != INVALID_ID && header.gid != INVALID_ID;
        let ids = known.then_some(Ids { uid: header.uid, gid: header.gid });
        Caller { unique: header.unique, ids, pid: header.pid }
    }
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(Timestamp),
}

/// SETATTR: only attributes that are `Some` change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    pub handle: Option<Handle>,
    pub lock_owner: Option<LockOwner>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Only from a writeback cache.
    pub ctime: Option<Timestamp>,
    /// A truncation by a caller that may not keep setuid and setgid: take them away.
    pub kill_suidgid: bool,
}

/// READ, READDIR and READDIRPLUS. For directories `offset` is the cookie of the last entry seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub handle: Handle,
    pub offset: u64,
    /// Most bytes that the answer may have.
    pub size: u32,
    /// Flags of the open file, `O_…`.
    pub flags: u32,
    pub lock_owner: Option<LockOwner>,
}

/// WRITE; the data comes beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub handle: Handle,
    pub offset: u64,
    pub size: u32,
    /// Flags of the open file, `O_…`.
    pub flags: u32,
    pub lock_owner: Option<LockOwner>,
    /// From the page cache: the handle is any open one, the caller perhaps another process.
    pub cached: bool,
    /// Take setuid and setgid away.
    pub kill_suidgid: bool,
}

/// MKNOD, MKDIR, SYMLINK, TMPFILE, CREATE: the attributes that a new inode starts with.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// Type and permissions. The umask is not applied yet: a default ACL would replace it.
    pub mode: u32,
    pub umask: u32,
    /// Device number of a device node.
    pub rdev: u32,
    pub extensions: Extensions<'a>,
}

/// OPEN, OPENDIR and the open half of CREATE and TMPFILE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// `O_…` without `O_CREAT`, `O_EXCL`, `O_NOCTTY`.
    pub flags: u32,
    /// With `O_TRUNC`: take setuid and setgid away.
    pub kill_suidgid: bool,
}

/// RELEASE and RELEASEDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    pub handle: Handle,
    pub flags: u32,
    pub flush: bool,
    pub lock_owner: LockOwner,
    /// Drop the flock locks of `lock_owner`.
    pub flock_unlock: bool,
}

/// RENAME and RENAME2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    pub name: &'a [u8],
    pub new_parent: NodeId,
    pub new_name: &'a [u8],
    /// `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`.
    pub flags: u32,
}

/// SETXATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetXattr<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// `XATTR_CREATE`, `XATTR_REPLACE`.
    pub flags: u32,
    /// The caller that sets the access ACL may not keep setgid: take it away.
    pub kill_sgid: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    Read,
    Write,
    Unlock,
}

/// GETLK, SETLK and SETLKW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    pub handle: Handle,
    pub owner: LockOwner,
    pub kind: LockKind,
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` for "to the end". Not below `start`.
    pub end: u64,
    pub pid: u32,
    /// flock(2): the whole file, apart from POSIX locks.
    pub flock: bool,
}

/// IOCTL of fixed size: the number of the command gives the bytes copied in and out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl<'a> {
    pub handle: Handle,
    pub command: u32,
    /// The caller's raw argument; a pointer in its address space for most commands.
    pub arg: u64,
    pub input: &'a [u8],
    /// Most bytes that the answer may have.
    pub output_size: u32,
    pub compat: bool,
    pub directory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    pub handle: Handle,
    /// Names this waiter in a later notification.
    pub kernel_handle: u64,
    pub events: u32,
    /// The caller waits: notify when one of the events happens.
    pub notify: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    pub handle: Handle,
    pub offset: u64,
    pub length: u64,
    /// `FALLOC_FL_…`.
    pub mode: u32,
}

/// SEEK_DATA and SEEK_HOLE; the kernel does the others itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seek {
    pub handle: Handle,
    pub offset: u64,
    pub whence: u32,
}

/// COPY_FILE_RANGE from the caller's node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    pub handle: Handle,
    pub offset: u64,
    pub target: NodeId,
    pub target_handle: Handle,
    pub target_offset: u64,
    pub length: u64,
    pub flags: u64,
}

/// The kernel's half of INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    /// Both words of flags, see [`super::flags::init`].
    pub flags: u64,
}

/// One lookup count to be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    pub node: NodeId,
    pub lookups: u64,
}

/// A request, without its caller. `Write` has its data beside it.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget(ForgetList<'a>),
    Getattr {
        handle: Option<Handle>,
    },
    Setattr(SetAttr),
    Statx {
        handle: Option<Handle>,
        flags: u32,
        mask: u32,
    },
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
        new: NewNode<'a>,
    },
    Mknod {
        name: &'a [u8],
        new: NewNode<'a>,
    },
    Mkdir {
        name: &'a [u8],
        new: NewNode<'a>,
    },
    Create {
        name: &'a [u8],
        new: NewNode<'a>,
        open: Open,
    },
    Tmpfile {
        new: NewNode<'a>,
        open: Open,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename(Rename<'a>),
    Link {
        node: NodeId,
        name: &'a [u8],
    },
    Open(Open),
    Read(Read),
    Write(Write),
    Flush {
        handle: Handle,
        lock_owner: LockOwner,
    },
    Release(Release),
    Fsync {
        handle: Handle,
        data_only: bool,
    },
    Opendir(Open),
    Readdir(Read),
    Readdirplus(Read),
    Releasedir(Release),
    Fsyncdir {
        handle: Handle,
        data_only: bool,
    },
    Statfs,
    Syncfs,
    Setxattr(SetXattr<'a>),
    Getxattr {
        name: &'a [u8],
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Access {
        mask: u32,
    },
    Getlk(Lock),
    Setlk(Lock),
    Setlkw(Lock),
    Fallocate(Fallocate),
    Lseek(Seek),
    /// `wide`: the answer has 64 bits; else no more than 32 bits may be copied.
    CopyRange {
        copy: CopyRange,
        wide: bool,
    },
    Ioctl(Ioctl<'a>),
    Poll(Poll),
    Bmap {
        block: u64,
        block_size: u32,
    },
    Interrupt {
        unique: u64,
    },
    Init(Init),
    Destroy,
    NotifyReply,
}

/// The counts of a BATCH_FORGET: whole [`super::wire::ForgetOne`]s.
#[derive(Clone, Copy, Debug)]
pub struct ForgetList<'a>(pub(super) &'a [u8]);

impl<'a> IntoIterator for ForgetList<'a> {
    type Item = Forget;
    type IntoIter = Forgets<'a>;

    fn into_iter(self) -> Forgets<'a> {
        Forgets(self.0)
    }
}

/// Iterator of [`ForgetList`].
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = Forget;

    fn next(&mut self) -> Option<Forget> {
        use zerocopy::FromBytes;
        let (one, rest) = super::wire::ForgetOne::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(Forget { node: NodeId(one.nodeid), lookups: one.nlookup })
    }
}
