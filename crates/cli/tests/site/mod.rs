//! A mounted pool for one test, in a directory of its own, and the program to ask it with.
//!
//! It needs root and /dev/fuse: where there is none, tests say so and pass, except under CI.

#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

pub(crate) mod transport;
pub(crate) mod wait;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rustix::io::Errno;
use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_copyhold");
pub(crate) const NOBODY: u32 = 65534;

pub(crate) struct Site {
    place: tempfile::TempDir,
}

impl Site {
    pub(crate) fn mounted(options: &[&str]) -> Option<Site> {
        Site::sized("512M", options)
    }

    pub(crate) fn sized(size: &str, options: &[&str]) -> Option<Site> {
        let possible = rustix::process::geteuid().is_root()
            && File::options().read(true).write(true).open("/dev/fuse").is_ok();
        assert!(possible || std::env::var_os("CI").is_none(), "CI needs root and /dev/fuse");
        if !possible {
            eprintln!("skipped: needs root and /dev/fuse");
            return None;
        }
        if !transport::is_there() {
            return None;
        }
        let site = Site { place: tempfile::tempdir().unwrap() };
        fs::set_permissions(site.place.path(), Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(site.path("")).unwrap();
        site.done(&["create", &site.pool(), "--size", size]);
        site.mount(options);
        Some(site)
    }

    pub(crate) fn mount(&self, options: &[&str]) {
        let transport = transport::options();
        let transport: Vec<&str> = transport.iter().map(String::as_str).collect();
        self.done(&[&["mount", &self.pool(), &self.at("")], &transport[..], options].concat());
    }

    pub(crate) fn pool(&self) -> String {
        self.place.path().join("pool.img").to_str().unwrap().to_owned()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join("mnt").join(name)
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Command::new(PROGRAM).arg("--json").args(arguments).output().unwrap()
    }

    /// It works; what it prints.
    #[track_caller]
    pub(crate) fn done(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
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

    pub(crate) fn group(&self, id: &str) -> Value {
        let shown = self.done(&["qgroup", "show", "--sync", &self.at("")]);
        let mut rows = shown.as_array().unwrap().iter();
        rows.find(|row| row["id"] == id).unwrap_or_else(|| panic!("no {id} in {shown}")).clone()
    }

    /// Unmounts, and finds the pool whole.
    #[track_caller]
    pub(crate) fn checked(&self) {
        self.done(&["umount", &self.at("")]);
        let check = self.run(&["check", &self.pool()]);
        assert!(check.status.success(), "{check:?}");
    }

    /// What the program tells an ordinary user.
    pub(crate) fn nobody(&self, arguments: &[&str]) -> Output {
        // The program may be where only root can go.
        let copy = self.place.path().join("copyhold");
        if !copy.exists() {
            // By a process: what another thread starts meanwhile would hold the copy open for
            // writing, and it could not be executed.
            let copied = Command::new("cp").arg(PROGRAM).arg(&copy).status();
            assert!(copied.unwrap().success());
        }
        let mut plain = Command::new("setpriv");
        plain.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(copy).arg("--json");
        plain.args(arguments).output().unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let mnt = self.path("");
        let _ = Command::new("umount").arg("--lazy").arg(&mnt).stderr(Stdio::null()).status();
    }
}

pub(crate) fn number<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<Errno> {
    result.unwrap_err().raw_os_error().map(Errno::from_raw_os_error)
}
