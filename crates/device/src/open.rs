//! Opening the device that a path names.
//!
//! A path names a regular file, a block device, or the character device of an NVMe namespace. If
//! there is a namespace with protection information on a file or block device, the namespace is the
//! device, without an option: a pool must never be used without the tuples of its blocks.

use std::path::Path;
use std::sync::Arc;

use copyhold_runtime::{Reactor, Rt};
use copyhold_types::DeviceId;

use crate::{DeviceError, DynDevice, FileDevice, NvmeDevice, OpenMode, nvme, pi};

/// Opens and locks the device at `path`.
pub async fn open(
    rt: Rt,
    reactor: Arc<dyn Reactor>,
    id: DeviceId,
    path: &Path,
    mode: OpenMode,
) -> Result<DynDevice, DeviceError> {
    if nvme::is_namespace(path) {
        return Ok(NvmeDevice::open(reactor, id, path, mode)?);
    }
    let file = FileDevice::open(reactor, id, path, mode)?;
    pi::open(rt, file, mode).await
}
