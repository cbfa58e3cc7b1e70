//! One entry of a subvolume in a directory (R39).
//!
//! A subvolume's record names the directory of its entry, not the name. So of all entries that
//! name it, in snapshots of its holder, none may be in that directory: both would lead to it. A
//! call that brings a subvolume where such a placeholder is, or a placeholder where its subvolume
//! is, reports that the placeholder must be removed first.

use copyhold_format::item::{DIRENT_SUBVOL, DirBucket};
use copyhold_types::{InodeNo, SubvolId};

use super::list::BUCKETS;
use crate::filesystem::FIRST_PLACEHOLDER;
use crate::inode::{Inode, InodeRef};
use crate::{Filesystem, FsError, Result};

const TWICE: FsError =
    FsError::Busy("a placeholder of this subvolume in the directory (remove it first)");

impl Filesystem {
    /// `inode` is to come from another directory to `dir`, under `name`. The caller holds the entry
    /// lock of `dir`. Costs a look at the directory where that is in a snapshot and a subvolume
    /// comes, else nothing.
    pub(crate) async fn expect_sole_entry(
        &self,
        inode: &Inode,
        dir: &InodeRef,
        name: &[u8],
    ) -> Result<()> {
        if inode.is_placeholder() {
            let subvol = SubvolId((inode.node.ino.0 - FIRST_PLACEHOLDER) as u32);
            let leads_there = self.subvol_entry(dir.node, subvol).ino == InodeNo::ROOT;
            let gives_way = || self.is_entry_of(dir, name, subvol);
            return if leads_there && !gives_way().await? { Err(TWICE) } else { Ok(()) };
        }
        let is_snapshot = dir.subvol.volume.item().origin.is_some();
        if inode.is_subvol_root() && is_snapshot && self.has_entry_of(dir, inode, name).await? {
            return Err(TWICE);
        }
        Ok(())
    }

    /// Whether `name` is an entry of a subvolume.
    async fn is_entry_of(&self, dir: &Inode, name: &[u8], subvol: SubvolId) -> Result<bool> {
        let found = self.bucket(dir, name).await?.find(self, dir, name);
        Ok(found
            .is_some_and(|found| found.node.ino == InodeNo::ROOT && found.node.subvol == subvol))
    }

    /// Whether any entry but `name` is one of a subvolume.
    async fn has_entry_of(&self, dir: &Inode, root: &Inode, name: &[u8]) -> Result<bool> {
        let number = InodeNo(root.node.subvol.0.into());
        let mut from = 0;
        loop {
            let items = self.buckets(dir, from, BUCKETS).await?;
            for (_, value) in &items {
                let bucket = DirBucket::parse(value).map_err(|source| {
                    self.damaged_record("a directory bucket", dir.node, source)
                })?;
                let is_other = |kind, ino, other: &[u8]| {
                    kind == DIRENT_SUBVOL && ino == number && other != name
                };
                if bucket.iter().any(|entry| is_other(entry.kind, entry.ino, entry.name)) {
                    return Ok(true);
                }
            }
            match items.last() {
                Some((key, _)) if items.len() == BUCKETS => from = key.offset + 1,
                _ => return Ok(false),
            }
        }
    }
}
