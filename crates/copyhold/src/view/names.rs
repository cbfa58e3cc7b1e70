//! Names: directories, links, and moves.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use copyhold_fs::{Caller, FsError, NodeId, OpenFlags, RenameFlags};
use copyhold_types::InodeNo;

use super::View;
use super::walk::{Last, file_error, is_directory};
use crate::{DirItem, Error, FileKind};

const DIR_MODE: u32 = 0o755;

impl View {
    /// The entries of a directory, without "." and "..".
    pub(crate) async fn list(&self, path: &Path) -> Result<Vec<DirItem>, Error> {
        let dir = self.find(path, Last::Follow).await?;
        let found = self.entries(dir.node).await.map_err(file_error(path))?;
        let item = |(name, _, kind)| DirItem { name: OsString::from_vec(name), kind };
        Ok(found.into_iter().map(item).collect())
    }

    /// Name, node and kind of each entry. A listing reports an error only with a call that takes
    /// no entry, so it is called until it takes none (LISTING-I1).
    async fn entries(&self, dir: NodeId) -> Result<Vec<(Vec<u8>, NodeId, FileKind)>, FsError> {
        let (mut entries, mut after) = (Vec::new(), 0);
        loop {
            let before = after;
            let mut take = |entry: &copyhold_fs::DirEntry<'_>| {
                after = entry.cookie;
                if entry.name != b"." && entry.name != b".." {
                    entries.push((entry.name.to_vec(), entry.node, entry.kind));
                }
                true
            };
            self.fs.readdir(dir, before, &mut take).await?;
            if after == before {
                return Ok(entries);
            }
        }
    }

    pub(crate) async fn create_dir(&self, path: &Path) -> Result<(), Error> {
        let (dir, name) = self.parent(path).await?;
        let made = self.fs.mkdir(&Caller::ROOT, dir, name, DIR_MODE).await;
        made.map(drop).map_err(file_error(path))
    }

    /// Makes a directory and those above it that do not exist.
    pub(crate) async fn create_dir_all(&self, path: &Path) -> Result<(), Error> {
        let mut missing = Vec::new();
        for part in path.ancestors().filter(|part| !part.as_os_str().is_empty()) {
            match self.find(part, Last::Follow).await {
                Ok(found) if found.kind == FileKind::Directory => break,
                Ok(_) => return Err(file_error(part)(FsError::NotDirectory)),
                Err(Error::File { source: FsError::NotFound, .. }) => missing.push(part),
                Err(error) => return Err(error),
            }
        }
        for part in missing.into_iter().rev() {
            match self.create_dir(part).await {
                // Another call has made it, or something else has the name.
                Err(Error::File { source: FsError::Exists, .. }) => {
                    match self.find(part, Last::Follow).await?.kind {
                        FileKind::Directory => {}
                        _ => return Err(file_error(part)(FsError::NotDirectory)),
                    }
                }
                made => made?,
            }
        }
        Ok(())
    }

    pub(crate) async fn symlink(&self, target: &Path, path: &Path) -> Result<(), Error> {
        let (dir, name) = self.parent_of_new(path).await?;
        let target = target.as_os_str().as_bytes();
        let made = self.fs.symlink(&Caller::ROOT, dir, name, target).await;
        made.map(drop).map_err(file_error(path))
    }

    pub(crate) async fn read_link(&self, path: &Path) -> Result<PathBuf, Error> {
        let link = self.open_with(path, Last::Keep, OpenFlags::default()).await?;
        let target = self.fs.readlink(link.node).await.map_err(file_error(path))?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    pub(crate) async fn hard_link(&self, path: &Path, link: &Path) -> Result<(), Error> {
        let source = self.open_with(path, Last::Keep, OpenFlags::default()).await?;
        let (dir, name) = self.parent_of_new(link).await?;
        self.fs.link(source.node, dir, name).await.map(drop).map_err(file_error(link))
    }

    pub(crate) async fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let (dir, name) = self.parent(from).await?;
        let (new_dir, new_name) = self.parent(to).await?;
        if is_directory(from) || is_directory(to) {
            let source = self.fs.lookup(dir, name).await.map_err(file_error(from))?.attr;
            if source.kind != FileKind::Directory {
                return Err(file_error(from)(FsError::NotDirectory));
            }
        }
        let flags = RenameFlags::default();
        let done = self.fs.rename(&Caller::ROOT, dir, name, new_dir, new_name, flags).await;
        done.map_err(file_error(from))
    }

    pub(crate) async fn remove_file(&self, path: &Path) -> Result<(), Error> {
        if is_directory(path) {
            self.find(path, Last::Follow).await?;
            return Err(file_error(path)(FsError::IsDirectory));
        }
        let (dir, name) = self.parent(path).await?;
        self.fs.unlink(dir, name).await.map_err(file_error(path))
    }

    pub(crate) async fn remove_dir(&self, path: &Path) -> Result<(), Error> {
        let (dir, name) = self.parent(path).await?;
        self.fs.rmdir(dir, name).await.map_err(file_error(path))
    }

    /// Removes a directory with the files below it. A subvolume below it is an error, and stays.
    /// Only the first step goes by the path: the rest goes by nodes, so that a link that takes the
    /// place of a directory meanwhile is removed and not followed.
    pub(crate) async fn remove_dir_all(&self, path: &Path) -> Result<(), Error> {
        let (parent, name) = self.parent(path).await?;
        if [&b"."[..], b".."].contains(&name) {
            return Err(file_error(path)(FsError::Invalid("the path ends in `.` or `..`")));
        }
        let top = self.fs.lookup(parent, name).await.map_err(file_error(path))?.attr;
        let mut below = vec![(parent, name.to_vec(), top.node)];
        expect_own(top.kind, top.node).map_err(file_error(path))?;
        while let Some((parent, name, dir)) = below.last().cloned() {
            let before = below.len();
            for (name, node, kind) in self.entries(dir).await.map_err(file_error(path))? {
                if kind == FileKind::Directory {
                    expect_own(kind, node).map_err(file_error(path))?;
                    below.push((dir, name, node));
                } else {
                    self.fs.unlink(dir, &name).await.map_err(file_error(path))?;
                }
            }
            if below.len() == before {
                self.fs.rmdir(parent, &name).await.map_err(file_error(path))?;
                below.pop();
            }
        }
        Ok(())
    }
}

/// Refuses all but directories of files: the root of a subvolume, too.
fn expect_own(kind: FileKind, node: NodeId) -> Result<(), FsError> {
    match (kind, node.ino) {
        (FileKind::Directory, InodeNo::ROOT) => Err(FsError::IsSubvolume(node.subvol)),
        (FileKind::Directory, _) => Ok(()),
        _ => Err(FsError::NotDirectory),
    }
}
