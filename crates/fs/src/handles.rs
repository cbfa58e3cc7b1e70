//! References to files from outside: look-ups and opens. A file without a name lives as long.

use std::sync::Arc;

use crate::file::WriteReason;
use crate::inode::{Inode, InodeRef, InodeState};
use crate::permit::Way;
use crate::throttle::before_change;
use crate::{
    Entry, FileKind, Filesystem, FsError, NodeId, OpenFlags, Result, Sabotage, Stale, Uses,
};

impl Filesystem {
    /// The entry of a file that was found or made, counted.
    pub(crate) fn entry(&self, inode: &Inode) -> Entry {
        if self.options.count_lookups {
            self.inodes.add_lookup(inode);
        }
        Entry { node: inode.node, attr: inode.attr() }
    }

    /// Releases `count` look-ups.
    pub fn forget(self: &Arc<Self>, node: NodeId, count: u64) {
        if self.inodes.drop_lookups(node, count) && !self.breaks(Sabotage::ForgetNothing) {
            self.unused(node);
        }
    }

    /// Whether look-ups are so many that [`Self::surplus_lookups`] should be forgotten.
    pub fn is_crowded(&self) -> bool {
        self.inodes.is_crowded()
    }

    /// Nodes that were looked up and not used for long: as many as there are too many, and an
    /// eighth of [`crate::Options::lookups_max`]. The front end keeps those that are in use
    /// nevertheless.
    pub fn surplus_lookups(&self) -> Vec<NodeId> {
        self.inodes.surplus()
    }

    /// How many inodes are in memory, and how many nodes have look-ups.
    pub fn inodes_and_lookups(&self) -> (usize, usize) {
        self.inodes.counts()
    }

    /// Counts an open of a file or directory.
    pub async fn open_node(self: &Arc<Self>, node: NodeId, flags: OpenFlags) -> Result<()> {
        let inode = self.inode(node).await?;
        self.open_inode(&inode, flags).await
    }

    pub(crate) async fn open_inode(
        self: &Arc<Self>,
        inode: &InodeRef,
        flags: OpenFlags,
    ) -> Result<()> {
        // Counted first: from then on a file without a name stays.
        let uses = if flags.write { Uses::WRITER } else { Uses::default() };
        self.inodes.add_open(inode.node, uses);
        let opened = self.may_open(inode, flags).await;
        if opened.is_err() {
            self.release(inode.node);
        }
        opened
    }

    async fn may_open(self: &Arc<Self>, inode: &InodeRef, flags: OpenFlags) -> Result<()> {
        let changes = flags.write || flags.truncate;
        if changes && inode.is_dir() {
            return Err(FsError::IsDirectory);
        }
        if changes && inode.kind == FileKind::Regular {
            self.permit_in(&inode.subvol)?;
        }
        {
            let state = inode.state();
            state.expect_present()?;
            if changes {
                let only_appends = flags.append && !flags.truncate;
                state.permit(if only_appends { Way::Append } else { Way::Overwrite })?;
            }
        }
        match flags.truncate && inode.kind == FileKind::Regular {
            true => Box::pin(self.truncate_open(inode, flags.kill_priv)).await,
            false => Ok(()),
        }
    }

    async fn truncate_open(self: &Arc<Self>, inode: &InodeRef, kill_priv: bool) -> Result<()> {
        before_change(self, inode.subvol.volume.owner()).await?;
        let _data = inode.lock.write().await;
        inode.state().permit(Way::Overwrite)?;
        if kill_priv {
            self.strip_privileges(inode, None).await?;
        }
        self.empty(inode).await
    }

    /// Notes how the front end uses a file that it has open.
    pub fn note_uses(&self, node: NodeId, uses: Uses) {
        self.inodes.with_notes(node, |notes| notes.add(uses));
    }

    /// How the front end has used a file since it was not open.
    pub fn uses(&self, node: NodeId) -> Uses {
        self.inodes.with_notes(node, |notes| notes.uses()).unwrap_or_default()
    }

    /// The front end has written a file past its cache.
    pub fn written_past_cache(&self, node: NodeId) -> Stale {
        if self.breaks(Sabotage::KeepStalePages) {
            return Stale::Nothing;
        }
        self.inodes.with_notes(node, |notes| notes.write_past()).unwrap_or(Stale::Nothing)
    }

    /// The cache was dropped as [`Stale::All`] asks, or could not be.
    pub fn cache_dropped(&self, node: NodeId, dropped: bool) {
        self.inodes.with_notes(node, |notes| notes.end_leaving(dropped));
    }

    /// The other way of [`Self::open_node`], `create` and `tmpfile`.
    pub fn release(self: &Arc<Self>, node: NodeId) {
        if self.inodes.drop_open(node)
            && let Some(inode) = self.inodes.get(node)
        {
            {
                let mut state = inode.state();
                if !self.inodes.is_open(node) {
                    state.data.clear_emptied();
                }
            }
            self.reap_if_unused(&inode);
        }
    }

    /// A descriptor is closed. If the file was emptied while it was open, and nothing was written
    /// since, that is durable when this returns (DIRTY-D8). Errors that the background met before
    /// are returned by fsync (R34). The front end need not report a descriptor that has made the
    /// file.
    pub async fn flush(self: &Arc<Self>, node: NodeId) -> Result<()> {
        if !self.is_noted_emptied(node) || self.breaks(Sabotage::ForgetEmptied) {
            return Ok(());
        }
        let inode = self.inode(node).await?;
        if self.writable().is_err() {
            return self.usable();
        }
        let had_error = inode.state().error.is_some();
        let written = self.write_through(&inode, WriteReason::Fsync).await;
        if written.is_err() && !had_error {
            // This close reports the error.
            inode.state().error = None;
        }
        written?;
        self.commit_inode(&inode).await
    }

    /// Notes that the file is to be durably empty when it is closed (DIRTY-D8), unless it is
    /// durably empty now. The cut is not made yet.
    pub(crate) fn will_be_emptied(&self, inode: &Inode, state: &InodeState) {
        let is_empty = state.item.size == 0 && state.data.cut.size().is_none();
        let is_durable = || inode.newest_txg(state) <= Some(self.pool.durable_txg());
        if !(is_empty && is_durable()) {
            self.inodes.with_notes(inode.node, |notes| notes.add(Uses::EMPTIED));
        }
    }

    fn is_noted_emptied(&self, node: NodeId) -> bool {
        let noted = self.inodes.with_notes(node, |notes| notes.uses().has(Uses::EMPTIED));
        noted == Some(true)
    }

    /// Passes the note to an inode that is read again.
    pub(crate) fn remember_emptied(&self, inode: &Inode) {
        if self.is_noted_emptied(inode.node) {
            inode.state().data.empty();
        }
    }

    /// The caller has written to the file.
    pub(crate) fn has_written(&self, inode: &Inode, state: &mut InodeState) {
        if state.data.clear_emptied() {
            self.inodes.with_notes(inode.node, |notes| notes.take_back(Uses::EMPTIED));
        }
    }

    fn unused(self: &Arc<Self>, node: NodeId) {
        // An inode that is not in memory has a name.
        if let Some(inode) = self.inodes.get(node) {
            self.reap_if_unused(&inode);
        }
    }
}
