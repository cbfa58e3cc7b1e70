//! A mounted pool for one test, in a directory of its own, and the program to ask it with.
//!
//! It needs root and /dev/fuse: where there is none, tests say so and pass, except under CI.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::env;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use copyhold_harness::{Daemon, HarnessError, Place, Pool, Program, needs, transport};
use rustix::io::Errno;
use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_copyhold");
pub(crate) const NOBODY: u32 = 65534;
/// Only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// A pool that is not made yet, in a directory that all users can enter.
fn new_pool() -> Pool {
    let place = Place::new(&env::temp_dir(), "copyhold-test-").unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    Pool::new(Program::at(PROGRAM).within(PATIENCE), place).mounted_with(transport::arguments())
}

/// The value, or a panic with all that the program said.
#[track_caller]
pub(crate) fn worked<T>(result: Result<T, HarnessError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

pub(crate) struct Site(Pool);

impl Site {
    pub(crate) fn mounted(options: &[&str]) -> Option<Site> {
        Site::sized("512M", options)
    }

    pub(crate) fn sized(size: &str, options: &[&str]) -> Option<Site> {
        Site::made(&["--size", size], options)
    }

    /// `create` and `mount` are arguments of these verbs.
    pub(crate) fn made(create: &[&str], mount: &[&str]) -> Option<Site> {
        if !needs::are_met() {
            return None;
        }
        let site = Site::unmounted(create);
        site.mount(mount);
        Some(site)
    }

    /// `create` are arguments of that verb.
    pub(crate) fn unmounted(create: &[&str]) -> Site {
        let pool = new_pool();
        worked(pool.create(create));
        Site(pool)
    }

    #[track_caller]
    pub(crate) fn mount(&self, options: &[&str]) {
        worked(self.0.mount_with(options));
    }

    #[track_caller]
    pub(crate) fn unmount(&self) {
        worked(self.0.unmount());
    }

    #[track_caller]
    pub(crate) fn again(&self) {
        self.unmount();
        self.mount(&[]);
    }

    /// Kills the daemon; returns when it is gone.
    #[track_caller]
    pub(crate) fn kill(&self) {
        worked(self.0.kill());
    }

    /// Kills the daemon and detaches its mount.
    #[track_caller]
    pub(crate) fn crash(&self) {
        worked(self.0.crash());
    }

    /// Serves the mount at `place`.
    #[track_caller]
    pub(crate) fn daemon(&self, place: &str) -> Daemon {
        worked(self.0.program().daemon(Path::new(place)))
    }

    pub(crate) fn pid(&self) -> String {
        self.daemon(&self.at("")).pid().to_string()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.0.place().path()
    }

    pub(crate) fn pool(&self) -> String {
        self.0.path().to_str().unwrap().to_owned()
    }

    pub(crate) fn mnt(&self) -> PathBuf {
        self.0.mount_point()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mnt().join(name)
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn create(&self, name: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).open(self.path(name)).unwrap()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        worked(self.0.program().ask(arguments, &[]))
    }

    /// It works; what it prints.
    #[track_caller]
    pub(crate) fn done(&self, arguments: &[&str]) -> Value {
        let printed = worked(self.0.run(arguments, &[]));
        serde_json::from_str(&printed).unwrap_or(Value::Null)
    }

    /// It fails with this code, and one line that says this.
    #[track_caller]
    pub(crate) fn refused(&self, arguments: &[&str], code: &str, says: &str) {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty());
        let error: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(error["error"]["code"], code, "{arguments:?}: {error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(says), "{error}");
    }

    pub(crate) fn subvolume(&self, name: &str) -> u64 {
        self.done(&["subvolume", "create", &self.at(name)])["id"].as_u64().unwrap()
    }

    pub(crate) fn snapshot(&self, from: &str, to: &str) -> u64 {
        self.done(&["subvolume", "snapshot", &self.at(from), &self.at(to)])["id"].as_u64().unwrap()
    }

    pub(crate) fn delete(&self, name: &str) {
        self.done(&["subvolume", "delete", &self.at(name)]);
    }

    pub(crate) fn list(&self) -> Vec<Value> {
        self.done(&["subvolume", "list", &self.at("")]).as_array().unwrap().clone()
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        worked(self.0.check());
    }

    /// Unmounts, and finds the pool whole.
    #[track_caller]
    pub(crate) fn checked(&self) {
        self.unmount();
        self.check();
    }
}

/// A copy in `directory`: the program may be where only root can go.
pub(crate) fn copied_program(directory: &Path) -> PathBuf {
    let copy = directory.join("copyhold");
    if !copy.exists() {
        // By a process: one that another thread starts meanwhile would hold the copy open for
        // writing, and the copy could not be executed.
        worked(copyhold_harness::run(Command::new("cp").arg(PROGRAM).arg(&copy)));
    }
    copy
}

pub(crate) fn number<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<Errno> {
    result.unwrap_err().raw_os_error().map(Errno::from_raw_os_error)
}
