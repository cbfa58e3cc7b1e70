//! Starting the daemon of a mount, and waiting until its mount is usable.
//!
//! Forking a process that has threads is a trap, so nothing forks: the program starts itself again
//! as `copyhold daemon …`, in a session of its own, and reads one line from the child's standard
//! output: `ready`, or the failure as JSON. Then the child lets go of the pipe. A child that dies
//! before it says anything is a failure, too: so `mount` never returns success for a mount that is
//! not there.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::stdio;
use serde_json::Value;

use crate::failure::{Failure, Kind};

const READY: &str = "ready";

/// Runs this program again with `arguments` in the background; returns when it reports.
pub(crate) fn start(arguments: &[OsString]) -> Result<(), Failure> {
    let say = |error: std::io::Error| Failure::system("starting the daemon", &error);
    let mut child = Command::new("/proc/self/exe")
        .arg0("copyhold")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(say)?;
    let mut line = String::new();
    let pipe = child.stdout.take().expect("standard output is a pipe");
    BufReader::new(pipe).read_line(&mut line).map_err(say)?;
    if line.trim_end() == READY {
        return Ok(());
    }
    let status = child.wait().map_err(say)?;
    Err(failure_in(&line).unwrap_or_else(|| {
        Failure::new(
            Kind::Failed,
            format!(
                "the daemon ended ({status}) before the mount was usable; `mount -f` shows why"
            ),
        )
    }))
}

/// In the daemon: leaves the caller's terminal and session.
pub(crate) fn leave_session() {
    // Fails only for the leader of a session, who has left already.
    let _ = rustix::process::setsid();
}

/// In the daemon: the mount is usable. After this nobody listens.
pub(crate) fn report_ready() {
    let _ = writeln!(std::io::stdout(), "{READY}");
    let _ = std::io::stdout().flush();
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = stdio::dup2_stdout(null);
    }
    // Keep no directory busy.
    let _ = std::env::set_current_dir("/");
}

/// In the daemon: there will be no mount.
pub(crate) fn report_failure(failure: &Failure) {
    let line = serde_json::json!({ "code": failure.kind.code(), "message": failure.to_string() });
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn failure_in(line: &str) -> Option<Failure> {
    let value: Value = serde_json::from_str(line).ok()?;
    let kind = Kind::from_code(value["code"].as_str()?)?;
    Some(Failure::new(kind, value["message"].as_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_survives_the_pipe() {
        let failure = failure_in(r#"{"code":"in-use","message":"the pool is locked"}"#).unwrap();
        assert_eq!(failure.kind, Kind::InUse);
        assert_eq!(failure.to_string(), "the pool is locked");
        assert!(failure_in("").is_none());
        assert!(failure_in("{\"code\":\"what\"}").is_none());
    }
}
