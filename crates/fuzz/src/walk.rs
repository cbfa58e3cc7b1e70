//! Looks at everything that a filesystem shows, and changes some of everything. Errors are answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use copyhold_fs::{
    Caller, Entry, FallocateMode, FileKind, Filesystem, FsError, NodeId, RenameFlags, Seek,
    SetAttr, XattrSet,
};

use copyhold_types::SubvolId;

use crate::base::file;

const CALLER: Caller = Caller::ROOT;
const ROOT: NodeId = NodeId::ROOT;
/// More is not looked at: directories can be made to hold each other.
const DIRS_MAX: usize = 60;
const NAMES_MAX: usize = 100;
const READ_BYTES: usize = 64 << 10;
/// How many of each kind are changed.
const CHANGED_MAX: usize = 4;

/// The found objects, in the order of the walk.
#[derive(Default)]
pub(crate) struct Seen {
    dirs: Vec<NodeId>,
    /// With where they were found.
    files: Vec<(NodeId, Vec<u8>, NodeId)>,
}

pub(crate) async fn look(fs: &Arc<Filesystem>) -> Seen {
    let mut seen = Seen::default();
    let mut known = BTreeSet::from([ROOT]);
    let mut next = vec![ROOT];
    fs.statfs();
    while let Some(dir) = next.pop().filter(|_| seen.dirs.len() < DIRS_MAX) {
        seen.dirs.push(dir);
        fs.statfs_of(dir);
        for name in names(fs, dir).await {
            let Ok(entry) = fs.lookup(dir, &name).await else { continue };
            look_at(fs, &entry).await;
            if entry.attr.kind != FileKind::Directory {
                seen.files.push((dir, name, entry.node));
            } else if known.insert(entry.node) {
                next.push(entry.node);
            }
        }
    }
    for subvol in fs.subvolumes() {
        let _ = fs.settle_for_scan(subvol.id).await;
        let _ = fs.changes([SubvolId::ROOT, subvol.id], None, 1000).await;
    }
    seen
}

async fn names(fs: &Filesystem, dir: NodeId) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut take = |entry: &copyhold_fs::DirEntry<'_>| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        names.len() < NAMES_MAX
    };
    let _ = fs.readdir(dir, 0, &mut take).await;
    let _ = fs.readdirplus(dir, 2, &mut |_| true).await;
    names
}

async fn look_at(fs: &Arc<Filesystem>, entry: &Entry) {
    let (node, size) = (entry.node, entry.attr.size);
    let _ = (fs.getattr(node).await, fs.readlink(node).await, fs.lookup_node(node).await);
    let _ = fs.access(&Caller { uid: 1000, ..CALLER }, node, 4).await;
    let list = fs.list_xattr(node).await.unwrap_or_default();
    for name in list.split(|&byte| byte == 0).take(NAMES_MAX) {
        let _ = fs.get_xattr(node, name).await;
    }
    for at in [0, size / 2, size.saturating_sub(10)] {
        if let Ok(data) = fs.read(node, at, READ_BYTES).await {
            assert!(data.to_vec().len() <= READ_BYTES, "more than was asked for");
        }
        let _ = (fs.seek(node, at, Seek::Data).await, fs.seek(node, at, Seek::Hole).await);
    }
    fs.forget(node, 1);
}

/// Until something is refused for good, which is an answer, too.
pub(crate) async fn change(fs: &Arc<Filesystem>, seen: &Seen) {
    for (n, &dir) in seen.dirs.iter().take(CHANGED_MAX).enumerate() {
        let _ = change_dir(fs, dir, n).await;
    }
    // The first and the last: in the outermost directory, and in the innermost.
    let some = seen.files.iter().take(CHANGED_MAX).chain(seen.files.iter().rev().take(CHANGED_MAX));
    for (dir, name, node) in some {
        change_file(fs, *dir, name, *node).await;
    }
    let _ = fs.sync().await;
    for (n, subvol) in fs.subvolumes().into_iter().take(CHANGED_MAX).enumerate() {
        let name = format!("again{n}");
        let _ = fs.snapshot(subvol.id, ROOT, name.as_bytes(), false, None).await;
        let _ = fs.set_subvolume_read_only(subvol.id, !subvol.read_only).await;
    }
    for &name in &[&b"snap"[..], b"sub", b"twin", b"again1"] {
        let _ = fs.delete_subvolume(ROOT, name, None).await;
    }
    let _ = fs.disable_quotas().await;
    let _ = fs.sync().await;
    for _ in 0..40 {
        let _ = fs.volumes().background_step().await;
    }
    let _ = fs.pool().flush_all().await;
    let _ = fs.trim(0, u64::MAX, 0).await;
}

async fn change_dir(fs: &Arc<Filesystem>, dir: NodeId, n: usize) -> Result<(), FsError> {
    let made = file(fs, dir, "new", 10_000).await;
    let inner = fs.mkdir(&CALLER, dir, b"newdir", 0o755).await?.node;
    let new = made?;
    let _ = fs.link(new, inner, b"link").await;
    let to = format!("moved{n}");
    let flags = RenameFlags::default();
    let _ = fs.rename(&CALLER, dir, b"new", ROOT, to.as_bytes(), flags).await;
    let flags = RenameFlags { exchange: true, ..flags };
    let _ = fs.rename(&CALLER, dir, b"newdir", ROOT, b"dir", flags).await;
    let _ = fs.unlink(inner, b"link").await;
    let _ = fs.rmdir(dir, b"newdir").await;
    fs.fsync(new, false).await
}

async fn change_file(fs: &Arc<Filesystem>, dir: NodeId, name: &[u8], node: NodeId) {
    let _ = fs.write(node, 100, &[1; 5000], Default::default()).await;
    let _ = fs.write(node, 60_000, b"end", Default::default()).await;
    let _ = fs.fsync(node, false).await;
    let _ = fs.fallocate(node, 4096, 30_000, FallocateMode::Punch).await;
    let mode = FallocateMode::Allocate { keep_size: false };
    let _ = fs.fallocate(node, 100_000, 30_000, mode).await;
    let _ = fs.copy_file_range(node, 0, node, 1 << 20, 65_536).await;
    let set = SetAttr { size: Some(33_333), mode: Some(0o600), ..SetAttr::default() };
    let _ = fs.setattr(&CALLER, node, &set).await;
    let how = XattrSet::Any;
    let _ = fs.set_xattr(&CALLER, node, b"user.new", &[7; 200], how, false).await;
    let _ = fs.remove_xattr(node, b"user.long").await;
    let _ = fs.unlink(dir, name).await;
}
