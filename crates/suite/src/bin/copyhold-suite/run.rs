//! A group of tests: its setup, its tests, its cleanup.
//!
//! Problem.  A group shares what its setup made. Tests without it fail for no reason of their own,
//!           and without its cleanup the next group finds a mount or a file in the way.
//! Idea.     One function plays a group in this order, on a machine behind a trait.
//!
//! PLAY-G1  The cleanup runs once, whatever the setup and the tests did, also after an interrupt.
//! PLAY-G2  If the setup does not pass, each test of the group is SKIP and none is started.
//! PLAY-G3  A script whose limit passed while the machine slept runs once more, and is RERAN.
//! PLAY-G4  Behind a group, no process that it started runs.
//! PLAY-G5  A failsafe that does not pass is reported: what it had to remove may still be there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{On, RunnerError};
use crate::execute::{Execute, Execution, Job};
use crate::plan::{Group, Step};
use crate::verdict::{End, Verdict};

/// The result of one script.
pub(crate) struct Done<'a> {
    pub(crate) group: &'a Group,
    pub(crate) step: &'a Step,
    pub(crate) verdict: Verdict,
    pub(crate) reran: bool,
    pub(crate) took: Duration,
    /// The directory of its output.
    pub(crate) directory: PathBuf,
    /// Output with times; `None` if the script did not run.
    pub(crate) lines: Option<File>,
    /// For people, where the verdict alone does not say it.
    pub(crate) reason: Option<String>,
}

/// Receives results in their order.
pub(crate) trait Report {
    fn report(&mut self, done: Done<'_>) -> Result<(), RunnerError>;
    fn warn(&mut self, text: &str) -> Result<(), RunnerError>;
}

/// Plays a group; output goes below `directory`.
pub(crate) fn play(
    group: &Group,
    directory: &Path,
    machine: &mut dyn Execute,
    report: &mut dyn Report,
) -> Result<(), RunnerError> {
    machine.begin_group()?;
    let mut player = Player { group, directory, machine, report };
    let played = player.setup_and_tests();
    let cleaned = player.cleanup();
    played.and(cleaned)
}

struct Player<'a, 'm> {
    group: &'a Group,
    directory: &'a Path,
    machine: &'m mut dyn Execute,
    report: &'m mut dyn Report,
}

impl Player<'_, '_> {
    fn setup_and_tests(&mut self) -> Result<(), RunnerError> {
        let group = self.group;
        let is_ready = match &group.setup {
            Some(setup) => self.run(setup, true)? == Verdict::Pass,
            None => true,
        };
        for test in &group.tests {
            if self.machine.is_interrupted() {
                return Err(RunnerError::Interrupted);
            }
            match is_ready {
                true => self.run(test, true).map(drop)?,
                false => self.skip(test)?,
            }
        }
        Ok(())
    }

    fn cleanup(&mut self) -> Result<(), RunnerError> {
        let ran =
            self.group.cleanup.as_ref().map_or(Ok(()), |step| self.run(step, false).map(drop));
        for process in self.machine.end_group()? {
            self.report.warn(&format!("{}: left behind and ended: {process}", self.group.name))?;
        }
        ran
    }

    fn run(&mut self, step: &Step, ends_at_interrupt: bool) -> Result<Verdict, RunnerError> {
        let directory = self.directory_of(step)?;
        let job = Job {
            step,
            directory: &directory,
            timeout: self.group.timeout,
            failsafe: self.group.failsafe.as_ref(),
            ends_at_interrupt,
        };
        let mut execution = self.machine.execute(&job)?;
        let is_asleep = execution.end == End::TimedOut { slept: true };
        let reran = is_asleep && !(ends_at_interrupt && self.machine.is_interrupted());
        self.warn_of_failsafe(step, &execution)?;
        if reran {
            execution = self.machine.execute(&job)?;
            self.warn_of_failsafe(step, &execution)?;
        }
        let verdict = execution.end.verdict();
        let reason = execution.end.reason();
        self.report.report(Done {
            group: self.group,
            step,
            verdict,
            reran,
            took: execution.took,
            directory,
            lines: Some(execution.lines),
            reason,
        })?;
        Ok(verdict)
    }

    /// PLAY-G5
    fn warn_of_failsafe(&mut self, step: &Step, execution: &Execution) -> Result<(), RunnerError> {
        let (Some(failsafe), Some(end)) = (&self.group.failsafe, &execution.failsafe) else {
            return Ok(());
        };
        let verdict = end.verdict();
        if verdict == Verdict::Pass {
            return Ok(());
        }
        let reason = end.reason().map_or(String::new(), |reason| format!(": {reason}"));
        let (step, failsafe) = (&step.name, &failsafe.name);
        self.report.warn(&format!("{step}: its failsafe {failsafe} is {}{reason}", verdict.name()))
    }

    fn skip(&mut self, step: &Step) -> Result<(), RunnerError> {
        let directory = self.directory_of(step)?;
        self.report.report(Done {
            group: self.group,
            step,
            verdict: Verdict::Skip,
            reran: false,
            took: Duration::ZERO,
            directory,
            lines: None,
            reason: None,
        })
    }

    /// Made here; for all users, since scripts work in it.
    fn directory_of(&self, step: &Step) -> Result<PathBuf, RunnerError> {
        let name = step.name.trim_start_matches('/');
        let directory = match &self.group.identifier {
            Some(identifier) => self.directory.join(identifier).join(name),
            None => self.directory.join(name),
        };
        fs::create_dir_all(&directory).on(directory.display())?;
        Ok(directory)
    }
}

#[cfg(test)]
mod tests;
