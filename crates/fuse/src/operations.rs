//! The operations of a filesystem for the kernel: one async method for each.
//!
//! Requests and answers are the typed ones of [`crate::protocol`]; nothing here knows whether they
//! travel through `/dev/fuse` or a ring. A method that can answer at once returns a future that is
//! ready when first polled, and the reply leaves from the thread that read the request; one that
//! must wait is moved to the executors, and no thread waits with it.
//!
//! Every method has a default that answers ENOSYS. For most operations the kernel remembers that
//! for the life of the mount and either does without or fails with EOPNOTSUPP.

use std::future::Future;

use copyhold_memory::MemoryCharge;

use crate::Errno;
use crate::fair::Share;
use crate::payload::Payload;
use crate::protocol::{
    AttrReply, Caller, CopyRange, Data, Entries, Entry, Fallocate, Handle, Ioctl, IoctlReply, Lock,
    LockOwner, Lookup, Negotiated, NewNode, NodeId, Open, Opened, Poll, Read, Release, Rename,
    Seek, SetAttr, SetXattr, Statfs, Write,
};

/// The result of an operation.
pub type Reply<T> = Result<T, Errno>;

macro_rules! unsupported {
    ($(
        $(#[$doc:meta])*
        fn $name:ident(&self $(, $arg:ident: $type:ty)* $(,)?) -> $out:ty;
    )*) => {$(
        $(#[$doc])*
        fn $name(&self $(, $arg: $type)*) -> impl Future<Output = Reply<$out>> + Send {
            let _ = ($(&$arg,)*);
            async { Err(Errno::ENOSYS) }
        }
    )*};
}

/// A filesystem as the kernel sees it. Implement the methods as `async fn`.
///
/// Lookups are counted: each [`Entry`] that is answered, also in READDIRPLUS, adds one to its node,
/// and FORGET takes them back. Until then the node may be named in requests, unlinked or not.
pub trait Operations: Send + Sync + 'static {
    /// Before the first request: the terms agreed with the kernel.
    fn init(&self, negotiated: &Negotiated) {
        let _ = negotiated;
    }

    /// After the last request, once; nothing is in flight any more. On `fuseblk` umount(2) waits
    /// for it, on other mounts the process that serves must be waited for.
    fn destroy(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// `lookups` of `node` are taken back. Must not wait: the kernel expects no answer.
    fn forget(&self, node: NodeId, lookups: u64) {
        let _ = (node, lookups);
    }

    /// A request about `node` must wait, and so long takes `bytes` of memory: the charge for it, if
    /// it has an owner. Must not wait.
    fn charge(&self, node: NodeId, bytes: usize) -> Option<MemoryCharge> {
        let _ = (node, bytes);
        None
    }

    /// The tenant of a request about `node`, for a fair order among those that wait to be begun.
    /// Must not wait.
    fn share(&self, node: NodeId) -> Share {
        let _ = node;
        Share::default()
    }

    unsupported! {
        /// `name` may be "." or ".." when a file handle is opened (NFS, `open_by_handle_at`).
        fn lookup(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Lookup;
        fn getattr(&self, caller: Caller, node: NodeId, handle: Option<Handle>) -> AttrReply;
        fn setattr(&self, caller: Caller, node: NodeId, set: SetAttr) -> AttrReply;
        /// Called instead of `getattr` if the caller wants the time of birth.
        fn statx(&self, caller: Caller, node: NodeId, handle: Option<Handle>) -> AttrReply;
        fn readlink(&self, caller: Caller, node: NodeId) -> Vec<u8>;
        fn symlink(
            &self, caller: Caller, parent: NodeId, name: &[u8], target: &[u8], new: NewNode<'_>,
        ) -> Entry;
        /// Regular files, too: open(2) of a new one when `create` is not there.
        fn mknod(&self, caller: Caller, parent: NodeId, name: &[u8], new: NewNode<'_>) -> Entry;
        fn mkdir(&self, caller: Caller, parent: NodeId, name: &[u8], new: NewNode<'_>) -> Entry;
        fn create(
            &self, caller: Caller, parent: NodeId, name: &[u8], new: NewNode<'_>, open: Open,
        ) -> (Entry, Opened);
        /// A file without a name (`O_TMPFILE`), which `link` may give it later.
        fn tmpfile(
            &self, caller: Caller, parent: NodeId, new: NewNode<'_>, open: Open,
        ) -> (Entry, Opened);
        fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> ();
        fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> ();
        fn rename(&self, caller: Caller, parent: NodeId, rename: Rename<'_>) -> ();
        fn link(&self, caller: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Entry;
        /// ENOSYS: the kernel opens files on its own from now on, and handles are 0.
        fn open(&self, caller: Caller, node: NodeId, open: Open) -> Opened;
        fn read(&self, caller: Caller, node: NodeId, read: Read) -> Data;
        /// Bytes written. `data` may be kept with [`Payload::take`].
        fn write(
            &self, caller: Caller, node: NodeId, write: Write, data: &mut Payload,
        ) -> u32;
        /// A descriptor was closed; its owner's POSIX locks go. ENOSYS: not asked again.
        fn flush(&self, caller: Caller, node: NodeId, handle: Handle, owner: LockOwner) -> ();
        /// The last descriptor was closed. An error is not reported.
        fn release(&self, caller: Caller, node: NodeId, release: Release) -> ();
        fn fsync(&self, caller: Caller, node: NodeId, handle: Handle, data_only: bool) -> ();
        fn opendir(&self, caller: Caller, node: NodeId, open: Open) -> Opened;
        /// Fills `entries` until it says no. READDIR and READDIRPLUS: see
        /// [`Entries::wants_attributes`].
        fn readdir(
            &self, caller: Caller, node: NodeId, read: Read, entries: &mut Entries,
        ) -> ();
        fn releasedir(&self, caller: Caller, node: NodeId, release: Release) -> ();
        fn fsyncdir(&self, caller: Caller, node: NodeId, handle: Handle, data_only: bool) -> ();
        fn statfs(&self, caller: Caller, node: NodeId) -> Statfs;
        /// sync(2), syncfs(2). Arrives on `fuseblk` mounts only.
        fn syncfs(&self, caller: Caller) -> ();
        fn setxattr(&self, caller: Caller, node: NodeId, set: SetXattr<'_>) -> ();
        /// The whole value, for any buffer size of the caller.
        fn getxattr(&self, caller: Caller, node: NodeId, name: &[u8]) -> Vec<u8>;
        /// All names, each with a NUL behind it.
        fn listxattr(&self, caller: Caller, node: NodeId) -> Vec<u8>;
        fn removexattr(&self, caller: Caller, node: NodeId, name: &[u8]) -> ();
        /// access(2), on mounts without `default_permissions`.
        fn access(&self, caller: Caller, node: NodeId, mask: u32) -> ();
        /// The lock that conflicts with `lock`, if any.
        fn getlk(&self, caller: Caller, node: NodeId, lock: Lock) -> Option<Lock>;
        /// Sets or removes a lock; EAGAIN if another lock conflicts.
        fn setlk(&self, caller: Caller, node: NodeId, lock: Lock) -> ();
        /// Waits for the lock. A signal to the caller drops the future, and the answer is EINTR.
        fn setlkw(&self, caller: Caller, node: NodeId, lock: Lock) -> ();
        fn fallocate(&self, caller: Caller, node: NodeId, range: Fallocate) -> ();
        fn lseek(&self, caller: Caller, node: NodeId, seek: Seek) -> u64;
        /// Bytes copied; 0 at the end of the source.
        fn copy_range(&self, caller: Caller, node: NodeId, copy: CopyRange) -> u64;
        fn ioctl(&self, caller: Caller, node: NodeId, ioctl: Ioctl<'_>) -> IoctlReply;
        /// The events that are ready now.
        fn poll(&self, caller: Caller, node: NodeId, poll: Poll) -> u32;
        /// Block of the device that holds `block` of the file. Arrives on `fuseblk` mounts only.
        fn bmap(&self, caller: Caller, node: NodeId, block: u64, block_size: u32) -> u64;
    }
}
