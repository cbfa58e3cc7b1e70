//! One script as a process: started, watched, and ended at its time limit.
//!
//! Problem.  A script that hangs must end with all that it started, must not take the next one
//!           along, and the reason must be in its log.
//! Idea.     The runner polls the script and its output. At the limit (or at an interrupt) it sends
//!           SIGTERM to all processes that the script has started, waits for a grace time, runs the
//!           failsafe script, and then sends SIGKILL. Processes of earlier scripts stay: the
//!           daemon that a setup has started serves all tests of its group.
//!
//! SCRIPT-X1  Behind a script that was ended, no process runs that it started before its failsafe
//!            did. Processes of the failsafe stay: it may mount again.
//! SCRIPT-X2  A script of another user has only the group of its account, and its environment.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use copyhold_harness::Interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::account::Account;
use crate::capture::Capture;
use crate::clock::{Clock, Moment};
use crate::descent::{self, Process};
use crate::error::{On, RunnerError};
use crate::plan::Step;
use crate::verdict::End;

/// Between two looks at the clock and at the interrupt.
const SLICE: Duration = Duration::from_secs(1);
/// Time for a killed process to end. One that waits in the kernel does not.
const KILLED: Duration = Duration::from_secs(5);
/// A process may start another one while it is being killed.
const KILLS: usize = 10;

/// A script that is to run.
pub(crate) struct Job<'a> {
    pub(crate) step: &'a Step,
    /// For its output, and its working directory.
    pub(crate) directory: &'a Path,
    pub(crate) timeout: Option<Duration>,
    pub(crate) failsafe: Option<&'a Step>,
    /// False for a cleanup.
    pub(crate) ends_at_interrupt: bool,
}

pub(crate) struct Execution {
    pub(crate) end: End,
    pub(crate) took: Duration,
    /// Output with times.
    pub(crate) lines: File,
    /// Of the failsafe, where the script was ended and has one.
    pub(crate) failsafe: Option<End>,
}

/// The machine, as `run.rs` sees it.
pub(crate) trait Execute {
    fn execute(&mut self, job: &Job<'_>) -> Result<Execution, RunnerError>;
    /// Processes that run from here on are those of a new group.
    fn begin_group(&mut self) -> Result<(), RunnerError>;
    /// Ends all processes of the group. Returns their descriptions.
    fn end_group(&mut self) -> Result<Vec<String>, RunnerError>;
    fn is_interrupted(&self) -> bool;
}

pub(crate) struct Machine<'a> {
    pub(crate) clock: &'a dyn Clock,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) environment: Vec<(&'static str, OsString)>,
    pub(crate) own: Account,
    /// Between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    pub(crate) before_group: BTreeSet<Process>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watched {
    Ended,
    TimedOut,
    Interrupted,
}

impl Execute for Machine<'_> {
    fn execute(&mut self, job: &Job<'_>) -> Result<Execution, RunnerError> {
        let begin = self.clock.now();
        let directory = job.directory;
        let mut capture = Capture::new(directory).on(directory.display())?;
        let before = descent::running().on("/proc")?;
        let (end, failsafe) = match self.start(job.step, directory) {
            Err(reason) => {
                capture.remark(&reason).on(directory.display())?;
                (End::NotStarted(reason), None)
            }
            Ok(child) => {
                let attended = self.attend(child, job, begin, &before, &mut capture);
                attended.on(job.step.script.display())?
            }
        };
        let took = self.clock.now().passed.saturating_sub(begin.passed);
        let lines = capture.into_lines().on(directory.display())?;
        Ok(Execution { end, took, lines, failsafe })
    }

    fn begin_group(&mut self) -> Result<(), RunnerError> {
        self.before_group = descent::running().on("/proc")?;
        Ok(())
    }

    fn end_group(&mut self) -> Result<Vec<String>, RunnerError> {
        let left = started_since(&self.before_group).on("/proc")?;
        let descriptions = left.iter().map(|process| process.description()).collect();
        send(&left, Signal::TERM).on("SIGTERM")?;
        wait_for(&left, self.grace).on("waiting for processes")?;
        kill_since(&self.before_group).on("SIGKILL")?;
        descent::reap();
        Ok(descriptions)
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_set()
    }
}

impl Machine<'_> {
    /// In a process group of its own. The error is the reason for people.
    fn start(&self, step: &Step, directory: &Path) -> Result<Child, String> {
        let mut command = Command::new(&step.script);
        command.current_dir(directory).process_group(0).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        if !step.user.is_empty() && step.user != self.own.name {
            let account = Account::named(&step.user).map_err(|error| error.to_string())?;
            command.uid(account.uid).gid(account.gid);
            command.env("HOME", &account.home);
            command.env("USER", &account.name).env("LOGNAME", &account.name);
        }
        command.spawn().map_err(|error| format!("{}: {error}", step.script.display()))
    }

    fn attend(
        &mut self,
        mut child: Child,
        job: &Job<'_>,
        begin: Moment,
        before: &BTreeSet<Process>,
        capture: &mut Capture,
    ) -> io::Result<(End, Option<End>)> {
        capture.attach(job.directory, child.stdout.take(), child.stderr.take())?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let deadline = job.timeout.map(|timeout| begin.passed + timeout);
        let watched = self.watch(&process, capture, deadline, job.ends_at_interrupt)?;
        match watched {
            Watched::Ended => {}
            Watched::TimedOut => capture.remark("the time limit is over")?,
            Watched::Interrupted => capture.remark("interrupted")?,
        }
        let awake = self.clock.now().awake.saturating_sub(begin.awake);
        let failsafe = match watched {
            Watched::Ended => None,
            Watched::TimedOut | Watched::Interrupted => {
                self.stop(&process, job, before, capture)?
            }
        };
        capture.detach()?;
        let status = child.try_wait()?;
        let end = match (watched, status) {
            (Watched::Ended, Some(status)) => end_of(status),
            _ => End::TimedOut { slept: job.timeout.is_some_and(|timeout| awake < timeout) },
        };
        Ok((end, failsafe))
    }

    /// Reads the output of a script until it ends, the deadline passes, or an interrupt comes.
    fn watch(
        &self,
        process: &OwnedFd,
        capture: &mut Capture,
        deadline: Option<Duration>,
        ends_at_interrupt: bool,
    ) -> io::Result<Watched> {
        loop {
            if ends_at_interrupt && self.interrupt.is_set() {
                return Ok(Watched::Interrupted);
            }
            let now = self.clock.now().passed;
            let left = deadline.map_or(SLICE, |deadline| deadline.saturating_sub(now));
            if left.is_zero() {
                return Ok(Watched::TimedOut);
            }
            let slice = Timespec::try_from(left.min(SLICE)).map_err(io::Error::other)?;
            let mut sources = capture.sources();
            sources.push(PollFd::new(process, PollFlags::IN));
            match poll(&mut sources, Some(&slice)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let has_ended = sources.pop().is_some_and(|end| end.revents().contains(PollFlags::IN));
            drop(sources);
            capture.read()?;
            if has_ended {
                return Ok(Watched::Ended);
            }
        }
    }

    /// SIGTERM, the failsafe script, SIGKILL. Returns the end of the failsafe.
    fn stop(
        &mut self,
        process: &OwnedFd,
        job: &Job<'_>,
        before: &BTreeSet<Process>,
        capture: &mut Capture,
    ) -> io::Result<Option<End>> {
        send(&started_since(before)?, Signal::TERM)?;
        let deadline = self.clock.now().passed + self.grace;
        self.watch(process, capture, Some(deadline), false)?;
        let left = deadline.saturating_sub(self.clock.now().passed);
        wait_for(&started_since(before)?, left)?;
        let left = started_since(before)?;
        let failsafe = job.failsafe.map(|step| self.run_failsafe(step, job)).transpose()?;
        if let Some(end) = &failsafe {
            capture.remark(&format!("failsafe: {}", end.verdict().name()))?;
        }
        let mut kept = descent::running()?;
        kept.retain(|process| !left.contains(process));
        let left = kill_since(&kept)?;
        left.iter().try_for_each(|process| {
            capture.remark(&format!("does not end at SIGKILL: {}", process.description()))
        })?;
        Ok(failsafe)
    }

    fn run_failsafe(&mut self, step: &Step, job: &Job<'_>) -> io::Result<End> {
        let directory = job.directory.join("failsafe");
        fs::create_dir_all(&directory)?;
        let job =
            Job { step, directory: &directory, failsafe: None, ends_at_interrupt: false, ..*job };
        Ok(self.execute(&job).map_err(io::Error::other)?.end)
    }
}

fn end_of(status: ExitStatus) -> End {
    match status.code() {
        Some(code) => End::Exited(code),
        None => End::Signalled(status.signal().unwrap_or_default()),
    }
}

fn started_since(before: &BTreeSet<Process>) -> io::Result<Vec<Process>> {
    Ok(descent::running()?.difference(before).copied().collect())
}

fn send(processes: &[Process], signal: Signal) -> io::Result<()> {
    processes.iter().try_for_each(|process| process.signal(signal))
}

/// Waits for each of them, `patience` in all if none ends.
fn wait_for(processes: &[Process], patience: Duration) -> io::Result<()> {
    for process in processes {
        if !process.ends_within(patience)? {
            break;
        }
    }
    Ok(())
}

/// Returns the processes that remain.
fn kill_since(before: &BTreeSet<Process>) -> io::Result<Vec<Process>> {
    for _ in 0..KILLS {
        let left = started_since(before)?;
        send(&left, Signal::KILL)?;
        for process in &left {
            if !process.ends_within(KILLED)? {
                return started_since(before);
            }
        }
        if left.is_empty() {
            break;
        }
    }
    started_since(before)
}

#[cfg(test)]
mod tests;
