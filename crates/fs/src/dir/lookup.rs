//! Finding a file by its name, or by its node id.

use super::ahead::{read_window_of_look_up, window_of_look_up};
use crate::dir::Name;
use crate::inode::{Inode, InodeRef};
use crate::{Entry, Filesystem, FsError, Looked, NodeId, Result};

impl Filesystem {
    /// `name` may be "." and ".." too.
    pub async fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry> {
        match self.look(parent, name).await? {
            Looked::Found(entry) => Ok(entry),
            Looked::Absent(_) => Err(FsError::NotFound),
        }
    }

    /// As [`Self::lookup`], for a front end that keeps the names that do not exist.
    pub async fn look(&self, parent: NodeId, name: &[u8]) -> Result<Looked> {
        let dir = self.inode(parent).await?;
        dir.expect_dir()?;
        let name = Name::parse(name)?;
        let inode = match name.bytes() {
            b"." => dir,
            b".." => self.inode(self.parent(&dir)).await?,
            bytes => {
                if let Some(absent) = self.names().ask(&dir, bytes) {
                    dir.subvol.present()?;
                    return Ok(Looked::Absent(absent));
                }
                let _entries = dir.lock.read().await;
                let bucket = self.bucket(&dir, bytes).await?;
                match bucket.find(self, &dir, bytes) {
                    Some(found) => {
                        let at = bucket.key().offset;
                        if let Some(window) = window_of_look_up(self, &dir, found.node, at) {
                            Box::pin(read_window_of_look_up(self, &dir, at, window)).await;
                        }
                        self.inode_of_entry(&dir, found.node).await?
                    }
                    None => {
                        let absent = self.names().insert(&dir, bytes, None);
                        // The subvolume may have gone before that.
                        dir.subvol.present()?;
                        return Ok(Looked::Absent(absent));
                    }
                }
            }
        };
        Ok(Looked::Found(self.entry(&inode)))
    }

    /// Finds a file by its node id, as a look-up of "." (file handles over NFS). [`FsError::Stale`]
    /// if there is none.
    pub async fn lookup_node(&self, node: NodeId) -> Result<Entry> {
        let inode = self.inode(node).await?;
        if inode.state().item.nlink == 0 {
            return Err(FsError::Stale);
        }
        Ok(self.entry(&inode))
    }

    /// An inode that an entry names: if there is none, the directory is damaged, unless it is
    /// itself being deleted with its subvolume.
    pub(crate) async fn inode_of_entry(&self, dir: &Inode, node: NodeId) -> Result<InodeRef> {
        match self.inode(node).await {
            Err(FsError::Stale) => {
                dir.subvol.present()?;
                let why = format!("an entry leads to inode {}, which does not exist", node.ino);
                Err(dir.damaged(0, why))
            }
            other => other,
        }
    }

    pub(crate) fn parent(&self, dir: &Inode) -> NodeId {
        match dir.is_subvol_root() {
            true => dir.subvol.parent(),
            false => dir.subvol.node(dir.state().item.parent),
        }
    }
}
