//! Finding the name that leads to a directory or a subvolume (`entry_names`).

use copyhold_types::InodeNo;
use rustc_hash::FxHashMap;

use crate::dir::{DirEntry, ListFlags, Name};
use crate::{FileKind, Filesystem, FsError, NodeId, Result};

/// The name of a directory or of a subvolume, by its root, in the directory `above`, if it was kept
/// and is there still (ENTRYNAME-E1).
pub async fn kept_name(fs: &Filesystem, above: NodeId, node: NodeId) -> Result<Option<Box<[u8]>>> {
    let Some(name) = fs.entry_names().get(node) else { return Ok(None) };
    Ok(leads_to(fs, above, &name, node).await?.then_some(name))
}

/// The names of all directories and subvolumes in the directory `above`. With `keep`, they are kept
/// for the next pages of a list.
pub async fn names_in(
    fs: &Filesystem,
    above: NodeId,
    keep: bool,
) -> Result<FxHashMap<NodeId, Box<[u8]>>> {
    let mut names: FxHashMap<NodeId, Box<[u8]>> = FxHashMap::default();
    let mut visit = |entry: &DirEntry<'_>| {
        if entry.kind == FileKind::Directory && !matches!(entry.name, b"." | b"..") {
            names.insert(entry.node, Box::from(entry.name));
        }
        true
    };
    let flags = ListFlags { no_atime: true, ..ListFlags::default() };
    fs.list(above, 0, flags, &mut visit).await?;
    if keep {
        let (subvolumes, others): (Vec<_>, Vec<_>) =
            names.iter().partition(|(node, _)| node.ino == InodeNo::ROOT);
        let all = subvolumes.into_iter().chain(others);
        fs.entry_names().keep(all.map(|(node, name)| (*node, name.clone())));
    }
    Ok(names)
}

async fn leads_to(fs: &Filesystem, above: NodeId, name: &[u8], node: NodeId) -> Result<bool> {
    let dir = match fs.inode(above).await {
        Err(FsError::Stale) => return Ok(false),
        dir => dir?,
    };
    if dir.expect_dir().is_err() {
        return Ok(false);
    }
    let name = Name::parse(name)?;
    let _entries = dir.lock.read().await;
    let bucket = fs.bucket(&dir, name.bytes()).await?;
    Ok(bucket.find(fs, &dir, name.bytes()).is_some_and(|found| found.node == node))
}
