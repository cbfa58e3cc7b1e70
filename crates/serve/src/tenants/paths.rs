//! Where subvolumes are: their paths from the root of the mount.
//!
//! A subvolume's record names the directory that has its entry, not the entry's name: renames cost
//! it nothing. So that directory is read, and those on the way up from there. The names are kept
//! for the next page of a list (`copyhold_fs::EntryNames`), and a path costs a look-up for each
//! part of it.

use copyhold_fs::{Filesystem, FsError, NodeId, find_name};
use copyhold_types::{InodeNo, SubvolId};

/// More directories over each other are a way in a circle.
const DEPTH_MAX: usize = 4096;

/// Paths that are being found.
pub(super) struct Paths<'a> {
    fs: &'a Filesystem,
    continues: bool,
}

impl<'a> Paths<'a> {
    pub(super) fn new(fs: &'a Filesystem) -> Paths<'a> {
        Paths { fs, continues: false }
    }

    /// The list continues with another page: it needs more names of the same directories.
    pub(super) fn continue_if(&mut self, continues: bool) {
        self.continues = continues;
    }

    /// The path of a subvolume, `/` for the root. `None` if it is gone, or moves meanwhile.
    pub(super) async fn of(&self, subvol: SubvolId) -> Result<Option<String>, FsError> {
        let mut node = NodeId { subvol, ino: InodeNo::ROOT };
        let mut names = Vec::new();
        while node != NodeId::ROOT {
            let above = match node.ino {
                InodeNo::ROOT => self.place(node.subvol),
                _ => self.above(node).await?,
            };
            let Some(above) = above.filter(|_| names.len() < DEPTH_MAX) else { return Ok(None) };
            let name = gone_is_none(find_name(self.fs, above, node).await)?;
            let Some(name) = name.flatten() else { return Ok(None) };
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

impl Drop for Paths<'_> {
    fn drop(&mut self) {
        if !self.continues {
            self.fs.entry_names().drop_all();
        }
    }
}

fn gone_is_none<T>(read: Result<T, FsError>) -> Result<Option<T>, FsError> {
    match read {
        Err(FsError::Stale | FsError::NotFound) => Ok(None),
        read => read.map(Some),
    }
}
