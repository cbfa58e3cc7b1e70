//! Mounts that are at no place yet: one more mount of a filesystem that is mounted, and mounts that
//! show one directory of it.
//!
//! One more mount.  For a block device that is mounted (`fuseblk`), or a connection that is in use
//!     (`fuse`, Linux 5.15), the kernel makes a further mount of the existing filesystem. It has
//!     flags of its own and, other than a bind mount, propagates nothing to the first one.
//! A part.  A directory of the tree is cloned, and the clone is attached in place of the whole.
//!
//! TREE-T1  Dropping a tree that was not attached unmounts it.
//! TREE-T2  From Linux 6.15 on the place shows the part and never the whole. Older kernels clone
//!          only attached trees, so the whole is at the place while the part is cloned.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno as Os;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use super::error::{MountError, SOURCE_BYTES_MAX, refused};
use super::options::MountOptions;
use super::table::MountEntry;

/// Number of `/dev/fuse`.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// A mount that is at no place yet.
#[derive(Debug)]
pub struct DetachedMount {
    fd: OwnedFd,
}

impl DetachedMount {
    /// `kernel_options`: as mount(2) takes them.
    pub(super) fn new(
        block: bool,
        source: &str,
        kernel_options: &[String],
        options: &MountOptions,
    ) -> rustix::io::Result<DetachedMount> {
        let kind = if block { c"fuseblk" } else { c"fuse" };
        let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        let set = |key: &str, value: &str| {
            rustix::mount::fsconfig_set_string(context.as_fd(), key, value)
        };
        set("source", source)?;
        set("subtype", "copyhold")?;
        for option in kernel_options {
            match option.split_once('=') {
                Some((key, value)) => set(key, value)?,
                None => rustix::mount::fsconfig_set_flag(context.as_fd(), option.as_str())?,
            }
        }
        rustix::mount::fsconfig_create(context.as_fd())?;
        let attributes = attributes(options.flags);
        let fd = rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(DetachedMount { fd })
    }

    /// One more mount of the filesystem at `of`, from a block device or through `connection`.
    /// `None`: it has just ended.
    pub fn again(
        of: &MountEntry,
        connection: Option<&OwnedFd>,
        options: &MountOptions,
    ) -> Result<Option<DetachedMount>, MountError> {
        let source = of.source.to_string_lossy();
        check_source(&source)?;
        let mut kernel_options = Vec::new();
        // For a block device the kernel wants the flag that the filesystem has.
        kernel_options.extend(of.is_read_only().then(|| "ro".to_owned()));
        kernel_options
            .extend(connection.map(|connection| format!("fd={}", connection.as_raw_fd())));
        match DetachedMount::new(connection.is_none(), &source, &kernel_options, options) {
            Ok(tree) => {
                let failed = |source| MountError::Io { what: "one more mount", source };
                Ok((tree.number().map_err(failed)? == of.device).then_some(tree))
            }
            Err(Os::NOTCONN | Os::INVAL | Os::NODEV) => Ok(None),
            Err(error) => Err(MountError::Io { what: "one more mount", source: error.into() }),
        }
    }

    /// Number of the filesystem. Nothing is asked of its daemon.
    pub fn number(&self) -> io::Result<(u32, u32)> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&self.fd, c"", flags, StatxFlags::empty())?;
        Ok((found.stx_dev_major, found.stx_dev_minor))
    }

    /// A directory of the tree, with neither links nor `..` that lead out of it on the way; of
    /// no use but as a place.
    pub fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve)?)
    }

    /// Attaches the tree at `place`, or only `part` of it.
    pub fn attach(self, part: Option<OwnedFd>, place: &Path) -> Result<(), MountError> {
        let done = match part {
            None => move_to(self.fd.as_fd(), place),
            Some(part) => match clone(&part) {
                Ok(clone) => move_to(clone.as_fd(), place),
                Err(Os::INVAL) => self.attach_through_whole(&part, place),
                Err(error) => Err(error),
            },
        };
        done.map_err(|error| refused(error, place, None))
    }

    /// TREE-T2, before Linux 6.15.
    fn attach_through_whole(&self, part: &OwnedFd, place: &Path) -> rustix::io::Result<()> {
        move_to(self.fd.as_fd(), place)?;
        let cloned = clone(part);
        rustix::mount::unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
        move_to(cloned?.as_fd(), place)
    }
}

impl AsFd for DetachedMount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether a tree can have this source: EINVAL, the kernel's answer, has other causes as well.
pub(super) fn check_source(source: &str) -> Result<(), MountError> {
    match source.len() <= SOURCE_BYTES_MAX {
        true => Ok(()),
        false => Err(MountError::LongSource { source_name: source.to_owned() }),
    }
}

fn clone(part: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(part, c"", flags)
}

fn move_to(tree: BorrowedFd<'_>, place: &Path) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", CWD, place, flags)
}

/// Flags of one mount.
fn attributes(flags: MountFlags) -> MountAttrFlags {
    let pairs = [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (MountFlags::NODIRATIME, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        (MountFlags::NOSYMFOLLOW, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ];
    let set = pairs.into_iter().filter(|(flag, _)| flags.contains(*flag));
    let mut attributes = set.fold(MountAttrFlags::empty(), |all, (_, one)| all | one);
    // These three exclude each other; the kernel's default is relatime.
    if flags.contains(MountFlags::NOATIME) {
        attributes |= MountAttrFlags::MOUNT_ATTR_NOATIME;
    } else if flags.contains(MountFlags::STRICTATIME) {
        attributes |= MountAttrFlags::MOUNT_ATTR_STRICTATIME;
    }
    attributes
}

/// The connection that `process` serves, if it has `pool` open as well.
pub fn connection_of(process: Pid, pool: &Path) -> io::Result<Option<OwnedFd>> {
    let pool = fs::metadata(pool)?;
    let (mut connection, mut has_pool) = (None, false);
    for entry in fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero()))? {
        let entry = entry?;
        // It may have been closed since.
        let Ok(found) = fs::metadata(entry.path()) else { continue };
        has_pool |= (found.dev(), found.ino()) == (pool.dev(), pool.ino());
        let number = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
        if found.file_type().is_char_device() && number == FUSE_DEVICE {
            connection = entry.file_name().to_str().and_then(|name| name.parse().ok());
        }
    }
    let Some(number) = connection.filter(|_| has_pool) else { return Ok(None) };
    let process = rustix::process::pidfd_open(process, PidfdFlags::empty())?;
    Ok(Some(rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty())?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mount::{Mount, mounted_at};
    use crate::protocol::Settings;
    use crate::spawn::ThreadPerTask;
    use crate::stub::StubFs;
    use crate::{End, Session, SessionOptions};

    /// A served tree with a directory `part`, which holds `inner`.
    fn served(place: &Path) -> Option<(Session, DetachedMount)> {
        if !rustix::process::geteuid().is_root() || crate::device::Device::open().is_err() {
            println!("left out: needs root and /dev/fuse");
            return None;
        }
        let options = MountOptions::default();
        let (mount, tree) = Mount::unattached("stub".as_ref(), place, &options).unwrap();
        let fs = Arc::new(StubFs::new());
        let spawner = Arc::new(ThreadPerTask);
        let how = SessionOptions::default();
        let session = Session::start(mount, fs, spawner, &Settings::default(), how).unwrap();
        for name in ["part", "part/inner"] {
            rustix::fs::mkdirat(&tree, name, Mode::RWXU).unwrap();
        }
        Some((session, tree))
    }

    #[test]
    fn a_tree_that_is_not_attached_ends_the_session_when_it_is_dropped() {
        let place = tempfile::TempDir::new().unwrap();
        let Some((session, tree)) = served(place.path()) else { return };
        assert!(mounted_at(place.path()).unwrap().is_none());
        drop(tree);
        assert!(matches!(session.wait(), End::Unmounted));
    }

    #[test]
    fn a_part_is_shown_and_never_what_is_around_it() {
        for whole_first in [false, true] {
            let place = tempfile::TempDir::new().unwrap();
            let Some((session, tree)) = served(place.path()) else { return };
            let part = tree.directory("part".as_ref()).unwrap();
            match whole_first {
                // Older kernels need this.
                true => {
                    tree.attach_through_whole(&part, place.path()).unwrap();
                    let found = mounted_at(place.path()).unwrap().unwrap();
                    assert_eq!(found.device, tree.number().unwrap());
                    drop((tree, part));
                }
                false => session.mount().attach(tree, part).unwrap(),
            }
            assert!(place.path().join("inner").is_dir());
            assert!(!place.path().join("part").exists());
            session.unmount().unwrap();
            assert!(matches!(session.wait(), End::Unmounted), "{whole_first}");
            assert!(!place.path().join("inner").exists());
        }
    }

    #[test]
    fn no_way_leads_out_of_a_tree() {
        let place = tempfile::TempDir::new().unwrap();
        let Some((session, tree)) = served(place.path()) else { return };
        rustix::fs::symlinkat("part", &tree, "link").unwrap();
        let errno = |path: &str| {
            let error = tree.directory(path.as_ref()).unwrap_err();
            Os::from_io_error(&error)
        };
        assert_eq!(errno("../part"), Some(Os::XDEV));
        assert_eq!(errno("link"), Some(Os::LOOP));
        assert_eq!(errno("missing"), Some(Os::NOENT));
        assert!(tree.directory("/part/inner".as_ref()).is_ok());
        drop(tree);
        session.wait();
    }
}
