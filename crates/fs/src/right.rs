//! The right of a caller to change subvolumes, checked where the change is applied.
//!
//! A front end knows the caller; only the filesystem knows the owners at the moment of the change.
//! A check in front of the call would act on a name twice: between the check and the change,
//! another call can put another subvolume under the name.
//!
//! RIGHT-G1  The owners of the directory and of the subvolume that an entry names are checked with
//!           the entry lock of the directory held, on the inodes that the transaction changes.
//! RIGHT-G2  A caller without the right learns nothing: it is refused before the name is looked up.
//! RIGHT-G3  A subvolume counts under the limits of the subvolume that holds its entry, and the
//!           owner of that one cannot remove it. So only the owner of the holder's root brings one
//!           there, by creation, snapshot, rollback or rename; to own the directory is not enough.
//!           The pool's root subvolume receives all: its limit counts nothing that is inside it.

use std::sync::Arc;

use copyhold_types::{InodeNo, SubvolId};

use crate::inode::{Inode, InodeState};
use crate::{Filesystem, FsError, NodeId, Result};

/// The directories and subvolumes that a caller may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// All.
    Administrator,
    /// Those that this user owns.
    Owner(u32),
}

impl Right {
    /// `state` is a directory that gets or loses an entry, or the root of a subvolume.
    pub(crate) fn permit(self, state: &InodeState) -> Result<()> {
        match self {
            Right::Owner(uid) if state.item.uid != uid => Err(FsError::NotPermitted(
                "only the owner of the directory and of the subvolume's root may do this",
            )),
            _ => Ok(()),
        }
    }

    /// `dir` gets the entry of a subvolume (RIGHT-G3). Its entry lock is held.
    pub(crate) async fn permit_receiving(self, fs: &Filesystem, dir: &Inode) -> Result<()> {
        let Right::Owner(uid) = self else { return Ok(()) };
        if dir.node.subvol == SubvolId::ROOT {
            return Ok(());
        }
        let root = fs.inode(dir.subvol.node(InodeNo::ROOT)).await?;
        match root.state().item.uid == uid {
            true => Ok(()),
            false => Err(FsError::NotPermitted(
                "the subvolume that is to hold this one belongs to another user",
            )),
        }
    }
}

/// The changes of subvolumes that one caller makes.
#[derive(Clone, Copy)]
pub struct SubvolumeCalls<'a> {
    pub(crate) fs: &'a Arc<Filesystem>,
    pub(crate) right: Right,
}

impl<'a> SubvolumeCalls<'a> {
    pub fn new(fs: &'a Arc<Filesystem>, right: Right) -> SubvolumeCalls<'a> {
        SubvolumeCalls { fs, right }
    }

    /// Refuses a caller who does not own this directory or root; an administrator costs nothing.
    pub(crate) async fn permit(self, node: NodeId) -> Result<()> {
        match self.right {
            Right::Administrator => Ok(()),
            right => right.permit(&self.fs.inode(node).await?.state()),
        }
    }
}
