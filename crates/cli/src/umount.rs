//! `copyhold umount`: takes a mount down and waits until its pool is closed.
//!
//! umount(2) of a plain FUSE mount returns before the daemon has written what it holds. The daemon
//! keeps the pool locked until it has, so the end of that lock is what is waited for. Without that
//! wait, copying the pool file or mounting it elsewhere right after would be a race.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use copyhold_fuse::mount;

use crate::failure::{Failure, Kind};
use crate::report::Report;
use crate::{engine, mount_table};

/// Unmount a pool, and wait until it is closed
///
/// Returns when everything is durable and the daemon has let go of the pool. Fails, and changes
/// nothing, while programs use the mount.
#[derive(Debug, clap::Args)]
#[command(
    visible_alias = "unmount",
    after_help = "Examples:\n  \
        copyhold umount /mnt\n  \
        copyhold umount /srv/pool.img     wherever it is mounted\n  \
        copyhold umount --lazy /mnt       hide it now, close it when its last user is done"
)]
pub(crate) struct Umount {
    /// The mounted directory, or the pool
    target: PathBuf,
    /// Detach the directory now, although programs use it; do not wait for the pool to close
    #[arg(long, short)]
    lazy: bool,
    /// Give up waiting for the pool to close after this many seconds; it closes all the same
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
}

impl Umount {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let mounts = mount_table::named(&self.target)?;
        let pool = Path::new(&mounts[0].source);
        for mount in &mounts {
            mount::unmount(&mount.mount_point, self.lazy)?;
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
