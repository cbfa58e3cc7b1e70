//! A pool, opened by this process.

use std::path::Path;
use std::sync::Arc;

use copyhold_device::{DynDevice, FileDevice, OpenMode};
use copyhold_fs::{Caller, Filesystem};
use copyhold_pool::{CreateOptions, Limits};
use copyhold_runtime::Rt;
use copyhold_runtime::executors::{Config, Executors};
use copyhold_types::DeviceId;

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
/// sync had asked for.
pub struct Pool {
    executors: Arc<Executors>,
    filesystem: Arc<Filesystem>,
}

impl Pool {
    /// Makes a sparse file of `bytes` bytes at `path`, which must not exist, and a pool in it.
    pub fn create(
        path: impl AsRef<Path>,
        bytes: u64,
        options: &CreateOptions,
    ) -> Result<(), Error> {
        let executors = start(Some(1))?;
        let reactor = executors.reactor();
        let device = FileDevice::create(reactor, DeviceId(0), path.as_ref(), bytes, false)?;
        let made = executors.block_on(format(executors.clone(), device, options));
        if made.is_err() {
            // The file is ours, and half a pool is of no use; the failure is what matters.
            let _ = std::fs::remove_file(path.as_ref());
        }
        made
    }

    /// Opens the pool at `path`, a file or a block device, after a crash as after a clean close.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Pool, Error> {
        let executors = start(options.threads)?;
        let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let device: DynDevice =
            FileDevice::open(executors.reactor(), DeviceId(0), path.as_ref(), mode)?;
        Pool::open_device(executors, device, options)
    }

    /// Opens the pool on any device, on executors that are running already.
    pub fn open_device(
        executors: Arc<Executors>,
        device: DynDevice,
        options: OpenOptions,
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
        Ok(Pool { executors, filesystem })
    }

    /// The pool's root subvolume.
    pub fn root(&self) -> Volume {
        Volume::new(self.executors.clone(), &self.filesystem)
    }

    /// The same in futures, in VFS terms.
    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.filesystem
    }

    /// Writes everything, and ends all work on the pool.
    pub fn close(self) -> Result<(), Error> {
        let Pool { executors, filesystem } = self;
        executors.block_on(async {
            filesystem.close().await?;
            filesystem.pool().close().await?;
            Ok(())
        })
    }
}

fn start(cpus: Option<usize>) -> Result<Arc<Executors>, Error> {
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
