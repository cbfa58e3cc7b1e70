//! Waiting for a daemon that is leaving.
//!
//! umount(8) returns when the kernel is done, and the daemon holds the lock of its pool until it
//! has closed it. A mount, fsck(8) or mkfs(8) that comes right behind waits for that.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use copyhold_fuse::mount::MountEntry;

use crate::failure::{Failure, Kind};
use crate::mount_table;

const PATIENCE: Duration = Duration::from_secs(10);

/// Tries again while the pool is locked, unless a mount that is served shows that it will stay so.
/// The mount of a daemon that was killed is in the table both before and after the daemon is gone.
pub(crate) fn patiently<T>(
    pool: &Path,
    attempt: impl Fn() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(failure) if failure.kind == Kind::InUse && begin.elapsed() < PATIENCE => {
                if mount_table::named(pool).is_ok_and(|all| !all.iter().all(MountEntry::is_dead)) {
                    return Err(failure);
                }
                thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}
