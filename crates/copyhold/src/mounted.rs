//! A pool that this process serves at a mount point, without the program.

use std::path::Path;
use std::sync::Arc;

use copyhold_device::{DynDevice, FileDevice, OpenMode};
use copyhold_fs::Filesystem;
use copyhold_fuse::mount::{Mount, OptionError};
use copyhold_memory::Shares;
use copyhold_runtime::executors::Executors;
use copyhold_serve::{Opened, Serving, budget};
use copyhold_types::DeviceId;
use rustix::mount::MountFlags;

use crate::pool::start;
use crate::{Error, Pool};

/// How a pool is mounted.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Flags and FUSE options, as behind `-o` of mount(8): `ro,nosuid,allow_other`; not `remount`.
    pub flags: String,
    /// The budget of memory in bytes; `None`: one that suits the machine.
    pub memory: Option<u64>,
    /// Options of the pool and its session. `ro` in `flags` sets `read_only`, too.
    pub serving: copyhold_serve::Options,
}

/// A mounted pool. Dropping it takes the mount out of the tree, busy or not, and waits for its last
/// user, which must not be this process itself. A mount that cannot be taken out is aborted: calls
/// on it fail, and everything accepted until then is written.
pub struct Mounted {
    filesystem: Arc<Filesystem>,
    serving: Option<Serving>,
    executors: Arc<Executors>,
}

impl Pool {
    /// Opens the pool at `path` and mounts it on `directory`. Needs root, or fusermount3(1). The
    /// mount is usable when this returns.
    ///
    /// # Errors
    /// [`Error::Option`], [`Error::Budget`], [`Error::Mount`], and the errors of [`Pool::open`].
    pub fn mount(
        path: impl AsRef<Path>,
        directory: impl AsRef<Path>,
        options: &MountOptions,
    ) -> Result<Mounted, Error> {
        let (path, directory) = (path.as_ref(), directory.as_ref());
        let executors = start(None)?;
        let mounted = mount(&executors, path, directory, options);
        if mounted.is_err() {
            executors.shutdown();
        }
        mounted
    }
}

fn mount(
    executors: &Arc<Executors>,
    path: &Path,
    directory: &Path,
    options: &MountOptions,
) -> Result<Mounted, Error> {
    let mut of_mount = copyhold_fuse::mount::MountOptions::default();
    if !options.flags.is_empty() {
        of_mount.add(&options.flags, &mut |_: &str, _: Option<&str>| Ok(false))?;
    }
    if of_mount.remount {
        return Err(OptionError::Unknown { name: "remount".into() }.into());
    }
    // Other programs compare the mount's source with paths of their own.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    of_mount.fsname.get_or_insert_with(|| path.to_string_lossy().into_owned());
    let mut how = options.serving.clone();
    of_mount.flags.set(MountFlags::RDONLY, how.read_only || of_mount.read_only());
    how.read_only = of_mount.read_only();
    how.no_atime |= of_mount.flags.contains(MountFlags::NOATIME);
    how.needs_ids |= of_mount.allow_root;
    let mode = if how.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device: DynDevice = FileDevice::open(executors.reactor(), DeviceId(0), path, mode)?;
    let blocks = device.geometry().blocks;
    let shares = Shares::of(options.memory, None, blocks, budget::machine())?;
    let opened = copyhold_serve::open(executors, path, device, shares, &how)?;
    let mount = match Mount::new(path, directory, &of_mount) {
        Ok(mount) => mount,
        Err(error) => {
            opened.close(executors)?;
            return Err(error.into());
        }
    };
    serve(executors, opened, mount, &how)
}

fn serve(
    executors: &Arc<Executors>,
    opened: Opened,
    mount: Mount,
    how: &copyhold_serve::Options,
) -> Result<Mounted, Error> {
    let filesystem = opened.filesystem.clone();
    let serving = Serving::start(executors, opened, mount, how)?;
    Ok(Mounted { filesystem, serving: Some(serving), executors: executors.clone() })
}

impl Mounted {
    /// The filesystem itself, in futures and VFS terms.
    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.filesystem
    }

    /// Unmounts it, and waits until everything is written and closed. Later calls do nothing.
    ///
    /// # Errors
    /// [`Error::Mount`] while a program uses the mount, [`Error::Covered`] where another mount is
    /// on top: then it stays mounted.
    pub fn unmount(&mut self) -> Result<(), Error> {
        let Some(serving) = &self.serving else { return Ok(()) };
        serving.mount().unmount()?;
        if serving.mount().is_in_tree() {
            let path = serving.mount().mount_point().display().to_string();
            return Err(Error::Covered { path });
        }
        match self.serving.take() {
            Some(serving) => Ok(serving.wait()?),
            None => Ok(()),
        }
    }

    /// Waits until another process has unmounted it, and everything is written and closed.
    pub fn wait(mut self) -> Result<(), Error> {
        match self.serving.take() {
            Some(serving) => Ok(serving.wait()?),
            None => Ok(()),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.mount().detach();
            if serving.mount().is_in_tree()
                && let Err(error) = serving.mount().abort()
            {
                tracing::error!(%error, "the mount cannot be aborted");
            }
            if let Err(error) = serving.wait() {
                tracing::error!(%error, "the mount has ended");
            }
        }
        self.executors.shutdown();
    }
}
