//! Which part of a pool a mount shows: `-o subvol=PATH`, `-o subvolid=ID`, or both, as for btrfs.
//!
//! The path begins at the root of the pool. Links on it are not followed: users who may write in
//! the pool must not decide what root mounts.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use copyhold_fs::NodeId;
use copyhold_fuse::mount::{DetachedMount, OptionError};
use copyhold_types::{InodeNo, SubvolId};
use rustix::io::Errno;

use crate::control::Control;
use crate::failure::{Failure, Kind};
use crate::option_value::parsed;
use copyhold_serve::wire::{Question, Subvolume};

/// Nothing given: the whole pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShownSubvolume {
    path: Option<PathBuf>,
    id: Option<u32>,
}

impl ShownSubvolume {
    /// Whether the option is about this.
    pub(crate) fn take(&mut self, name: &str, value: Option<&str>) -> Result<bool, OptionError> {
        match name {
            "subvol" => self.path = Some(parsed(name, value, "the path of a subvolume")?),
            "subvolid" => self.id = Some(parsed(name, value, "the id of a subvolume")?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(crate) fn is_whole(&self) -> bool {
        let is_root = |path: &PathBuf| path.as_os_str() == "/" || path.as_os_str().is_empty();
        let top = |id: &u32| *id == 0 || *id == SubvolId::ROOT.0;
        self.path.as_ref().is_none_or(is_root) && self.id.as_ref().is_none_or(top)
    }

    /// Its root directory in `tree`, a mount of `pool`.
    pub(crate) fn find(&self, tree: &DetachedMount, pool: &Path) -> Result<OwnedFd, Failure> {
        let path = match (&self.path, self.id) {
            (None, Some(id)) => path_of(id, tree, pool)?,
            (path, _) => path.clone().unwrap_or_default(),
        };
        let shown = path.display();
        let directory =
            tree.directory(&path).map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => no_subvolume(pool, &format!("subvol={shown}")),
                Some(Errno::LOOP) => Failure::new(
                    Kind::Failed,
                    format!(
                        "subvol={shown}: this path contains a symbolic link; give the path of the \
                         directory itself"
                    ),
                ),
                _ => Failure::system(format!("subvol={shown}"), &error),
            })?;
        let found = rustix::fs::fstat(directory.as_fd());
        let found = found.map_err(|errno| Failure::system(&shown, &errno.into()))?;
        let root = NodeId::from_raw(found.st_ino).filter(|node| node.ino == InodeNo::ROOT);
        let root = root.ok_or_else(|| {
            Failure::new(Kind::Failed, format!("subvol={shown} is a directory, not a subvolume"))
        })?;
        match self.id.filter(|&id| id != root.subvol.0) {
            Some(id) => Err(Failure::new(
                Kind::Failed,
                format!("subvol={shown} is subvolume {}, not subvolid={id}", root.subvol.0),
            )),
            None => Ok(directory),
        }
    }
}

fn path_of(id: u32, tree: &DetachedMount, pool: &Path) -> Result<PathBuf, Failure> {
    let root = Control::of(tree, pool)?;
    let all: Vec<Subvolume> = root.put_all(|after| Question::Subvolumes { after })?;
    let path = all.into_iter().find(|subvolume| subvolume.id == id).and_then(|found| found.path);
    path.map(PathBuf::from).ok_or_else(|| no_subvolume(pool, &format!("subvolid={id}")))
}

fn no_subvolume(pool: &Path, wanted: &str) -> Failure {
    Failure::new(
        Kind::NotFound,
        format!("{} has no {wanted}; `copyhold subvolume list DIR` shows them", pool.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(options: &[(&str, &str)]) -> ShownSubvolume {
        let mut shown = ShownSubvolume::default();
        for (name, value) in options {
            assert_eq!(shown.take(name, Some(value)), Ok(true));
        }
        shown
    }

    #[test]
    fn the_whole_pool_has_several_names() {
        for options in [vec![], vec![("subvol", "/")], vec![("subvolid", "0")]] {
            assert!(shown(&options).is_whole(), "{options:?}");
        }
        let root = SubvolId::ROOT.0.to_string();
        assert!(shown(&[("subvol", "/"), ("subvolid", &root)]).is_whole());
        assert!(!shown(&[("subvol", "/a")]).is_whole());
        assert!(!shown(&[("subvol", "/"), ("subvolid", "2")]).is_whole());
    }

    #[test]
    fn other_options_are_left_alone_and_nonsense_is_refused() {
        assert_eq!(ShownSubvolume::default().take("commit", Some("1")), Ok(false));
        assert!(ShownSubvolume::default().take("subvolid", Some("alice")).is_err());
        assert!(ShownSubvolume::default().take("subvol", None).is_err());
    }
}
