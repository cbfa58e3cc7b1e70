//! The structures of `<linux/fuse.h>`, protocol 7.45, byte for byte.
//!
//! Names are the kernel's without `fuse_`; fields too, except for reserved words of Rust. Native
//! byte order, no implicit padding (zerocopy refuses it), sizes pinned below. Nothing here has a
//! meaning yet: requests get one in `request.rs`, replies in `reply.rs`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version; the kernel has spoken 7 since 2006.
pub const MAJOR: u32 = 7;
/// The newest minor version whose structures are known here.
pub const MINOR: u32 = 45;
/// The oldest that is served (Linux 5.4): since then structures have only grown at their ends, in
/// ways that flags of INIT announce.
pub const MINOR_MIN: u32 = 31;

/// Command to a ring: here is an entry, give it a request.
pub const RING_REGISTER: u32 = 1;
/// Command to a ring: the entry has an answer, give it the next request.
pub const RING_COMMIT_AND_FETCH: u32 = 2;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident($size:literal) { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    /// Starts every request. `total_extlen` counts 8 byte words of extensions at the end.
    InHeader(40) {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Starts every reply and notification; `unique` 0 makes it a notification.
    OutHeader(16) { len: u32, error: i32, unique: u64 }

    Attr(88) {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, blksize: u32, flags: u32,
    }
    SxTime(16) { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    Statx(256) {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime,
        btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    Kstatfs(80) {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    FileLock(24) { start: u64, end: u64, kind: u32, pid: u32 }

    InitIn(16) { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// Follows [`InitIn`] when the kernel sets `INIT_EXT`.
    InitInExt(48) { flags2: u32, unused: [u32; 11] }
    InitOut(64) {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }

    /// At the start of an entry of a ring (`fuse_uring_req_header`): the request's or the answer's
    /// header, the operation's own one, and how much of the payload is used.
    RingHeaders(288) {
        in_out: [u64; 16], op_in: [u64; 16], flags: u64, commit_id: u64, payload_size: u32,
        padding: u32, reserved: u64,
    }
    /// Follows a command to a ring (`fuse_uring_cmd_req`).
    RingCommand(24) { flags: u64, commit_id: u64, queue: u16, padding: [u8; 6] }

    EntryOut(128) {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    ForgetIn(8) { nlookup: u64 }
    ForgetOne(16) { nodeid: u64, nlookup: u64 }
    BatchForgetIn(8) { count: u32, dummy: u32 }
    GetattrIn(16) { getattr_flags: u32, dummy: u32, fh: u64 }
    AttrOut(104) { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    StatxIn(24) { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    StatxOut(288) { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    MknodIn(16) { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn(8) { mode: u32, umask: u32 }
    RenameIn(8) { newdir: u64 }
    Rename2In(16) { newdir: u64, flags: u32, padding: u32 }
    LinkIn(8) { oldnodeid: u64 }
    SetattrIn(88) {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    OpenIn(8) { flags: u32, open_flags: u32 }
    CreateIn(16) { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut(16) { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn(24) { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn(24) { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn(40) {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn(40) {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    WriteOut(8) { size: u32, padding: u32 }
    FsyncIn(16) { fh: u64, fsync_flags: u32, padding: u32 }
    /// Without `SETXATTR_EXT` only the first 8 bytes are sent.
    SetxattrIn(16) { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn(8) { size: u32, padding: u32 }
    GetxattrOut(8) { size: u32, padding: u32 }
    LkIn(48) { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    LkOut(24) { lk: FileLock }
    AccessIn(8) { mask: u32, padding: u32 }
    InterruptIn(8) { unique: u64 }
    BmapIn(16) { block: u64, blocksize: u32, padding: u32 }
    BmapOut(8) { block: u64 }
    IoctlIn(32) { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut(16) { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    PollIn(24) { fh: u64, kh: u64, flags: u32, events: u32 }
    PollOut(8) { revents: u32, padding: u32 }
    FallocateIn(32) { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn(24) { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut(8) { offset: u64 }
    CopyFileRangeIn(56) {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut(8) { bytes_copied: u64 }
    /// The name follows, then zeros up to a multiple of 8.
    Dirent(24) { ino: u64, off: u64, namelen: u32, kind: u32 }

    /// Starts an extension. A kind up to [`MAX_SECURITY_CONTEXTS`] is the number of contexts.
    ExtHeader(8) { size: u32, kind: u32 }
    /// A security context: name with NUL and `size` bytes follow.
    Secctx(8) { size: u32, padding: u32 }

    NotifyPoll(8) { kh: u64 }
    NotifyInvalInode(24) { ino: u64, off: i64, len: i64 }
    NotifyInvalEntry(16) { parent: u64, namelen: u32, flags: u32 }
    NotifyDelete(24) { parent: u64, child: u64, namelen: u32, padding: u32 }
    NotifyStore(24) { nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// Node ids follow.
    NotifyPrune(16) { count: u32, padding: u32, spare: u64 }
}

/// Extension kinds up to here are counts of security contexts.
pub const MAX_SECURITY_CONTEXTS: u32 = 31;
/// Extension: the caller's supplementary groups.
pub const EXT_GROUPS: u32 = 32;

/// Bytes before the payload of a WRITE; a reader puts the payload on a page of its own.
pub const WRITE_PREFIX: usize = size_of::<InHeader>() + size_of::<WriteIn>();
const _: () = assert!(WRITE_PREFIX == 80);

/// The kernel refuses to fill a buffer shorter than this.
pub const MIN_READ_BUFFER: usize = 8192;
