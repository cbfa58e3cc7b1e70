//! Changing a file's size.
//!
//! Nothing is logged here: a shorter file becomes a cut, a longer one a size, and both go out with
//! the file's next batch (R35). So a truncate needs no space and never waits for the log.

use std::sync::Arc;

use copyhold_types::BLOCK_BYTES;

use super::write::FILE_BYTES_MAX;
use crate::inode::InodeRef;
use crate::permit::Way;
use crate::{Filesystem, FsError, Result};

impl Filesystem {
    /// Sets the size of a regular file. The caller holds its data lock exclusively.
    pub(crate) async fn set_size(self: &Arc<Self>, inode: &InodeRef, size: u64) -> Result<()> {
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
            self.extend(inode, old, size).await?;
        } else {
            self.shorten(inode, size).await?;
        }
        self.note_dirty(inode);
        Ok(())
    }

    /// What is behind the old end reads as zero (R36).
    pub(super) async fn extend(
        self: &Arc<Self>,
        inode: &InodeRef,
        old: u64,
        size: u64,
    ) -> Result<()> {
        let tail = match old % BLOCK_BYTES as u64 {
            0 => None,
            _ => self.stale_tail(inode, old).await?,
        };
        self.insert_blocks(inode, tail.into_iter().collect(), size).await
    }

    async fn shorten(&self, inode: &InodeRef, size: u64) -> Result<()> {
        // Against batches that are being installed (R33).
        let _map = inode.map.write().await;
        let now = self.now();
        let mut state = inode.state();
        inode.subvol.writable()?;
        let state = &mut *state;
        let stored = state.item.allocated > 0 || state.is_inline();
        let gone = if size < state.shown.size {
            state.data.truncate(size, state.item.size, stored)
        } else {
            0
        };
        state.shown.size = size;
        state.shown.mtime = now;
        state.shown.ctime = now;
        state.data.set_changed(true);
        self.flusher.forget(gone);
        Ok(())
    }
}
