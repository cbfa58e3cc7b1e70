//! Attributes of files, and extended attributes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use copyhold_fs::{Attr, Caller, FsError, SetAttr, StatFs, XattrSet};

use super::View;
use super::walk::{Last, file_error};
use crate::Error;

impl View {
    pub(crate) async fn metadata(&self, path: &Path) -> Result<Attr, Error> {
        self.find(path, Last::Follow).await
    }

    pub(crate) async fn symlink_metadata(&self, path: &Path) -> Result<Attr, Error> {
        self.find(path, Last::Keep).await
    }

    pub(crate) async fn exists(&self, path: &Path) -> Result<bool, Error> {
        match self.find(path, Last::Follow).await {
            Ok(_) => Ok(true),
            Err(Error::File { source: FsError::NotFound | FsError::NotDirectory, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn set_attributes(&self, path: &Path, set: &SetAttr) -> Result<(), Error> {
        let file = self.open_existing(path).await?;
        let done = self.fs.setattr(&Caller::ROOT, file.node, set).await;
        done.map(drop).map_err(file_error(path))
    }

    /// The value of an extended attribute, if the file has it.
    pub(crate) async fn xattr(&self, path: &Path, name: &OsStr) -> Result<Option<Vec<u8>>, Error> {
        let file = self.open_existing(path).await?;
        match self.fs.get_xattr(file.node, name.as_bytes()).await {
            Ok(value) => Ok(Some(value)),
            Err(FsError::NoAttribute) => Ok(None),
            Err(error) => Err(file_error(path)(error)),
        }
    }

    pub(crate) async fn set_xattr(
        &self,
        path: &Path,
        name: &OsStr,
        value: &[u8],
    ) -> Result<(), Error> {
        let file = self.open_existing(path).await?;
        let (caller, name) = (&Caller::ROOT, name.as_bytes());
        let set = self.fs.set_xattr(caller, file.node, name, value, XattrSet::Any, false).await;
        set.map_err(file_error(path))
    }

    pub(crate) async fn remove_xattr(&self, path: &Path, name: &OsStr) -> Result<(), Error> {
        let file = self.open_existing(path).await?;
        self.fs.remove_xattr(file.node, name.as_bytes()).await.map_err(file_error(path))
    }

    pub(crate) async fn xattrs(&self, path: &Path) -> Result<Vec<OsString>, Error> {
        let file = self.open_existing(path).await?;
        let names = self.fs.list_xattr(file.node).await.map_err(file_error(path))?;
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect())
    }

    pub(crate) async fn statfs(&self) -> Result<StatFs, Error> {
        Ok(self.fs.statfs_of(self.root))
    }

    pub(crate) async fn sync(&self) -> Result<(), Error> {
        Ok(self.fs.sync().await?)
    }
}
