//! fsync, sync: accepted changes become durable.

use std::sync::Arc;

use copyhold_volume::tenant_of;
use futures_util::future::join_all;

use super::FileData;
use crate::flight::Lane;
use crate::foreground::note_wait;
use crate::inode::{Inode, InodeRef};
use crate::{Filesystem, NodeId, Result, Sabotage};

/// Files that one sync writes at the same time.
const SYNC_FILES: usize = 8;

/// The reason why a call writes the data of a file out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteReason {
    /// To make it durable at once: a little travels with its transaction (P12).
    Fsync,
    /// Another call needs it in the tables.
    Other,
    /// The same, under a lock that other tenants wait for (FLIGHT-L6).
    UnderSharedLock,
}

impl Filesystem {
    /// Data, attributes and name of `node` are durable when this returns, and so is the subvolume
    /// that it is in: a file of a fresh snapshot is there, too. Returns a write-back error that
    /// occurred since the last call. A call that races with the deletion of the file's subvolume
    /// returns [`crate::FsError::Stale`], as each later call does. With `data_only`, times need
    /// not be; here that is the same work.
    pub async fn fsync(self: &Arc<Self>, node: NodeId, _data_only: bool) -> Result<()> {
        let inode = self.inode(node).await?;
        if self.writable().is_err() {
            return self.usable();
        }
        self.fsync_inode(&inode).await
    }

    /// The entries and attributes of a directory are durable when this returns.
    pub async fn fsyncdir(self: &Arc<Self>, node: NodeId) -> Result<()> {
        self.fsync(node, false).await
    }

    async fn fsync_inode(self: &Arc<Self>, inode: &InodeRef) -> Result<()> {
        let written = self.write_through(inode, WriteReason::Fsync).await;
        // An error that a background write met is returned once, here (R34).
        let earlier = inode.state().error.take().filter(|_| !self.breaks(Sabotage::ForgetErrors));
        written?;
        earlier.map_or(Ok(()), |earlier| Err(*earlier))?;
        self.commit_inode(inode).await
    }

    /// The logged changes of the file are durable when this returns.
    pub(crate) async fn commit_inode(&self, inode: &InodeRef) -> Result<()> {
        let txg = {
            let state = inode.state();
            // The deletion of the subvolume may have dropped dirty data, and a crash may undo it.
            state.expect_present()?;
            inode.newest_txg(&state)
        };
        if let Some(txg) = txg
            && txg > self.pool.durable_txg()
        {
            note_wait(self, inode.node.subvol);
            self.pool.commit(txg).await?;
            note_wait(self, inode.node.subvol);
        }
        self.unlist_if_clean(inode);
        Ok(())
    }

    /// Installs all blocks of the file that are dirty at the call, including those that another
    /// task writes.
    pub(crate) async fn write_through(
        self: &Arc<Self>,
        inode: &InodeRef,
        reason: WriteReason,
    ) -> Result<()> {
        let (mut version, size) = {
            let state = inode.state();
            if state.data.is_settled() && !state.data.is_writing(u64::MAX) {
                return Ok(());
            }
            (state.data.version(), state.shown.size)
        };
        let attach = matches!(reason, WriteReason::Fsync);
        let tenant = tenant_of(&self.volumes, inode.node.subvol);
        let lane = match reason {
            WriteReason::Fsync | WriteReason::Other => Lane::Callers(tenant),
            WriteReason::UnderSharedLock => Lane::Urgent(tenant),
        };
        loop {
            if attach {
                self.flusher.foreground.note(tenant, self.rt.now());
            }
            while self.write_batch(inode, version, attach, lane).await? {}
            self.batches_end(inode).await;
            let state = inode.state();
            let data = &state.data;
            let is_held_back = self.has_unlogged_change(data, version)
                || data.cut.size().is_some()
                || state.item.size < size.min(state.shown.size);
            if state.gone || !is_held_back && !self.has_unlogged_block(data, version) {
                return Ok(());
            }
            if is_held_back {
                // Blocks made dirty since hold the size back (DIRTY-D4), or an overtaken batch has
                // logged nothing (DIRTY-D8): the newest state goes out.
                version = data.version();
            }
        }
    }

    /// Whether size or times that were changed up to `version` are not logged: behind an overtaken
    /// batch (DIRTY-D8) perhaps these alone.
    fn has_unlogged_change(&self, data: &FileData, version: u64) -> bool {
        data.has_unlogged_change(version) && !self.breaks(Sabotage::ForgetTimes)
    }

    /// Whether a block that was changed up to `version` is not installed. It may have been taken by
    /// a batch that began behind the one that was waited for.
    fn has_unlogged_block(&self, data: &FileData, version: u64) -> bool {
        let taken = data.has_taken_block(version) && !self.breaks(Sabotage::ForgetTaken);
        taken || data.has_dirty_block(version)
    }

    /// Waits until the batches under way have ended.
    pub(crate) async fn batches_end(&self, inode: &Inode) {
        let last = inode.state().data.last_batch();
        loop {
            let listener = inode.batch_ended.listen();
            if !inode.state().data.is_writing(last) {
                return;
            }
            listener.await;
        }
    }

    /// Everything that was accepted before is durable when this returns.
    pub async fn sync(self: &Arc<Self>) -> Result<()> {
        if self.writable().is_err() {
            return self.usable();
        }
        self.hurry_reaper();
        let mut result = self.write_all().await;
        if let Err(error) = self.log_atimes().await {
            result = result.and(Err(error));
        }
        self.pool.commit(self.pool.open_txg()).await?;
        copyhold_pool::end_txg(&self.pool).await;
        self.flusher.files().iter().for_each(|inode| self.unlist_if_clean(inode));
        result
    }

    /// Installs all blocks that are dirty now. Continues after an error, and returns the first.
    /// Blocks deleted meanwhile with their subvolume are dropped without an error.
    pub(crate) async fn write_all(self: &Arc<Self>) -> Result<()> {
        let mut result = Ok(());
        for files in self.flusher.files().chunks(SYNC_FILES) {
            let writes = files.iter().map(|inode| self.write_through(inode, WriteReason::Other));
            for (inode, written) in files.iter().zip(join_all(writes).await) {
                if inode.subvol.present().is_ok() {
                    result = result.and(written);
                }
            }
        }
        result
    }

    /// Frees space that write-back and the reaper hold: writes all dirty data, which releases
    /// replaced and cut extents, and removes unlinked files (R22).
    pub(crate) async fn write_back_and_reap(self: &Arc<Self>) {
        if let Err(error) = self.write_all().await {
            tracing::debug!(%error, "not all dirty data could be written for want of space");
        }
        self.reaper_idle().await;
    }
}
