//! The checksum mode that a file has for its new extents: a property of files and directories.
//!
//! Problem.  A tenant knows which of its files need the strongest checks, and which can do without.
//!           The choice must neither rewrite data nor be made file by file.
//! Idea.     Each inode has a mode. A new file or directory takes its directory's, the root of a
//!           new subvolume that of the directory where it is made; a snapshot has its source's
//!           inodes. Write-back reads it (`file::batch`), and each extent has its own.
//!
//! MODES-M1  A pool names the feature of its label durably before an inode has another mode than
//!           the item (FEATURE-F1).
//! MODES-M2  The owner of a file sets its mode, or root, where its attributes may change.

use std::sync::Arc;

use copyhold_format::item::ChecksumMode;
use copyhold_format::label::Features;
use copyhold_pool::use_features;

use crate::permit::Way;
use crate::throttle::before_change;
use crate::{Caller, FileKind, Filesystem, FsError, NodeId, Result};

/// The checksum mode of new extents of a file, or of new files in a directory.
pub async fn checksum_mode_of(fs: &Filesystem, node: NodeId) -> Result<ChecksumMode> {
    let inode = fs.inode(node).await?;
    Ok(inode.state().item.checksum_mode)
}

/// Sets that mode.
///
/// # Errors
/// The caller is neither the owner nor root (MODES-M2), or the node is no file and no directory.
pub async fn set_checksum_mode(
    fs: &Arc<Filesystem>,
    caller: &Caller,
    node: NodeId,
    mode: ChecksumMode,
) -> Result<()> {
    fs.writable()?;
    let inode = fs.inode(node).await?;
    if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
        return Err(FsError::NotSupported("checksums of a special file"));
    }
    fs.permit_in(&inode.subvol)?;
    let (owner, present) = {
        let item = &inode.state().item;
        (item.uid, item.checksum_mode)
    };
    if !caller.is_privileged() && caller.uid != owner {
        return Err(FsError::NotPermitted("only the owner sets the checksum mode"));
    }
    if mode == present {
        return Ok(());
    }
    if mode != ChecksumMode::Item {
        let features = Features { incompat: Features::CHECKSUM_MODES, ..Features::default() };
        use_features(&fs.pool, features).await?;
    }
    before_change(fs, inode.subvol.volume.owner()).await?;
    let now = fs.now();
    fs.change_inode(&inode, |state, item| {
        if !caller.is_privileged() && caller.uid != item.uid {
            return Err(FsError::NotPermitted("only the owner sets the checksum mode"));
        }
        state.permit(Way::Attributes)?;
        item.checksum_mode = mode;
        item.ctime = now;
        state.shown.ctime = now;
        Ok(())
    })
    .await
}
