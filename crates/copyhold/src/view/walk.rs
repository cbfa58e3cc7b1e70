//! From a path to a node: components, and the links between them.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use copyhold_fs::{Attr, FileKind, FsError, NodeId, OpenFlags};
use copyhold_runtime::BoxFuture;

use super::View;
use crate::Error;

/// As Linux: more links in one path are taken for a loop.
const SYMLINKS_MAX: usize = 40;

/// Whether a link that a path ends in is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Follow,
    Keep,
}

/// The error of a call on the target of `path`. A file that another call has removed since it was
/// found is not there.
pub(crate) fn file_error(path: &Path) -> impl Fn(FsError) -> Error + '_ {
    |source| match source {
        FsError::Stale => Error::File { path: path.into(), source: FsError::NotFound },
        source => Error::File { path: path.into(), source },
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

/// Whether a path can only lead to a directory.
pub(crate) fn is_directory(path: &Path) -> bool {
    ends_in_slash(path.as_os_str().as_bytes())
}

fn ends_in_slash(path: &[u8]) -> bool {
    path.last() == Some(&b'/')
}

/// The end of a path.
pub(crate) enum Target {
    Found(Attr),
    /// The directory exists, and has no such name.
    Missing {
        dir: NodeId,
        name: Vec<u8>,
    },
}

impl View {
    /// Finds the target of `path`; absolute and relative paths are the same. Nothing leads out of
    /// the volume upwards.
    pub(crate) async fn find(&self, path: &Path, last: Last) -> Result<Attr, Error> {
        self.find_part(path, path.as_os_str().as_bytes(), last).await
    }

    /// The target of `path`, or the place where a new file would be it: a link that leads to
    /// nothing is followed.
    pub(crate) async fn target(&self, path: &Path) -> Result<Target, Error> {
        match is_directory(path) {
            true => Err(file_error(path)(FsError::IsDirectory)),
            false => self.walk(path, path.as_os_str().as_bytes(), Last::Follow).await,
        }
    }

    /// As [`Self::parent`], for the name of a new file that is no directory.
    pub(crate) async fn parent_of_new<'p>(
        &self,
        path: &'p Path,
    ) -> Result<(NodeId, &'p [u8]), Error> {
        let place = self.parent(path).await?;
        if is_directory(path) {
            self.fs.lookup(place.0, place.1).await.map_err(file_error(path))?;
            return Err(file_error(path)(FsError::Exists));
        }
        Ok(place)
    }

    /// The directory that holds the last component of `path`, and that component.
    pub(crate) async fn parent<'p>(&self, path: &'p Path) -> Result<(NodeId, &'p [u8]), Error> {
        let bytes = path.as_os_str().as_bytes();
        let end = bytes.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let slash = bytes[..end].iter().rposition(|&byte| byte == b'/');
        let start = slash.map_or(0, |slash| slash + 1);
        if start == end {
            return Err(file_error(path)(FsError::Invalid("the path names the root")));
        }
        let dir = self.find_part(path, &bytes[..start], Last::Follow).await?;
        Ok((dir.node, &bytes[start..end]))
    }

    async fn find_part(&self, path: &Path, part: &[u8], last: Last) -> Result<Attr, Error> {
        match self.walk(path, part, last).await? {
            Target::Found(attr) => Ok(attr),
            Target::Missing { .. } => Err(file_error(path)(FsError::NotFound)),
        }
    }

    /// Walks along `part`, which is the first part of `path` or all of it. A `/` at its end demands
    /// a directory, and has a link followed.
    async fn walk(&self, path: &Path, part: &[u8], last: Last) -> Result<Target, Error> {
        let error = file_error(path);
        let mut is_directory = ends_in_slash(part);
        let last = if is_directory { Last::Follow } else { last };
        let mut left: VecDeque<Vec<u8>> = components(part).collect();
        // A volume that is gone is distinguished from a file that is.
        let gone = |source| Error::File { path: path.into(), source };
        let mut at = self.fs.getattr(self.root).await.map_err(gone)?;
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if at.node == self.root && name == b".." {
                continue;
            }
            let found = match self.fs.lookup(at.node, &name).await {
                Err(FsError::NotFound) if left.is_empty() && !is_directory => {
                    return Ok(Target::Missing { dir: at.node, name });
                }
                found => found.map_err(&error)?.attr,
            };
            let is_link = found.kind == FileKind::Symlink;
            if !is_link || last == Last::Keep && left.is_empty() {
                at = found;
                continue;
            }
            let Some(target) = self.target_of(path, found.node).await? else {
                left.push_front(name);
                continue;
            };
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(Error::TooManySymlinks { path: path.into(), max: SYMLINKS_MAX });
            }
            is_directory |= left.is_empty() && ends_in_slash(&target);
            if target.first() == Some(&b'/') {
                at = self.fs.getattr(self.root).await.map_err(gone)?;
            }
            for name in components(&target).rev() {
                left.push_front(name);
            }
        }
        match is_directory && at.kind != FileKind::Directory {
            true => Err(error(FsError::NotDirectory)),
            false => Ok(Target::Found(at)),
        }
    }

    /// The target of a link on the way of `path`; none, if it was removed since it was found.
    /// Boxed: the type of a future that holds all that it awaits grows beyond the compiler's bound.
    fn target_of<'a>(
        &'a self,
        path: &'a Path,
        link: NodeId,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>> {
        Box::pin(async move {
            let Some(open) = self.open_node(path, link, OpenFlags::default()).await? else {
                return Ok(None);
            };
            let target = self.fs.readlink(open.node).await;
            target.map(Some).map_err(file_error(path))
        })
    }
}
