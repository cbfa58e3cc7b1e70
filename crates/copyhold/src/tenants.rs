//! Tenants: subvolumes, snapshots, their usage and limits.
//!
//! ```
//! # fn main() -> Result<(), copyhold::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let image = dir.path().join("pool.img");
//! use copyhold::{CreateOptions, OpenOptions, Pool};
//!
//! Pool::create(&image, 64 << 20, &CreateOptions::default())?;
//! let pool = Pool::open(&image, OpenOptions::default())?;
//! pool.enable_quotas()?;
//! let root = pool.root();
//! root.create_subvolume("base")?.write("letter", b"Dear reader")?;
//! let alice = root.snapshot("base", "alice", false)?;
//! alice.limit(Some(1 << 20))?;
//! assert!(alice.write("flood", &vec![7; 2 << 20]).is_err());
//! root.delete_subvolume("base")?;
//! assert_eq!(alice.read("letter")?, b"Dear reader");
//! pool.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! More of quotas (groups, membership, reserves) is reached through [`Pool::filesystem`].

use copyhold_fs::{Caller, FsError, NodeId, SubvolInfo};
use copyhold_types::{InodeNo, SubvolId};
use copyhold_volume::quota::{GroupId, GroupUse, LimitKind};

use crate::path::{self, Last, file_error};
use crate::{Error, Pool, Volume};

impl Volume {
    /// Which subvolume this is. An id is never used again.
    pub fn id(&self) -> SubvolId {
        self.root.subvol
    }

    /// The subvolume whose root directory `path` is.
    pub fn subvolume(&self, path: impl AsRef<[u8]>) -> Result<Volume, Error> {
        let path = path.as_ref();
        let root = self.run(async |fs| {
            let found = path::find(fs, self.root, path, Last::Follow).await?.node;
            match found.ino {
                InodeNo::ROOT => Ok(found),
                _ => Err(file_error(path)(FsError::Invalid("not a subvolume"))),
            }
        })?;
        Ok(self.at(root))
    }

    /// Makes an empty subvolume. It joins the quota groups of this one.
    pub fn create_subvolume(&self, path: impl AsRef<[u8]>) -> Result<Volume, Error> {
        let path = path.as_ref();
        let made = self.run(async |fs| {
            let (dir, name) = path::parent(fs, self.root, path).await?;
            let made = fs.create_subvolume(&Caller::ROOT, dir, name, None).await;
            made.map_err(file_error(path))
        })?;
        Ok(self.at(root_of(made)))
    }

    /// Makes a subvolume at `target` that shows the present state of the one at `source`. It takes
    /// no space, and a time that does not depend on the size. Subvolumes inside the source are
    /// empty directories in it.
    pub fn snapshot(
        &self,
        source: impl AsRef<[u8]>,
        target: impl AsRef<[u8]>,
        read_only: bool,
    ) -> Result<Volume, Error> {
        let source = self.subvolume(source)?.id();
        let target = target.as_ref();
        let made = self.run(async |fs| {
            let (dir, name) = path::parent(fs, self.root, target).await?;
            let made = fs.snapshot(source, dir, name, read_only, None).await;
            made.map_err(file_error(target))
        })?;
        Ok(self.at(root_of(made)))
    }

    /// Deletes the subvolume at `path` with all that is in it. Its space is freed in the
    /// background; space that others share with it stays.
    pub fn delete_subvolume(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let (dir, name) = path::parent(fs, self.root, path).await?;
            let done = fs.delete_subvolume(dir, name, None).await;
            done.map(drop).map_err(file_error(path))
        })
    }

    /// Forbids changes of this subvolume, or allows them again.
    pub fn set_read_only(&self, on: bool) -> Result<(), Error> {
        self.run(async |fs| Ok(fs.set_subvolume_read_only(self.id(), on).await?))
    }

    /// Sets the most bytes that this subvolume may use, or takes the limit away. It may be below
    /// the usage: then nothing more is given until enough is removed, which always works.
    ///
    /// # Errors
    /// [`FsError::Quota`] while quotas are off.
    pub fn limit(&self, bytes: Option<u64>) -> Result<(), Error> {
        let group = GroupId::of(self.id());
        self.run(async |fs| {
            let change =
                fs.change_quotas(|ledger| ledger.limit(group, LimitKind::Referenced, bytes));
            Ok(change.await?)
        })
    }

    /// The usage that this subvolume pays for, and its limits. Exact after [`Volume::sync`].
    ///
    /// # Errors
    /// [`FsError::Quota`] while quotas are off.
    pub fn usage(&self) -> Result<GroupUse, Error> {
        let group = GroupId::of(self.id());
        self.run(async |fs| Ok(fs.volumes().ledger().show_group(group).map_err(FsError::Quota)?))
    }
}

impl Pool {
    /// Turns simple quotas on: all data written from now on counts. They stay on.
    pub fn enable_quotas(&self) -> Result<(), Error> {
        self.root().run(async |fs| Ok(fs.enable_quotas().await?))
    }

    /// All quota groups; those of level 0 are subvolumes, the deleted that still pay among them.
    ///
    /// # Errors
    /// [`FsError::Quota`] while quotas are off.
    pub fn usage(&self) -> Result<Vec<GroupUse>, Error> {
        self.root().run(async |fs| Ok(fs.volumes().ledger().show().map_err(FsError::Quota)?))
    }

    /// All subvolumes by id, those that are being freed, too.
    pub fn subvolumes(&self) -> Vec<SubvolInfo> {
        self.filesystem().subvolumes()
    }

    /// Waits until nothing is left to be freed of deleted subvolumes.
    pub fn sync_subvolumes(&self) -> Result<(), Error> {
        self.root().run(async |fs| Ok(fs.sync_subvolumes(&[]).await?))
    }
}

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}
