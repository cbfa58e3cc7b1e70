//! Set-up that tests of files share.

#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use copyhold_runtime::executors::Config;
use copyhold_runtime::{Executors, ReactorKind};

/// Runs a test with each kind of reactor.
pub(crate) fn on_each(test: impl Fn(&Arc<Executors>)) {
    for reactor in [ReactorKind::Auto, ReactorKind::Threads] {
        let config = Config { cpus: Some(2), reactor, ..Config::default() };
        let executors = Executors::start(config).unwrap();
        test(&executors);
        executors.shutdown();
    }
}

/// Runs a program; whether it succeeded, with what it printed.
pub(crate) fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device over a file, detached at the end.
pub(crate) struct Loop(pub(crate) PathBuf);

impl Loop {
    pub(crate) fn over(file: &Path) -> Option<Loop> {
        let name = run("losetup", &["--find", "--show", file.to_str()?]);
        if name.is_none() {
            eprintln!("no loop device can be made here: not tested on block devices");
        }
        name.map(|name| Loop(name.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.0.to_str().unwrap()]);
    }
}
