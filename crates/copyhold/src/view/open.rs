//! Opens that calls hold.
//!
//! Problem.  Between the look-up of a path and the call on the node that it found, another call may
//!           remove the file. The background task then removes its records, and a read that has
//!           begun finds holes or damage in their place.
//! Idea.     An open counts as a reference, and a file that is referred to is not removed. So each
//!           call opens the node first. If the file is gone by then, the path is looked up again:
//!           it names nothing, or another file.
//!
//! CONTENT-C1  A call on the content, the attributes or the target of a file holds an open of it
//!             from before its first access to behind its last.

use std::path::Path;
use std::sync::Arc;

use copyhold_fs::{Filesystem, FsError, NodeId, OpenFlags};

use super::View;
use super::walk::{Last, file_error};
use crate::Error;

impl View {
    /// Opens the file that `path` leads to.
    pub(super) async fn open_existing(&self, path: &Path) -> Result<Open<'_>, Error> {
        self.open_with(path, Last::Follow, OpenFlags::default()).await
    }

    pub(super) async fn open_with(
        &self,
        path: &Path,
        last: Last,
        flags: OpenFlags,
    ) -> Result<Open<'_>, Error> {
        loop {
            let node = self.find(path, last).await?.node;
            if let Some(open) = self.open_node(path, node, flags).await? {
                return Ok(open);
            }
        }
    }

    /// None, if the file was removed between the look-up and the open.
    pub(super) async fn open_node(
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
pub(super) struct Open<'a> {
    pub(super) fs: &'a Arc<Filesystem>,
    pub(super) node: NodeId,
}

impl Open<'_> {
    /// The caller releases it.
    pub(super) fn keep(self) -> NodeId {
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
    use std::ffi::OsStr;

    use copyhold_device::DynDevice;
    use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
    use copyhold_fs::{Caller, RenameFlags, SetAttr};
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
    fn a_link_or_an_attribute_beside_the_removal_of_its_file_is_not_found_and_not_damaged() {
        with_file(async |view| {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            let anew = async || view.replace(path(), &content(0x20)).await.unwrap();
            remove_between(view);
            assert!(is_not_found(view.xattrs(path()).await));
            anew().await;
            remove_between(view);
            assert!(is_not_found(view.xattr(path(), OsStr::new("user.a")).await));
            anew().await;
            remove_between(view);
            assert!(is_not_found(view.set_attributes(path(), &set).await));
            let link = async || view.symlink(Path::new("elsewhere"), path()).await.unwrap();
            link().await;
            remove_between(view);
            assert!(is_not_found(view.read_link(path()).await));
            link().await;
            remove_between(view);
            assert!(is_not_found(view.read(path(), 0, 1).await));
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
