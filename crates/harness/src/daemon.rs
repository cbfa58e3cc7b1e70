//! The process that serves a mount, held by a descriptor: its number cannot become another's.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::command::ends_within;
use crate::error::{HarnessError, On};

/// A daemon frees its memory when it is killed. That takes seconds at most.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Daemon {
    pid: Pid,
    process: OwnedFd,
}

impl Daemon {
    pub fn of(pid: i32) -> Result<Daemon, HarnessError> {
        let what = || format!("the daemon {pid}");
        let pid = Pid::from_raw(pid).ok_or(rustix::io::Errno::SRCH).on(what())?;
        let process = pidfd_open(pid, PidfdFlags::empty()).on(what())?;
        Ok(Daemon { pid, process })
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// SIGKILL: the daemon ends as in a crash. Does not wait for the end.
    pub fn kill(&self) -> Result<(), HarnessError> {
        self.signal(Signal::KILL)
    }

    pub fn signal(&self, signal: Signal) -> Result<(), HarnessError> {
        pidfd_send_signal(&self.process, signal).on(format!("{signal:?} to the daemon"))
    }

    /// Returns when the last thread has ended and all files are closed.
    pub fn wait(&self) -> Result<(), HarnessError> {
        match ends_within(&self.process, PATIENCE).on("waiting for the daemon")? {
            true => Ok(()),
            false => {
                let pid = self.pid.as_raw_nonzero().get();
                Err(HarnessError::StillRuns { pid, patience: PATIENCE })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_killed_process_has_ended_when_wait_returns() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let daemon = Daemon::of(child.id() as i32).unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        assert!(child.try_wait().unwrap().is_some());
        assert!(Daemon::of(child.id() as i32).is_err(), "it is gone");
    }
}
