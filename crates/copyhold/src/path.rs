//! From a path to a node: components, and the links between them.

use std::collections::VecDeque;

use copyhold_fs::{Attr, FileKind, Filesystem, FsError, NodeId};

use crate::Error;

/// As Linux: more links in one path are taken for a loop.
const SYMLINKS_MAX: usize = 40;

/// Whether a link that a path ends in is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Follow,
    Keep,
}

pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// The error of a call on the target of `path`. A file that another call has removed since it was
/// found is not there.
pub(crate) fn file_error(path: &[u8]) -> impl Fn(FsError) -> Error + '_ {
    |source| match source {
        FsError::Stale => Error::File { path: shown(path), source: FsError::NotFound },
        source => Error::File { path: shown(path), source },
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

/// Finds the target of `path`, from the `root` of a volume; absolute and relative paths are the
/// same. Nothing leads out of the volume upwards.
pub(crate) async fn find(
    fs: &Filesystem,
    root: NodeId,
    path: &[u8],
    last: Last,
) -> Result<Attr, Error> {
    let error = file_error(path);
    let mut left: VecDeque<Vec<u8>> = components(path).collect();
    // A volume that is gone is distinguished from a file that is.
    let gone = |source| Error::File { path: shown(path), source };
    let mut at = fs.getattr(root).await.map_err(gone)?;
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if at.node == root && name == b".." {
            continue;
        }
        let found = fs.lookup(at.node, &name).await.map_err(&error)?.attr;
        let follow = found.kind == FileKind::Symlink && (last == Last::Follow || !left.is_empty());
        if !follow {
            at = found;
            continue;
        }
        links += 1;
        if links > SYMLINKS_MAX {
            return Err(Error::TooManySymlinks { path: shown(path), max: SYMLINKS_MAX });
        }
        let target = fs.readlink(found.node).await.map_err(&error)?;
        if target.first() == Some(&b'/') {
            at = fs.getattr(root).await.map_err(gone)?;
        }
        for name in components(&target).rev() {
            left.push_front(name);
        }
    }
    Ok(at)
}

/// The directory that holds the last component of `path`, and that component.
pub(crate) async fn parent<'a>(
    fs: &Filesystem,
    root: NodeId,
    path: &'a [u8],
) -> Result<(NodeId, &'a [u8]), Error> {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    if start == end {
        return Err(file_error(path)(FsError::Invalid("the path names the root")));
    }
    let dir = find(fs, root, &path[..start], Last::Follow).await?;
    Ok((dir.node, &path[start..end]))
}
