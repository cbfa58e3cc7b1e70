//! The place of checksums that a file has for its new extents: a property of files and directories.
//!
//! Problem.  A tenant knows which of its files need the strongest checks, and which can do without.
//!           The choice must neither rewrite data nor be made file by file.
//! Idea.     Each inode has a place. A new file or directory takes its directory's, the root of a
//!           new subvolume that of the directory where it is made; a snapshot has its source's
//!           inodes. Write-back reads it (`file::batch`), and each extent has its own.
//!
//! PLACES-P1  A pool names the feature of its label durably before an inode has another place than
//!            the item (FEATURE-F1).
//! PLACES-P2  The owner of a file sets its place, or root, where its attributes may change.

use std::sync::Arc;

use copyhold_format::item::Checksums;
use copyhold_format::label::Features;
use copyhold_pool::use_features;

use crate::permit::Way;
use crate::throttle::before_change;
use crate::{Caller, FileKind, Filesystem, FsError, NodeId, Result};

/// The place of checksums of new extents of a file, or of new files in a directory.
pub async fn checksums_of(fs: &Filesystem, node: NodeId) -> Result<Checksums> {
    let inode = fs.inode(node).await?;
    Ok(inode.state().item.checksums)
}

/// Sets that place.
///
/// # Errors
/// The caller is neither the owner nor root (PLACES-P2), or the node is no file and no directory.
pub async fn set_checksums(
    fs: &Arc<Filesystem>,
    caller: &Caller,
    node: NodeId,
    place: Checksums,
) -> Result<()> {
    fs.writable()?;
    let inode = fs.inode(node).await?;
    if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
        return Err(FsError::NotSupported("checksums of a special file"));
    }
    fs.permit_in(&inode.subvol)?;
    let (owner, present) = {
        let item = &inode.state().item;
        (item.uid, item.checksums)
    };
    if !caller.is_privileged() && caller.uid != owner {
        return Err(FsError::NotPermitted("only the owner sets the place of checksums"));
    }
    if place == present {
        return Ok(());
    }
    if place != Checksums::Item {
        let features = Features { incompat: Features::CHECKSUMS, ..Features::default() };
        use_features(&fs.pool, features).await?;
    }
    before_change(fs, inode.subvol.volume.owner()).await?;
    let now = fs.now();
    fs.change_inode(&inode, |state, item| {
        if !caller.is_privileged() && caller.uid != item.uid {
            return Err(FsError::NotPermitted("only the owner sets the place of checksums"));
        }
        state.permit(Way::Attributes)?;
        item.checksums = place;
        item.ctime = now;
        state.shown.ctime = now;
        Ok(())
    })
    .await
}
