//! Bit sets of the protocol, grouped by the structure that carries them.

/// `InitIn::flags` and `InitOut::flags`; bits from 32 on travel in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const SECURITY_CTX: u64 = 1 << 32;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `SetattrIn::valid`.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `OpenOut::open_flags`: the kernel's permissions for an open file.
pub mod fopen {
    /// Past the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Pages of the file in the page cache stay valid.
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NONSEEKABLE: u32 = 1 << 2;
    /// Entries read from this directory may be cached and served again.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// No FLUSH on close.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes to the same file may run at the same time.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `InHeader::uid` and `gid` where there is no mapping to name the caller by.
pub const INVALID_ID: u32 = u32::MAX;
/// `GetattrIn::getattr_flags`: `fh` is valid.
pub const GETATTR_FH: u32 = 1 << 0;
/// `LkIn::lk_flags`: flock(2) rather than fcntl(2).
pub const LK_FLOCK: u32 = 1 << 0;
/// `WriteIn::write_flags`: from the page cache; the handle is a guess.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `WriteIn::write_flags`: `lock_owner` is valid.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// `WriteIn::write_flags`: the write takes setuid and setgid away.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `ReadIn::read_flags`: `lock_owner` is valid.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `FsyncIn::fsync_flags`.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `ReleaseIn::release_flags`.
pub const RELEASE_FLUSH: u32 = 1 << 0;
/// `ReleaseIn::release_flags`: the flock locks of `lock_owner` go.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// `OpenIn::open_flags`: an open that truncates takes setuid and setgid away.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `SetxattrIn::setxattr_flags`: setting the access ACL takes setgid away.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `IoctlIn::flags`: the caller runs in 32 bit mode.
pub const IOCTL_COMPAT: u32 = 1 << 0;
/// `IoctlIn::flags`: on a directory.
pub const IOCTL_DIR: u32 = 1 << 4;
/// `PollIn::flags`: report later, by a notification.
pub const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
/// `NotifyInvalEntry::flags`: make it look expired, but keep it.
pub const EXPIRE_ONLY: u32 = 1 << 0;
