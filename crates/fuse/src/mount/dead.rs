//! Whether the daemon of a mount is gone.

use std::io;
use std::path::Path;

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
