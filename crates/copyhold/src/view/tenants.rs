//! Subvolumes, snapshots, quotas and their groups.

use std::path::Path;

use copyhold_fs::{Caller, FsError, NodeId};
use copyhold_types::{InodeNo, SubvolId};
use copyhold_volume::quota::{GroupId, GroupUse, Ledger, LimitKind, QuotaError, Rows};

use super::View;
use super::walk::{Last, file_error};
use crate::Error;

impl View {
    /// The root of the subvolume at `path`.
    pub(crate) async fn subvolume(&self, path: &Path) -> Result<NodeId, Error> {
        let found = self.find(path, Last::Follow).await?.node;
        match found.ino {
            InodeNo::ROOT => Ok(found),
            _ => Err(file_error(path)(FsError::Invalid("not a subvolume"))),
        }
    }

    /// The root of a subvolume of the pool.
    pub(crate) async fn volume(&self, id: SubvolId) -> Result<NodeId, Error> {
        match self.fs.getattr(root_of(id)).await {
            Ok(found) => Ok(found.node),
            Err(FsError::Stale) => Err(Error::Filesystem(FsError::NotFound)),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the new subvolume's root.
    pub(crate) async fn create_subvolume(&self, path: &Path) -> Result<NodeId, Error> {
        let (dir, name) = self.parent(path).await?;
        let made = self.fs.create_subvolume(&Caller::ROOT, dir, name, None).await;
        made.map(root_of).map_err(file_error(path))
    }

    /// Returns the snapshot's root.
    pub(crate) async fn snapshot(
        &self,
        source: &Path,
        target: &Path,
        read_only: bool,
    ) -> Result<NodeId, Error> {
        let source = self.subvolume(source).await?.subvol;
        let (dir, name) = self.parent(target).await?;
        let made = self.fs.snapshot(source, dir, name, read_only, None).await;
        made.map(root_of).map_err(file_error(target))
    }

    pub(crate) async fn delete_subvolume(&self, path: &Path) -> Result<(), Error> {
        let (dir, name) = self.parent(path).await?;
        let done = self.fs.delete_subvolume(dir, name, None).await;
        done.map(drop).map_err(file_error(path))
    }

    /// Returns the root of the subvolume that `path` names from then on.
    pub(crate) async fn roll_back(
        &self,
        path: &Path,
        snapshot: SubvolId,
        keep: Option<&Path>,
    ) -> Result<NodeId, Error> {
        let (dir, name) = self.parent(path).await?;
        let keep = match keep {
            Some(keep) => Some(self.parent(keep).await?),
            None => None,
        };
        let done = self.fs.roll_back_subvolume(dir, name, snapshot, keep).await;
        done.map(|done| root_of(done.subvol)).map_err(file_error(path))
    }

    pub(crate) async fn set_read_only(&self, on: bool) -> Result<(), Error> {
        Ok(self.fs.set_subvolume_read_only(self.root.subvol, on).await?)
    }

    /// Sets or takes away the limit of bytes of this subvolume.
    pub(crate) async fn set_limit(&self, bytes: Option<u64>) -> Result<(), Error> {
        let group = GroupId::of(self.root.subvol);
        self.change_quotas(|ledger| ledger.limit(group, LimitKind::Referenced, bytes)).await
    }

    pub(crate) async fn usage(&self) -> Result<GroupUse, Error> {
        self.group(GroupId::of(self.root.subvol)).await
    }

    pub(crate) async fn group(&self, id: GroupId) -> Result<GroupUse, Error> {
        Ok(self.fs.volumes().ledger().show_group(id).map_err(FsError::Quota)?)
    }

    pub(crate) async fn groups(&self) -> Result<Vec<GroupUse>, Error> {
        Ok(self.fs.volumes().ledger().show().map_err(FsError::Quota)?)
    }

    pub(crate) async fn set_reserve(&self, id: GroupId, bytes: u64) -> Result<(), Error> {
        let pool = self.fs.statfs();
        let free = pool.blocks_available * u64::from(pool.block_bytes);
        self.change_quotas(|ledger| ledger.reserve(id, bytes, free)).await
    }

    pub(crate) async fn change_quotas(
        &self,
        change: impl FnOnce(&Ledger) -> Result<Rows, QuotaError>,
    ) -> Result<(), Error> {
        Ok(self.fs.change_quotas(change).await?)
    }

    pub(crate) async fn enable_quotas(&self) -> Result<(), Error> {
        Ok(self.fs.enable_quotas().await?)
    }

    pub(crate) async fn sync_subvolumes(&self) -> Result<(), Error> {
        Ok(self.fs.sync_subvolumes(&[]).await?)
    }
}

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}
