//! Making a pool: in a new file, in one that exists, or on a block device.
//!
//! CREATE-C1  The call removes nothing but a file that it created itself.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use copyhold_device::file::probe_signature;
use copyhold_device::{Device, DynDevice, FileDevice, OpenMode};
use copyhold_format::label::NAME_MAX;
use copyhold_fs::{Caller, Filesystem};
use copyhold_pool::read_labels;
use copyhold_runtime::Rt;
use copyhold_runtime::executors::Executors;
use copyhold_types::{BLOCK_BYTES, DeviceId, PoolId, Purpose};

use crate::Error;
use crate::engine::start;

/// Permissions of the root directory of a new pool.
const ROOT_MODE: u32 = 0o755;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The shape of a new pool, and its place.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions {
    /// Bytes of the pool: the size of a new file, or the part of a device that the pool uses.
    /// `None`: all of the file or device that exists.
    pub bytes: Option<u64>,
    /// The administrator's name for it; at most 64 bytes.
    pub name: String,
    /// Overwrite whatever the file or the device holds.
    pub force: bool,
    /// Allocate all blocks on the host now, and never discard any. Otherwise only the labels and
    /// the log are allocated, and a file grows with its content.
    pub preallocate: bool,
    /// Bytes of one copy of the log; `None`: chosen by the pool's size.
    pub log_bytes: Option<u64>,
    /// Most bytes of a node of metadata.
    pub node_bytes: Option<u32>,
}

impl CreateOptions {
    /// Of a pool of so many bytes.
    pub fn sized(bytes: u64) -> CreateOptions {
        CreateOptions { bytes: Some(bytes), ..CreateOptions::default() }
    }
}

/// Makes a pool at `path`. The user who runs this process owns its root directory.
/// CREATE-C1.
pub(crate) fn create(path: &Path, options: &CreateOptions) -> Result<PoolId, Error> {
    if options.name.len() > NAME_MAX {
        return Err(Error::LongName { bytes: options.name.len(), max: NAME_MAX });
    }
    let found = match std::fs::metadata(path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(source) => return Err(Error::Place { path: path.into(), source }),
    };
    let bytes = match (options.bytes, &found) {
        (Some(bytes), _) => bytes,
        (None, Some(found)) => found.len(),
        (None, None) => return Err(Error::NoSize { path: path.into() }),
    };
    // A name in /dev that is missing was to be a device.
    if found.is_none() && path.starts_with("/dev") {
        return Err(Error::NoDevice { path: path.into() });
    }
    let executors = start(Some(1))?;
    let made = make(&executors, path, found.is_some(), bytes, options);
    executors.shutdown();
    made
}

fn make(
    executors: &Arc<Executors>,
    path: &Path,
    exists: bool,
    bytes: u64,
    options: &CreateOptions,
) -> Result<PoolId, Error> {
    if exists && !options.force {
        expect_empty(executors, path)?;
    }
    let (reactor, id) = (executors.reactor(), DeviceId(0));
    // Content that exists was looked at, or may go.
    let device = FileDevice::create(reactor, id, path, bytes, exists)?;
    let is_own = !exists && !device.is_block_device();
    let made = executors.block_on(fill(executors.clone(), device, options));
    if made.is_err() && is_own {
        // Half a pool is of no use; only the failure matters.
        let _ = std::fs::remove_file(path);
    }
    made
}

/// Refuses a place that holds data.
fn expect_empty(executors: &Arc<Executors>, path: &Path) -> Result<(), Error> {
    let Some(mut found) = probe_signature(path)? else { return Ok(()) };
    let device = FileDevice::open(executors.reactor(), DeviceId(0), path, OpenMode::ReadOnly)?;
    let device: DynDevice = device;
    if executors.block_on(read_labels(&device)).is_ok() {
        found = "a pool already";
    }
    Err(Error::Occupied { path: path.into(), found })
}

/// Makes a pool on the device, and its root directory.
async fn fill(
    executors: Arc<Executors>,
    device: Arc<FileDevice>,
    options: &CreateOptions,
) -> Result<PoolId, Error> {
    let whole = device.geometry().blocks;
    let blocks = options.bytes.map(|bytes| bytes / BLOCK);
    if options.preallocate {
        let blocks = blocks.unwrap_or(whole).min(whole);
        device.preallocate(0, blocks, Purpose::Data).await?;
    }
    let shape = copyhold_pool::CreateOptions {
        name: options.name.clone(),
        blocks,
        log_bytes: options.log_bytes,
        node_bytes: options.node_bytes,
        preallocated: options.preallocate,
        ..Default::default()
    };
    let (rt, device): (Rt, DynDevice) = (executors, device);
    let label = copyhold_pool::Pool::create(&rt, &device, &shape).await?;
    let pool = copyhold_pool::Pool::open(rt, device, Default::default()).await?;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Filesystem::format(&pool, &Caller::new(uid.as_raw(), gid.as_raw(), 0), ROOT_MODE).await?;
    pool.close().await?;
    Ok(label.pool)
}
