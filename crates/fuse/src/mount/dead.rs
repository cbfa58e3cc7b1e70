//! Whether the daemon of a mount is gone.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as Os;
use rustix::mount::UnmountFlags;

use super::error::MountError;
use super::fusermount;
use super::orphan::abort_orphans;
use super::table::MountEntry;

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

/// Takes the topmost mount at `path` out of the tree if its daemon is gone; returns whether it was.
/// Root judges and removes it by one descriptor: a mount that another process makes there meanwhile
/// stays.
pub fn remove_if_dead(path: &Path) -> Result<bool, MountError> {
    if !rustix::process::geteuid().is_root() {
        let dead = is_dead(path);
        return if dead { fusermount::unmount(path, true).map(|()| true) } else { Ok(false) };
    }
    abort_orphans();
    let refused = |error: Os| MountError::Refused { path: path.to_owned(), source: error.into() };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = match rustix::fs::open(path, flags, Mode::empty()) {
        // Another process has removed the mount point.
        Err(Os::NOENT) => return Ok(false),
        opened => opened.map_err(refused)?,
    };
    if !rustix::fs::fstatfs(&place).is_err_and(|error| means_dead(&error.into())) {
        return Ok(false);
    }
    let place = format!("/proc/self/fd/{}", place.as_raw_fd());
    match rustix::mount::unmount(place, UnmountFlags::DETACH) {
        // INVAL: another process has taken it out.
        Ok(()) | Err(Os::INVAL) => Ok(true),
        Err(error) => Err(refused(error)),
    }
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
    fn a_daemon_that_goes_amid_a_request_is_gone_too() {
        for errno in [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED] {
            assert!(means_dead(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
        for errno in [libc::EIO, libc::ENOENT, libc::EACCES] {
            assert!(!means_dead(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
    }
}
