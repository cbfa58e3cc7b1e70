//! Finding the name that leads to a directory or a subvolume (`entry_names`).

use crate::dir::{DirEntry, ListFlags, Name};
use crate::entry_names::KEPT_MAX;
use crate::{FileKind, Filesystem, FsError, NodeId, Result};

/// The name of a directory, or of a subvolume by its root, in the directory `above`; `None` if it
/// has no entry there (ENTRYNAME-E1).
pub async fn find_name(fs: &Filesystem, above: NodeId, node: NodeId) -> Result<Option<Box<[u8]>>> {
    if let Some(name) = fs.entry_names().get(node)
        && leads_to(fs, above, &name, node).await?
    {
        return Ok(Some(name));
    }
    read_names(fs, above, node).await
}

/// Reads `above` and keeps the names found; returns the name of `node`.
async fn read_names(fs: &Filesystem, above: NodeId, node: NodeId) -> Result<Option<Box<[u8]>>> {
    let (mut names, mut found) = (Vec::new(), None);
    let mut visit = |entry: &DirEntry<'_>| {
        if entry.kind == FileKind::Directory && !matches!(entry.name, b"." | b"..") {
            if entry.node == node {
                found = Some(entry.name.into());
            }
            if names.len() < KEPT_MAX {
                names.push((entry.node, entry.name.into()));
            }
        }
        true
    };
    let flags = ListFlags { no_atime: true, ..ListFlags::default() };
    fs.list(above, 0, flags, &mut visit).await?;
    fs.entry_names().keep(names);
    Ok(found)
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
