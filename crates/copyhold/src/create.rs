//! Making a pool: in a new file, in one that exists, or on a block device.
//!
//! CREATE-C1  The call removes nothing but a file that it created itself, and has locked.
//! CREATE-C2  A refusal leaves the content of a file or device that existed as it was: its shape
//!            is checked before, and its content looked at behind the lock. With `force`, errors of
//!            the host behind that (I/O, no space) may come when the content is gone.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use copyhold_device::pi::{Emulated, Format};
use copyhold_device::{Device, DeviceError, DynDevice, FileDevice, NvmeDevice, OpenMode, nvme};
use copyhold_format::label::NAME_MAX;
use copyhold_fs::{Caller, Filesystem};
use copyhold_pool::{CreateOptions as Shape, erase_pools, read_labels};
use copyhold_runtime::Rt;
use copyhold_runtime::executors::Executors;
use copyhold_types::{BLOCK_BYTES, DeviceId, PoolId, Purpose};

use crate::Error;
use crate::engine::{open_device, start};

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
    /// the log are allocated, and a file grows with its content. An NVMe namespace with protection
    /// information refuses it: [`Error::NotAllocated`].
    pub preallocate: bool,
    /// Bytes of one copy of the log; `None`: chosen by the pool's size.
    pub log_bytes: Option<u64>,
    /// Bytes of a metaslab, a power of two from 1 MiB to 16 GiB; `None`: chosen by the pool's size.
    pub metaslab_bytes: Option<u64>,
    /// Most bytes of a node of metadata.
    pub node_bytes: Option<u32>,
    /// Make a namespace with protection information of this format on the file or device first.
    /// The pool is smaller by the tuples.
    pub protection: Option<Format>,
}

impl CreateOptions {
    /// Of a pool of so many bytes.
    pub fn sized(bytes: u64) -> CreateOptions {
        CreateOptions { bytes: Some(bytes), ..CreateOptions::default() }
    }
}

/// Makes a pool at `path`. The user who runs this process owns its root directory.
/// CREATE-C1, CREATE-C2.
pub(crate) fn create(path: &Path, options: &CreateOptions) -> Result<PoolId, Error> {
    expect_name(options)?;
    let found = match std::fs::metadata(path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(source) => return Err(Error::Path { path: path.into(), source }),
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
    if found.is_none_or(|found| found.is_file()) {
        check(path, bytes / BLOCK, options)?;
    }
    let executors = start(Some(1))?;
    let made = make(&executors, path, bytes, options);
    executors.shutdown();
    made
}

/// Makes a pool on a device. The user who runs this process owns its root directory.
pub(crate) fn create_on(
    executors: &Arc<Executors>,
    device: DynDevice,
    options: &CreateOptions,
) -> Result<PoolId, Error> {
    expect_name(options)?;
    executors.block_on(fill(executors.clone(), device, &shape_of(options)))
}

fn expect_name(options: &CreateOptions) -> Result<(), Error> {
    match options.name.len() {
        0..=NAME_MAX => Ok(()),
        bytes => Err(Error::LongName { bytes, max: NAME_MAX }),
    }
}

fn shape_of(options: &CreateOptions) -> Shape {
    Shape {
        name: options.name.clone(),
        blocks: options.bytes.map(|bytes| bytes / BLOCK),
        log_bytes: options.log_bytes,
        metaslab_blocks: options.metaslab_bytes.map(|bytes| bytes / BLOCK),
        node_bytes: options.node_bytes,
        preallocated: options.preallocate,
        // Otherwise both ends of the device are empty.
        replaces: options.force,
        ..Default::default()
    }
}

fn make(
    executors: &Arc<Executors>,
    path: &Path,
    bytes: u64,
    options: &CreateOptions,
) -> Result<PoolId, Error> {
    if nvme::is_namespace(path) {
        return make_on_namespace(executors, path, options);
    }
    let file = FileDevice::create(executors.reactor(), DeviceId(0), path, bytes, options.force);
    let file = file.map_err(|error| occupied(executors, path, error))?;
    let made = executors.block_on(async {
        // The size of a block device is known only now.
        let shape = check(path, file.geometry().blocks, options)?;
        if file.is_block_device() {
            let disk: DynDevice = file.clone();
            erase_pools(&disk).await?;
        }
        if shape.preallocated {
            allocate(&file, &shape).await?;
        }
        let device: DynDevice = match options.protection {
            Some(format) if file.is_block_device() => {
                Emulated::create(executors.clone(), file.clone(), format).await?
            }
            // The file is empty, or was allocated: both read as zeros.
            Some(format) => {
                Emulated::create_on_zeros(executors.clone(), file.clone(), format).await?
            }
            None => file.clone(),
        };
        fill(executors.clone(), device, &shape).await
    });
    if made.is_err() {
        // Half a pool is of no use.
        file.remove_if_made();
    }
    made
}

/// Makes a pool on an NVMe namespace, which has its room and its tuples already.
fn make_on_namespace(
    executors: &Arc<Executors>,
    path: &Path,
    options: &CreateOptions,
) -> Result<PoolId, Error> {
    expect_for_namespace(path, options)?;
    let device = NvmeDevice::create(executors.reactor(), DeviceId(0), path, options.force);
    let device = device.map_err(|error| occupied(executors, path, error))?;
    let shape = check(path, device.geometry().blocks, options)?;
    executors.block_on(fill(executors.clone(), device, &shape))
}

/// Refuses options that have no meaning for a namespace, before it is touched.
fn expect_for_namespace(path: &Path, options: &CreateOptions) -> Result<(), Error> {
    match options {
        CreateOptions { protection: Some(_), .. } => {
            Err(Error::ProtectedAlready { path: path.into() })
        }
        CreateOptions { preallocate: true, .. } => Err(Error::NotAllocated { path: path.into() }),
        _ => Ok(()),
    }
}

/// The shape of a pool on a file or device of so many blocks. Refuses one that has no room there.
fn check(path: &Path, blocks: u64, options: &CreateOptions) -> Result<Shape, Error> {
    let (name, mut shape) = (path.display().to_string(), shape_of(options));
    let room = match options.protection {
        Some(format) => Emulated::room(&name, format, blocks)?,
        None => blocks,
    };
    // The size is that of the file, or of the part of the device, with the tuples.
    if let Some(wanted) = &mut shape.blocks
        && *wanted <= blocks
    {
        *wanted = room.min(*wanted);
    }
    shape.check(name, room)?;
    Ok(shape)
}

/// Names a pool that occupies the place.
fn occupied(executors: &Arc<Executors>, path: &Path, error: DeviceError) -> Error {
    let DeviceError::Occupied { mut found, .. } = error else { return error.into() };
    let opened = open_device(executors, path, OpenMode::ReadOnly).ok();
    let is_pool = opened.is_some_and(|device| executors.block_on(read_labels(&device)).is_ok());
    if is_pool {
        found = "a pool already";
    }
    Error::Occupied { path: path.into(), found }
}

/// Allocates the blocks of a pool on the host.
async fn allocate(device: &FileDevice, shape: &Shape) -> Result<(), Error> {
    let geometry = device.geometry();
    let blocks = shape.blocks.unwrap_or(geometry.blocks).min(geometry.blocks);
    Ok(device.preallocate(0, blocks, Purpose::Data).await?)
}

/// Makes a pool on the device, and its root directory.
async fn fill(rt: Rt, device: DynDevice, shape: &Shape) -> Result<PoolId, Error> {
    let label = copyhold_pool::Pool::create(&rt, &device, shape).await?;
    let pool = copyhold_pool::Pool::open(rt, device, Default::default()).await?;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Filesystem::format(&pool, &Caller::new(uid.as_raw(), gid.as_raw(), 0), ROOT_MODE).await?;
    pool.close().await?;
    Ok(label.pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_refuses_a_second_protection_and_preallocation() {
        let expect = |options| expect_for_namespace(Path::new("/dev/ng0n1"), &options);
        let plain = CreateOptions::sized(1 << 30);
        expect(plain.clone()).unwrap();
        let protection = Some("4096+8:16b".parse().unwrap());
        let refused = expect(CreateOptions { protection, ..plain.clone() });
        assert!(matches!(refused, Err(Error::ProtectedAlready { .. })));
        let refused = expect(CreateOptions { preallocate: true, ..plain });
        assert!(matches!(refused, Err(Error::NotAllocated { .. })));
    }
}
