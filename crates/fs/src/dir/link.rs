//! Another name for a file.

use std::sync::Arc;

use copyhold_format::item::orphan_key;
use copyhold_pool::{Tier, Transaction};

use super::{Found, LINKS_MAX, Name};
use crate::inode::lock_states;
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::permit::Way;
use crate::subvol::FILES;
use crate::throttle::before_change;
use crate::{Entry, Filesystem, FsError, NodeId, Result, Sabotage};

impl Filesystem {
    /// Another name for `node`; also gives a file made by [`Self::tmpfile`] its first.
    pub async fn link(
        self: &Arc<Self>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Entry> {
        self.writable()?;
        if node.subvol != parent.subvol {
            return Err(FsError::CrossSubvolume);
        }
        let inode = self.inode(node).await?;
        self.permit_in(&inode.subvol)?;
        before_change(self, inode.subvol.volume.owner()).await?;
        if inode.is_dir() {
            return Err(FsError::NotPermitted("a directory has one name"));
        }
        let dir = self.inode(parent).await?;
        dir.expect_dir()?;
        let name = Name::to_make(name)?;
        let entries = dir.lock.write().await;
        let bucket = self.bucket(&dir, name.bytes()).await?;
        if bucket.find(self, &dir, name.bytes()).is_some() {
            return Err(FsError::Exists);
        }
        let bytes = 2 * INODE_BYTES + bucket.edit_bytes(name.bytes()) + KEY_BYTES;
        let credit = self.charge(&dir.subvol, Tier::Write, 4, bytes).await?;

        let now = self.now();
        let (txg, nameless, sync) = {
            let [mut dir_state, mut state] = lock_states([&dir, &inode]);
            dir_state.expect_addable_to()?;
            state.permit(Way::Name)?;
            let nameless = state.item.nlink == 0;
            if state.gone || (nameless && !state.linkable) {
                return Err(FsError::NotFound);
            }
            if state.item.nlink >= LINKS_MAX {
                return Err(FsError::TooManyLinks { max: LINKS_MAX });
            }
            let mut item = state.next_item();
            item.nlink += 1;
            (item.parent, item.ctime) = (dir.node.ino, now);
            let dir_item = dir_state.dir_item(1, 0, now);
            let mut tx = Transaction::new();
            let found = Found { node, kind: inode.kind };
            tx.put(FILES, bucket.key(), bucket.with(self, &dir, name.bytes(), found)?);
            self.put_inode(&mut tx, dir.node.ino, &dir_item);
            self.put_inode(&mut tx, node.ino, &item);
            if nameless {
                tx.delete(FILES, orphan_key(node.ino));
            }
            let txg = self.apply(&dir.subvol, credit, tx)?;
            dir_state.logged_and_shown(dir_item, txg, true);
            state.logged_and_shown(item, txg, false);
            state.linkable = false;
            state.in_copy_up &= self.breaks(Sabotage::CopyUpForEver);
            (txg, nameless, dir_state.is_sync_dir())
        };
        drop(entries);
        if nameless {
            self.forget_in_use(node);
        }
        if sync {
            self.pool.commit(txg).await?;
        }
        Ok(self.entry(&inode))
    }
}
