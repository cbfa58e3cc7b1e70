//! Open files.

use std::path::Path;
use std::sync::Arc;

use copyhold_fs::Attr;

use super::Volume;
use crate::Error;
use crate::file::Handle;

/// An open file of a pool; see [`crate::File`]. It has no position. Cheap to clone: clones are the
/// same open.
#[derive(Clone, Debug)]
pub struct File {
    volume: Volume,
    handle: Arc<Handle>,
}

impl File {
    pub(crate) fn new(volume: Volume, handle: Arc<Handle>) -> File {
        File { volume, handle }
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        self.handle.path()
    }

    /// At most `len` bytes from `offset`; fewer only at the end of the file.
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let file = self.handle.clone();
        let read = |view| async move { Ok(file.read(&view, offset, len).await?.to_vec()) };
        self.volume.spawn(read).await
    }

    /// Writes all of `data` at `offset`, or at the end of a file that was opened to append.
    pub async fn write_at(&self, offset: u64, data: Vec<u8>) -> Result<(), Error> {
        let file = self.handle.clone();
        let write = |view| async move { file.write(&view, offset, &data).await.map(drop) };
        self.volume.spawn(write).await
    }

    /// The attributes of the file now.
    pub async fn metadata(&self) -> Result<Attr, Error> {
        let file = self.handle.clone();
        self.volume.spawn(|view| async move { file.metadata(&view).await }).await
    }

    /// See [`crate::File::set_len`].
    pub async fn set_len(&self, size: u64) -> Result<(), Error> {
        let file = self.handle.clone();
        self.volume.spawn(move |view| async move { file.set_len(&view, size).await }).await
    }

    /// See [`crate::File::sync_all`].
    pub async fn sync_all(&self) -> Result<(), Error> {
        let file = self.handle.clone();
        self.volume.spawn(|view| async move { file.sync(&view, false).await }).await
    }

    /// See [`crate::File::sync_data`].
    pub async fn sync_data(&self) -> Result<(), Error> {
        let file = self.handle.clone();
        self.volume.spawn(|view| async move { file.sync(&view, true).await }).await
    }

    /// See [`crate::File::allocate`].
    pub async fn allocate(&self, offset: u64, len: u64) -> Result<(), Error> {
        let file = self.handle.clone();
        let call = move |view| async move { file.allocate(&view, offset, len).await };
        self.volume.spawn(call).await
    }

    /// See [`crate::File::punch_hole`].
    pub async fn punch_hole(&self, offset: u64, len: u64) -> Result<(), Error> {
        let file = self.handle.clone();
        let call = move |view| async move { file.punch_hole(&view, offset, len).await };
        self.volume.spawn(call).await
    }
}
