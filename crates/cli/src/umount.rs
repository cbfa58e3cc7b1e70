//! `copyhold umount`: takes a mount down and waits until its pool is closed.
//!
//! umount(2) of a plain FUSE mount returns before the daemon has written what it holds. The daemon
//! keeps the pool locked until it has, so the end of that lock is what is waited for. Without that wait,
//! copying the pool file or mounting it elsewhere right after would be a race.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::engine;
use crate::failure::{Failure, Kind};
use crate::mount_table::{self, Mount};
use crate::report::Report;

/// Unmount a pool, and wait until it is closed
///
/// Returns when everything is durable and the daemon has let go of the pool. Fails, and changes nothing,
/// while programs use the mount.
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
        for mount in &mounts {
            detach(&mount.directory, self.lazy)?;
        }
        if !self.lazy {
            wait_until_closed(&mounts[0], Duration::from_secs(self.timeout))?;
        }
        report.note(|| format!("{} is unmounted", mounts[0].source.display()))
    }
}

/// Unmounts one directory, with the system's helper where the user may not do it himself.
fn detach(directory: &Path, lazy: bool) -> Result<(), Failure> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => detach_as_user(directory, lazy),
        Err(Errno::BUSY) => Err(busy(directory)),
        Err(errno) => Err(Failure::system(directory.display(), &errno.into())),
    }
}

fn detach_as_user(directory: &Path, lazy: bool) -> Result<(), Failure> {
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").args(lazy.then_some("-z")).arg("--").arg(directory);
    let output = helper.output().map_err(|error| Failure::system("fusermount3", &error))?;
    if output.status.success() {
        return Ok(());
    }
    let says = String::from_utf8_lossy(&output.stderr);
    if says.contains("busy") {
        return Err(busy(directory));
    }
    Err(Failure::new(Kind::Permission, says.trim().to_owned()))
}

fn busy(directory: &Path) -> Failure {
    Failure::new(
        Kind::InUse,
        format!(
            "{0} is in use; end the programs that `fuser -vm {0}` shows, or use --lazy",
            directory.display()
        ),
    )
}

fn wait_until_closed(mount: &Mount, timeout: Duration) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    while engine::is_locked(&mount.source)? {
        if begin.elapsed() > timeout {
            return Err(Failure::new(
                Kind::InUse,
                format!(
                    "{} is unmounted, but its daemon still writes; it is closed when the daemon ends",
                    mount.source.display()
                ),
            ));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    Ok(())
}
