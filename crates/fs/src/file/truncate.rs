//! Changing a file's size.
//!
//! Nothing is logged here: a shorter file becomes a cut, a longer one a size, and both go out with
//! the file's next batch (R35). So a truncate never waits for the log.
//!
//! The transaction that logs a size adds to tables, also where a file becomes shorter: snapshots
//! may share it. So the call that sets one reserves what it adds (DIRTY-D10), and is refused (R21)
//! where changes are, or, where extents are cut, where deletes are. A file of many extents is cut
//! in steps before, which are refused likewise: they are made here, so that this caller gets the
//! error, and not a caller whose data was accepted since.

use std::sync::Arc;

use copyhold_pool::{EDITS_PER_RELEASE, RELEASE_EDIT_BYTES, Tier};
use copyhold_types::BLOCK_BYTES;
use copyhold_volume::quota::Request;

use super::install::CUT_MAX;
use super::write::FILE_BYTES_MAX;
use crate::inode::InodeRef;
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::permit::Way;
use crate::promise::{Promise, Take, quota_tier};
use crate::{Filesystem, FsError, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The possible growth of tables for the file's record, and for each extent that a cut removes: two
/// rows of 64 bytes in all, and the growth of its release; each in two copies at the worst fill
/// (`Pool::admit`).
const EXTENT_GROWTH: u64 = 6 * (64 + EDITS_PER_RELEASE * (RELEASE_EDIT_BYTES + 16)) as u64;

impl Filesystem {
    /// Sets the size of a regular file. The caller holds its data lock exclusively.
    pub(crate) async fn set_size(self: &Arc<Self>, inode: &InodeRef, size: u64) -> Result<()> {
        self.resize(inode, size, false).await
    }

    /// Empties a regular file that is open for writing: as [`Self::set_size`], and it is durable
    /// when the file is closed (DIRTY-D8).
    pub(crate) async fn empty(self: &Arc<Self>, inode: &InodeRef) -> Result<()> {
        self.resize(inode, 0, true).await
    }

    async fn resize(self: &Arc<Self>, inode: &InodeRef, size: u64, empties: bool) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::FileTooBig { max: FILE_BYTES_MAX });
        }
        self.pool_runs()?;
        let old = {
            let state = inode.state();
            state.permit(Way::Overwrite)?;
            state.shown.size
        };
        if size > old {
            self.cut_in_steps(inode).await?;
            let room = self.room_for_size(inode, 0, Tier::Change).await?;
            self.extend(inode, old, size).await?;
            inode.state().data.keep_room(room);
            self.note_dirty(inode);
            return Ok(());
        }
        let (cuts, frees) = match inode.state() {
            state if size < old => (state.item.allocated / BLOCK, state.stores_content()),
            _ => (0, false),
        };
        let tier = if frees { Tier::Delete } else { Tier::Change };
        let room = self.room_for_size(inode, cuts, tier).await?;
        self.shorten(inode, size, room, empties).await?;
        self.note_dirty(inode);
        self.cut_in_steps(inode).await
    }

    /// Removes the extents of a pending cut beyond those that one transaction removes, as far as
    /// that is known.
    pub(super) async fn cut_in_steps(&self, inode: &InodeRef) -> Result<()> {
        while inode.state().data.cut.wants_steps() {
            self.cut_step(inode, u64::MAX).await?;
        }
        Ok(())
    }

    /// For the transaction that logs a size, and with it the last part of a cut of so many extents.
    pub(super) async fn room_for_size(
        self: &Arc<Self>,
        inode: &InodeRef,
        extents: u64,
        tier: Tier,
    ) -> Result<Promise> {
        let extents = extents.min(CUT_MAX as u64);
        let growth = (1 + extents) * EXTENT_GROWTH;
        let edits = 1 + 2 * extents as usize;
        let wanted = Request::for_edits(edits, INODE_BYTES + edits * KEY_BYTES);
        let hold = self.hold(&inode.subvol, wanted, quota_tier(tier)).await?;
        Ok(Promise { space: self.pool.reserve(growth.div_ceil(BLOCK), tier).await?, hold })
    }

    /// The range behind the old end reads as zero (R36).
    pub(super) async fn extend(
        self: &Arc<Self>,
        inode: &InodeRef,
        old: u64,
        size: u64,
    ) -> Result<()> {
        let tail = match old % BLOCK {
            0 => None,
            _ => self.stale_tail(inode, old).await?,
        };
        self.insert_blocks(inode, tail.into_iter().collect(), size, Take::All).await
    }

    async fn shorten(
        &self,
        inode: &InodeRef,
        size: u64,
        room: Promise,
        empties: bool,
    ) -> Result<()> {
        // Against batches that are being installed (R33).
        let _map = inode.map.write().await;
        let now = self.now();
        let mut state = inode.state();
        inode.subvol.writable()?;
        let state = &mut *state;
        if empties {
            self.will_be_emptied(inode, state);
        }
        let stored = state.stores_content();
        let gone = if size < state.shown.size {
            state.data.truncate(size, state.item.size, stored)
        } else {
            0
        };
        if state.item.allocated / BLOCK <= CUT_MAX as u64 {
            state.data.cut.wants_no_steps();
        }
        state.shown.size = size;
        state.content_changes(now);
        state.data.keep_room(room);
        if empties {
            state.data.empty();
        }
        self.flusher.room.forget(inode, gone);
        Ok(())
    }
}
