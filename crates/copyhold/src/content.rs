//! The content of files, by path.
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

use std::sync::Arc;

use copyhold_fs::{Caller, Filesystem, FsError, NodeId, OpenFlags, SetAttr, WriteFlags};

use crate::Error;
use crate::path::{self, Last, file_error};

const FILE_MODE: u32 = 0o644;

/// At most `len` bytes from `offset`; fewer only at the end of the file.
pub(crate) async fn read(
    fs: &Arc<Filesystem>,
    root: NodeId,
    path: &[u8],
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, Error> {
    let file = Open::existing(fs, root, path).await?;
    let data = fs.read(file.node, offset, len).await.map_err(file_error(path))?;
    Ok(data.to_vec())
}

/// Makes `data` the content of a file, which is created if it does not exist.
pub(crate) async fn replace(
    fs: &Arc<Filesystem>,
    root: NodeId,
    path: &[u8],
    data: &[u8],
) -> Result<(), Error> {
    let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let file = Open::or_create(fs, root, path, flags).await?;
    fs.write(file.node, 0, data, WriteFlags::default()).await.map_err(file_error(path))
}

/// Writes `data` at `offset` into a file, which is created if it does not exist.
pub(crate) async fn write(
    fs: &Arc<Filesystem>,
    root: NodeId,
    path: &[u8],
    offset: u64,
    data: &[u8],
) -> Result<(), Error> {
    let file = Open::or_create(fs, root, path, OpenFlags::READ_WRITE).await?;
    fs.write(file.node, offset, data, WriteFlags::default()).await.map_err(file_error(path))
}

pub(crate) async fn resize(
    fs: &Arc<Filesystem>,
    root: NodeId,
    path: &[u8],
    size: u64,
) -> Result<(), Error> {
    let file = Open::existing(fs, root, path).await?;
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    let done = fs.setattr(&Caller::ROOT, file.node, &set).await;
    done.map(|_| ()).map_err(file_error(path))
}

/// Makes a file and its name durable.
pub(crate) async fn sync(fs: &Arc<Filesystem>, root: NodeId, path: &[u8]) -> Result<(), Error> {
    let file = Open::existing(fs, root, path).await?;
    fs.fsync(file.node, false).await.map_err(file_error(path))
}

/// An open of a file or directory (CONTENT-C1), released when it is dropped.
struct Open<'a> {
    fs: &'a Arc<Filesystem>,
    node: NodeId,
}

impl<'a> Open<'a> {
    /// Opens the file that `path` names.
    async fn existing(
        fs: &'a Arc<Filesystem>,
        root: NodeId,
        path: &[u8],
    ) -> Result<Open<'a>, Error> {
        loop {
            if let Some(open) = Open::found(fs, root, path, OpenFlags::default()).await? {
                return Ok(open);
            }
        }
    }

    /// Opens the file that `path` names, and creates it if it does not exist.
    async fn or_create(
        fs: &'a Arc<Filesystem>,
        root: NodeId,
        path: &[u8],
        flags: OpenFlags,
    ) -> Result<Open<'a>, Error> {
        loop {
            match Open::found(fs, root, path, flags).await {
                Ok(Some(open)) => return Ok(open),
                Ok(None) => {}
                Err(Error::File { source: FsError::NotFound, .. }) => {
                    let (dir, name) = path::parent(fs, root, path).await?;
                    match fs.create(&Caller::ROOT, dir, name, FILE_MODE, flags, false).await {
                        Ok((entry, _)) => return Ok(Open { fs, node: entry.node }),
                        Err(FsError::Stale) => {}
                        Err(error) => return Err(file_error(path)(error)),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// None, if the file was removed between the look-up and the open.
    async fn found(
        fs: &'a Arc<Filesystem>,
        root: NodeId,
        path: &[u8],
        flags: OpenFlags,
    ) -> Result<Option<Open<'a>>, Error> {
        let node = path::find(fs, root, path, Last::Follow).await?.node;
        interlude().await;
        match fs.open_node(node, flags).await {
            Ok(()) => Ok(Some(Open { fs, node })),
            Err(FsError::Stale) => Ok(None),
            Err(error) => Err(file_error(path)(error)),
        }
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
    const PATH: &[u8] = b"file";

    thread_local! {
        /// Runs between the next look-up and open of this thread.
        pub(super) static INTERLUDE: Cell<Option<BoxFuture<'static, ()>>> = const { Cell::new(None) };
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
    fn with_file(test: impl AsyncFnOnce(&Arc<Filesystem>)) {
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
            replace(&fs, ROOT, PATH, &content(0x40)).await.unwrap();
            fs.sync().await.unwrap();
            test(&fs).await;
            fs.close().await.unwrap();
            fs.pool().close().await.unwrap();
        });
    }

    /// The file is removed, with all that it had, between the next look-up and open.
    fn remove_between(fs: &Arc<Filesystem>) {
        let fs = fs.clone();
        INTERLUDE.set(Some(Box::pin(async move {
            fs.unlink(ROOT, PATH).await.unwrap();
            fs.reaper_idle().await;
        })));
    }

    /// Another file gets its name between the next look-up and open.
    fn rename_between(fs: &Arc<Filesystem>) {
        let fs = fs.clone();
        INTERLUDE.set(Some(Box::pin(async move {
            replace(&fs, ROOT, b"other", &content(0x80)).await.unwrap();
            let flags = RenameFlags::default();
            fs.rename(&Caller::ROOT, ROOT, b"other", ROOT, PATH, flags).await.unwrap();
            fs.reaper_idle().await;
        })));
    }

    fn is_not_found<T>(result: Result<T, Error>) -> bool {
        matches!(result, Err(Error::File { source: FsError::NotFound, .. }))
    }

    #[test]
    fn a_call_beside_the_removal_of_its_file_does_not_find_it_or_makes_it_anew() {
        with_file(async |fs| {
            let anew = async || replace(fs, ROOT, PATH, &content(0x20)).await.unwrap();
            remove_between(fs);
            assert!(is_not_found(read(fs, ROOT, PATH, 0, usize::MAX).await));
            anew().await;
            remove_between(fs);
            assert!(is_not_found(resize(fs, ROOT, PATH, 5).await));
            anew().await;
            remove_between(fs);
            assert!(is_not_found(sync(fs, ROOT, PATH).await));
            anew().await;
            remove_between(fs);
            replace(fs, ROOT, PATH, b"new").await.unwrap();
            assert_eq!(read(fs, ROOT, PATH, 0, usize::MAX).await.unwrap(), b"new");
            remove_between(fs);
            write(fs, ROOT, PATH, 2, b"end").await.unwrap();
            assert_eq!(read(fs, ROOT, PATH, 0, usize::MAX).await.unwrap(), b"\0\0end");
        });
    }

    #[test]
    fn a_call_beside_a_rename_to_its_path_acts_on_one_of_the_files() {
        with_file(async |fs| {
            let now = async || read(fs, ROOT, PATH, 0, usize::MAX).await.unwrap();
            rename_between(fs);
            assert!(now().await == content(0x80));
            rename_between(fs);
            resize(fs, ROOT, PATH, 100).await.unwrap();
            assert!(now().await == content(0x80)[..100]);
            rename_between(fs);
            sync(fs, ROOT, PATH).await.unwrap();
            rename_between(fs);
            write(fs, ROOT, PATH, 3, b"!").await.unwrap();
            assert_eq!(now().await[..5], [0x80, 0x80, 0x80, b'!', 0x80]);
        });
    }

    #[test]
    fn an_open_file_keeps_its_content_when_it_is_removed_until_it_is_released() {
        with_file(async |fs| {
            let file = Open::existing(fs, ROOT, PATH).await.unwrap();
            fs.unlink(ROOT, PATH).await.unwrap();
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
