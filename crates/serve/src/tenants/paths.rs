//! Where subvolumes are: their paths from the root of the mount.
//!
//! A subvolume's record names the directory that has its entry, not the entry's name: renames cost
//! it nothing. So that directory is read, and those on the way up from there: each once for all
//! subvolumes of an answer. The names are kept for the next page of a list
//! (`copyhold_fs::EntryNames`).

use std::collections::BTreeMap;

use copyhold_fs::{Filesystem, FsError, NodeId, kept_name, names_in};
use copyhold_types::{InodeNo, SubvolId};

/// More directories over each other are a way in a circle.
const DEPTH_MAX: usize = 4096;

/// Paths that are being found.
pub(super) struct Paths<'a> {
    fs: &'a Filesystem,
    /// Of a list that may have other pages.
    is_list: bool,
    /// The directories of directories that were read.
    read: BTreeMap<NodeId, BTreeMap<NodeId, Box<[u8]>>>,
}

impl<'a> Paths<'a> {
    pub(super) fn new(fs: &'a Filesystem) -> Paths<'a> {
        Paths { fs, is_list: false, read: BTreeMap::new() }
    }

    /// Of the rows of a page.
    pub(super) fn of_page(fs: &'a Filesystem) -> Paths<'a> {
        Paths { is_list: true, ..Paths::new(fs) }
    }

    /// The page has all its rows. If it `is_last`, the names for other pages are dropped.
    pub(super) fn end(self, is_last: bool) {
        if is_last {
            self.fs.entry_names().drop_all();
        }
    }

    /// The path of a subvolume, `/` for the root. `None` if it is gone, or moves meanwhile.
    pub(super) async fn of(&mut self, subvol: SubvolId) -> Result<Option<String>, FsError> {
        let mut node = NodeId { subvol, ino: InodeNo::ROOT };
        let mut names = Vec::new();
        while node != NodeId::ROOT {
            let above = match node.ino {
                InodeNo::ROOT => self.place(node.subvol),
                _ => self.above(node).await?,
            };
            let Some(above) = above.filter(|_| names.len() < DEPTH_MAX) else { return Ok(None) };
            let Some(name) = self.name(above, node).await? else { return Ok(None) };
            names.push(String::from_utf8_lossy(&name).into_owned());
            node = above;
        }
        names.reverse();
        Ok(Some(if names.is_empty() { "/".into() } else { names.join("/") }))
    }

    /// The directory that has the entry of a living subvolume.
    fn place(&self, subvol: SubvolId) -> Option<NodeId> {
        let subvol = self.fs.volumes().subvol(subvol).filter(|subvol| !subvol.is_dying())?;
        let place = subvol.item().place;
        Some(NodeId { subvol: place.subvol, ino: place.directory })
    }

    async fn name(&mut self, above: NodeId, node: NodeId) -> Result<Option<Box<[u8]>>, FsError> {
        if self.is_list
            && let Some(kept) = kept_name(self.fs, above, node).await?
        {
            return Ok(Some(kept));
        }
        if !self.read.contains_key(&above) {
            let names = gone_is_none(names_in(self.fs, above, self.is_list).await)?;
            self.read.insert(above, names.unwrap_or_default().into_iter().collect());
        }
        Ok(self.read[&above].get(&node).cloned())
    }

    /// The directory that a directory is in.
    async fn above(&self, directory: NodeId) -> Result<Option<NodeId>, FsError> {
        let mut above = None;
        let mut visit = |entry: &copyhold_fs::DirEntry<'_>| {
            if entry.name == b".." {
                above = Some(entry.node);
            }
            above.is_none()
        };
        gone_is_none(self.fs.readdir(directory, 0, &mut visit).await)?;
        Ok(above)
    }
}

fn gone_is_none<T>(read: Result<T, FsError>) -> Result<Option<T>, FsError> {
    match read {
        Err(FsError::Stale | FsError::NotFound) => Ok(None),
        read => read.map(Some),
    }
}
