//! Where subvolumes are: their paths from the root of the mount.
//!
//! A subvolume's record names the directory that has its entry, not the entry's name: renames cost
//! it nothing. So that directory is read, and those on the way up from there. Each is read once for
//! all requested subvolumes.

use std::collections::BTreeMap;

use copyhold_fs::{FileKind, Filesystem, FsError, NodeId};
use copyhold_types::{InodeNo, SubvolId};

/// More directories over each other are a way in a circle.
const DEPTH_MAX: usize = 4096;

/// Paths that are being found.
pub(super) struct Paths<'a> {
    fs: &'a Filesystem,
    /// Where the entries of subvolumes are.
    places: BTreeMap<SubvolId, NodeId>,
    /// The directories of directories that were read.
    names: BTreeMap<NodeId, BTreeMap<NodeId, Vec<u8>>>,
}

impl<'a> Paths<'a> {
    pub(super) fn new(fs: &'a Filesystem) -> Paths<'a> {
        let all = fs.subvolumes().into_iter();
        let places = all.filter(|one| !one.is_dying).map(|one| (one.id, one.parent)).collect();
        Paths { fs, places, names: BTreeMap::new() }
    }

    /// The path of a subvolume, `/` for the root. `None` if it is gone, or moves meanwhile.
    pub(super) async fn of(&mut self, subvol: SubvolId) -> Result<Option<String>, FsError> {
        let mut node = NodeId { subvol, ino: InodeNo::ROOT };
        let mut names = Vec::new();
        while node != NodeId::ROOT {
            let above = match node.ino {
                InodeNo::ROOT => self.places.get(&node.subvol).copied(),
                _ => self.above(node).await?,
            };
            let Some(above) = above.filter(|_| names.len() < DEPTH_MAX) else { return Ok(None) };
            let Some(name) = self.name(above, node).await? else { return Ok(None) };
            names.push(name);
            node = above;
        }
        names.reverse();
        Ok(Some(if names.is_empty() { "/".into() } else { names.join("/") }))
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

    async fn name(&mut self, above: NodeId, node: NodeId) -> Result<Option<String>, FsError> {
        if !self.names.contains_key(&above) {
            let mut names = BTreeMap::new();
            let mut visit = |entry: &copyhold_fs::DirEntry<'_>| {
                if entry.kind == FileKind::Directory && !matches!(entry.name, b"." | b"..") {
                    names.insert(entry.node, entry.name.to_vec());
                }
                true
            };
            gone_is_none(self.fs.readdir(above, 0, &mut visit).await)?;
            self.names.insert(above, names);
        }
        let name = self.names[&above].get(&node);
        Ok(name.map(|name| String::from_utf8_lossy(name).into_owned()))
    }
}

fn gone_is_none(read: Result<(), FsError>) -> Result<(), FsError> {
    match read {
        Err(FsError::Stale | FsError::NotFound) => Ok(()),
        read => read,
    }
}
