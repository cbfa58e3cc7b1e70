//! A file in memory: its logged state, its visible state, and its locks.

use std::sync::Arc;

use copyhold_format::item::{InodeFlags, InodeItem};
use copyhold_memory::{MemoryClass, MemoryOwner};
use copyhold_runtime::FifoRwLock;
use copyhold_sync::{Mutex, MutexGuard, of};
use copyhold_types::{BLOCK_BYTES, InodeNo, Timestamp, Txg};

use crate::file::FileData;
use crate::name_bytes::NameBytes;
use crate::subvol::Subvol;
use crate::{Attr, FileFlags, FileKind, FsError, NodeId, Result};

/// A file that is in use, or was lately. The head of the crate has the order of its locks.
pub(crate) struct Inode {
    pub(crate) node: NodeId,
    pub(crate) subvol: Arc<Subvol>,
    /// Never changes.
    pub(crate) kind: FileKind,
    /// A directory's entries, another file's data.
    pub(crate) lock: FifoRwLock,
    /// The extent items.
    pub(crate) map: FifoRwLock,
    state: Mutex<InodeState, of::InodeState>,
    /// A batch of dirty blocks has ended.
    pub(crate) batch_ended: event_listener::Event,
}

/// How the rest of the crate holds one.
pub(crate) type InodeRef = Arc<Inode>;

pub(crate) struct InodeState {
    /// The inode item as it is in the log.
    pub(crate) item: InodeItem,
    /// The attributes that callers see otherwise, until the data they belong to is logged
    /// (FILES-F1).
    pub(crate) shown: Shown,
    /// The last txg with a change of this file (R34).
    pub(crate) last_txg: Option<Txg>,
    /// A failed write that no fsync has returned yet (R34).
    pub(crate) error: Option<Box<FsError>>,
    /// Made without a name: may get its first.
    pub(crate) linkable: bool,
    /// The kernel copies a file into this one, and no program can reach it yet: see
    /// [`crate::Filesystem::tmpfile_for_copy_up`].
    pub(crate) in_copy_up: bool,
    /// Removed.
    pub(crate) gone: bool,
    /// The access time is newer than the logged one and goes out with the next change.
    pub(crate) atime_lazy: bool,
    pub(crate) xattr_names: NameBytes,
    pub(crate) data: FileData,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) size: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

/// Charged for an inode in memory.
const INODE_MEMORY: i64 = copyhold_memory::INODE_BYTES as i64;

/// Its charges end with it (CHARGE-C1), also those of blocks that are lost in a crash.
impl Drop for Inode {
    fn drop(&mut self) {
        let dirty = (self.state.get_mut().data.blocks.len() * BLOCK_BYTES) as i64;
        self.owner().add(MemoryClass::Dirty, -dirty);
        self.owner().add(MemoryClass::Inode, -INODE_MEMORY);
    }
}

impl Inode {
    /// The owner of its memory.
    pub(crate) fn owner(&self) -> &MemoryOwner {
        self.subvol.volume.owner()
    }

    /// The stored content at byte `offset` is not the written content: logged, here alone.
    pub(crate) fn damaged(&self, offset: u64, why: String) -> FsError {
        let NodeId { subvol, ino } = self.node;
        tracing::error!(subvol = subvol.0, ino = ino.0, offset, why, "a file is damaged");
        FsError::Damaged { subvol, ino, offset, why }
    }

    /// `last_txg`: no change of it can be in a later one.
    pub(crate) fn new(
        subvol: &Arc<Subvol>,
        ino: InodeNo,
        item: InodeItem,
        last_txg: Option<Txg>,
    ) -> Inode {
        let kind = FileKind::from_mode(item.mode.into()).expect("parsed items have a type");
        let shown =
            Shown { size: item.size, atime: item.atime, mtime: item.mtime, ctime: item.ctime };
        subvol.volume.owner().add(MemoryClass::Inode, INODE_MEMORY);
        Inode {
            node: subvol.node(ino),
            subvol: subvol.clone(),
            kind,
            lock: FifoRwLock::new(),
            map: FifoRwLock::new(),
            state: Mutex::new(InodeState {
                item,
                shown,
                last_txg,
                error: None,
                linkable: false,
                in_copy_up: false,
                gone: false,
                atime_lazy: false,
                xattr_names: NameBytes::default(),
                data: FileData::default(),
            }),
            batch_ended: event_listener::Event::new(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, InodeState> {
        self.state.lock_at(self.node.raw())
    }

    /// The state, if no thread holds it.
    pub(crate) fn try_state(&self) -> Option<MutexGuard<'_, InodeState>> {
        self.state.try_lock()
    }

    /// All of it that is logged is found after a crash once this is durable.
    pub(crate) fn newest_txg(&self, state: &InodeState) -> Option<Txg> {
        state.last_txg.max(self.subvol.volume.last_txg())
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(crate) fn expect_dir(&self) -> Result<()> {
        if self.is_dir() { Ok(()) } else { Err(FsError::NotDirectory) }
    }

    /// Regular files only: others get the errors of read(2) and write(2).
    pub(crate) fn expect_file(&self) -> Result<()> {
        match self.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    pub(crate) fn attr(&self) -> Attr {
        self.state().attr(self.node, self.kind)
    }
}

/// A directory whose subdirectories were too many to be counted shows one link, as ext4 and btrfs
/// do: programs then take nothing from the number.
fn shown_links(stored: u32) -> u32 {
    if stored == InodeItem::LINKS_SATURATED { 1 } else { stored }
}

/// Locks the states of several different inodes in the order of their numbers.
pub(crate) fn lock_states<const N: usize>(inodes: [&Inode; N]) -> [MutexGuard<'_, InodeState>; N] {
    let mut order: [usize; N] = std::array::from_fn(|n| n);
    order.sort_unstable_by_key(|&n| inodes[n].node);
    let mut guards = [const { None }; N];
    for n in order {
        guards[n] = Some(inodes[n].state());
    }
    guards.map(|guard| guard.expect("each was locked"))
}

impl InodeState {
    /// Whether the file only lives until the last reference to it ends.
    pub(crate) fn is_nameless(&self) -> bool {
        self.item.nlink == 0 && !self.gone
    }

    pub(crate) fn attr(&self, node: NodeId, kind: FileKind) -> Attr {
        let item = &self.item;
        Attr {
            node,
            kind,
            mode: u32::from(item.mode) & 0o7777,
            uid: item.uid,
            gid: item.gid,
            nlink: shown_links(item.nlink),
            size: self.shown.size,
            blocks: self.occupied_bytes(kind).div_ceil(512),
            atime: self.shown.atime,
            mtime: self.shown.mtime,
            ctime: self.shown.ctime,
            btime: item.btime,
            rdev: item.rdev,
            flags: FileFlags(item.flags),
            project: item.project,
            generation: item.generation,
        }
    }

    /// Logged space, and an estimate for dirty blocks: archivers take a file of no blocks for a
    /// hole.
    fn occupied_bytes(&self, kind: FileKind) -> u64 {
        if kind != FileKind::Regular {
            return self.item.allocated;
        }
        let block = BLOCK_BYTES as u64;
        let whole = self.shown.size.div_ceil(block) * block;
        let allocated = match self.data.cut.size() {
            Some(_) => self.item.allocated.min(whole),
            None => self.item.allocated,
        };
        let inline = if self.is_inline() { self.shown.size } else { 0 };
        let dirty = self.data.blocks.len() as u64 * block;
        (allocated + dirty).min(whole.max(allocated)).max(inline)
    }

    /// Refuses a removed file.
    pub(crate) fn expect_present(&self) -> Result<()> {
        if self.gone { Err(FsError::Stale) } else { Ok(()) }
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.item.has.has(InodeFlags::INLINE)
    }

    /// Whether tables have content of it: extents, or an inline item.
    pub(crate) fn stores_content(&self) -> bool {
        self.item.allocated > 0 || self.is_inline()
    }

    /// The item for a transaction that changes more than data: with the access time, which waits
    /// for such an occasion.
    pub(crate) fn next_item(&self) -> InodeItem {
        InodeItem { atime: self.shown.atime, ..self.item }
    }

    /// New times, which go out with the file's next batch (FILES-F1). A file that is gone has none.
    pub(crate) fn content_changes(&mut self, now: Timestamp) {
        if self.gone {
            return;
        }
        self.shown.mtime = now;
        self.shown.ctime = now;
        self.data.note_change();
    }

    /// Takes over the item that a transaction of `txg` has logged.
    pub(crate) fn logged(&mut self, item: InodeItem, txg: Txg) {
        self.item = item;
        self.atime_lazy = false;
        self.last_txg = self.last_txg.max(Some(txg));
    }

    /// Nothing is lost if this inode leaves memory.
    pub(crate) fn is_clean(&self) -> bool {
        self.error.is_none() && self.item.nlink > 0 && self.data.is_clean()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocators have a class of 320 bytes, and an [`Arc`] adds two words.
    #[test]
    fn an_inode_of_which_all_is_logged_takes_320_bytes() {
        assert!(size_of::<Inode>() <= 304, "{} bytes", size_of::<Inode>());
    }
}
