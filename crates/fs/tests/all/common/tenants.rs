//! What a test does with subvolumes.

use std::sync::Arc;

use copyhold_fs::{Caller, Filesystem, NodeId, OpenFlags};
use copyhold_memory::MemoryOwner;
use copyhold_types::{InodeNo, SubvolId};

use super::{ROOT, read};

pub(crate) fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

/// The memory owner of a subvolume.
pub(crate) fn owner(fs: &Filesystem, subvol: SubvolId) -> MemoryOwner {
    fs.volumes().subvol(subvol).unwrap().owner().clone()
}

pub(crate) async fn file(fs: &Arc<Filesystem>, dir: NodeId, name: &str) -> NodeId {
    let flags = OpenFlags::READ_WRITE;
    let made = fs.create(&Caller::ROOT, dir, name.as_bytes(), 0o644, flags, false).await;
    made.unwrap().0.node
}

pub(crate) async fn content(fs: &Filesystem, dir: NodeId, name: &str) -> Vec<u8> {
    let node = fs.lookup(dir, name.as_bytes()).await.unwrap().node;
    read(fs, node, 0, 1 << 20).await
}

pub(crate) async fn subvolume(fs: &Arc<Filesystem>, name: &str) -> SubvolId {
    fs.create_subvolume(&Caller::ROOT, ROOT, name.as_bytes(), None).await.unwrap()
}

pub(crate) async fn snapshot(
    fs: &Arc<Filesystem>,
    of: SubvolId,
    name: &str,
    read_only: bool,
) -> SubvolId {
    fs.snapshot(of, ROOT, name.as_bytes(), read_only, None).await.unwrap()
}

/// Blocks that are free when nothing is on the way any more.
pub(crate) async fn free_blocks(fs: &Arc<Filesystem>) -> u64 {
    fs.volumes().finish_background().await.unwrap();
    for _ in 0..4 {
        fs.pool().flush_all().await.unwrap();
        fs.sync().await.unwrap();
    }
    fs.pool().space().free
}
