//! A pool that this process serves at a mount point, without the program.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use copyhold_device::OpenMode;
use copyhold_fs::Filesystem;
use copyhold_fuse::mount::{DetachedMount, Mount, OptionError};
use copyhold_memory::Shares;
use copyhold_runtime::executors::Executors;
use copyhold_serve::{Opened, Serving, budget};
use rustix::mount::MountFlags;

use crate::engine::{open_device, start};
use crate::{Error, KernelOptions, Pool, ServingOptions};

/// How a pool is mounted.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Options of the kernel's mount.
    pub kernel: KernelOptions,
    /// The budget of memory in bytes; `None`: one that suits the machine.
    pub memory: Option<u64>,
    /// Of the budget, bytes for changes that the tables do not have yet; `None`: a share.
    pub delta: Option<u64>,
    /// Options of the pool and its session. `ro`, `noatime` and `allow_root` of the kernel's mount
    /// hold here, too.
    pub serving: ServingOptions,
}

impl MountOptions {
    /// With flags and FUSE options as behind `-o` of mount(8): `ro,nosuid,allow_other`; not
    /// `remount`.
    ///
    /// # Errors
    /// [`Error::Option`] for an unknown option, or a value that makes no sense.
    pub fn parse(list: &str) -> Result<MountOptions, Error> {
        let mut options = MountOptions::default();
        if !list.is_empty() {
            options.kernel.add(list, &mut |_: &str, _: Option<&str>| Ok(false))?;
        }
        if options.kernel.remount {
            return Err(OptionError::Unknown { name: "remount".into() }.into());
        }
        Ok(options)
    }
}

/// A pool that is open to be mounted: the first of the two steps of [`Pool::mount`], for a program
/// that does something between them. Dropping it closes the pool.
pub struct Mounting {
    path: PathBuf,
    executors: Arc<Executors>,
    /// None once it is mounted.
    opened: Option<Opened>,
    shares: Shares,
    kernel: KernelOptions,
    serving: ServingOptions,
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
    /// [`Error::Budget`], [`Error::Mount`], and the errors of [`Pool::open`].
    pub fn mount(
        path: impl AsRef<Path>,
        directory: impl AsRef<Path>,
        options: &MountOptions,
    ) -> Result<Mounted, Error> {
        Mounting::open(path, options)?.mount(directory)
    }
}

impl Mounting {
    /// Opens the pool at `path` within a budget of memory.
    pub fn open(path: impl AsRef<Path>, options: &MountOptions) -> Result<Mounting, Error> {
        let executors = start(None)?;
        let opened = open(&executors, path.as_ref(), options);
        if opened.is_err() {
            executors.shutdown();
        }
        opened
    }

    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.opened.as_ref().expect("it is not mounted").filesystem
    }

    /// The budget of memory, and its shares.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Mounts it on `directory`. If that fails, the pool is closed.
    pub fn mount(mut self, directory: impl AsRef<Path>) -> Result<Mounted, Error> {
        let mount = Mount::new(&self.path, directory.as_ref(), &self.kernel)?;
        self.serve(mount)
    }

    /// Mounts a part of it on `directory`, which `find` finds in the mount of the whole: so it can
    /// ask the filesystem as any program does. If that fails, the pool is closed. Needs root.
    pub fn mount_part<E: From<Error>>(
        mut self,
        directory: impl AsRef<Path>,
        find: impl FnOnce(&DetachedMount) -> Result<OwnedFd, E>,
    ) -> Result<Mounted, E> {
        let unattached = Mount::unattached(&self.path, directory.as_ref(), &self.kernel);
        let (mount, tree) = unattached.map_err(Error::from)?;
        let mounted = self.serve(mount)?;
        // The tree goes first where there is no such part: the mount ends with it, and is waited
        // for.
        let attached = match (find(&tree), mounted.kernel()) {
            (Ok(part), Some(mount)) => Ok(mount.attach(tree, part).map_err(Error::from)?),
            (found, _) => {
                drop(tree);
                found.map(drop)
            }
        };
        attached.map(|()| mounted)
    }

    fn serve(&mut self, mount: Mount) -> Result<Mounted, Error> {
        let opened = self.opened.take().expect("it is mounted once");
        let (executors, filesystem) = (self.executors.clone(), opened.filesystem.clone());
        match Serving::start(&executors, opened, mount, &self.serving) {
            Ok(serving) => Ok(Mounted { filesystem, serving: Some(serving), executors }),
            Err(error) => {
                executors.shutdown();
                Err(error.into())
            }
        }
    }
}

/// Closes the pool, unless it is mounted.
impl Drop for Mounting {
    fn drop(&mut self) {
        if let Some(opened) = self.opened.take() {
            if let Err(error) = opened.close(&self.executors) {
                tracing::error!(%error, "closing failed; opening again recovers");
            }
            self.executors.shutdown();
        }
    }
}

fn open(
    executors: &Arc<Executors>,
    path: &Path,
    options: &MountOptions,
) -> Result<Mounting, Error> {
    // Other programs compare the mount's source with paths of their own.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut kernel = options.kernel.clone();
    kernel.fsname.get_or_insert_with(|| path.to_string_lossy().into_owned());
    kernel.flags.set(MountFlags::RDONLY, options.serving.read_only || kernel.read_only());
    let serving = options.serving.clone().of_mount(&kernel);
    let mode = if serving.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device = open_device(executors, &path, mode)?;
    let size = executors.block_on(budget::pool_size(&device))?;
    let shares = Shares::of(options.memory, options.delta, size, budget::machine())?;
    let opened = copyhold_serve::open(executors, &path, device, shares, &serving)?;
    let (executors, opened) = (executors.clone(), Some(opened));
    Ok(Mounting { path, executors, opened, shares, kernel, serving })
}

impl Mounted {
    /// The filesystem itself, in futures and VFS terms.
    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.filesystem
    }

    /// The kernel's mount. After [`Self::unmount`] there is none.
    pub fn kernel(&self) -> Option<&Arc<Mount>> {
        self.serving.as_ref().map(Serving::mount)
    }

    /// Unmounts it, and waits until everything is written and closed. Later calls do nothing.
    ///
    /// # Errors
    /// [`Error::Mount`] while a program uses the mount, [`Error::Covered`] where another mount is
    /// on top: then it stays mounted. Any other error is one of closing the pool, which is
    /// unmounted.
    pub fn unmount(&mut self) -> Result<(), Error> {
        let Some(serving) = &self.serving else { return Ok(()) };
        serving.mount().unmount()?;
        if serving.mount().is_in_tree() {
            let path = serving.mount().mount_point().to_owned();
            return Err(Error::Covered { path });
        }
        self.end()
    }

    /// Waits until another process has unmounted it, and everything is written and closed.
    pub fn wait(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        match self.serving.take() {
            Some(serving) => Ok(serving.wait()?),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.kernel().map(|mount| mount.mount_point());
        f.debug_struct("Mounted").field("at", &at).finish_non_exhaustive()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.mount().detach();
            if serving.mount().is_in_tree()
                && let Err(error) = serving.mount().abort()
            {
                tracing::error!(%error, "the mount cannot be aborted");
            }
            if let Err(error) = self.end() {
                tracing::error!(%error, "the mount has ended");
            }
        }
        self.executors.shutdown();
    }
}
