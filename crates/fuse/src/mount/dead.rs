//! Whether the daemon of a mount is gone.

use std::path::Path;

use rustix::io::Errno as Os;

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
    // Cancelled: the kernel is taking down the ring of a daemon that was killed.
    matches!(rustix::fs::statfs(path), Err(Os::NOTCONN | Os::CONNABORTED | Os::CANCELED))
}
