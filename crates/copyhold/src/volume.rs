//! Files of a subvolume, by path: an interface like `std::fs`, for a pool.
//!
//! A path is bytes, its components are divided by `/`, and it starts at the volume's root. Symbolic
//! links are followed within the volume.

use std::sync::Arc;

use copyhold_fs::{Attr, Caller, FileKind, Filesystem, NodeId, RenameFlags, StatFs};

use crate::engine::Engine;
use crate::path::{self, Last, file_error};
use crate::{Error, content};

const DIR_MODE: u32 = 0o755;

/// A subvolume of an open pool. Cheap to clone. It does not keep the pool open: when that is
/// closed or dropped, every call answers [`copyhold_fs::FsError::ShutDown`].
#[derive(Clone)]
pub struct Volume {
    engine: Arc<Engine>,
    pub(crate) root: NodeId,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    pub name: Vec<u8>,
    pub kind: FileKind,
}

impl Volume {
    pub(crate) fn new(engine: Arc<Engine>) -> Volume {
        Volume { engine, root: NodeId::ROOT }
    }

    /// Another subvolume of the same pool.
    pub(crate) fn at(&self, root: NodeId) -> Volume {
        Volume { root, ..self.clone() }
    }

    /// Runs `work` on the filesystem, if it is still open.
    pub(crate) fn run<T>(
        &self,
        work: impl AsyncFnOnce(&Arc<Filesystem>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.engine.run(work)
    }

    // -- whole files --------------------------------------------------------

    /// The content of a file.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        self.read_at(path, 0, usize::MAX)
    }

    /// Makes `data` the content of a file, which is created if it is not there.
    pub fn write(&self, path: impl AsRef<[u8]>, data: &[u8]) -> Result<(), Error> {
        self.run(async |fs| content::replace(fs, self.root, path.as_ref(), data).await)
    }

    // -- parts of files -----------------------------------------------------

    /// At most `len` bytes from `offset`; fewer only at the end of the file.
    pub fn read_at(
        &self,
        path: impl AsRef<[u8]>,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Error> {
        self.run(async |fs| content::read(fs, self.root, path.as_ref(), offset, len).await)
    }

    /// Writes into a file, which is created if it is not there; a gap between its end and `offset`
    /// reads as zeros.
    pub fn write_at(&self, path: impl AsRef<[u8]>, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.run(async |fs| content::write(fs, self.root, path.as_ref(), offset, data).await)
    }

    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<(), Error> {
        self.run(async |fs| content::resize(fs, self.root, path.as_ref(), size).await)
    }

    // -- names --------------------------------------------------------------

    /// The entries of a directory, without "." and "..", in no particular order.
    pub fn list(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirItem>, Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let dir = path::find(fs, self.root, path, Last::Follow).await?;
            let mut items = Vec::new();
            let listed = fs
                .readdir(dir.node, 0, &mut |entry| {
                    if entry.name != b"." && entry.name != b".." {
                        items.push(DirItem { name: entry.name.to_vec(), kind: entry.kind });
                    }
                    true
                })
                .await;
            listed.map_err(file_error(path))?;
            Ok(items)
        })
    }

    pub fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let (dir, name) = path::parent(fs, self.root, path).await?;
            let made = fs.mkdir(&Caller::ROOT, dir, name, DIR_MODE).await;
            made.map(|_| ()).map_err(file_error(path))
        })
    }

    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let (dir, name) = path::parent(fs, self.root, path).await?;
            let made = fs.symlink(&Caller::ROOT, dir, name, target.as_ref()).await;
            made.map(|_| ()).map_err(file_error(path))
        })
    }

    /// Moves a file or directory; an existing target is replaced as by rename(2).
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<(), Error> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.run(async |fs| {
            let (dir, name) = path::parent(fs, self.root, from).await?;
            let (new_dir, new_name) = path::parent(fs, self.root, to).await?;
            let flags = RenameFlags::default();
            let done = fs.rename(&Caller::ROOT, dir, name, new_dir, new_name, flags).await;
            done.map_err(file_error(from))
        })
    }

    /// Removes a name of a file that is no directory.
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let (dir, name) = path::parent(fs, self.root, path).await?;
            fs.unlink(dir, name).await.map_err(file_error(path))
        })
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let (dir, name) = path::parent(fs, self.root, path).await?;
            fs.rmdir(dir, name).await.map_err(file_error(path))
        })
    }

    /// The attributes of a path's target; a link that it ends in is not followed.
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Attr, Error> {
        self.run(async |fs| path::find(fs, self.root, path.as_ref(), Last::Keep).await)
    }

    // -- the whole ----------------------------------------------------------

    /// Data and metadata of one file, and its name, are durable when this returns.
    pub fn sync_file(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        self.run(async |fs| content::sync(fs, self.root, path.as_ref()).await)
    }

    /// Everything that was done before is durable when this returns.
    pub fn sync(&self) -> Result<(), Error> {
        self.run(async |fs| Ok(fs.sync().await?))
    }

    /// The smaller of the room in the pool and the room below the limits of this subvolume.
    pub fn statfs(&self) -> Result<StatFs, Error> {
        self.run(async |fs| Ok(fs.statfs_of(self.root)))
    }
}
