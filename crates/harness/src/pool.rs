//! A pool in a place: made, mounted, killed and checked by the program.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::daemon::Daemon;
use crate::error::{HarnessError, On};
use crate::loop_device::LoopDevice;
use crate::mounted::detach;
use crate::place::Place;
use crate::program::Program;

/// Fields are dropped in this order: mounts before the device under them.
#[derive(Debug)]
pub struct Pool {
    program: Program,
    place: Place,
    device: Option<LoopDevice>,
    mount_options: Vec<String>,
}

impl Pool {
    /// In the image of the place. Nothing is made yet.
    pub fn new(program: Program, place: Place) -> Pool {
        Pool { program, place, device: None, mount_options: Vec::new() }
    }

    /// On a device instead of in the image.
    pub fn on(self, device: LoopDevice) -> Pool {
        Pool { device: Some(device), ..self }
    }

    /// With these arguments of `copyhold mount` at each mount.
    pub fn mounted_with(self, arguments: impl IntoIterator<Item = String>) -> Pool {
        Pool { mount_options: arguments.into_iter().collect(), ..self }
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The image or the device.
    pub fn path(&self) -> PathBuf {
        self.device.as_ref().map_or_else(|| self.place.image(), |it| it.path().to_owned())
    }

    pub fn mount_point(&self) -> PathBuf {
        self.place.mount_point()
    }

    /// Arguments are those of `copyhold create`.
    pub fn create(&self, arguments: &[&str]) -> Result<(), HarnessError> {
        self.run(&[&["create"], arguments].concat(), &[&self.path()]).map(drop)
    }

    pub fn mount(&self) -> Result<(), HarnessError> {
        self.mount_with(&[])
    }

    /// With more arguments of `copyhold mount`. Returns when the mount is usable.
    pub fn mount_with(&self, more: &[&str]) -> Result<(), HarnessError> {
        let always = self.mount_options.iter().map(String::as_str);
        let verb: Vec<&str> =
            ["mount"].into_iter().chain(always).chain(more.iter().copied()).collect();
        self.run(&verb, &[&self.path(), &self.mount_point()]).map(drop)
    }

    /// Returns when the pool is closed. Also clears the mount of a dead daemon.
    pub fn unmount(&self) -> Result<(), HarnessError> {
        self.run(&["umount"], &[&self.mount_point()]).map(drop)
    }

    /// Verifies everything on the device, as a crash or an unmount left it.
    pub fn check(&self) -> Result<(), HarnessError> {
        self.run(&["check"], &[&self.path()]).map(drop)
    }

    pub fn info(&self) -> Result<Value, HarnessError> {
        self.program.info(&self.mount_point())
    }

    pub fn daemon(&self) -> Result<Daemon, HarnessError> {
        self.program.daemon(&self.mount_point())
    }

    /// Kills the daemon, and returns when it has ended. The dead mount stays.
    pub fn kill(&self) -> Result<(), HarnessError> {
        let daemon = self.daemon()?;
        daemon.kill()?;
        daemon.wait()
    }

    /// Kills the daemon and detaches the dead mount.
    pub fn crash(&self) -> Result<(), HarnessError> {
        self.kill()?;
        detach(&self.mount_point())
    }

    /// Runs the program: a verb with its options, then paths. Returns its standard output.
    pub fn run(&self, verb: &[&str], paths: &[&Path]) -> Result<String, HarnessError> {
        self.program.run(verb, paths)
    }

    /// Detaches the mount and leaves all files. Returns their directory.
    pub fn keep(self) -> PathBuf {
        self.place.keep()
    }
}

/// Whether no process has the pool open.
pub fn is_closed(pool: &Path) -> Result<bool, HarnessError> {
    let file = File::open(pool).on(pool.display())?;
    Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}
