//! Finding a file by its name, or by its node id.

use crate::dir::Name;
use crate::inode::{Inode, InodeRef};
use crate::{Entry, Filesystem, FsError, NodeId, Result};

impl Filesystem {
    /// `name` may be "." and ".." too.
    pub async fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry> {
        let dir = self.inode(parent).await?;
        dir.expect_dir()?;
        let name = Name::parse(name)?;
        let inode = match name.bytes() {
            b"." => dir,
            b".." => self.inode(self.parent(&dir)).await?,
            bytes => {
                let _entries = dir.lock.read().await;
                self.child(&dir, bytes).await?
            }
        };
        Ok(self.entry(&inode))
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

    /// The file behind a name. The caller holds the directory's entry lock, so it cannot go
    /// meanwhile.
    pub(crate) async fn child(&self, dir: &Inode, name: &[u8]) -> Result<InodeRef> {
        let bucket = self.bucket(dir, name).await?;
        let found = bucket.find(self, dir, name).ok_or(FsError::NotFound)?;
        self.inode_of_entry(dir, found.node).await
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
