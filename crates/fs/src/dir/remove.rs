//! Removing names.

use std::sync::Arc;

use copyhold_format::item::orphan_key;
use copyhold_pool::{Tier, Transaction};

use super::Name;
use super::make::put_bucket;
use crate::inode::lock_states;
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::permit::Way;
use crate::subvol::FILES;
use crate::throttle::before_change;
use crate::{Filesystem, FsError, NameEvent, NodeId, Result};

impl Filesystem {
    pub async fn unlink(self: &Arc<Self>, parent: NodeId, name: &[u8]) -> Result<()> {
        self.remove(parent, name, false).await
    }

    /// Subvolumes are refused: whether the caller may delete one is another question, see
    /// [`Filesystem::remove_empty_subvolume`].
    pub async fn rmdir(self: &Arc<Self>, parent: NodeId, name: &[u8]) -> Result<()> {
        match name {
            b"." => Err(FsError::Invalid("a directory is not removed by the name \".\"")),
            b".." => Err(FsError::NotEmpty),
            _ => self.remove(parent, name, true).await,
        }
    }

    async fn remove(self: &Arc<Self>, parent: NodeId, name: &[u8], is_dir: bool) -> Result<()> {
        self.writable()?;
        let dir = self.inode(parent).await?;
        self.permit_in(&dir.subvol)?;
        dir.expect_dir()?;
        before_change(self, dir.subvol.volume.owner()).await?;
        let name = Name::parse(name)?;
        if name.is_dots() {
            return Err(FsError::IsDirectory);
        }
        let entries = dir.lock.write().await;
        let bucket = self.bucket(&dir, name.bytes()).await?;
        let found = bucket.find(self, &dir, name.bytes()).ok_or(FsError::NotFound)?;
        let inode = self.inode_of_entry(&dir, found.node).await?;
        match (inode.is_dir(), is_dir) {
            (true, false) => return Err(FsError::IsDirectory),
            (false, true) => return Err(FsError::NotDirectory),
            _ => {}
        }
        if inode.is_subvol_root() {
            return Err(FsError::IsSubvolume(inode.node.subvol));
        }
        let bytes = 2 * INODE_BYTES + bucket.edit_bytes(name.bytes()) + KEY_BYTES;
        let credit = self.charge(&dir.subvol, Tier::Delete, 4, bytes).await?;

        let now = self.now();
        let (txg, sync) = {
            let [mut dir_state, mut state] = lock_states([&dir, &inode]);
            dir_state.expect_removable_from()?;
            if !inode.is_placeholder() {
                state.permit(Way::Name)?;
            }
            if is_dir && state.item.size > 0 {
                return Err(FsError::NotEmpty);
            }
            let mut item = state.next_item();
            item.nlink = if is_dir { 0 } else { item.nlink.saturating_sub(1) };
            item.ctime = now;
            let dir_item = dir_state.dir_item(-1, -i64::from(is_dir), now);
            let mut tx = Transaction::new();
            let left = bucket.without(name.bytes());
            put_bucket(&mut tx, bucket.changed(left));
            self.put_inode(&mut tx, dir.node.ino, &dir_item);
            if !inode.is_placeholder() {
                self.put_inode(&mut tx, inode.node.ino, &item);
                if item.nlink == 0 {
                    tx.put(FILES, orphan_key(inode.node.ino), &[][..]);
                }
            }
            let txg = self.apply(&dir.subvol, credit, tx)?;
            dir_state.logged_and_shown(dir_item, txg, true);
            state.logged_and_shown(item, txg, is_dir);
            self.names().insert(&dir, name.bytes(), Some(NameEvent::Retained));
            (txg, dir_state.is_sync_dir())
        };
        drop(entries);
        if !inode.is_placeholder() {
            self.reap_if_unused(&inode);
        }
        if sync {
            self.pool.commit(txg).await?;
        }
        Ok(())
    }
}
