//! A simulated machine that is given up when it does not come to an end.

use std::sync::Arc;

use copyhold_check::{Options, Report, check_device};
use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_fs::{Filesystem, FsError};
use copyhold_pool::{Limits, OpenOptions, Pool, PoolError, Scribble};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::DeviceId;

/// Polls and steps of the clock that one task may take: a hundred times what the longest takes on a
/// sound pool.
pub(crate) const TURNS_MAX: u64 = 2_000_000;

pub(crate) struct Machine {
    pub(crate) rt: Arc<SeededRuntime>,
    pub(crate) device: Arc<SimDevice>,
}

impl Machine {
    pub(crate) fn on(image: SimImage) -> Machine {
        let rt = SeededRuntime::new(1);
        let config = SimConfig::new(1);
        let device = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
        Machine { rt, device }
    }

    pub(crate) fn device(&self) -> DynDevice {
        self.device.clone()
    }

    /// Runs `task` to its end.
    pub(crate) fn run<T>(&self, what: &str, task: impl Future<Output = T>) -> T {
        let ended = self.rt.block_on_within(TURNS_MAX, task);
        ended.unwrap_or_else(|| panic!("{what}: no end after {TURNS_MAX} turns"))
    }

    pub(crate) fn open(&self, how: How) -> Result<Arc<Filesystem>, FsError> {
        self.run("open", open(self.rt.clone(), self.device(), how))
    }

    /// Without what knows of tenants.
    pub(crate) fn open_pool(&self, how: How) -> Result<Arc<Pool>, PoolError> {
        self.run("open", Pool::open(self.rt.clone(), self.device(), options(how, false)))
    }

    pub(crate) fn check(&self) -> Result<Report, PoolError> {
        let check = check_device(self.rt.clone() as Rt, self.device(), Options::default());
        self.run("check", check)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

/// How a pool is opened.
#[derive(Default)]
pub(crate) struct How {
    pub(crate) read_only: bool,
    pub(crate) scribble: Option<Scribble>,
}

/// Small caches and deltas, so that little work fills them.
fn options(how: How, tenants: bool) -> OpenOptions {
    let limits = Limits {
        delta_bytes: 1 << 20,
        node_cache_bytes: 256 << 10,
        scribble: how.scribble,
        ..Limits::default()
    };
    OpenOptions { read_only: how.read_only, tenants, limits, cut_tail: false }
}

async fn open(rt: Rt, device: DynDevice, how: How) -> Result<Arc<Filesystem>, FsError> {
    let settings = copyhold_fs::Options {
        read_only: how.read_only,
        dirty_bytes_max: 4 << 20,
        file_dirty_bytes_start: 1 << 20,
        inodes_max: 100,
        ..copyhold_fs::Options::default()
    };
    let pool = Pool::open(rt, device, options(how, true)).await?;
    Filesystem::open(pool, settings).await
}
