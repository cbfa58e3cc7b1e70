//! Which names a file has: asked of the directory where it had the latest one.
//!
//! An inode says where that was, not under which name. So directories are read, each once for all
//! that is wanted of it. A name that went again, while the file has others, leaves a wrong hint:
//! then only all directories together know.

use std::collections::BTreeSet;

use copyhold_format::item::{DIRENT, DIRENT_SUBVOL, DirBucket, InodeItem, XATTR, inode_key};
use copyhold_types::{InodeNo, Key, SubvolId};
use copyhold_volume::Scanned;

use super::node;
use crate::{Filesystem, Result};

/// Items that one step reads.
const ITEMS: usize = 4096;

/// One of two subvolumes that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Old,
    New,
}

/// A name of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub dir: InodeNo,
    pub name: Vec<u8>,
    pub ino: InodeNo,
}

/// Finds paths for a caller that has facts.
pub trait Names {
    type Error;

    /// In which directory each of these had its latest name; `None`: there is no such file.
    fn homes(&mut self, side: Side, inos: &[InodeNo]) -> Result<Vec<Option<InodeNo>>, Self::Error>;

    /// Names of these in a directory, or in all of them.
    fn named(
        &mut self,
        side: Side,
        dir: Option<InodeNo>,
        wanted: &BTreeSet<InodeNo>,
    ) -> Result<Vec<Named>, Self::Error>;
}

impl Filesystem {
    /// Where files of a subvolume had their latest names; 0: unknown, `None`: there is no such
    /// file.
    pub async fn homes(&self, subvol: SubvolId, inos: &[InodeNo]) -> Result<Vec<Option<InodeNo>>> {
        let volume = self.scanned(subvol)?;
        let mut homes = Vec::with_capacity(inos.len());
        for &ino in inos {
            let value = self.volumes.get(&volume, inode_key(ino)).await?;
            let item = value.as_deref().map(InodeItem::parse).transpose();
            let wrong = |source| self.damaged_record("the inode item", node(subvol, ino), source);
            homes.push(item.map_err(wrong)?.map(|item| item.parent));
        }
        Ok(homes)
    }

    /// One step: names of `wanted` in `dir`, or in all directories, from `from` on.
    pub async fn named(
        &self,
        subvol: SubvolId,
        dir: Option<InodeNo>,
        wanted: &BTreeSet<InodeNo>,
        from: Option<Key>,
    ) -> Result<Scanned<(Key, Named)>> {
        let volume = self.scanned(subvol)?;
        let (first, end) = match dir {
            Some(dir) => (Key::new(dir.0, DIRENT, 0), Key::new(dir.0, XATTR, 0)),
            None => (Key::MIN, Key::MAX),
        };
        let from = from.map_or(first, |from| from.max(first));
        let found = self.volumes.range(&volume, from, end, ITEMS).await?;
        let more = found.last().filter(|_| found.len() == ITEMS);
        let next = more.and_then(|(key, _)| key.successor());
        let mut items = Vec::new();
        for (key, value) in found.iter().filter(|(key, _)| key.kind == DIRENT) {
            let dir = InodeNo(key.object);
            let wrong =
                |source| self.damaged_record("a directory bucket", node(subvol, dir), source);
            for entry in DirBucket::parse(value).map_err(wrong)?.iter() {
                if entry.kind != DIRENT_SUBVOL && wanted.contains(&entry.ino) {
                    let (name, ino) = (entry.name.to_vec(), entry.ino);
                    items.push((*key, Named { dir, name, ino }));
                }
            }
        }
        Ok(Scanned { items, next })
    }
}
