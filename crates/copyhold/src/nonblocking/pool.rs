//! A pool, its mount, and its quota groups.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use copyhold_fs::{Filesystem, FsError, SubvolInfo};
use copyhold_fuse::mount::Mount;
use copyhold_types::{PoolId, SubvolId};
use copyhold_volume::quota::{GroupId, GroupUse, LimitKind};
use futures_channel::oneshot;

use super::Volume;
use crate::{CreateOptions, Error, MountOptions, OpenOptions};

/// An open pool; see [`crate::Pool`]. Dropping it blocks the thread until calls under way have
/// ended; [`Pool::close`] does not.
#[derive(Debug)]
pub struct Pool {
    blocking: crate::Pool,
}

impl Pool {
    /// Makes a pool; see [`crate::Pool::create`].
    pub async fn create(path: impl AsRef<Path>, options: CreateOptions) -> Result<PoolId, Error> {
        let path = path.as_ref().to_owned();
        on_a_thread(move || crate::Pool::create(path, &options)).await
    }

    /// Opens a pool; see [`crate::Pool::open`].
    pub async fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Pool, Error> {
        let path = path.as_ref().to_owned();
        on_a_thread(move || crate::Pool::open(path, options).map(Pool::from)).await
    }

    /// Opens a pool and mounts it; see [`crate::Pool::mount`].
    pub async fn mount(
        path: impl AsRef<Path>,
        directory: impl AsRef<Path>,
        options: MountOptions,
    ) -> Result<Mounted, Error> {
        let (path, directory) = (path.as_ref().to_owned(), directory.as_ref().to_owned());
        let mount = move || crate::Pool::mount(path, directory, &options);
        on_a_thread(move || mount().map(|blocking| Mounted { blocking })).await
    }

    /// The id that its creation gave it.
    pub fn id(&self) -> PoolId {
        self.blocking.id()
    }

    /// The pool's root subvolume.
    pub fn root(&self) -> Volume {
        self.blocking.root().into()
    }

    /// The interface that blocks its callers.
    pub fn blocking(&self) -> &crate::Pool {
        &self.blocking
    }

    /// The quota groups of the pool.
    pub fn groups(&self) -> Groups {
        Groups { root: self.root() }
    }

    /// See [`crate::Pool::volume`].
    pub async fn volume(&self, id: SubvolId) -> Result<Volume, Error> {
        let root = self.root();
        let node = root.spawn(move |view| async move { view.volume(id).await }).await?;
        Ok(self.blocking.root().at(node).into())
    }

    /// All subvolumes by id, those that are being freed, too.
    pub fn subvolumes(&self) -> Vec<SubvolInfo> {
        self.blocking.subvolumes()
    }

    /// See [`crate::Pool::enable_quotas`].
    pub async fn enable_quotas(&self) -> Result<(), Error> {
        self.root().spawn(|view| async move { view.enable_quotas().await }).await
    }

    /// See [`crate::Pool::sync_subvolumes`].
    pub async fn sync_subvolumes(&self) -> Result<(), Error> {
        self.root().spawn(|view| async move { view.sync_subvolumes().await }).await
    }

    /// Writes everything, and ends all work on the pool.
    pub async fn close(self) -> Result<(), Error> {
        on_a_thread(move || self.blocking.close()).await
    }
}

impl From<crate::Pool> for Pool {
    fn from(blocking: crate::Pool) -> Pool {
        Pool { blocking }
    }
}

/// A mounted pool; see [`crate::Mounted`]. Dropping it blocks the thread until the mount has ended.
#[derive(Debug)]
pub struct Mounted {
    blocking: crate::Mounted,
}

impl Mounted {
    /// The filesystem itself, in futures and VFS terms.
    pub fn filesystem(&self) -> &Arc<Filesystem> {
        self.blocking.filesystem()
    }

    /// The kernel's mount. There is none once it is unmounted.
    pub fn kernel(&self) -> Option<&Arc<Mount>> {
        self.blocking.kernel()
    }

    /// Unmounts it; see [`crate::Mounted::unmount`].
    ///
    /// # Errors
    /// With the mount, where it could not be removed; without, where closing the pool failed.
    pub async fn unmount(self) -> Result<(), (Error, Option<Mounted>)> {
        let mut blocking = self.blocking;
        let unmounted = on_a_thread(move || {
            let done = blocking.unmount();
            Ok((done, blocking))
        });
        match unmounted.await {
            Ok((Ok(()), _)) => Ok(()),
            Ok((Err(error), blocking)) => {
                let stays = blocking.kernel().is_some();
                Err((error, stays.then_some(Mounted { blocking })))
            }
            Err(error) => Err((error, None)),
        }
    }

    /// Waits until another process has unmounted it, and everything is written and closed.
    pub async fn wait(self) -> Result<(), Error> {
        on_a_thread(move || self.blocking.wait()).await
    }
}

/// The quota groups of a pool; see [`crate::Groups`].
#[derive(Debug)]
pub struct Groups {
    root: Volume,
}

impl Groups {
    /// All groups by id.
    pub async fn list(&self) -> Result<Vec<GroupUse>, Error> {
        self.root.spawn(|view| async move { view.groups().await }).await
    }

    /// One group.
    pub async fn get(&self, id: GroupId) -> Result<GroupUse, Error> {
        self.root.spawn(move |view| async move { view.group(id).await }).await
    }

    /// See [`crate::Groups::create`].
    pub async fn create(&self, id: GroupId) -> Result<(), Error> {
        self.root.change_quotas(move |ledger| ledger.create(id)).await
    }

    /// See [`crate::Groups::destroy`].
    pub async fn destroy(&self, id: GroupId) -> Result<(), Error> {
        self.root.change_quotas(move |ledger| ledger.destroy(id)).await
    }

    /// See [`crate::Groups::add_member`].
    pub async fn add_member(&self, group: GroupId, member: GroupId) -> Result<(), Error> {
        self.root.change_quotas(move |ledger| ledger.assign(member, group)).await
    }

    /// See [`crate::Groups::remove_member`].
    pub async fn remove_member(&self, group: GroupId, member: GroupId) -> Result<(), Error> {
        self.root.change_quotas(move |ledger| ledger.remove(member, group)).await
    }

    /// See [`crate::Groups::set_limit`].
    pub async fn set_limit(
        &self,
        id: GroupId,
        kind: LimitKind,
        limit: Option<u64>,
    ) -> Result<(), Error> {
        self.root.change_quotas(move |ledger| ledger.limit(id, kind, limit)).await
    }

    /// See [`crate::Groups::set_reserve`].
    pub async fn set_reserve(&self, id: GroupId, bytes: u64) -> Result<(), Error> {
        self.root.spawn(move |view| async move { view.set_reserve(id, bytes).await }).await
    }
}

/// Runs a call that can only block, and is rare, on a thread of its own.
#[allow(clippy::disallowed_methods, reason = "the executors run nothing that blocks")]
pub(super) async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (report, result) = oneshot::channel();
    let thread = thread::Builder::new().name("copyhold-call".into());
    // A caller who has dropped the future wants no result.
    let started = thread.spawn(move || drop(report.send(work())));
    started.map_err(Error::Start)?;
    // Only a panic drops the other end; its message is on standard error.
    result.await.unwrap_or(Err(Error::Filesystem(FsError::ShutDown)))
}
