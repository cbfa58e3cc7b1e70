//! Directories: buckets of names, changed under the directory's entry lock.
//!
//! A transaction changes the bucket, the directory's inode and the inode that the name leads to,
//! all at once; whether the directory still lives is asked while it is applied, with its state
//! held.

mod ahead;
mod link;
mod list;
mod lookup;
mod make;
mod name;
mod remove;
mod rename;
mod sole;

use copyhold_format::item::{
    DIRENT, DIRENT_SUBVOL, DirBucket, InodeItem, ParentDirectory, dirent_bucket,
};
use copyhold_pool::{Transaction, Value};
use copyhold_types::{InodeNo, Key, SubvolId, TableId, Timestamp};

use crate::filesystem::FIRST_PLACEHOLDER;
use crate::inode::{Inode, InodeState};
use crate::item_bytes::KEY_BYTES;
use crate::permit::Way;
use crate::{FileFlags, FileKind, Filesystem, FsError, NodeId, Result, Sabotage};

pub use list::{DirEntry, ListFlags};
pub(crate) use make::put_bucket;
pub(crate) use name::Name;
pub use rename::RenameFlags;

/// Most names of a file. Directories have any number of subdirectories.
const LINKS_MAX: u32 = 65_000;

/// A bucket as it was looked up. The caller holds the directory's entry lock.
pub(crate) struct Bucket {
    key: Key,
    value: Option<Value>,
}

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) node: NodeId,
    pub(crate) kind: FileKind,
}

/// The keys of a directory's buckets from one on.
fn buckets_from(dir: &Inode, from: u64) -> (Key, Key) {
    let ino = dir.node.ino.0;
    (Key::new(ino, DIRENT, from), Key::new(ino, DIRENT, u64::MAX))
}

impl Filesystem {
    pub(crate) async fn bucket(&self, dir: &Inode, name: &[u8]) -> Result<Bucket> {
        let offset = dirent_bucket(&dir.subvol.hash_key, name);
        let key = Key::new(dir.node.ino.0, DIRENT, offset);
        let value = self.get(&dir.subvol, key).await?;
        if let Some(bytes) = &value {
            DirBucket::parse(bytes)
                .map_err(|source| self.damaged_record("a directory bucket", dir.node, source))?;
        }
        Ok(Bucket { key, value })
    }

    /// Where the entry of a subvolume leads: to its root if its record names this directory, else,
    /// in a snapshot of its holder, to a placeholder (R39).
    pub(super) fn subvol_entry(&self, dir: NodeId, subvol: SubvolId) -> NodeId {
        let place = ParentDirectory { subvol: dir.subvol, directory: dir.ino };
        let there = self.volumes.subvol(subvol);
        match there.is_some_and(|there| !there.is_dying() && there.item().place == place) {
            true => NodeId { subvol, ino: InodeNo::ROOT },
            false => NodeId { ino: InodeNo(FIRST_PLACEHOLDER + u64::from(subvol.0)), ..dir },
        }
    }
}

impl Found {
    /// Type and number of an entry that leads there. Only subvolumes are entered by their root.
    fn dirent(self) -> (u8, InodeNo) {
        match self.node.ino {
            InodeNo::ROOT => (DIRENT_SUBVOL, InodeNo(self.node.subvol.0.into())),
            InodeNo(ino) if ino >= FIRST_PLACEHOLDER => {
                (DIRENT_SUBVOL, InodeNo(ino - FIRST_PLACEHOLDER))
            }
            ino => (self.kind.dirent_type(), ino),
        }
    }
}

impl Inode {
    /// The target of an entry of this directory.
    pub(crate) fn found(&self, fs: &Filesystem, ino: InodeNo, kind: u8) -> Found {
        if kind == DIRENT_SUBVOL {
            let node = fs.subvol_entry(self.node, SubvolId(ino.0 as u32));
            return Found { node, kind: FileKind::Directory };
        }
        let kind = FileKind::from_dirent_type(kind).expect("parsed entries have a type");
        Found { node: self.subvol.node(ino), kind }
    }

    /// No entry of its own subvolume leads to it, only one of the subvolume that holds it.
    pub(crate) fn is_subvol_root(&self) -> bool {
        self.node.ino == InodeNo::ROOT
    }

    pub(crate) fn is_placeholder(&self) -> bool {
        self.node.ino.0 >= FIRST_PLACEHOLDER
    }
}

impl Bucket {
    fn parsed(&self) -> DirBucket<'_> {
        self.value.as_deref().map_or(DirBucket::EMPTY, |bytes| {
            DirBucket::parse(bytes).expect("parsed when it was looked up")
        })
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Bytes of an edit that adds or changes `name`, for the credit of its transaction.
    pub(crate) fn edit_bytes(&self, name: &[u8]) -> usize {
        KEY_BYTES + self.value.as_deref().map_or(0, <[u8]>::len) + 12 + name.len()
    }

    pub(crate) fn find(&self, fs: &Filesystem, dir: &Inode, name: &[u8]) -> Option<Found> {
        self.parsed().find(name).map(|entry| dir.found(fs, entry.ino, entry.kind))
    }

    /// The value with `name`, which is known to be absent no longer: it can be applied (NAMES-N1).
    pub(crate) fn with(
        &self,
        fs: &Filesystem,
        dir: &Inode,
        name: &[u8],
        what: Found,
    ) -> Result<Vec<u8>> {
        if !fs.breaks(Sabotage::KeepAbsent) {
            fs.names().remove(dir, name);
        }
        let full = FsError::Crowded { what: "name with this hash" };
        let (kind, ino) = what.dirent();
        self.parsed().with(kind, ino, name).ok_or(full)
    }

    /// The value without `name`; `None` if it was the last.
    pub(crate) fn without(&self, name: &[u8]) -> Option<Vec<u8>> {
        Some(self.parsed().without(name)).filter(|left| !left.is_empty())
    }

    pub(crate) fn replaced(&self, name: &[u8], what: Found) -> Vec<u8> {
        let (kind, ino) = what.dirent();
        self.parsed().replaced(name, kind, ino)
    }

    /// The bucket as it will be, for another change in the same transaction.
    pub(crate) fn changed(&self, value: Option<Vec<u8>>) -> Bucket {
        Bucket { key: self.key, value: value.map(Value::from) }
    }

    /// The edit that writes its present state, among these files.
    pub(crate) fn put(&self, tx: &mut Transaction, files: TableId) {
        match &self.value {
            Some(value) => tx.put(files, self.key, Value::clone(value)),
            None => tx.delete(files, self.key),
        }
    }
}

impl InodeState {
    /// A directory that can take a name, or give it up.
    pub(crate) fn expect_live_dir(&self) -> Result<()> {
        if self.gone || self.item.nlink == 0 { Err(FsError::NotFound) } else { Ok(()) }
    }

    /// Whether entries may be taken out of this directory.
    pub(crate) fn expect_removable_from(&self) -> Result<()> {
        self.expect_live_dir()?;
        self.permit(Way::RemoveEntry)
    }

    /// Whether entries may be added.
    pub(crate) fn expect_addable_to(&self) -> Result<()> {
        self.expect_live_dir()?;
        self.permit(Way::AddEntry)
    }

    /// The directory's item after `entries` came (or went, below zero), among them `dirs`
    /// directories.
    pub(crate) fn dir_item(&self, entries: i64, dirs: i64, now: Timestamp) -> InodeItem {
        let mut item = self.next_item();
        item.size = item.size.saturating_add_signed(entries);
        item.nlink = links_after(item.nlink, dirs);
        item.mtime = now;
        item.ctime = now;
        item
    }

    /// Takes over a logged item of a directory, or of a file whose size and data are not concerned.
    pub(crate) fn logged_and_shown(
        &mut self,
        item: InodeItem,
        txg: copyhold_types::Txg,
        is_dir: bool,
    ) {
        if is_dir {
            self.shown.size = item.size;
            self.shown.mtime = item.mtime;
        }
        self.shown.ctime = item.ctime;
        self.logged(item, txg);
    }

    pub(crate) fn is_sync_dir(&self) -> bool {
        self.has_flag(FileFlags::DIRSYNC) || self.has_flag(FileFlags::SYNC)
    }
}

/// The links of a directory after `dirs` directories came or went. A count that was once too large
/// to be stored stays: it is not known any more.
fn links_after(links: u32, dirs: i64) -> u32 {
    match links {
        InodeItem::LINKS_SATURATED => links,
        _ => links.saturating_add_signed(dirs as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_links_that_was_too_large_once_stays_unknown() {
        let most = InodeItem::LINKS_SATURATED;
        assert_eq!(links_after(65_000, 1), 65_001);
        assert_eq!(links_after(most - 2, 1), most - 1);
        assert_eq!(links_after(most - 1, -1), most - 2);
        assert_eq!(links_after(most - 1, 1), most);
        assert_eq!(links_after(most, -1), most);
        assert_eq!(links_after(most, 1), most);
    }
}
