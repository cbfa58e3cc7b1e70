//! Plays a scenario on a mounted filesystem and notes what was not as expected.
//!
//! Figures of accounts are exact after a commit. So before the first expectation about accounts
//! that follows a step, everything is synced, and what deleted subvolumes leave is freed.
//!
//! A step that fails is a problem unless an expectation about it follows.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use copyhold_harness::Interrupt;

use crate::error::SuiteError;
use crate::files::{self, Data};
use crate::filesystem::{Filesystem, Row};
use crate::outcome::Outcome;
use crate::scenario::{Action, Expectation, GroupId, GroupName, Kind, Scenario, Step};
use crate::verify;

/// Something else than expected.
#[derive(Debug)]
pub(crate) struct Problem {
    /// Of the scenario's file.
    pub(crate) line: usize,
    pub(crate) message: String,
}

pub(crate) fn play(
    scenario: &Scenario,
    kind: Kind,
    filesystem: &dyn Filesystem,
    interrupt: &Interrupt,
) -> Result<Vec<Problem>, SuiteError> {
    let mut player = Player {
        filesystem,
        names: BTreeMap::new(),
        held: BTreeMap::new(),
        data: Data::new(),
        last: None,
        rows: None,
        is_deleting: false,
        problems: Vec::new(),
    };
    for line in scenario.lines.iter().filter(|line| line.is_for(kind)) {
        interrupt.check()?;
        match &line.action {
            Action::Step(step) => player.step(line.number, step)?,
            Action::Expect(expectation) => player.expect(line.number, expectation)?,
        }
    }
    player.close_step();
    Ok(player.problems)
}

struct Player<'a> {
    filesystem: &'a dyn Filesystem,
    /// Ids of subvolumes by the paths under which they were made.
    names: BTreeMap<PathBuf, u64>,
    held: BTreeMap<PathBuf, File>,
    data: Data,
    last: Option<Last>,
    /// What the accounts are, if nothing happened since.
    rows: Option<Vec<Row>>,
    is_deleting: bool,
    problems: Vec<Problem>,
}

/// The step before.
struct Last {
    line: usize,
    outcome: Outcome,
    is_judged: bool,
}

impl Player<'_> {
    fn step(&mut self, line: usize, step: &Step) -> Result<(), SuiteError> {
        self.close_step();
        self.rows = None;
        let outcome = self.perform(step)?;
        let done = outcome.failure.is_none();
        self.is_deleting |= matches!(step, Step::Delete { .. } | Step::Rollback { .. });
        let made = match step {
            Step::Create { path, .. } | Step::Snapshot { path, .. } => [Some(path), None],
            Step::Rollback { path, keep, .. } => [Some(path), keep.as_ref()],
            _ => [None, None],
        };
        for path in made.into_iter().flatten().filter(|_| done) {
            let id = self.filesystem.subvolume_id(&self.at(path))?;
            self.names.insert(path.clone(), id);
        }
        self.last = Some(Last { line, outcome, is_judged: false });
        Ok(())
    }

    /// A failure that nobody expected is a problem.
    fn close_step(&mut self) {
        let Some(Last { line, outcome, is_judged: false }) = self.last.take() else { return };
        if let Some(failure) = outcome.failure {
            let errno = failure.errno.map(|errno| format!("{errno}, ")).unwrap_or_default();
            let accepted = match outcome.accepted {
                0 => String::new(),
                accepted => format!(" after {accepted}"),
            };
            let message = format!("failed{accepted}: {errno}{}", failure.says);
            self.problems.push(Problem { line, message });
        }
    }

    fn expect(&mut self, line: usize, expectation: &Expectation) -> Result<(), SuiteError> {
        let found = if expectation.is_of_a_step() {
            let last = self.last.as_mut().expect("PARSE-S2: the parser wants a step before");
            last.is_judged |= matches!(expectation, Expectation::Errno(_));
            verify::step(expectation, &last.outcome)
        } else {
            self.close_step();
            if self.rows.is_none() {
                self.rows = Some(self.settle()?);
            }
            let top = GroupId::of_subvolume(self.filesystem.subvolume_id(&self.at(Path::new("")))?);
            let rows = self.rows.as_deref().unwrap_or_default();
            verify::accounts(expectation, rows, top, &|name| self.group(name))?
        };
        self.problems.extend(found.map(|message| Problem { line, message }));
        Ok(())
    }

    fn settle(&mut self) -> Result<Vec<Row>, SuiteError> {
        self.filesystem.sync()?;
        if std::mem::take(&mut self.is_deleting) {
            self.filesystem.finish_deletions()?;
        }
        self.filesystem.accounts()
    }

    fn at(&self, path: &Path) -> PathBuf {
        let mount_point = self.filesystem.mount_point();
        if path.as_os_str().is_empty() { mount_point.to_owned() } else { mount_point.join(path) }
    }

    fn group(&self, name: &GroupName) -> Result<GroupId, SuiteError> {
        match name {
            GroupName::Id(id) => Ok(*id),
            GroupName::Subvolume(path) => {
                let id = self.names.get(path);
                let unknown = || SuiteError::UnknownName(path.display().to_string());
                id.map(|&id| GroupId::of_subvolume(id)).ok_or_else(unknown)
            }
        }
    }

    fn perform(&mut self, step: &Step) -> Result<Outcome, SuiteError> {
        let outcome = match step {
            Step::Write { path, span, how } => {
                files::write(&self.at(path), *span, *how, &mut self.data)
            }
            Step::Overwrite { path, span, how } => {
                files::overwrite(&self.at(path), *span, *how, &mut self.data)
            }
            Step::Files { directory, count, bytes } => {
                files::make_many(&self.at(directory), *count, *bytes, &mut self.data)
            }
            Step::Fallocate { path, span } => files::fallocate(&self.at(path), *span),
            Step::Punch { path, span } => files::punch(&self.at(path), *span),
            Step::Truncate { path, bytes } => files::truncate(&self.at(path), *bytes),
            Step::Clear { directory } => files::clear(&self.at(directory)),
            Step::Unlink { path } => Outcome::of(fs::remove_file(self.at(path))),
            Step::Mkdir { path } => Outcome::of(fs::create_dir(self.at(path))),
            Step::Symlink { path } => {
                Outcome::of(std::os::unix::fs::symlink("somewhere", self.at(path)))
            }
            Step::Link { source, path } => {
                Outcome::of(fs::hard_link(self.at(source), self.at(path)))
            }
            Step::Rename { source, path } => {
                Outcome::of(fs::rename(self.at(source), self.at(path)))
            }
            Step::Chmod { path, mode } => files::chmod(&self.at(path), *mode),
            Step::Setxattr { path, bytes } => files::setxattr(&self.at(path), *bytes),
            Step::Reflink { source, path } => files::reflink(&self.at(source), &self.at(path)),
            Step::Dedupe { source, path } => {
                self.filesystem.deduplicate(&self.at(source), &self.at(path))?
            }
            Step::Defragment { path } => self.filesystem.defragment(&self.at(path))?,
            Step::Open { path } => {
                let opened = File::open(self.at(path));
                Outcome::of(opened.map(|file| drop(self.held.insert(path.clone(), file))))
            }
            Step::Close { path } => {
                self.held.remove(path);
                Outcome::default()
            }
            Step::Sync => {
                self.filesystem.sync()?;
                Outcome::default()
            }
            Step::Remount => {
                self.held.clear();
                self.filesystem.remount()?;
                Outcome::default()
            }
            Step::Enable => self.filesystem.enable()?,
            step => return self.ask(step),
        };
        Ok(outcome)
    }

    /// What the filesystem's program does.
    fn ask(&self, step: &Step) -> Result<Outcome, SuiteError> {
        let mut program = self.filesystem.program();
        let mount_point = self.filesystem.mount_point();
        match step {
            Step::Create { path, groups } => {
                program.args(["subvolume", "create"]);
                self.in_groups(&mut program, groups)?;
                program.arg(self.at(path));
            }
            Step::Snapshot { source, path, readonly, groups } => {
                program.args(["subvolume", "snapshot"]);
                if *readonly {
                    program.arg("-r");
                }
                self.in_groups(&mut program, groups)?;
                program.arg(self.at(source)).arg(self.at(path));
            }
            Step::Delete { path, heir } => {
                program.args(["subvolume", "delete"]);
                if let Some(heir) = heir {
                    program.arg("--heir").arg(self.at(heir));
                }
                program.arg(self.at(path));
            }
            Step::Rollback { path, snapshot, keep } => {
                program.args(["subvolume", "rollback"]);
                if let Some(keep) = keep {
                    program.arg("--keep").arg(self.at(keep));
                }
                program.arg(self.at(path)).arg(self.at(snapshot));
            }
            Step::Disable => {
                program.args(["quota", "disable"]).arg(mount_point);
            }
            Step::Rescan => {
                program.args(["quota", "rescan"]).arg(mount_point);
            }
            Step::Limit { group, bytes } => {
                let limit = bytes.map_or("none".to_owned(), |bytes| bytes.to_string());
                let group = self.group(group)?.to_string();
                program.args(["qgroup", "limit", &limit, &group]).arg(mount_point);
            }
            Step::GroupCreate { group } => self.of_groups(&mut program, "create", &[group])?,
            Step::GroupDestroy { group } => self.of_groups(&mut program, "destroy", &[group])?,
            Step::GroupAssign { member, group } => {
                self.of_groups(&mut program, "assign", &[member, group])?;
            }
            Step::GroupRemove { member, group } => {
                self.of_groups(&mut program, "remove", &[member, group])?;
            }
            other => unreachable!("{other:?} is done by a call"),
        }
        Outcome::of_command(&mut program)
    }

    fn in_groups(&self, program: &mut Command, groups: &[GroupName]) -> Result<(), SuiteError> {
        for group in groups {
            program.args(["-i", &self.group(group)?.to_string()]);
        }
        Ok(())
    }

    fn of_groups(
        &self,
        program: &mut Command,
        verb: &str,
        groups: &[&GroupName],
    ) -> Result<(), SuiteError> {
        program.args(["qgroup", verb]);
        for group in groups {
            program.arg(self.group(group)?.to_string());
        }
        program.arg(self.filesystem.mount_point());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
