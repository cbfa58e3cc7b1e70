//! A pool, opened by this process.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use copyhold_device::{DynDevice, OpenMode};
use copyhold_fs::{DataCache, Filesystem, FsError, NodeId};
use copyhold_memory::Shares;
use copyhold_pool::{Grown, Limits, NewSize};
use copyhold_runtime::executors::Executors;
use copyhold_serve::{NamesLimit, budget};
use copyhold_types::PoolId;

use crate::create::{self, CreateOptions};
use crate::engine::{Engine, Open, open_device, start};
use crate::{Error, Volume};

/// How a pool is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Nothing is written, not even what recovery would write.
    pub read_only: bool,
    /// A log that is damaged in its middle, or unreadable, is cut there, and what follows is lost.
    /// Without this, such a pool does not open for writing.
    pub cut_tail: bool,
    pub limits: Limits,
    /// The budget of memory in bytes, which then decides those of [`Self::limits`] that are bytes
    /// in memory; `None`: the limits, and 64 MiB of data that is not written yet.
    pub memory: Option<u64>,
    /// The reads of which data is kept in memory: within [`Limits::clean_data_bytes`], or a
    /// budget's share. A process that reads a file more than once wants [`DataCache::All`].
    pub data_cache: DataCache,
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
    /// Makes a pool at `path`, and returns its id: in a sparse file, which is created, or on a
    /// block device.
    ///
    /// # Errors
    /// [`Error::Occupied`] where the path holds data in its first or last MiB, unless
    /// [`CreateOptions::force`];
    /// [`Error::NoSize`] where it does not exist and no size is given. Then nothing has changed.
    pub fn create(path: impl AsRef<Path>, options: &CreateOptions) -> Result<PoolId, Error> {
        create::create(path.as_ref(), options)
    }

    /// Makes a pool on any device, on executors that are running already. The content of the device
    /// is lost. [`CreateOptions::preallocate`] states here that the host has allocated all of it.
    pub fn create_on(
        executors: &Arc<Executors>,
        device: DynDevice,
        options: &CreateOptions,
    ) -> Result<PoolId, Error> {
        create::create_on(executors, device, options)
    }

    /// Opens the pool at `path`, a file or a block device, after a crash as after a clean close.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Pool, Error> {
        let executors = start(options.threads)?;
        let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let opened = open_device(&executors, path.as_ref(), mode)
            .map_err(Error::from)
            .and_then(|device| Pool::on(&executors, device, options, true));
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
        Pool::on(&executors, device, options, false)
    }

    fn on(
        executors: &Arc<Executors>,
        device: DynDevice,
        options: OpenOptions,
        is_alone: bool,
    ) -> Result<Pool, Error> {
        let OpenOptions { read_only, cut_tail, mut limits, memory, data_cache, .. } = options;
        let mut settings = copyhold_fs::Options {
            count_lookups: false,
            read_only,
            data_cache,
            ..Default::default()
        };
        if memory.is_some() {
            let size = executors.block_on(budget::pool_size(&device))?;
            let shares = Shares::of(memory, None, size, budget::machine())?;
            budget::limit_pool(&shares, data_cache, &mut limits);
            budget::limit_files(&shares, NamesLimit::default(), &mut settings);
        }
        let open = copyhold_pool::OpenOptions { read_only, cut_tail, tenants: true, limits };
        let opening = copyhold_serve::open_filesystem(executors.clone(), device, open, settings);
        let filesystem = executors.block_on(opening)?;
        let open = Open { executors: executors.clone(), filesystem: filesystem.clone(), is_alone };
        Ok(Pool { engine: Engine::new(open), filesystem })
    }

    /// The id that its creation gave it.
    pub fn id(&self) -> PoolId {
        self.filesystem.pool().label().pool
    }

    /// Makes the pool larger, and its file longer; a block device must have the size.
    ///
    /// # Errors
    /// [`PoolError::Grow`](crate::PoolError::Grow) for a size that cannot be, or an error of the
    /// device. The pool has its old size, unless that error has stopped it: then the next opening
    /// finds the old size or the new one.
    pub fn grow(&self, size: NewSize) -> Result<Grown, Error> {
        let root = NodeId::ROOT;
        self.engine.run(root, async |view| Ok(copyhold_pool::grow(view.fs.pool(), size).await?))
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

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(self.engine.take());
    }
}
