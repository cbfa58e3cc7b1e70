//! A pool, opened by this process.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use copyhold_device::file::probe_signature;
use copyhold_device::{DynDevice, FileDevice, OpenMode};
use copyhold_fs::{Caller, Filesystem, FsError};
use copyhold_pool::{CreateOptions, Limits};
use copyhold_runtime::Rt;
use copyhold_runtime::executors::{Config, Executors};
use copyhold_types::DeviceId;

use crate::engine::{Engine, Open};
use crate::{Error, Volume};

/// Permissions of the root directory of a new pool.
const ROOT_MODE: u32 = 0o755;

/// How a pool is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub read_only: bool,
    pub limits: Limits,
    /// Threads that run the engine; as many as CPUs, if not given.
    pub threads: Option<usize>,
}

/// An open pool. Closed by [`Pool::close`]; dropping it is like a crash, which loses only what no
/// sync had asked for. Either way its threads, descriptors and lock are gone when the call returns;
/// both wait for calls of other threads on volumes of the pool.
pub struct Pool {
    engine: Arc<Engine>,
    filesystem: Arc<Filesystem>,
}

impl Pool {
    /// Makes a sparse file of `bytes` bytes at `path`, which must not exist, and a pool in it. A
    /// block device is taken as it is, unless it holds anything: [`Error::Occupied`].
    pub fn create(
        path: impl AsRef<Path>,
        bytes: u64,
        options: &CreateOptions,
    ) -> Result<(), Error> {
        let path = path.as_ref();
        if is_block_device(path)
            && let Some(what) = probe_signature(path)?
        {
            return Err(Error::Occupied { path: path.display().to_string(), what });
        }
        let executors = start(Some(1))?;
        let device = FileDevice::create(executors.reactor(), DeviceId(0), path, bytes, false)?;
        let is_ours = !device.is_block_device();
        let made = executors.block_on(format(executors.clone(), device, options));
        executors.shutdown();
        if made.is_err() && is_ours {
            // Half a pool is of no use; only the failure matters.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Opens the pool at `path`, a file or a block device, after a crash as after a clean close.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Pool, Error> {
        let executors = start(options.threads)?;
        let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let device: DynDevice =
            FileDevice::open(executors.reactor(), DeviceId(0), path.as_ref(), mode)?;
        let opened = Pool::open_on(&executors, device, options, true);
        if opened.is_err() {
            executors.shutdown();
        }
        opened
    }

    /// Opens the pool on any device, on executors that are running already.
    pub fn open_device(
        executors: Arc<Executors>,
        device: DynDevice,
        options: OpenOptions,
    ) -> Result<Pool, Error> {
        Pool::open_on(&executors, device, options, false)
    }

    fn open_on(
        executors: &Arc<Executors>,
        device: DynDevice,
        options: OpenOptions,
        is_alone: bool,
    ) -> Result<Pool, Error> {
        let rt: Rt = executors.clone();
        let filesystem = executors.block_on(async {
            let open = copyhold_pool::OpenOptions {
                read_only: options.read_only,
                tenants: true,
                limits: options.limits,
                ..Default::default()
            };
            let pool = copyhold_pool::Pool::open(rt, device, open).await?;
            let options = copyhold_fs::Options {
                count_lookups: false,
                read_only: options.read_only,
                ..Default::default()
            };
            Ok::<_, Error>(Filesystem::open(pool, options).await?)
        })?;
        let open = Open { executors: executors.clone(), filesystem: filesystem.clone(), is_alone };
        Ok(Pool { engine: Engine::new(open), filesystem })
    }

    /// The pool's root subvolume.
    pub fn root(&self) -> Volume {
        Volume::new(self.engine.clone())
    }

    /// The same in futures, in VFS terms.
    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.filesystem
    }

    /// Writes everything, and ends all work on the pool.
    pub fn close(self) -> Result<(), Error> {
        let open = self.engine.take().ok_or(FsError::ShutDown)?;
        open.executors.block_on(async {
            open.filesystem.close().await?;
            open.filesystem.pool().close().await?;
            Ok(())
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(self.engine.take());
    }
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

pub(crate) fn start(cpus: Option<usize>) -> Result<Arc<Executors>, Error> {
    Executors::start(Config { cpus, ..Config::default() }).map_err(Error::Start)
}

/// Makes a pool and its root directory.
async fn format(
    executors: Arc<Executors>,
    device: DynDevice,
    options: &CreateOptions,
) -> Result<(), Error> {
    let rt: Rt = executors;
    copyhold_pool::Pool::create(&rt, &device, options).await?;
    let pool = copyhold_pool::Pool::open(rt, device, Default::default()).await?;
    Filesystem::format(&pool, &Caller::ROOT, ROOT_MODE).await?;
    pool.close().await?;
    Ok(())
}
