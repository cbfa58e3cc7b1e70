//! `copyhold umount`: takes a mount down and waits until its pool is closed.
//!
//! umount(2) of a plain FUSE mount returns before the daemon has written its dirty data. The
//! daemon keeps the pool locked until it has, so umount waits for the end of that lock. Without
//! that wait, copying the pool file or mounting it elsewhere right after would be a race.
//!
//! A pool that is mounted in other places, or in other namespaces, stays open, and its lock is not
//! waited for. When the last mount goes, umount(2) takes down the filesystem before it returns, so
//! whether the kernel still has this very filesystem says which of both it is.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use copyhold_fuse::mount::{self, MountEntry, MountError};

use crate::failure::{Failure, Kind};
use crate::report::Report;
use crate::{engine, mount_table};

/// Unmount a pool, and wait until it is closed
///
/// Returns when all data is durable and the daemon has closed the pool. Fails, and changes nothing,
/// while programs use the mount. If a pool is mounted in several places, only the given directory
/// is unmounted, and the pool is closed with the last one.
#[derive(Debug, clap::Args)]
#[command(
    visible_alias = "unmount",
    after_help = "Examples:\n  \
        copyhold umount /mnt\n  \
        copyhold umount /srv/pool.img     wherever it is mounted here\n  \
        copyhold umount --lazy /mnt       hide it now, close it when its last user is done"
)]
pub(crate) struct Umount {
    /// The mounted directory, or the pool
    target: PathBuf,
    /// Detach the directory now, although programs use it; do not wait for the pool to close
    #[arg(long, short)]
    lazy: bool,
    /// Stop waiting for the pool to close after this many seconds; it still closes
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
}

impl Umount {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        mount::abort_orphans();
        let mounts = mount_table::named(&self.target)?;
        let pool = Path::new(&mounts[0].source);
        let before: Vec<_> = mounts.iter().map(MountEntry::identity).collect();
        // Newest first: one of them may be in another.
        for entry in mounts.iter().rev() {
            match mount::unmount(&entry.mount_point, self.lazy) {
                // It went with one before it, to which it had been propagated.
                Err(MountError::NotMounted { .. }) if mounts.len() > 1 => {}
                result => result?,
            }
        }
        let mut both = mounts.iter().zip(before);
        if both.any(|(entry, before)| before.is_some() && entry.identity() == before) {
            return report.note(|| {
                format!(
                    "{} is unmounted; its pool is still in use elsewhere",
                    self.target.display()
                )
            });
        }
        if !self.lazy {
            wait_until_closed(pool, Duration::from_secs(self.timeout))?;
        }
        report.note(|| format!("{} is unmounted", pool.display()))
    }
}

fn wait_until_closed(pool: &Path, timeout: Duration) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    while engine::is_locked(pool)? {
        if begin.elapsed() > timeout {
            return Err(Failure::new(
                Kind::InUse,
                format!(
                    "{} is unmounted, but its daemon still writes; wait until it ends",
                    pool.display()
                ),
            ));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    Ok(())
}
