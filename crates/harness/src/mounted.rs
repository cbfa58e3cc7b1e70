//! A mount that lasts as long as a value.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;
use rustix::process::geteuid;

use crate::command::run;
use crate::error::{HarnessError, On};
use crate::mount_table;

/// Dropping it detaches the mount.
#[derive(Debug)]
pub struct Mounted {
    at: PathBuf,
}

impl Mounted {
    /// Runs mount(8) with `options`, `what` and `at`.
    pub fn new(options: &[&str], what: &Path, at: &Path) -> Result<Mounted, HarnessError> {
        run(Command::new("mount").args(options).arg(what).arg(at))?;
        Ok(Mounted::existing(at))
    }

    /// A mount that another program makes, or has made.
    pub fn existing(at: &Path) -> Mounted {
        Mounted { at: at.to_owned() }
    }

    pub fn path(&self) -> &Path {
        &self.at
    }

    /// umount(8): fails while the mount is in use.
    pub fn unmount(self) -> Result<(), HarnessError> {
        run(Command::new("umount").arg(&self.at)).map(drop)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if mount_table::is_mounted(&self.at).unwrap_or(true) {
            drop(detach(&self.at));
        }
    }
}

/// Detaches the newest mount at a path, also if its daemon is dead or if it is in use.
pub fn detach(at: &Path) -> Result<(), HarnessError> {
    if geteuid().is_root() {
        return rustix::mount::unmount(at, UnmountFlags::DETACH).on(at.display());
    }
    run(Command::new("fusermount3").arg("-uz").arg(at)).map(drop)
}
