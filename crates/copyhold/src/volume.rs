//! Files of a subvolume, by path: what `std::fs` offers, for a pool.
//!
//! A path is bytes, its components are divided by `/`, and it starts at the volume's root. Symbolic
//! links are followed within the volume.

use std::sync::Arc;

use copyhold_fs::{
    Attr, Caller, FileKind, Filesystem, FsError, NodeId, OpenFlags, RenameFlags, SetAttr, StatFs,
    WriteFlags,
};

use crate::Error;
use crate::engine::Engine;
use crate::path::{self, Last, file_error};

const FILE_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;

/// A subvolume of an open pool. Cheap to clone. It does not keep the pool open: when that is
/// closed or dropped, every call answers [`FsError::ShutDown`].
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
        let path = path.as_ref();
        self.run(async |fs| {
            let file = path::find(fs, self.root, path, Last::Follow).await?;
            let data = fs.read(file.node, 0, file.size as usize).await;
            Ok(data.map_err(file_error(path))?.to_vec())
        })
    }

    /// Makes `data` the content of a file, which is created if it is not there.
    pub fn write(&self, path: impl AsRef<[u8]>, data: &[u8]) -> Result<(), Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let file = open(fs, self.root, path, true).await?;
            let written = fs.write(file, 0, data, WriteFlags::default()).await;
            fs.release(file);
            written.map_err(file_error(path))
        })
    }

    // -- parts of files -----------------------------------------------------

    /// At most `len` bytes from `offset`; fewer only at the end of the file.
    pub fn read_at(
        &self,
        path: impl AsRef<[u8]>,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let file = path::find(fs, self.root, path, Last::Follow).await?;
            let data = fs.read(file.node, offset, len).await;
            Ok(data.map_err(file_error(path))?.to_vec())
        })
    }

    /// Writes into a file, which is created if it is not there; what lies between its end and
    /// `offset` reads as zeros.
    pub fn write_at(&self, path: impl AsRef<[u8]>, offset: u64, data: &[u8]) -> Result<(), Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let file = open(fs, self.root, path, false).await?;
            let written = fs.write(file, offset, data, WriteFlags::default()).await;
            fs.release(file);
            written.map_err(file_error(path))
        })
    }

    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<(), Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let file = path::find(fs, self.root, path, Last::Follow).await?;
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            let done = fs.setattr(&Caller::ROOT, file.node, &set).await;
            done.map(|_| ()).map_err(file_error(path))
        })
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

    /// What a path names; a link that it ends in is not followed.
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Attr, Error> {
        self.run(async |fs| path::find(fs, self.root, path.as_ref(), Last::Keep).await)
    }

    // -- the whole ----------------------------------------------------------

    /// Data and metadata of one file, and its name, are durable when this returns.
    pub fn sync_file(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        self.run(async |fs| {
            let file = path::find(fs, self.root, path, Last::Follow).await?;
            fs.fsync(file.node, false).await.map_err(file_error(path))
        })
    }

    /// Everything that was done before is durable when this returns.
    pub fn sync(&self) -> Result<(), Error> {
        self.run(async |fs| Ok(fs.sync().await?))
    }

    /// The smaller of what the pool and the limits of this subvolume leave.
    pub fn statfs(&self) -> Result<StatFs, Error> {
        self.run(async |fs| Ok(fs.statfs_of(self.root)))
    }
}

/// Opens a file for writing, creating it if need be. To be released.
async fn open(
    fs: &Arc<Filesystem>,
    root: NodeId,
    path: &[u8],
    truncate: bool,
) -> Result<NodeId, Error> {
    let flags = OpenFlags { truncate, ..OpenFlags::READ_WRITE };
    loop {
        match path::find(fs, root, path, Last::Follow).await {
            Ok(file) => match fs.open_node(file.node, flags).await {
                Ok(_) => return Ok(file.node),
                // Removed since: the name is free, or another file's.
                Err(FsError::Stale) => {}
                Err(error) => return Err(file_error(path)(error)),
            },
            Err(Error::File { source: FsError::NotFound, .. }) => {
                let (dir, name) = path::parent(fs, root, path).await?;
                let made = fs.create(&Caller::ROOT, dir, name, FILE_MODE, flags, false).await;
                return Ok(made.map_err(file_error(path))?.0.node);
            }
            Err(error) => return Err(error),
        }
    }
}
