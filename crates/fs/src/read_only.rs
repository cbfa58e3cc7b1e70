//! A subvolume is set read-only, or writable again.
//!
//! Read-only means that its files do not change any more: a backup of it is of one moment. So data
//! accepted before is installed first.
//!
//! READONLY-O1  `closing` is set first, and every path that accepts data checks it under the
//!              inode's state. Then all inodes are visited and their data is installed; then the
//!              record is logged.
//! READONLY-O2  A transaction of files is applied before the record, or refused
//!              (`volume::snapshot_guard`). Files without a name are the exception: no path leads
//!              to them, and the reaper removes them.
//! READONLY-O3  Setting the property to the value that it has changes nothing.
//! READONLY-O4  Setting and clearing the property are admitted as a deletion is: deleting a
//!              subvolume may require it to be writable first (R21).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use copyhold_types::SubvolId;
use copyhold_volume::Volumes;
use futures_util::future::join_all;

use crate::file::WriteReason;
use crate::inode::InodeRef;
use crate::sabotage::Sabotage;
use crate::subvol::Subvol;
use crate::tenants::FILES_AT_ONCE;
use crate::{Filesystem, FsError, Result};

/// Nothing is accepted for the subvolume until this is dropped.
struct Closing<'a>(&'a Subvol);

impl<'a> Closing<'a> {
    fn begin(subvol: &'a Subvol) -> Closing<'a> {
        subvol.closing.store(true, Ordering::SeqCst);
        Closing(subvol)
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.closing.store(false, Ordering::SeqCst);
    }
}

impl Filesystem {
    /// Forbids changes of a subvolume, or allows them again. When this returns, everything that was
    /// accepted for a subvolume that is read-only now is installed, and nothing of it changes.
    pub async fn set_subvolume_read_only(self: &Arc<Self>, id: SubvolId, on: bool) -> Result<()> {
        self.writable()?;
        let subvol = self.subvol(id).await?;
        let _setting = subvol.property_lock.lock().await;
        subvol.present()?;
        match (subvol.volume.is_read_only(), on) {
            (false, true) => self.make_read_only(&subvol).await,
            (true, false) => self.make_writable(&subvol).await,
            (false, false) if self.breaks(Sabotage::ReplayInUse) => {
                self.make_writable(&subvol).await
            }
            (false, false) => subvol.writable(),
            (true, true) => Ok(()),
        }
    }

    async fn make_read_only(self: &Arc<Self>, subvol: &Arc<Subvol>) -> Result<()> {
        let _closing = Closing::begin(subvol);
        for ino in subvol.leftovers.cuts() {
            // The cut is pending from then on, and is installed with the rest.
            match self.inode(subvol.node(ino)).await {
                Ok(_) | Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        if !self.breaks(Sabotage::MarkFirst) {
            self.install_accepted(subvol).await?;
        }
        self.log_atimes().await?;
        let credit = self.credit_to_end(1, Volumes::LIFE_BYTES).await?;
        self.volumes.set_read_only(&subvol.volume, true, credit)?;
        Ok(())
    }

    /// Installs everything that was accepted for the subvolume's files.
    async fn install_accepted(self: &Arc<Self>, subvol: &Arc<Subvol>) -> Result<()> {
        let is_dirty = |inode: &InodeRef| {
            let state = inode.state();
            !state.data.is_settled() || state.data.is_writing(u64::MAX)
        };
        let mut files = self.inodes.of_subvol(subvol);
        files.retain(is_dirty);
        for files in files.chunks(FILES_AT_ONCE) {
            let writes = files.iter().map(|inode| self.write_through(inode, WriteReason::Other));
            join_all(writes).await.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }

    /// Work left undone when it was made, or before it was set read-only, is taken up now.
    async fn make_writable(self: &Arc<Self>, subvol: &Arc<Subvol>) -> Result<()> {
        let reading = self.invalidate_leftovers(subvol).await;
        let credit = self.credit_to_end(1, Volumes::LIFE_BYTES).await?;
        self.volumes.set_read_only(&subvol.volume, false, credit)?;
        self.read_leftovers(subvol, &reading).await;
        subvol.writable()
    }
}
