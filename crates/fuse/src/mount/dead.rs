//! Whether the daemon of a mount is gone.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::io::Errno as Os;
use rustix::mount::UnmountFlags;

use super::error::MountError;
use super::fusermount;
use super::orphan::abort_orphans;
use super::table::MountEntry;
use super::which;

impl MountEntry {
    /// Whether its daemon is gone. Waits for one that is about to be, as any use of the mount does.
    pub fn is_dead(&self) -> bool {
        is_dead(&self.mount_point)
    }
}

/// Attributes of the root would not show it: the kernel may remember those of a mount whose daemon
/// is gone. Each statfs reaches the daemon. A killed daemon that cannot end
/// would never answer, and is made to end.
pub(super) fn is_dead(path: &Path) -> bool {
    abort_orphans();
    rustix::fs::statfs(path).is_err_and(|error| means_dead(&error.into()))
}

/// Takes a mount out of the tree if its daemon is gone; returns whether it was. Root judges and
/// removes it by one descriptor: if another mount has taken its place, the error is
/// [`MountError::NotMounted`], and that mount stays. As with umount(8), a mount that is put on top
/// of it in this moment would go in its stead.
pub fn remove_if_dead(entry: &MountEntry) -> Result<bool, MountError> {
    let path = &entry.mount_point;
    if !rustix::process::geteuid().is_root() {
        let dead = entry.is_dead();
        return if dead { fusermount::unmount(path, true).map(|()| true) } else { Ok(false) };
    }
    abort_orphans();
    let gone = || MountError::NotMounted { path: path.clone() };
    let refused = |error: Os| match error {
        Os::NOENT | Os::INVAL => gone(),
        error => MountError::Refused { path: path.clone(), source: error.into() },
    };
    let (place, number) = which::opened(path).map_err(refused)?;
    if number != entry.device {
        return Err(gone());
    }
    if !rustix::fs::fstatfs(&place).is_err_and(|error| means_dead(&error.into())) {
        return Ok(false);
    }
    let place = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::mount::unmount(place, UnmountFlags::DETACH).map(|()| true).map_err(refused)
}

/// Whether a call on a mount failed with `error` because its daemon is gone.
///
/// ENOTCONN: it was gone before. ECONNABORTED: it went while the request waited for its answer.
/// ECANCELED: the same, while the kernel took down the daemon's io_uring.
pub fn means_dead(error: &io::Error) -> bool {
    let dead = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];
    error.raw_os_error().is_some_and(|errno| dead.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mount_than_the_one_in_question_stays() {
        let entry = MountEntry {
            mount_point: "/proc".into(),
            device: (u32::MAX, u32::MAX),
            kind: "fuse.copyhold".into(),
            source: "pool".into(),
            options: String::new(),
        };
        match remove_if_dead(&entry) {
            Ok(false) if !rustix::process::geteuid().is_root() => {}
            Err(MountError::NotMounted { path }) => assert_eq!(path, entry.mount_point),
            other => panic!("{other:?}"),
        }
        assert!(Path::new("/proc/self").exists());
    }

    #[test]
    fn a_daemon_that_goes_amid_a_request_is_gone_too() {
        for errno in [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED] {
            assert!(means_dead(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
        for errno in [libc::EIO, libc::ENOENT, libc::EACCES] {
            assert!(!means_dead(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
    }
}
