//! The operations, as a front end calls them.

use std::sync::Arc;

use copyhold_pool::Pool;
use copyhold_types::Buf;

use crate::*;

const STUB: FsError = FsError::NotSupported("this operation");

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrSet {
    Any,
    /// Fails with [`FsError::Exists`].
    Create,
    /// Fails with [`FsError::NoAttribute`].
    Replace,
}

/// The files of a pool's root subvolume.
pub struct Filesystem {
    pool: Arc<Pool>,
}

#[allow(unused_variables)]
impl Filesystem {
    /// Makes the root subvolume of a new pool, in one transaction, and commits it. The root
    /// directory belongs to `owner`, with `mode`.
    pub async fn format(pool: &Arc<Pool>, owner: &Caller, mode: u32) -> Result<()> {
        Err(STUB)
    }

    /// Opens the root subvolume. Files that were unlinked while open when the pool was last used
    /// are removed in the background.
    pub async fn open(pool: Arc<Pool>, options: Options) -> Result<Arc<Filesystem>> {
        Ok(Arc::new(Filesystem { pool }))
    }

    /// Writes everything, removes what nobody refers to any more, and ends background work. The pool
    /// stays open: close it next. Operations after this answer [`FsError::ShutDown`].
    pub async fn close(self: &Arc<Self>) -> Result<()> {
        Err(STUB)
    }

    /// Stops at once (GOINGDOWN): with `flush` everything is written first. EIO afterwards.
    pub async fn shut_down(self: &Arc<Self>, flush: bool) -> Result<()> {
        Err(STUB)
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub fn root(&self) -> NodeId {
        NodeId::ROOT
    }

    // -- names ---------------------------------------------------------------------------------

    /// `name` may be "." and ".." too.
    pub async fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry> {
        Err(STUB)
    }

    /// Finds a file by its node id, as a look-up of "." (file handles over NFS). [`FsError::Stale`]
    /// if there is none.
    pub async fn lookup_node(&self, node: NodeId) -> Result<Entry> {
        Err(STUB)
    }

    /// Gives back `count` look-ups.
    pub fn forget(self: &Arc<Self>, node: NodeId, count: u64) {}

    /// Makes and opens a regular file. An existing one is opened, unless `exclusive`; the flag
    /// returned says whether it was made.
    pub async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
        exclusive: bool,
    ) -> Result<(Entry, bool)> {
        Err(STUB)
    }

    /// Makes a file of any kind but directories and symlinks, without opening it. `mode` holds the type.
    pub async fn mknod(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry> {
        Err(STUB)
    }

    pub async fn mkdir(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<Entry> {
        Err(STUB)
    }

    pub async fn symlink(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        Err(STUB)
    }

    pub async fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        Err(STUB)
    }

    /// Another name for `node`; also gives a file made by [`Self::tmpfile`] its first.
    pub async fn link(
        self: &Arc<Self>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Entry> {
        Err(STUB)
    }

    pub async fn unlink(self: &Arc<Self>, parent: NodeId, name: &[u8]) -> Result<()> {
        Err(STUB)
    }

    pub async fn rmdir(self: &Arc<Self>, parent: NodeId, name: &[u8]) -> Result<()> {
        Err(STUB)
    }

    /// What replaces an existing name has its data in the same or an earlier txg (R35).
    pub async fn rename(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        Err(STUB)
    }

    /// Makes and opens a regular file without a name.
    pub async fn tmpfile(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
    ) -> Result<Entry> {
        Err(STUB)
    }

    /// Hands entries behind the cookie `after` to `visit` until it says false: that entry was not
    /// taken. 0 starts. Entries that are neither made nor removed meanwhile come exactly once.
    pub async fn readdir(
        &self,
        dir: NodeId,
        after: u64,
        visit: &mut (dyn FnMut(&DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        Err(STUB)
    }

    /// As [`Self::readdir`], with attributes; each entry taken, but for "." and "..", counts as a
    /// look-up.
    pub async fn readdirplus(
        &self,
        dir: NodeId,
        after: u64,
        visit: &mut (dyn FnMut(&DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        Err(STUB)
    }

    // -- attributes ----------------------------------------------------------------------------

    pub async fn getattr(&self, node: NodeId) -> Result<Attr> {
        Err(STUB)
    }

    pub async fn setattr(
        self: &Arc<Self>,
        caller: &Caller,
        node: NodeId,
        set: &SetAttr,
    ) -> Result<Attr> {
        Err(STUB)
    }

    /// Whether `caller` may read (4), write (2), execute or search (1) `node`; mode and ACL decide.
    pub async fn access(&self, caller: &Caller, node: NodeId, mask: u32) -> Result<()> {
        Err(STUB)
    }

    /// Sets [`FileFlags`] and, if given, the project id. Bits outside [`FileFlags::SETTABLE`] are
    /// refused with [`FsError::NotSupported`].
    pub async fn set_flags(
        self: &Arc<Self>,
        caller: &Caller,
        node: NodeId,
        flags: FileFlags,
        project: Option<u32>,
    ) -> Result<()> {
        Err(STUB)
    }

    pub async fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        Err(STUB)
    }

    /// `name` with its namespace. An access ACL changes the mode with it; `kill_sgid` is FUSE's
    /// `SETXATTR_ACL_KILL_SGID`.
    pub async fn set_xattr(
        self: &Arc<Self>,
        caller: &Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
        kill_sgid: bool,
    ) -> Result<()> {
        Err(STUB)
    }

    /// The names, each ended by a zero byte, as `listxattr` returns them.
    pub async fn list_xattr(&self, node: NodeId) -> Result<Vec<u8>> {
        Err(STUB)
    }

    pub async fn remove_xattr(self: &Arc<Self>, node: NodeId, name: &[u8]) -> Result<()> {
        Err(STUB)
    }

    // -- data ----------------------------------------------------------------------------------

    /// Counts an open of a file or directory.
    pub async fn open_node(self: &Arc<Self>, node: NodeId, flags: OpenFlags) -> Result<()> {
        Err(STUB)
    }

    /// The other way of [`Self::open_node`], `create` and `tmpfile`.
    pub fn release(self: &Arc<Self>, node: NodeId) {}

    /// At most `len` bytes; fewer only at the end of the file.
    pub async fn read(&self, node: NodeId, offset: u64, len: usize) -> Result<ReadData> {
        Err(STUB)
    }

    /// Takes all bytes or fails. They are safe after an fsync, and will not fail for lack of space.
    pub async fn write(
        self: &Arc<Self>,
        node: NodeId,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<()> {
        Err(STUB)
    }

    /// As [`Self::write`] for the first `len` bytes of `data`, which is kept instead of copied where
    /// offset and length are whole blocks.
    pub async fn write_buf(
        self: &Arc<Self>,
        node: NodeId,
        offset: u64,
        data: Buf,
        len: usize,
        flags: WriteFlags,
    ) -> Result<()> {
        Err(STUB)
    }

    /// Data, attributes and name of `node` are durable when this returns; a write error since the
    /// last call is told. With `data_only`, times need not be.
    pub async fn fsync(self: &Arc<Self>, node: NodeId, data_only: bool) -> Result<()> {
        Err(STUB)
    }

    pub async fn fsyncdir(self: &Arc<Self>, node: NodeId) -> Result<()> {
        Err(STUB)
    }

    /// Everything that was accepted before is durable when this returns.
    pub async fn sync(self: &Arc<Self>) -> Result<()> {
        Err(STUB)
    }

    pub async fn fallocate(
        self: &Arc<Self>,
        node: NodeId,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        Err(STUB)
    }

    pub async fn seek(&self, node: NodeId, offset: u64, whence: Seek) -> Result<u64> {
        Err(STUB)
    }

    /// Bytes copied: fewer than `len` only at the source's end.
    pub async fn copy_file_range(
        self: &Arc<Self>,
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        Err(STUB)
    }

    // -- the whole -----------------------------------------------------------------------------

    pub fn statfs(&self) -> StatFs {
        let space = self.pool.space();
        StatFs {
            block_bytes: copyhold_types::BLOCK_BYTES as u32,
            blocks: space.total,
            blocks_free: space.free + space.freeing,
            blocks_available: space.available + space.freeing,
            files: space.total,
            files_free: space.available,
            name_max: 255,
            fsid: 0,
        }
    }

    /// Discards free space in runs of at least `min_bytes`; bytes discarded.
    pub async fn trim(&self, min_bytes: u64) -> Result<u64> {
        Err(STUB)
    }
}
