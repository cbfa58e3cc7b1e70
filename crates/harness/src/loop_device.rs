//! A loop device over a file.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;
use crate::error::HarnessError;

/// Dropping it detaches the device. One that is in use is detached by the kernel afterwards.
#[derive(Debug)]
pub struct LoopDevice {
    /// Empty when it is detached.
    path: PathBuf,
}

impl LoopDevice {
    /// `options` are those of losetup(8).
    pub fn over(file: impl AsRef<Path>, options: &[&str]) -> Result<LoopDevice, HarnessError> {
        let mut attach = Command::new("losetup");
        attach.args(["--find", "--show"]).args(options).arg(file.as_ref());
        Ok(LoopDevice { path: PathBuf::from(run(&mut attach)?.trim()) })
    }

    /// Detaches all devices over files in `directory`, also those that other programs made.
    pub(crate) fn detach_below(directory: &Path) -> Result<(), HarnessError> {
        let mut list = Command::new("losetup");
        list.args(["--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE"]);
        for line in run(&mut list)?.lines() {
            let Some((name, file)) = line.split_once(' ') else { continue };
            if Path::new(file).starts_with(directory) {
                LoopDevice { path: PathBuf::from(name) }.detach()?;
            }
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn detach(mut self) -> Result<(), HarnessError> {
        let path = std::mem::take(&mut self.path);
        run(Command::new("losetup").arg("--detach").arg(path)).map(drop)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            drop(run(Command::new("losetup").arg("--detach").arg(&self.path)));
        }
    }
}
