//! The program `copyhold`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::command::{self, PATIENCE};
use crate::daemon::Daemon;
use crate::error::{HarnessError, On};

#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    patience: Duration,
}

impl Program {
    pub fn at(path: impl Into<PathBuf>) -> Program {
        Program { path: path.into(), patience: PATIENCE }
    }

    /// The path of a command line, or else `copyhold` beside the running program.
    pub fn given_or_beside(path: Option<PathBuf>) -> Result<Program, HarnessError> {
        let beside = || std::env::current_exe().map(|exe| exe.with_file_name("copyhold"));
        let path = path.map_or_else(beside, Ok).on("this program")?;
        Ok(Program::at(path))
    }

    /// With another time limit for each command.
    pub fn within(self, patience: Duration) -> Program {
        Program { patience, ..self }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A command without arguments yet.
    pub fn command(&self) -> Command {
        Command::new(&self.path)
    }

    /// Runs a verb with its options, then paths. Answers and errors are JSON.
    pub fn ask(&self, verb: &[&str], paths: &[&Path]) -> Result<Output, HarnessError> {
        command::output_within(&mut self.json(verb, paths), self.patience)
    }

    /// As `ask`, but a failure of the program is an error. Returns the standard output.
    pub fn run(&self, verb: &[&str], paths: &[&Path]) -> Result<String, HarnessError> {
        let mut command = self.json(verb, paths);
        let output = command::output_within(&mut command, self.patience)?;
        command::require_success(&command, output)
    }

    /// The answer of `copyhold info` for the mount at `mount_point`.
    pub fn info(&self, mount_point: &Path) -> Result<Value, HarnessError> {
        let answer = self.run(&["info"], &[mount_point])?;
        serde_json::from_str(&answer).map_err(|_| self.unusable(mount_point, "JSON", answer))
    }

    /// The process that serves the mount.
    pub fn daemon(&self, mount_point: &Path) -> Result<Daemon, HarnessError> {
        let info = self.info(mount_point)?;
        let pid = info.get("pid").and_then(Value::as_i64).and_then(|pid| i32::try_from(pid).ok());
        Daemon::of(pid.ok_or_else(|| self.unusable(mount_point, "`pid`", info.to_string()))?)
    }

    fn json(&self, verb: &[&str], paths: &[&Path]) -> Command {
        let mut command = self.command();
        command.arg("--json").args(verb).args(paths);
        command
    }

    fn unusable(&self, mount_point: &Path, field: &'static str, answer: String) -> HarnessError {
        let command = command::show(&self.json(&["info"], &[mount_point]));
        HarnessError::Answer { command, field, answer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_not_understood_are_in_the_error() {
        let error = Program::at("echo").daemon(Path::new("/mnt")).unwrap_err().to_string();
        let expected = "`echo --json info /mnt` printed no JSON: --json info /mnt";
        assert!(error.starts_with(expected), "{error}");
        let error = Program::at("false").run(&["check"], &[Path::new("/pool")]).unwrap_err();
        let expected = "`false --json check /pool` failed (exit status: 1): no output";
        assert_eq!(error.to_string(), expected);
    }
}
