//! Tenants: subvolumes, snapshots, their usage and limits.
//!
//! ```
//! # fn main() -> Result<(), copyhold::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let image = dir.path().join("pool.img");
//! use copyhold::{CreateOptions, OpenOptions, Pool};
//!
//! Pool::create(&image, &CreateOptions::sized(64 << 20))?;
//! let pool = Pool::open(&image, OpenOptions::default())?;
//! pool.enable_quotas()?;
//! let root = pool.root();
//! root.create_subvolume("base")?.write("letter", b"Dear reader")?;
//! let alice = root.snapshot("base", "alice")?;
//! alice.set_limit(Some(1 << 20))?;
//! assert!(alice.write("flood", &vec![7; 2 << 20]).is_err());
//! root.delete_subvolume("base")?;
//! assert_eq!(alice.read("letter")?, b"Dear reader");
//! pool.close()?;
//! # Ok(())
//! # }
//! ```

use std::path::Path;

use copyhold_fs::SubvolInfo;
use copyhold_types::SubvolId;
use copyhold_volume::quota::{GroupId, GroupUse, LimitKind};

use crate::compare::{self, Change};
use crate::{Error, Pool, Volume};

impl Volume {
    /// The subvolume's id, which is never used again.
    pub fn id(&self) -> SubvolId {
        self.root.subvol
    }

    /// The subvolume whose root directory `path` is.
    pub fn subvolume(&self, path: impl AsRef<Path>) -> Result<Volume, Error> {
        Ok(self.at(self.run(async |view| view.subvolume(path.as_ref()).await)?))
    }

    /// Makes an empty subvolume. It joins the quota groups of this one.
    pub fn create_subvolume(&self, path: impl AsRef<Path>) -> Result<Volume, Error> {
        Ok(self.at(self.run(async |view| view.create_subvolume(path.as_ref()).await)?))
    }

    /// Makes a subvolume at `target` that shows the present state of the one at `source`. It takes
    /// no space, and a time that does not depend on the size. Subvolumes inside the source are
    /// empty directories in it.
    pub fn snapshot(
        &self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<Volume, Error> {
        let (source, target) = (source.as_ref(), target.as_ref());
        Ok(self.at(self.run(async |view| view.snapshot(source, target, false).await)?))
    }

    /// As [`Self::snapshot`]; the new subvolume is read-only from the start.
    pub fn snapshot_read_only(
        &self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<Volume, Error> {
        let (source, target) = (source.as_ref(), target.as_ref());
        Ok(self.at(self.run(async |view| view.snapshot(source, target, true).await)?))
    }

    /// Deletes the subvolume at `path` with all that is in it. Its space is freed in the
    /// background; space that others share with it stays.
    pub fn delete_subvolume(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.run(async |view| view.delete_subvolume(path.as_ref()).await)
    }

    /// The subvolume at `path` returns to the state of `snapshot`: a new, writable snapshot of that
    /// takes its place, with its quota groups and limits, and is returned. The old state is
    /// deleted, or is a subvolume at `keep` from then on.
    ///
    /// # Errors
    /// It is read-only, shares no history with `snapshot`, or holds other subvolumes and is not
    /// kept.
    pub fn roll_back(
        &self,
        path: impl AsRef<Path>,
        snapshot: &Volume,
        keep: Option<&Path>,
    ) -> Result<Volume, Error> {
        self.expect_same_pool(snapshot)?;
        let (path, snapshot) = (path.as_ref(), snapshot.id());
        Ok(self.at(self.run(async |view| view.roll_back(path, snapshot, keep).await)?))
    }

    /// The paths that differ between this state and a newer one, at the cost of the changes: two
    /// snapshots, or a snapshot and its source. A side that is writable is compared as it is now.
    ///
    /// # Errors
    /// The two do not share by snapshot.
    pub fn diff(&self, newer: &Volume) -> Result<Vec<Change>, Error> {
        self.expect_same_pool(newer)?;
        compare::diff(&self.engine, [self.root, newer.root])
    }

    /// Forbids changes of this subvolume, or allows them again.
    pub fn set_read_only(&self, on: bool) -> Result<(), Error> {
        self.run(async |view| view.set_read_only(on).await)
    }

    /// Sets the most bytes that this subvolume may use, or takes the limit away. It may be below
    /// the usage: then nothing more is given until enough is removed, which always works.
    ///
    /// # Errors
    /// [`FsError::Quota`](crate::FsError::Quota) while quotas are off.
    pub fn set_limit(&self, bytes: Option<u64>) -> Result<(), Error> {
        self.run(async |view| view.set_limit(bytes).await)
    }

    /// The usage that this subvolume pays for, and its limits. Exact after [`Volume::sync`].
    ///
    /// # Errors
    /// [`FsError::Quota`](crate::FsError::Quota) while quotas are off.
    pub fn usage(&self) -> Result<GroupUse, Error> {
        self.run(async |view| view.usage().await)
    }
}

impl Pool {
    /// Turns simple quotas on: all data written from now on counts. They stay on.
    pub fn enable_quotas(&self) -> Result<(), Error> {
        self.root().run(async |view| view.enable_quotas().await)
    }

    /// The quota groups of the pool.
    pub fn groups(&self) -> Groups {
        Groups { root: self.root() }
    }

    /// The subvolume with an id, as [`Self::subvolumes`] lists them.
    ///
    /// # Errors
    /// [`FsError::NotFound`](crate::FsError::NotFound) if there is none, or it is being freed.
    pub fn volume(&self, id: SubvolId) -> Result<Volume, Error> {
        let root = self.root();
        Ok(root.at(root.run(async |view| view.volume(id).await)?))
    }

    /// All subvolumes by id, those that are being freed, too.
    pub fn subvolumes(&self) -> Vec<SubvolInfo> {
        self.filesystem().subvolumes()
    }

    /// Waits until nothing is left to be freed of deleted subvolumes.
    pub fn sync_subvolumes(&self) -> Result<(), Error> {
        self.root().run(async |view| view.sync_subvolumes().await)
    }
}

/// The quota groups of a pool. A group of level 0 is a subvolume, and comes and goes with it; a
/// group of a higher level holds groups of lower ones, and its limits are those of their sum.
///
/// Every call returns [`FsError::Quota`](crate::FsError::Quota) while quotas are off.
#[derive(Debug)]
pub struct Groups {
    root: Volume,
}

impl Groups {
    /// All groups by id; deleted subvolumes that still pay for shared space are among them.
    pub fn list(&self) -> Result<Vec<GroupUse>, Error> {
        self.root.run(async |view| view.groups().await)
    }

    /// One group.
    pub fn get(&self, id: GroupId) -> Result<GroupUse, Error> {
        self.root.run(async |view| view.group(id).await)
    }

    /// Makes a group of a level above 0.
    pub fn create(&self, id: GroupId) -> Result<(), Error> {
        self.root.run(async |view| view.change_quotas(|ledger| ledger.create(id)).await)
    }

    /// Removes a group of a level above 0 that has no members.
    pub fn destroy(&self, id: GroupId) -> Result<(), Error> {
        self.root.run(async |view| view.change_quotas(|ledger| ledger.destroy(id)).await)
    }

    /// Makes `member` a member of `group`, which has a higher level.
    pub fn add_member(&self, group: GroupId, member: GroupId) -> Result<(), Error> {
        self.root.run(async |view| view.change_quotas(|ledger| ledger.assign(member, group)).await)
    }

    pub fn remove_member(&self, group: GroupId, member: GroupId) -> Result<(), Error> {
        self.root.run(async |view| view.change_quotas(|ledger| ledger.remove(member, group)).await)
    }

    /// Sets a limit, or takes it away.
    pub fn set_limit(&self, id: GroupId, kind: LimitKind, limit: Option<u64>) -> Result<(), Error> {
        self.root.run(async |view| view.change_quotas(|ledger| ledger.limit(id, kind, limit)).await)
    }

    /// Keeps bytes of the pool for a subvolume's own use; 0 for none.
    ///
    /// # Errors
    /// The pool does not have so many that are free and not kept already.
    pub fn set_reserve(&self, id: GroupId, bytes: u64) -> Result<(), Error> {
        self.root.run(async |view| view.set_reserve(id, bytes).await)
    }
}
