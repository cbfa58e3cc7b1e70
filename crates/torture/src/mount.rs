//! A pool in a file, mounted by the program; its daemon can be killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::error::{On, TortureError};

pub struct Mount {
    program: PathBuf,
    options: Option<String>,
    place: PathBuf,
}

impl Mount {
    /// Makes a pool of `size`, as `copyhold create` understands it, in `place`, an empty directory.
    pub fn create(
        program: PathBuf,
        options: Option<String>,
        place: PathBuf,
        size: &str,
    ) -> Result<Mount, TortureError> {
        let mount = Mount { program, options, place };
        fs::create_dir(mount.root()).on("the mount point")?;
        mount.run(&["create", "--size", size], &[&mount.image()])?;
        mount.mount()?;
        mount.run(&["quota", "enable", "--simple"], &[&mount.root()])?;
        Ok(mount)
    }

    pub fn root(&self) -> PathBuf {
        self.place.join("mnt")
    }

    pub fn image(&self) -> PathBuf {
        self.place.join("pool.img")
    }

    pub fn mount(&self) -> Result<(), TortureError> {
        let log = self.place.join("daemon.log");
        let log = log.to_string_lossy();
        let mut verb = vec!["mount", "--log-file", &log];
        if let Some(options) = &self.options {
            verb.extend(["-o", options]);
        }
        self.run(&verb, &[&self.image(), &self.root()]).map(drop)
    }

    /// The daemon ends as in a crash.
    pub fn kill(&self) -> Result<(), TortureError> {
        let info = self.run(&["info"], &[&self.root()])?;
        let pid = serde_json::from_str::<Value>(&info).ok();
        let pid = pid.and_then(|info| i32::try_from(info.get("pid")?.as_i64()?).ok());
        let pid = pid.and_then(Pid::from_raw).expect("`info` names the daemon");
        kill_process(pid, Signal::KILL).on("killing the daemon")
    }

    /// Also of a mount whose daemon is gone.
    pub fn unmount(&self) -> Result<(), TortureError> {
        self.run(&["umount"], &[&self.root()]).map(drop)
    }

    /// Everything on the device is verified, as a crash or an unmount left it.
    pub fn check(&self) -> Result<(), TortureError> {
        self.run(&["check"], &[&self.image()]).map(drop)
    }

    /// Runs the program: a verb with its options, then paths. What it says.
    pub fn run(&self, verb: &[&str], paths: &[&Path]) -> Result<String, TortureError> {
        let mut command = Command::new(&self.program);
        command.arg("--json").args(verb).args(paths).stdin(Stdio::null());
        let output = command.output().on(self.program.display())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let says = [output.stderr, output.stdout].concat();
        Err(TortureError::Command {
            command: format!("{command:?}").replace('"', ""),
            says: String::from_utf8_lossy(&says).trim().to_owned(),
        })
    }
}
