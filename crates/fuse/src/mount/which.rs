//! Which filesystem a mount shows.
//!
//! Problem.  The kernel gives the number of a former filesystem to the next one at once. A daemon
//!           that closes its pool must not unmount or abort the next one.
//! Idea.     The directory of the filesystem in `/sys/class/bdi` has the same number in its name,
//!           and an inode number that no other filesystem gets. It exists as long as the
//!           filesystem.
//!
//! WHICH-W1  The file or directory is opened first, then the filesystem is looked up. If it still
//!           exists, it had its number when the file was opened, so the file belongs to it.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

const SHOWN: &str = "/sys/class/bdi";

/// A filesystem: the number that tables of mounts have, and its unique identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Which {
    pub(super) number: (u32, u32),
    pub(super) is_block: bool,
    /// None where sysfs is not to be had.
    identity: Option<u64>,
}

impl Which {
    /// The filesystem that has this number now.
    pub(super) fn now(number: (u32, u32), is_block: bool) -> Which {
        let identity = fs::metadata(shown(number, is_block)).ok().map(|directory| directory.ino());
        Which { number, is_block, identity }
    }

    #[cfg(test)]
    pub(super) fn with_identity(number: (u32, u32), identity: u64) -> Which {
        Which { number, is_block: false, identity: Some(identity) }
    }

    pub(super) fn identity(&self) -> Option<u64> {
        self.identity
    }

    /// Where sysfs shows it.
    pub(super) fn shown(&self) -> PathBuf {
        shown(self.number, self.is_block)
    }

    /// Whether it is mounted or used. Without sysfs the number is the only evidence.
    pub(super) fn exists(&self) -> bool {
        let now = Which::now(self.number, self.is_block);
        now == *self || (now.identity.is_none() && !Path::new(SHOWN).exists())
    }
}

/// A block device has one of its own beside that of the filesystem on it.
fn shown((major, minor): (u32, u32), is_block: bool) -> PathBuf {
    let suffix = if is_block { "-fuseblk" } else { "" };
    Path::new(SHOWN).join(format!("{major}:{minor}{suffix}"))
}

/// A mount's root, and the number of its filesystem. Opened without a request to its daemon.
pub(super) fn opened(place: &Path) -> rustix::io::Result<(OwnedFd, (u32, u32))> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(place, flags, Mode::empty())?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(&opened, c"", flags, StatxFlags::empty())?;
    Ok((opened, (found.stx_dev_major, found.stx_dev_minor)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::MountEntry;

    #[test]
    fn a_number_alone_does_not_make_a_mount_ours() {
        let which = Which::with_identity((0, 45), 7);
        let entry = |kind: &str, minor| MountEntry {
            mount_point: "/mnt".into(),
            device: (0, minor),
            kind: kind.into(),
            source: "pool".into(),
            options: String::new(),
        };
        assert!(entry("fuse.copyhold", 45).shows(&which));
        assert!(!entry("fuse.copyhold", 46).shows(&which));
        for kind in ["tmpfs", "fuse.sshfs", "fuseblk.copyhold"] {
            assert!(!entry(kind, 45).shows(&which), "{kind}");
        }
    }
}
