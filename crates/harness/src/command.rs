//! One command, run to its end within a time limit.
//!
//! Output goes to files in memory, not to pipes: a daemon that the command leaves behind may keep
//! its end of a pipe open, and the reader would wait for the daemon.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{HarnessError, On};

/// Only ends a command that hangs: the check of a large pool may take many minutes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3600);
/// Time for a killed command to end. One that waits in the kernel does not, and is left.
const KILLED: Duration = Duration::from_secs(5);

/// Runs a command that must succeed. Returns its standard output.
pub fn run(command: &mut Command) -> Result<String, HarnessError> {
    let output = output(command)?;
    require_success(command, output)
}

/// Runs a command, whatever its exit status is.
pub fn output(command: &mut Command) -> Result<Output, HarnessError> {
    output_within(command, PATIENCE)
}

/// As `output`, but kills the command after `patience`.
pub(crate) fn output_within(
    command: &mut Command,
    patience: Duration,
) -> Result<Output, HarnessError> {
    let mut printed = Printed::new().on(show(command))?;
    command.stdin(Stdio::null());
    command.stdout(printed.stdout.try_clone().on(show(command))?);
    command.stderr(printed.stderr.try_clone().on(show(command))?);
    let mut child = command.spawn().on(show(command))?;
    let status = end(&mut child, patience).on(show(command))?;
    let Some(status) = status else {
        let says = printed.output(ExitStatus::default()).map(|output| says(&output));
        let says = says.on(show(command))?;
        return Err(HarnessError::Hangs { command: show(command), patience, says });
    };
    printed.output(status).on(show(command))
}

/// The standard output of a command that has ended, or its failure.
pub(crate) fn require_success(command: &Command, output: Output) -> Result<String, HarnessError> {
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(HarnessError::Failed {
            command: show(command),
            status: output.status.to_string(),
            says: says(&output),
        }),
    }
}

/// The command as one would type it.
pub fn show(command: &Command) -> String {
    format!("{command:?}").replace('"', "")
}

/// Whether a process, all of its threads included, ends within `patience`.
pub(crate) fn ends_within(process: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    let ended = retry_on_intr(|| poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)));
    Ok(ended? > 0)
}

/// The status of the child, `None` if it had to be killed.
fn end(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    if ends_within(&process, patience)? {
        return child.wait().map(Some);
    }
    child.kill()?;
    if ends_within(&process, KILLED)? {
        child.wait()?;
    }
    Ok(None)
}

/// Standard error first: that is where reasons are.
fn says(output: &Output) -> String {
    let all = [&output.stderr[..], &output.stdout].concat();
    match String::from_utf8_lossy(&all).trim() {
        "" => "no output".to_owned(),
        text => text.to_owned(),
    }
}

struct Printed {
    stdout: File,
    stderr: File,
}

impl Printed {
    fn new() -> io::Result<Printed> {
        let file = |name| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
        Ok(Printed { stdout: file("stdout")?, stderr: file("stderr")? })
    }

    fn output(&mut self, status: ExitStatus) -> io::Result<Output> {
        let content = |file: &mut File| {
            let mut content = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut content).map(|_| content)
        };
        Ok(Output {
            status,
            stdout: content(&mut self.stdout)?,
            stderr: content(&mut self.stderr)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn a_command_that_fails_is_an_error_with_all_that_it_printed() {
        assert_eq!(run(&mut shell("echo yes; echo warning >&2")).unwrap(), "yes\n");
        let error = run(&mut shell("echo found; echo no >&2; exit 3")).unwrap_err().to_string();
        assert!(error.contains("(exit status: 3): no\nfound"), "{error}");
        let missing = run(&mut Command::new("/no/such/program")).unwrap_err().to_string();
        assert!(missing.starts_with("/no/such/program: No such file"), "{missing}");
    }

    #[test]
    fn a_command_that_hangs_is_killed() {
        let mut hangs = shell("echo begun; exec sleep 1000");
        let error = output_within(&mut hangs, Duration::from_secs(5));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("has not ended") && error.ends_with("begun"), "{error}");
    }

    #[test]
    fn a_process_left_behind_with_the_output_open_delays_nothing() {
        let said = output(&mut shell("sleep 1000 & echo $!")).unwrap();
        let pid = String::from_utf8(said.stdout).unwrap();
        run(Command::new("kill").arg(pid.trim())).unwrap();
    }
}
