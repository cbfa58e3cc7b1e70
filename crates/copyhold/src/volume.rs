//! The files of a subvolume, by path: an interface like `std::fs`, for a pool.
//!
//! A path starts at the subvolume's root, with or without a `/` in front. Symbolic links are
//! followed within the subvolume, and nothing leads out of it. The names are those of `std::fs`
//! where a call does the same.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use copyhold_fs::{Attr, FileKind, FsError, NodeId, SetAttr, StatFs};

use crate::engine::Engine;
use crate::file::Handle;
use crate::view::View;
use crate::{Error, File, FileOptions};

/// A subvolume of an open pool. Cheap to clone, and usable by any number of threads at once. It
/// does not keep the pool open: when that is closed or dropped, every call returns
/// [`FsError::ShutDown`](crate::FsError::ShutDown).
#[derive(Clone)]
pub struct Volume {
    pub(crate) engine: Arc<Engine>,
    pub(crate) root: NodeId,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    pub name: OsString,
    pub kind: FileKind,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Volume {
    pub(crate) fn new(engine: Arc<Engine>) -> Volume {
        Volume { engine, root: NodeId::ROOT }
    }

    /// Another subvolume of the same pool.
    pub(crate) fn at(&self, root: NodeId) -> Volume {
        Volume { root, ..self.clone() }
    }

    /// Refuses a volume of another pool, whose id names another subvolume here.
    pub(crate) fn expect_same_pool(&self, other: &Volume) -> Result<(), Error> {
        match Arc::ptr_eq(&self.engine, &other.engine) {
            true => Ok(()),
            false => Err(Error::OtherPool(other.root.subvol)),
        }
    }

    /// Runs `work` on this thread, if the pool is still open.
    pub(crate) fn run<T>(
        &self,
        work: impl AsyncFnOnce(&View) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.engine.run(self.root, work)
    }

    // -- whole files --------------------------------------------------------

    /// The content of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        self.read_at(path, 0, usize::MAX)
    }

    /// The content of a file of text.
    ///
    /// # Errors
    /// [`FsError::Invalid`](crate::FsError::Invalid) where it is not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String, Error> {
        let path = path.as_ref();
        String::from_utf8(self.read(path)?).map_err(|_| Error::File {
            path: path.into(),
            source: FsError::Invalid("the content is not UTF-8"),
        })
    }

    /// Makes `data` the content of a file, which is created if it does not exist.
    pub fn write(&self, path: impl AsRef<Path>, data: &[u8]) -> Result<(), Error> {
        self.run(async |view| view.replace(path.as_ref(), data).await)
    }

    /// Makes `to` a file with the content of `from`, and returns its bytes. The two share whole
    /// blocks until one of them is written to. Permissions are copied, extended attributes are not.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64, Error> {
        self.run(async |view| view.copy(from.as_ref(), to.as_ref()).await)
    }

    // -- parts of files -----------------------------------------------------

    /// Opens a file to read it.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        self.open_with(path, &FileOptions::reading())
    }

    /// Opens an empty file to read and write it: it is created, or its content removed.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        self.open_with(path, &FileOptions::creating())
    }

    /// Opens a file as `options` say.
    pub fn open_with(&self, path: impl AsRef<Path>, options: &FileOptions) -> Result<File, Error> {
        let open =
            async |view: &View| Handle::open(&self.engine, view, path.as_ref(), options).await;
        Ok(File::new(self.clone(), self.run(open)?))
    }

    /// At most `len` bytes from `offset`; fewer only at the end of the file.
    pub fn read_at(
        &self,
        path: impl AsRef<Path>,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Error> {
        self.run(async |view| view.read(path.as_ref(), offset, len).await)
    }

    /// Writes into a file, which is created if it does not exist; a gap between its end and
    /// `offset` reads as zeros.
    pub fn write_at(&self, path: impl AsRef<Path>, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.run(async |view| view.write(path.as_ref(), offset, data).await)
    }

    /// Makes a file `size` bytes long: cuts it, or adds zeros.
    pub fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<(), Error> {
        self.run(async |view| view.resize(path.as_ref(), size).await)
    }

    // -- names --------------------------------------------------------------

    /// The entries of a directory, without "." and "..", in no particular order.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<DirItem>, Error> {
        self.run(async |view| view.list(path.as_ref()).await)
    }

    /// Whether the path leads to something. A link that leads to nothing does not.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        self.run(async |view| view.exists(path.as_ref()).await)
    }

    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.run(async |view| view.create_dir(path.as_ref()).await)
    }

    /// Makes a directory and those above it that do not exist.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.run(async |view| view.create_dir_all(path.as_ref()).await)
    }

    /// Makes a symbolic link at `path`.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
        self.run(async |view| view.symlink(target.as_ref(), path.as_ref()).await)
    }

    /// The target of a symbolic link, as it was given.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        self.run(async |view| view.read_link(path.as_ref()).await)
    }

    /// Makes `link` another name of the file at `path`.
    pub fn hard_link(&self, path: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Error> {
        self.run(async |view| view.hard_link(path.as_ref(), link.as_ref()).await)
    }

    /// Moves a file or directory; an existing target is replaced as by rename(2).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        self.run(async |view| view.rename(from.as_ref(), to.as_ref()).await)
    }

    /// Removes a name of a file that is no directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.run(async |view| view.remove_file(path.as_ref()).await)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.run(async |view| view.remove_dir(path.as_ref()).await)
    }

    /// Removes a directory with all that is in it.
    ///
    /// # Errors
    /// [`FsError::IsSubvolume`](crate::FsError::IsSubvolume) at a subvolume in it, which stays;
    /// files that were found before are removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.run(async |view| view.remove_dir_all(path.as_ref()).await)
    }

    // -- attributes ---------------------------------------------------------

    /// The attributes of the file that a path leads to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Attr, Error> {
        self.run(async |view| view.metadata(path.as_ref()).await)
    }

    /// As [`Self::metadata`]; a link that the path ends in is not followed.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Attr, Error> {
        self.run(async |view| view.symlink_metadata(path.as_ref()).await)
    }

    /// Changes permissions, owners or times; see [`SetAttr`].
    pub fn set_attributes(&self, path: impl AsRef<Path>, set: &SetAttr) -> Result<(), Error> {
        self.run(async |view| view.set_attributes(path.as_ref(), set).await)
    }

    /// The value of an extended attribute, if the file has it. `name` has its namespace in front,
    /// as `user.origin`.
    pub fn xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.run(async |view| view.xattr(path.as_ref(), name.as_ref()).await)
    }

    /// Sets an extended attribute, whether or not the file has it.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
    ) -> Result<(), Error> {
        self.run(async |view| view.set_xattr(path.as_ref(), name.as_ref(), value).await)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`](crate::FsError::NoAttribute) if the file does not have it.
    pub fn remove_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<(), Error> {
        self.run(async |view| view.remove_xattr(path.as_ref(), name.as_ref()).await)
    }

    /// The names of a file's extended attributes.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>, Error> {
        self.run(async |view| view.xattrs(path.as_ref()).await)
    }

    // -- the whole ----------------------------------------------------------

    /// Data and metadata of one file, and its name, are durable when this returns.
    pub fn sync_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.run(async |view| view.sync_file(path.as_ref()).await)
    }

    /// Everything that was done before is durable when this returns.
    pub fn sync(&self) -> Result<(), Error> {
        self.run(async |view| view.sync().await)
    }

    /// The smaller of the room in the pool and the room below the limits of this subvolume.
    pub fn statfs(&self) -> Result<StatFs, Error> {
        self.run(async |view| view.statfs().await)
    }
}
