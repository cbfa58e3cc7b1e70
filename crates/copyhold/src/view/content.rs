//! The content of files, by path and by handle (CONTENT-C1).

use std::path::Path;

use copyhold_fs::{Attr, Caller, FileKind, FsError, NodeId, OpenFlags, SetAttr, WriteFlags};

use super::View;
use super::open::Open;
use super::walk::{Last, Target, file_error, is_directory};
use crate::{Error, FileOptions};

const FILE_MODE: u32 = 0o644;
const MODE_BITS: u32 = 0o7777;
/// Bytes of one step of a copy.
const STEP: u64 = 1 << 30;

impl View {
    /// At most `len` bytes from `offset`; fewer only at the end of the file.
    pub(crate) async fn read(
        &self,
        path: &Path,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Error> {
        let file = self.open_existing(path).await?;
        let data = self.fs.read(file.node, offset, len).await.map_err(file_error(path))?;
        Ok(data.to_vec())
    }

    /// Makes `data` the content of a file, which is created if it does not exist.
    pub(crate) async fn replace(&self, path: &Path, data: &[u8]) -> Result<(), Error> {
        let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        let file = self.open_or_create(path, flags, FILE_MODE).await?;
        let written = self.fs.write(file.node, 0, data, WriteFlags::default()).await;
        written.map_err(file_error(path))
    }

    /// Writes `data` at `offset` into a file, which is created if it does not exist.
    pub(crate) async fn write(&self, path: &Path, offset: u64, data: &[u8]) -> Result<(), Error> {
        let file = self.open_or_create(path, OpenFlags::READ_WRITE, FILE_MODE).await?;
        let written = self.fs.write(file.node, offset, data, WriteFlags::default()).await;
        written.map_err(file_error(path))
    }

    pub(crate) async fn resize(&self, path: &Path, size: u64) -> Result<(), Error> {
        let file = self.open_existing(path).await?;
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let done = self.fs.setattr(&Caller::ROOT, file.node, &set).await;
        done.map(drop).map_err(file_error(path))
    }

    /// Makes `to` a file with the content of `from`, and returns the bytes.
    pub(crate) async fn copy(&self, from: &Path, to: &Path) -> Result<u64, Error> {
        let source = self.open_existing(from).await?;
        let mode = self.expect_file(from, source.node).await?.mode & MODE_BITS;
        let target = self.open_or_create(to, OpenFlags::READ_WRITE, mode).await?;
        if source.node == target.node {
            return Err(file_error(to)(FsError::Invalid("it is the file to be copied")));
        }
        let empty = SetAttr { size: Some(0), mode: Some(mode), ..SetAttr::default() };
        let emptied = self.fs.setattr(&Caller::ROOT, target.node, &empty).await;
        emptied.map_err(file_error(to))?;
        let mut copied = 0;
        loop {
            let step = self.fs.copy_file_range(source.node, copied, target.node, copied, STEP);
            match step.await.map_err(file_error(to))? {
                0 => return Ok(copied),
                bytes => copied += bytes,
            }
        }
    }

    /// Makes a file and its name durable.
    pub(crate) async fn sync_file(&self, path: &Path) -> Result<(), Error> {
        let file = self.open_existing(path).await?;
        self.fs.fsync(file.node, false).await.map_err(file_error(path))
    }

    /// Opens a file for a handle, which releases the node when it is dropped.
    pub(crate) async fn open(&self, path: &Path, options: &FileOptions) -> Result<NodeId, Error> {
        let flags = OpenFlags {
            read: options.read,
            write: options.write || options.append,
            append: options.append,
            truncate: options.truncate,
            kill_priv: false,
        };
        if options.truncate && !options.write {
            return Err(file_error(path)(FsError::Invalid(
                "truncation needs a file open to write",
            )));
        }
        if options.create_new {
            if is_directory(path) {
                return Err(file_error(path)(FsError::IsDirectory));
            }
            let place = self.parent(path).await?;
            let open = self.create(path, place, options.mode, flags, true).await?;
            return Ok(open.keep());
        }
        let open = if options.create {
            self.open_or_create(path, flags, options.mode).await?
        } else {
            self.open_with(path, Last::Follow, flags).await?
        };
        self.expect_file(path, open.node).await?;
        Ok(open.keep())
    }

    /// Refuses all but regular files: the others have no content of their own.
    async fn expect_file(&self, path: &Path, node: NodeId) -> Result<Attr, Error> {
        let attr = self.fs.getattr(node).await.map_err(file_error(path))?;
        match attr.kind {
            FileKind::Regular => Ok(attr),
            FileKind::Directory => Err(file_error(path)(FsError::IsDirectory)),
            _ => Err(file_error(path)(FsError::Invalid("it is not a regular file"))),
        }
    }

    /// Opens the file that `path` names, and creates it if it does not exist.
    async fn open_or_create(
        &self,
        path: &Path,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Open<'_>, Error> {
        loop {
            let found = match self.target(path).await? {
                Target::Found(attr) => self.open_node(path, attr.node, flags).await,
                Target::Missing { dir, name } => {
                    let made = self.create(path, (dir, &name), mode, flags, false).await;
                    made.map(Some)
                }
            };
            match found {
                Ok(Some(open)) => return Ok(open),
                // The file, or its directory, has gone.
                Ok(None) | Err(Error::File { source: FsError::Stale, .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates a file. One that exists is opened, unless the file has to be new.
    async fn create(
        &self,
        path: &Path,
        (dir, name): (NodeId, &[u8]),
        mode: u32,
        flags: OpenFlags,
        new: bool,
    ) -> Result<Open<'_>, Error> {
        match self.fs.create(&Caller::ROOT, dir, name, mode, flags, new).await {
            Ok((entry, _)) => Ok(Open { fs: &self.fs, node: entry.node }),
            Err(source) => Err(Error::File { path: path.into(), source }),
        }
    }
}
