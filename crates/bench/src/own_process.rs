//! Another process of this program, for work that must not share one with the measurement.
//!
//! The process runs a job that help does not show. It writes `ready` when its work has begun, and
//! ends when its standard input does, which happens in any case when its parent is gone. Between
//! these, both exchange lines.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use copyhold_harness::HarnessError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{BenchError, On};

pub(crate) const READY: &str = "ready";

/// Dropping it ends the process, and returns when it has ended.
pub(crate) struct OwnProcess {
    job: &'static str,
    child: Child,
    output: BufReader<ChildStdout>,
}

impl OwnProcess {
    pub(crate) fn start(
        job: &'static str,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<OwnProcess, BenchError> {
        let program = std::env::current_exe().on("this program")?;
        let mut command = Command::new(program);
        command.arg(job).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().on(job)?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(OwnProcess { job, child, output })
    }

    /// Returns when its work has begun.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), BenchError> {
        match self.line()?.as_str() {
            READY => Ok(()),
            _ => Err(self.no_answer()),
        }
    }

    /// Sends an empty line, and returns the line that answers it.
    pub(crate) fn ask(&mut self) -> Result<String, BenchError> {
        let ask = self.child.stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(b"\n"));
        ask.on(self.job)?;
        self.line()
    }

    pub(crate) fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.output.read_line(&mut line).on(self.job)?;
        Ok(line.trim().to_owned())
    }

    /// The error of a line that has not the expected form.
    pub(crate) fn no_answer(&self) -> BenchError {
        BenchError::NoAnswer(self.job)
    }

    /// Asks for the end, and does not wait for it.
    pub(crate) fn close(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Returns when the process has ended.
    pub(crate) fn wait(&mut self) -> Result<(), BenchError> {
        self.close();
        let status = self.child.wait().on(self.job)?;
        if status.success() {
            return Ok(());
        }
        let command = format!("copyhold-bench {}", self.job);
        let (status, says) = (status.to_string(), "see above".into());
        Err(HarnessError::Failed { command, status, says }.into())
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        // A process that has been waited for reports the same status again.
        drop(self.wait());
    }
}

/// Writes a line to the parent.
pub(crate) fn say(line: &dyn std::fmt::Display) -> Result<(), BenchError> {
    let mut output = io::stdout();
    writeln!(output, "{line}").and_then(|()| output.flush()).on("standard output")
}

/// Raises the limit of open files as far as it goes; how many that are.
pub(crate) fn raise_open_files() -> Result<u64, BenchError> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).on("the limit of files")?;
    Ok(maximum.unwrap_or(u64::MAX))
}
