//! The place of checksums of a file, as an attribute of a name of our own.
//!
//! The kernel passes `system.` attributes on without a look at permissions, but only from mounts
//! that may be written. The filesystem asks for the owner (PLACES-P2).

use std::sync::Arc;

use copyhold_format::item::Checksums;
use copyhold_fs::{Caller, Filesystem, NodeId, checksums_of, set_checksums};
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
    let place: Checksums = name.parse().map_err(|()| Errno::EINVAL)?;
    set_checksums(fs, &by, node, place).await.map_err(errno)
}

pub(super) async fn get(fs: &Filesystem, node: NodeId) -> Reply<Vec<u8>> {
    let place = checksums_of(fs, node).await.map_err(errno)?;
    Ok(place.name().into())
}
