//! Names: directories, links, and moves.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use copyhold_fs::{Caller, FsError, RenameFlags};
use copyhold_types::InodeNo;

use super::View;
use super::walk::{Last, file_error};
use crate::{DirItem, Error, FileKind};

const DIR_MODE: u32 = 0o755;

impl View {
    /// The entries of a directory, without "." and "..".
    pub(crate) async fn list(&self, path: &Path) -> Result<Vec<DirItem>, Error> {
        let dir = self.find(path, Last::Follow).await?;
        let mut items = Vec::new();
        let mut take = |entry: &copyhold_fs::DirEntry<'_>| {
            if entry.name != b"." && entry.name != b".." {
                let name = OsString::from_vec(entry.name.to_vec());
                items.push(DirItem { name, kind: entry.kind });
            }
            true
        };
        self.fs.readdir(dir.node, 0, &mut take).await.map_err(file_error(path))?;
        Ok(items)
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
                // Another call has made it.
                Err(Error::File { source: FsError::Exists, .. }) => {}
                made => made?,
            }
        }
        Ok(())
    }

    pub(crate) async fn symlink(&self, target: &Path, path: &Path) -> Result<(), Error> {
        let (dir, name) = self.parent(path).await?;
        let target = target.as_os_str().as_bytes();
        let made = self.fs.symlink(&Caller::ROOT, dir, name, target).await;
        made.map(drop).map_err(file_error(path))
    }

    pub(crate) async fn read_link(&self, path: &Path) -> Result<PathBuf, Error> {
        let link = self.find(path, Last::Keep).await?;
        let target = self.fs.readlink(link.node).await.map_err(file_error(path))?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    pub(crate) async fn hard_link(&self, path: &Path, link: &Path) -> Result<(), Error> {
        let node = self.find(path, Last::Keep).await?.node;
        let (dir, name) = self.parent(link).await?;
        self.fs.link(node, dir, name).await.map(drop).map_err(file_error(link))
    }

    pub(crate) async fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let (dir, name) = self.parent(from).await?;
        let (new_dir, new_name) = self.parent(to).await?;
        let flags = RenameFlags::default();
        let done = self.fs.rename(&Caller::ROOT, dir, name, new_dir, new_name, flags).await;
        done.map_err(file_error(from))
    }

    pub(crate) async fn remove_file(&self, path: &Path) -> Result<(), Error> {
        let (dir, name) = self.parent(path).await?;
        self.fs.unlink(dir, name).await.map_err(file_error(path))
    }

    pub(crate) async fn remove_dir(&self, path: &Path) -> Result<(), Error> {
        let (dir, name) = self.parent(path).await?;
        self.fs.rmdir(dir, name).await.map_err(file_error(path))
    }

    /// Removes a directory with the files below it. A subvolume below it is an error, and stays.
    pub(crate) async fn remove_dir_all(&self, path: &Path) -> Result<(), Error> {
        self.parent(path).await?;
        self.expect_own(path).await?;
        // Directories that are still to be removed, each behind the one that holds it.
        let mut below = vec![path.to_owned()];
        while let Some(dir) = below.last().cloned() {
            let before = below.len();
            for item in self.list(&dir).await? {
                let item_path = dir.join(&item.name);
                if item.kind == FileKind::Directory {
                    self.expect_own(&item_path).await?;
                    below.push(item_path);
                } else {
                    self.remove_file(&item_path).await?;
                }
            }
            if below.len() == before {
                self.remove_dir(&dir).await?;
                below.pop();
            }
        }
        Ok(())
    }

    /// Refuses all but directories of files: a link to one, and the root of a subvolume, too.
    async fn expect_own(&self, path: &Path) -> Result<(), Error> {
        let found = self.find(path, Last::Keep).await?;
        let refused = match (found.kind, found.node.ino) {
            (FileKind::Directory, InodeNo::ROOT) => FsError::IsSubvolume(found.node.subvol),
            (FileKind::Directory, _) => return Ok(()),
            _ => FsError::NotDirectory,
        };
        Err(file_error(path)(refused))
    }
}
