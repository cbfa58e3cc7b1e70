//! The checksum mode of a file, as attributes of names of our own.
//!
//! The kernel passes `system.` attributes on without a look at permissions, but only from mounts
//! that may be written. The filesystem asks for the owner (MODES-M2).

use std::sync::Arc;

use copyhold_format::item::ChecksumMode;
use copyhold_fs::{Caller, Filesystem, NodeId, checksum_mode_of, set_checksum_mode};
use copyhold_fuse::{Errno, Reply};

use crate::errno::errno;

pub(super) async fn set(
    fs: &Arc<Filesystem>,
    by: Option<Caller>,
    node: NodeId,
    value: &[u8],
) -> Reply<()> {
    let by = by.ok_or(Errno::EACCES)?;
    let name = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
    let mode: ChecksumMode = name.parse().map_err(|()| Errno::EINVAL)?;
    set_checksum_mode(fs, &by, node, mode).await.map_err(errno)
}

pub(super) async fn get(fs: &Filesystem, node: NodeId) -> Reply<Vec<u8>> {
    let mode = checksum_mode_of(fs, node).await.map_err(errno)?;
    Ok(mode.name().into())
}

/// The mode of new extents on the pool's device.
pub(super) async fn get_in_effect(fs: &Filesystem, node: NodeId) -> Reply<Vec<u8>> {
    let mode = checksum_mode_of(fs, node).await.map_err(errno)?;
    let is_protected = fs.pool().devices().protection().is_some();
    Ok(mode.on_device(is_protected).name().into())
}
