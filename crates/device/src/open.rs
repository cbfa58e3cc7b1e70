//! Opening the device that a path names.
//!
//! A path names a regular file or a block device. If there is a namespace with protection
//! information on it, the namespace is the device, without an option: a pool must never be used
//! without the tuples of its blocks.

use std::path::Path;
use std::sync::Arc;

use copyhold_runtime::{Reactor, Rt};
use copyhold_types::DeviceId;

use crate::{DeviceError, DynDevice, FileDevice, OpenMode, pi};

/// Opens and locks the device at `path`.
pub async fn open(
    rt: Rt,
    reactor: Arc<dyn Reactor>,
    id: DeviceId,
    path: &Path,
    mode: OpenMode,
) -> Result<DynDevice, DeviceError> {
    let file = FileDevice::open(reactor, id, path, mode)?;
    pi::open(rt, file, mode).await
}
