//! The engine, as the verbs use it: pools on devices, driven by the machine's executors.
//!
//! Everything here starts threads, so nothing here may run before the daemon has forked.

mod budget;
mod errors;
mod extents;
mod medium;
mod patience;
mod protection;
mod serve;
mod views;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use copyhold_device::{DynDevice, FileDevice, OpenMode, nvme};
use copyhold_pool::{OpenOptions, Pool};
use copyhold_runtime::executors::Config;
use copyhold_runtime::{Executors, Rt};
use copyhold_serve::describe;
use copyhold_types::DeviceId;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::failure::Failure;

pub(crate) use extents::extents;
pub(crate) use medium::Medium;
pub(crate) use patience::patiently;
pub(crate) use protection::protection;
pub(crate) use serve::serve;
pub(crate) use views::{labels, log, nodes, space, tables};

/// Executors, and what they open.
pub(crate) struct Machine {
    executors: Arc<Executors>,
}

impl Machine {
    pub(crate) fn start() -> Result<Machine, Failure> {
        let started = Executors::start(Config::default());
        let executors = started.map_err(|error| Failure::system("starting threads", &error))?;
        Ok(Machine { executors })
    }

    fn rt(&self) -> Rt {
        self.executors.clone()
    }

    fn run<T>(&self, task: impl Future<Output = T>) -> T {
        self.executors.block_on(task)
    }

    fn open_device(&self, pool: &Path, mode: OpenMode) -> Result<DynDevice, Failure> {
        let (rt, reactor) = (self.rt(), self.executors.reactor());
        Ok(self.run(copyhold_device::open(rt, reactor, DeviceId(0), pool, mode))?)
    }

    /// Of a file or disk: the drive of an NVMe namespace has no headers.
    fn repair_headers(&self, pool: &Path) -> Result<Vec<u64>, Failure> {
        if nvme::is_namespace(pool) {
            return Ok(Vec::new());
        }
        let reactor = self.executors.reactor();
        let file: DynDevice = FileDevice::open(reactor, DeviceId(0), pool, OpenMode::ReadWrite)?;
        let repaired = self.run(copyhold_check::repair_headers(self.rt(), &file));
        file.release();
        Ok(repaired?)
    }

    fn repair_maps(&self, pool: &Path) -> Result<copyhold_check::Repaired, Failure> {
        let device = self.open_device(pool, OpenMode::ReadWrite)?;
        Ok(self.run(copyhold_check::repair_device(self.rt(), device))?)
    }

    /// Opens a pool to look at it: nothing is written, not even what recovery would.
    fn open_to_read(&self, pool: &Path) -> Result<Arc<Pool>, Failure> {
        let device = self.open_device(pool, OpenMode::ReadOnly)?;
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        Ok(self.run(Pool::open(self.rt(), device, options))?)
    }
}

/// Whether a daemon has the pool open for writing.
pub(crate) fn is_locked(pool: &Path) -> Result<bool, Failure> {
    let say = |error: std::io::Error| Failure::system(pool.display(), &error);
    let file = std::fs::File::open(pool).map_err(say)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(say(errno.into())),
    }
}

/// How a pool that is not mounted is.
pub(crate) fn info(pool: &Path) -> Result<serde_json::Value, Failure> {
    let machine = Machine::start()?;
    let opened = machine.open_to_read(pool)?;
    Ok(describe::pool(&opened, pool).into())
}

/// Writes headers of protection information again that are bad, and makes space maps anew that
/// cannot be read, in a pool that is not mounted; which.
pub(crate) fn repair(pool: &Path) -> Result<copyhold_check::Repaired, Failure> {
    let machine = Machine::start()?;
    let headers = machine.repair_headers(pool)?;
    match machine.repair_maps(pool) {
        Ok(repaired) => Ok(copyhold_check::Repaired { headers, ..repaired }),
        Err(failure) if headers.is_empty() => Err(failure),
        Err(failure) => {
            let what = "headers of protection information were written again in the blocks";
            Err(failure.after(&format!("{what} {headers:?}")))
        }
    }
}

/// Verifies a pool that is not mounted; `data`: the contents of files, too.
pub(crate) fn check(pool: &Path, data: bool) -> Result<copyhold_check::Report, Failure> {
    let machine = Machine::start()?;
    let device = machine.open_device(pool, OpenMode::ReadOnly)?;
    let options = copyhold_check::Options { data };
    Ok(machine.run(copyhold_check::check_device(machine.rt(), device, options))?)
}
