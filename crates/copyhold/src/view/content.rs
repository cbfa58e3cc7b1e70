//! The content of files, by path and by handle.
//!
//! Problem.  Between the look-up of a path and the call on the node that it found, another call may
//!           remove the file. The background task then removes its extents, and a read that has
//!           begun finds holes in their place.
//! Idea.     An open counts as a reference, and a file that is referred to is not removed. So each
//!           call opens the node first. If the file is gone by then, the path is looked up again:
//!           it names nothing, or another file.
//!
//! CONTENT-C1  A call on a file holds an open of it from before its first access to behind its
//!             last.

use std::path::Path;
use std::sync::Arc;

use copyhold_fs::{Caller, FileKind, Filesystem, FsError, NodeId, OpenFlags, SetAttr, WriteFlags};

use super::View;
use super::walk::{Last, Target, file_error};
use crate::{Error, FileOptions};

const FILE_MODE: u32 = 0o644;
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
        self.expect_file(from, source.node).await?;
        let target = self.open_or_create(to, OpenFlags::READ_WRITE, FILE_MODE).await?;
        if source.node == target.node {
            return Err(file_error(to)(FsError::Invalid("it is the file to be copied")));
        }
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
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
            let place = self.parent(path).await?;
            let open = self.create(path, place, options.mode, flags, true).await?;
            return Ok(open.keep());
        }
        let open = if options.create {
            self.open_or_create(path, flags, options.mode).await?
        } else {
            self.open_with(path, flags).await?
        };
        self.expect_file(path, open.node).await?;
        Ok(open.keep())
    }

    /// Refuses all but regular files: the others have no content of their own.
    async fn expect_file(&self, path: &Path, node: NodeId) -> Result<(), Error> {
        match self.fs.getattr(node).await.map_err(file_error(path))?.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(file_error(path)(FsError::IsDirectory)),
            _ => Err(file_error(path)(FsError::Invalid("it is not a regular file"))),
        }
    }

    /// Opens the file that `path` names.
    async fn open_existing(&self, path: &Path) -> Result<Open<'_>, Error> {
        self.open_with(path, OpenFlags::default()).await
    }

    async fn open_with(&self, path: &Path, flags: OpenFlags) -> Result<Open<'_>, Error> {
        loop {
            let node = self.find(path, Last::Follow).await?.node;
            if let Some(open) = self.open_node(path, node, flags).await? {
                return Ok(open);
            }
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

    /// None, if the file was removed between the look-up and the open.
    async fn open_node(
        &self,
        path: &Path,
        node: NodeId,
        flags: OpenFlags,
    ) -> Result<Option<Open<'_>>, Error> {
        interlude().await;
        match self.fs.open_node(node, flags).await {
            Ok(()) => Ok(Some(Open { fs: &self.fs, node })),
            Err(FsError::Stale) => Ok(None),
            Err(error) => Err(file_error(path)(error)),
        }
    }
}

/// An open of a file or directory (CONTENT-C1), released when it is dropped.
struct Open<'a> {
    fs: &'a Arc<Filesystem>,
    node: NodeId,
}

impl Open<'_> {
    /// The caller releases it.
    fn keep(self) -> NodeId {
        std::mem::ManuallyDrop::new(self).node
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.fs.release(self.node);
    }
}

/// Other calls may run between a look-up and the open; in tests one does.
async fn interlude() {
    #[cfg(test)]
    if let Some(call) = tests::INTERLUDE.take() {
        call.await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use copyhold_device::DynDevice;
    use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
    use copyhold_fs::RenameFlags;
    use copyhold_pool::{CreateOptions, OpenOptions, Pool};
    use copyhold_runtime::{BoxFuture, Rt, SeededRuntime};
    use copyhold_types::DeviceId;

    use super::*;

    const ROOT: NodeId = NodeId::ROOT;
    const NAME: &[u8] = b"file";

    thread_local! {
        /// Runs between the next look-up and open of this thread.
        pub(super) static INTERLUDE: Cell<Option<BoxFuture<'static, ()>>> = const { Cell::new(None) };
    }

    fn path() -> &'static Path {
        Path::new("file")
    }

    /// Without zeros.
    fn content(first: u8) -> Vec<u8> {
        (0..20_000).map(|n| first | (n >> 12) as u8).collect()
    }

    async fn open(rt: &Rt, device: &DynDevice) -> Arc<Filesystem> {
        let options = OpenOptions { tenants: true, ..OpenOptions::default() };
        let pool = Pool::open(rt.clone(), device.clone(), options).await.unwrap();
        let options = copyhold_fs::Options { count_lookups: false, ..Default::default() };
        Filesystem::open(pool, options).await.unwrap()
    }

    /// Runs `test` on a filesystem with a file that is on the device.
    fn with_file(test: impl AsyncFnOnce(&View)) {
        let runtime = SeededRuntime::new(20);
        let rt: Rt = runtime.clone();
        let image = SimImage::empty(16384);
        let device: DynDevice =
            SimDevice::from_image(rt.clone(), DeviceId(0), image, SimConfig::new(20));
        runtime.block_on(async {
            let options = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
            Pool::create(&rt, &device, &options).await.unwrap();
            let pool = Pool::open(rt.clone(), device.clone(), Default::default()).await.unwrap();
            Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
            pool.close().await.unwrap();
            let fs = open(&rt, &device).await;
            let view = View { fs: fs.clone(), root: ROOT };
            view.replace(path(), &content(0x40)).await.unwrap();
            fs.sync().await.unwrap();
            test(&view).await;
            fs.close().await.unwrap();
            fs.pool().close().await.unwrap();
        });
    }

    /// The file is removed, with all that it had, between the next look-up and open.
    fn remove_between(view: &View) {
        let fs = view.fs.clone();
        INTERLUDE.set(Some(Box::pin(async move {
            fs.unlink(ROOT, NAME).await.unwrap();
            fs.reaper_idle().await;
        })));
    }

    /// Another file gets its name between the next look-up and open.
    fn rename_between(view: &View) {
        let fs = view.fs.clone();
        INTERLUDE.set(Some(Box::pin(async move {
            let view = View { fs: fs.clone(), root: ROOT };
            view.replace(Path::new("other"), &content(0x80)).await.unwrap();
            let flags = RenameFlags::default();
            fs.rename(&Caller::ROOT, ROOT, b"other", ROOT, NAME, flags).await.unwrap();
            fs.reaper_idle().await;
        })));
    }

    fn is_not_found<T>(result: Result<T, Error>) -> bool {
        matches!(result, Err(Error::File { source: FsError::NotFound, .. }))
    }

    #[test]
    fn a_call_beside_the_removal_of_its_file_does_not_find_it_or_makes_it_anew() {
        with_file(async |view| {
            let anew = async || view.replace(path(), &content(0x20)).await.unwrap();
            remove_between(view);
            assert!(is_not_found(view.read(path(), 0, usize::MAX).await));
            anew().await;
            remove_between(view);
            assert!(is_not_found(view.resize(path(), 5).await));
            anew().await;
            remove_between(view);
            assert!(is_not_found(view.sync_file(path()).await));
            anew().await;
            remove_between(view);
            view.replace(path(), b"new").await.unwrap();
            assert_eq!(view.read(path(), 0, usize::MAX).await.unwrap(), b"new");
            remove_between(view);
            view.write(path(), 2, b"end").await.unwrap();
            assert_eq!(view.read(path(), 0, usize::MAX).await.unwrap(), b"\0\0end");
        });
    }

    #[test]
    fn a_call_beside_a_rename_to_its_path_acts_on_one_of_the_files() {
        with_file(async |view| {
            let now = async || view.read(path(), 0, usize::MAX).await.unwrap();
            rename_between(view);
            assert!(now().await == content(0x80));
            rename_between(view);
            view.resize(path(), 100).await.unwrap();
            assert!(now().await == content(0x80)[..100]);
            rename_between(view);
            view.sync_file(path()).await.unwrap();
            rename_between(view);
            view.write(path(), 3, b"!").await.unwrap();
            assert_eq!(now().await[..5], [0x80, 0x80, 0x80, b'!', 0x80]);
        });
    }

    #[test]
    fn an_open_file_keeps_its_content_when_it_is_removed_until_it_is_released() {
        with_file(async |view| {
            let (fs, file) = (&view.fs, view.open_existing(path()).await.unwrap());
            fs.unlink(ROOT, NAME).await.unwrap();
            fs.reaper_idle().await;
            let data = fs.read(file.node, 0, usize::MAX).await.unwrap().to_vec();
            assert!(data == content(0x40), "CONTENT-C1: {:?}", data.first());
            let node = file.node;
            drop(file);
            fs.reaper_idle().await;
            assert!(matches!(fs.getattr(node).await, Err(FsError::Stale)), "it is removed");
        });
    }
}
