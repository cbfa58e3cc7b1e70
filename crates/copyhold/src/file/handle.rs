//! The open of a file, which the blocking interface and the one of futures use.
//!
//! HANDLE-H1  An open file keeps its content when its last name is removed, until it is dropped.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use copyhold_fs::{Attr, Caller, FallocateMode, FsError, NodeId, ReadData, SetAttr, WriteFlags};

use super::FileOptions;
use crate::Error;
use crate::engine::Engine;
use crate::view::View;

/// A node that is open, released when this is dropped.
pub(crate) struct Handle {
    engine: Arc<Engine>,
    node: NodeId,
    path: PathBuf,
    may_read: bool,
    may_write: bool,
    append: bool,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Handle {
    /// Opens a file in a subvolume of the pool of `engine`.
    pub(crate) async fn open(
        engine: &Arc<Engine>,
        view: &View,
        path: &Path,
        options: &FileOptions,
    ) -> Result<Handle, Error> {
        let node = view.open(path, options).await?;
        Ok(Handle {
            engine: engine.clone(),
            node,
            path: path.into(),
            may_read: options.read,
            may_write: options.write || options.append,
            append: options.append,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) async fn metadata(&self, view: &View) -> Result<Attr, Error> {
        view.fs.getattr(self.node).await.map_err(self.error())
    }

    pub(crate) async fn set_len(&self, view: &View, size: u64) -> Result<(), Error> {
        self.expect_writable()?;
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let done = view.fs.setattr(&Caller::ROOT, self.node, &set).await;
        done.map(drop).map_err(self.error())
    }

    pub(crate) async fn sync(&self, view: &View, data_only: bool) -> Result<(), Error> {
        view.fs.fsync(self.node, data_only).await.map_err(self.error())
    }

    pub(crate) async fn allocate(&self, view: &View, offset: u64, len: u64) -> Result<(), Error> {
        self.fallocate(view, offset, len, FallocateMode::Allocate { keep_size: false }).await
    }

    pub(crate) async fn punch_hole(&self, view: &View, offset: u64, len: u64) -> Result<(), Error> {
        self.fallocate(view, offset, len, FallocateMode::Punch).await
    }

    async fn fallocate(
        &self,
        view: &View,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<(), Error> {
        self.expect_writable()?;
        view.fs.fallocate(self.node, offset, len, mode).await.map_err(self.error())
    }

    /// At most `len` bytes from `offset`; fewer only at the end.
    pub(crate) async fn read(
        &self,
        view: &View,
        offset: u64,
        len: usize,
    ) -> Result<ReadData, Error> {
        if !self.may_read {
            return Err(Error::NotOpen { path: self.path.clone(), to: "read" });
        }
        view.fs.read(self.node, offset, len).await.map_err(self.error())
    }

    /// Writes all of `data`, and returns the offset behind it. A file that was opened to append
    /// takes the data at its end.
    pub(crate) async fn write(&self, view: &View, offset: u64, data: &[u8]) -> Result<u64, Error> {
        self.expect_writable()?;
        let flags = WriteFlags { append: self.append, ..WriteFlags::default() };
        view.fs.write(self.node, offset, data, flags).await.map_err(self.error())?;
        match self.append {
            true => Ok(self.metadata(view).await?.size),
            false => Ok(offset + data.len() as u64),
        }
    }

    fn expect_writable(&self) -> Result<(), Error> {
        match self.may_write {
            true => Ok(()),
            false => Err(Error::NotOpen { path: self.path.clone(), to: "write" }),
        }
    }

    fn error(&self) -> impl Fn(FsError) -> Error + '_ {
        |source| Error::File { path: self.path.clone(), source }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.engine.release(self.node);
    }
}
