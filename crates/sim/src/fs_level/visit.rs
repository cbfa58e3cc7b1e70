//! Several visitors come to all subvolumes at once, right behind a recovery.
//!
//! Each goes through all names, so any visitor may be the first in a subvolume. Each has a part of
//! the files: it extends them, reads past their end, and truncates them again. The bytes there are
//! zeros, for any blocks that a crash has left behind the logged size (R36). Afterwards each file
//! has its former content, and is durable.

use std::sync::Arc;

use copyhold_fs::{Attr, Caller, FileKind, Filesystem, FsError, NodeId, SetAttr, SetTime};

use super::verify::list;

/// By how much files grow: further than blocks are logged ahead of a size.
const MORE: u64 = 128 << 10;

/// The visitor `nth` of `count`.
pub(crate) async fn visit(fs: Arc<Filesystem>, nth: u64, count: u64) {
    let visited = visit_all(&fs, nth, count).await;
    visited.unwrap_or_else(|error| panic!("a visit behind a recovery: {error}"));
}

async fn visit_all(fs: &Arc<Filesystem>, nth: u64, count: u64) -> Result<(), FsError> {
    let mut dirs = vec![fs.root()];
    while let Some(dir) = dirs.pop() {
        let mut names = list(fs, dir).await?;
        let turn = nth as usize % names.len().max(1);
        names.rotate_left(turn);
        for name in names {
            let entry = fs.lookup(dir, &name).await?;
            fs.forget(entry.node, 1);
            match entry.attr.kind {
                FileKind::Directory => dirs.push(entry.node),
                FileKind::Regular if entry.node.ino.0 % count == nth => {
                    look_behind_the_end(fs, entry.node, &entry.attr).await?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

async fn look_behind_the_end(
    fs: &Arc<Filesystem>,
    node: NodeId,
    attr: &Attr,
) -> Result<(), FsError> {
    let content = fs.read(node, 0, attr.size as usize).await?.to_vec();
    let longer = SetAttr { size: Some(attr.size + MORE), ..SetAttr::default() };
    match fs.setattr(&Caller::ROOT, node, &longer).await {
        Ok(_) => {}
        Err(
            FsError::ReadOnly { .. }
            | FsError::NotPermitted(_)
            | FsError::NoSpace(_)
            | FsError::Kept { .. }
            | FsError::Quota(_),
        ) => return Ok(()),
        Err(error) => return Err(error),
    }
    let all = fs.read(node, 0, (attr.size + MORE) as usize).await?.to_vec();
    let (before, behind) = all.split_at(attr.size as usize);
    assert!(before == content, "{node}: its content changes when it grows");
    let first = behind.iter().position(|byte| *byte != 0);
    assert!(first.is_none(), "R36: {node} ends at {}, and shows {first:?} behind it", attr.size);
    let back = SetAttr {
        size: Some(attr.size),
        atime: Some(SetTime::At(attr.atime)),
        mtime: Some(SetTime::At(attr.mtime)),
        ctime: Some(attr.ctime),
        ..SetAttr::default()
    };
    let was_set = fs.setattr(&Caller::ROOT, node, &back).await;
    if let Err(FsError::NoSpace(_)) = was_set {
        // Visitors have used the last space together; a sync makes the released space available.
        fs.sync().await?;
        return fs.setattr(&Caller::ROOT, node, &back).await.map(drop);
    }
    was_set.map(drop)
}
