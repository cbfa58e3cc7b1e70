//! The files of a subvolume, by path. Each call is described at [`crate::Volume`].

use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use copyhold_fs::{Attr, SetAttr, StatFs};
use copyhold_types::SubvolId;
use copyhold_volume::quota::{GroupUse, Ledger, QuotaError, Rows};

use super::File;
use super::pool::on_a_thread;
use crate::compare::{self, Change};
use crate::file::Handle;
use crate::view::View;
use crate::{DirItem, Error, FileOptions};

/// A subvolume of an open pool; see [`crate::Volume`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Volume {
    blocking: crate::Volume,
}

impl Volume {
    /// The interface that blocks its callers.
    pub fn blocking(&self) -> &crate::Volume {
        &self.blocking
    }

    /// Runs `work` as a task of the pool's executors, if the pool is still open.
    pub(super) fn spawn<T: Send + 'static, W, F>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<T, W, F>
    where
        W: FnOnce(View) -> F,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.blocking.engine.spawn(self.blocking.root, work)
    }

    pub(super) async fn change_quotas(
        &self,
        change: impl FnOnce(&Ledger) -> Result<Rows, QuotaError> + Send + 'static,
    ) -> Result<(), Error> {
        self.spawn(move |view| async move { view.change_quotas(change).await }).await
    }

    // -- whole files -----------------------------------------------------------

    /// See [`crate::Volume::read`].
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.read(&path, 0, usize::MAX).await }).await
    }

    /// See [`crate::Volume::write`].
    pub async fn write(&self, path: impl AsRef<Path>, data: Vec<u8>) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.replace(&path, &data).await }).await
    }

    /// See [`crate::Volume::copy`].
    pub async fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64, Error> {
        let from = from.as_ref().to_owned();
        let to = to.as_ref().to_owned();
        self.spawn(move |view| async move { view.copy(&from, &to).await }).await
    }

    // -- parts of files --------------------------------------------------------

    /// See [`crate::Volume::open`].
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        self.open_with(path, FileOptions::reading()).await
    }

    /// See [`crate::Volume::create`].
    pub async fn create(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        self.open_with(path, FileOptions::creating()).await
    }

    /// See [`crate::Volume::open_with`].
    pub async fn open_with(
        &self,
        path: impl AsRef<Path>,
        options: FileOptions,
    ) -> Result<File, Error> {
        let (engine, path) = (self.blocking.engine.clone(), path.as_ref().to_owned());
        let open = |view| async move { Handle::open(&engine, &view, &path, &options).await };
        Ok(File::new(self.clone(), Arc::new(self.spawn(open).await?)))
    }

    /// See [`crate::Volume::read_at`].
    pub async fn read_at(
        &self,
        path: impl AsRef<Path>,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.read(&path, offset, len).await }).await
    }

    /// See [`crate::Volume::write_at`].
    pub async fn write_at(
        &self,
        path: impl AsRef<Path>,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.write(&path, offset, &data).await }).await
    }

    /// See [`crate::Volume::truncate`].
    pub async fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.resize(&path, size).await }).await
    }

    // -- names -----------------------------------------------------------------

    /// See [`crate::Volume::list`].
    pub async fn list(&self, path: impl AsRef<Path>) -> Result<Vec<DirItem>, Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.list(&path).await }).await
    }

    /// See [`crate::Volume::exists`].
    pub async fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.exists(&path).await }).await
    }

    /// See [`crate::Volume::create_dir`].
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.create_dir(&path).await }).await
    }

    /// See [`crate::Volume::create_dir_all`].
    pub async fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.create_dir_all(&path).await }).await
    }

    /// See [`crate::Volume::symlink`].
    pub async fn symlink(
        &self,
        target: impl AsRef<Path>,
        path: impl AsRef<Path>,
    ) -> Result<(), Error> {
        let target = target.as_ref().to_owned();
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.symlink(&target, &path).await }).await
    }

    /// See [`crate::Volume::read_link`].
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.read_link(&path).await }).await
    }

    /// See [`crate::Volume::hard_link`].
    pub async fn hard_link(
        &self,
        path: impl AsRef<Path>,
        link: impl AsRef<Path>,
    ) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        let link = link.as_ref().to_owned();
        self.spawn(move |view| async move { view.hard_link(&path, &link).await }).await
    }

    /// See [`crate::Volume::rename`].
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        let from = from.as_ref().to_owned();
        let to = to.as_ref().to_owned();
        self.spawn(move |view| async move { view.rename(&from, &to).await }).await
    }

    /// See [`crate::Volume::remove_file`].
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.remove_file(&path).await }).await
    }

    /// See [`crate::Volume::remove_dir`].
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.remove_dir(&path).await }).await
    }

    /// See [`crate::Volume::remove_dir_all`].
    pub async fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.remove_dir_all(&path).await }).await
    }

    // -- attributes ------------------------------------------------------------

    /// See [`crate::Volume::metadata`].
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Attr, Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.metadata(&path).await }).await
    }

    /// See [`crate::Volume::symlink_metadata`].
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Attr, Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.symlink_metadata(&path).await }).await
    }

    /// See [`crate::Volume::set_attributes`].
    pub async fn set_attributes(&self, path: impl AsRef<Path>, set: SetAttr) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.set_attributes(&path, &set).await }).await
    }

    /// See [`crate::Volume::xattr`].
    pub async fn xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let path = path.as_ref().to_owned();
        let name = name.as_ref().to_owned();
        self.spawn(move |view| async move { view.xattr(&path, &name).await }).await
    }

    /// See [`crate::Volume::set_xattr`].
    pub async fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: Vec<u8>,
    ) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        let name = name.as_ref().to_owned();
        self.spawn(move |view| async move { view.set_xattr(&path, &name, &value).await }).await
    }

    /// See [`crate::Volume::remove_xattr`].
    pub async fn remove_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        let name = name.as_ref().to_owned();
        self.spawn(move |view| async move { view.remove_xattr(&path, &name).await }).await
    }

    /// See [`crate::Volume::xattrs`].
    pub async fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>, Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.xattrs(&path).await }).await
    }

    // -- subvolumes ------------------------------------------------------------

    /// See [`crate::Volume::id`].
    pub fn id(&self) -> SubvolId {
        self.blocking.id()
    }

    /// See [`crate::Volume::subvolume`].
    pub async fn subvolume(&self, path: impl AsRef<Path>) -> Result<Volume, Error> {
        let path = path.as_ref().to_owned();
        let call = move |view: View| async move { view.subvolume(&path).await };
        Ok(self.blocking.at(self.spawn(call).await?).into())
    }

    /// See [`crate::Volume::create_subvolume`].
    pub async fn create_subvolume(&self, path: impl AsRef<Path>) -> Result<Volume, Error> {
        let path = path.as_ref().to_owned();
        let call = move |view: View| async move { view.create_subvolume(&path).await };
        Ok(self.blocking.at(self.spawn(call).await?).into())
    }

    /// See [`crate::Volume::snapshot`].
    pub async fn snapshot(
        &self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<Volume, Error> {
        self.make_snapshot(source.as_ref(), target.as_ref(), false).await
    }

    /// See [`crate::Volume::snapshot_read_only`].
    pub async fn snapshot_read_only(
        &self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<Volume, Error> {
        self.make_snapshot(source.as_ref(), target.as_ref(), true).await
    }

    async fn make_snapshot(
        &self,
        source: &Path,
        target: &Path,
        read_only: bool,
    ) -> Result<Volume, Error> {
        let (source, target) = (source.to_owned(), target.to_owned());
        let call =
            move |view: View| async move { view.snapshot(&source, &target, read_only).await };
        Ok(self.blocking.at(self.spawn(call).await?).into())
    }

    /// See [`crate::Volume::delete_subvolume`].
    pub async fn delete_subvolume(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.delete_subvolume(&path).await }).await
    }

    /// See [`crate::Volume::roll_back`].
    pub async fn roll_back(
        &self,
        path: impl AsRef<Path>,
        snapshot: &Volume,
        keep: Option<&Path>,
    ) -> Result<Volume, Error> {
        self.blocking.expect_same_pool(&snapshot.blocking)?;
        let (path, snapshot) = (path.as_ref().to_owned(), snapshot.id());
        let keep = keep.map(Path::to_owned);
        let call =
            move |view: View| async move { view.roll_back(&path, snapshot, keep.as_deref()).await };
        Ok(self.blocking.at(self.spawn(call).await?).into())
    }

    /// See [`crate::Volume::diff`].
    pub async fn diff(&self, newer: &Volume) -> Result<Vec<Change>, Error> {
        self.blocking.expect_same_pool(&newer.blocking)?;
        let (engine, sides) =
            (self.blocking.engine.clone(), [self, newer].map(|v| v.blocking.root));
        on_a_thread(move || compare::diff(&engine, sides)).await
    }

    /// See [`crate::Volume::set_read_only`].
    pub async fn set_read_only(&self, on: bool) -> Result<(), Error> {
        self.spawn(move |view| async move { view.set_read_only(on).await }).await
    }

    /// See [`crate::Volume::set_limit`].
    pub async fn set_limit(&self, bytes: Option<u64>) -> Result<(), Error> {
        self.spawn(move |view| async move { view.set_limit(bytes).await }).await
    }

    /// See [`crate::Volume::usage`].
    pub async fn usage(&self) -> Result<GroupUse, Error> {
        self.spawn(move |view| async move { view.usage().await }).await
    }

    // -- the whole -------------------------------------------------------------

    /// See [`crate::Volume::sync_file`].
    pub async fn sync_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().to_owned();
        self.spawn(move |view| async move { view.sync_file(&path).await }).await
    }

    /// See [`crate::Volume::sync`].
    pub async fn sync(&self) -> Result<(), Error> {
        self.spawn(move |view| async move { view.sync().await }).await
    }

    /// See [`crate::Volume::statfs`].
    pub async fn statfs(&self) -> Result<StatFs, Error> {
        self.spawn(move |view| async move { view.statfs().await }).await
    }
}

impl From<crate::Volume> for Volume {
    fn from(blocking: crate::Volume) -> Volume {
        Volume { blocking }
    }
}
