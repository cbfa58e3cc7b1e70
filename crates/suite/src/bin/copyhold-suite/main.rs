//! `copyhold-suite`: runs the functional suite, as the runner of OpenZFS's test suite does.
//!
//! Problem.  Users do things to a pool with programs, in an order, beside each other, and with the
//!           daemon killed in between. Tests of that are scripts. Scripts hang, leave mounts
//!           behind, run as other users, and do not apply on each machine.
//! Idea.     Scripts are in groups with a setup and a cleanup. Runfiles list them; the runner
//!           chooses groups by tags, runs each script in a directory of its own, ends it at its
//!           limit with all that it started, and reports in the form that the runner of OpenZFS
//!           has, so tools for that one read it.
//! Order.    `runfile` (`list`, `outline`) parses; `plan` finds scripts; `select` chooses and
//!           shuffles; `run` plays a group; `execute` (`capture`, `descent`, `account`, `clock`)
//!           runs one script; `verdict` judges its end; `known` compares with known failures;
//!           `results` (`console`, `junit`) reports.

#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it waits for other processes")]

mod account;
mod capture;
mod clock;
mod command_line;
mod console;
mod descent;
mod error;
mod execute;
mod junit;
mod known;
mod list;
mod outline;
mod plan;
mod results;
mod run;
mod runfile;
mod select;
mod verdict;

#[cfg(test)]
mod alone;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Parser;
use clap::error::ErrorKind;
use copyhold_harness::{Interrupt, Place, Program};

use account::Account;
use clock::SystemClock;
use command_line::CommandLine;
use error::{On, RunnerError};
use execute::Machine;
use known::Known;
use plan::Group;
use results::{Results, Show};
use runfile::Runfile;
use verdict::Status;

/// Directories of runs, for pools and mounts.
const PREFIX: &str = "copyhold-suite-";

fn main() -> ExitCode {
    let given = match CommandLine::try_parse() {
        Ok(given) => given,
        Err(error) => {
            let is_help =
                matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let _closed = error.print();
            return code(if is_help { Status::Good } else { Status::RunnerFailed });
        }
    };
    code(run(&given).unwrap_or_else(|error| {
        eprintln!("copyhold-suite: {error}");
        Status::RunnerFailed
    }))
}

fn code(status: Status) -> ExitCode {
    ExitCode::from(status as u8)
}

fn run(given: &CommandLine) -> Result<Status, RunnerError> {
    let interrupt = Interrupt::watch()?;
    let runfile = Runfile::read(&given.runfiles)?;
    let root = given.root()?;
    let all = plan::groups(&runfile, &root);
    let groups = match given.tests.as_slice() {
        [] => select::by_tags(all.clone(), &given.tags),
        names => select::by_names(&all, names, &root, &runfile.defaults)?,
    };
    let groups = given.as_user(groups);
    if groups.iter().all(|group| group.tests.is_empty()) {
        eprintln!("copyhold-suite: no test of the runfiles is selected");
        return Ok(Status::NothingRan);
    }
    if given.dry_run {
        return Ok(list(groups, given.seed));
    }
    let known = given.known.as_deref().map_or(Ok(Known::default()), |file| Known::read(file, &all));
    Run { given, root, known: known?, outputdir: given.outputdir(&runfile.defaults) }
        .play(groups, &interrupt)
}

/// The scripts of a run in their order, with the problems that are seen without starting them. If
/// there are any, the status is that of a run in which they fail.
fn list(mut groups: Vec<Group>, seed: Option<u64>) -> Status {
    if let Some(seed) = seed {
        select::shuffle(&mut groups, seed);
    }
    let mut status = Status::Good;
    for group in &groups {
        for step in group.steps() {
            let user = if step.user.is_empty() { String::new() } else { format!(" {}", step.user) };
            println!("{}{user}", step.name);
        }
        for problem in group.problems() {
            eprintln!("copyhold-suite: {problem}");
            status = Status::Failed;
        }
    }
    status
}

struct Run<'a> {
    given: &'a CommandLine,
    root: PathBuf,
    known: Known,
    outputdir: PathBuf,
}

impl Run<'_> {
    fn play(&self, groups: Vec<Group>, interrupt: &Interrupt) -> Result<Status, RunnerError> {
        if self.given.clean {
            for directory in Place::remove_left_over(&self.given.directory, PREFIX)? {
                eprintln!("copyhold-suite: removed {}", directory.display());
            }
        }
        if let Some(problem) = groups.iter().find_map(Group::problem_of_failsafe) {
            return Err(RunnerError::Failsafe(problem));
        }
        descent::adopt_orphans().on("orphans")?;
        let own = Account::own()?;
        let program = Program::given_or_beside(self.given.program.clone())?;
        let program = program.path().canonicalize().on(program.path().display())?;
        let place = Place::new(&self.given.directory, PREFIX)?;
        place.open_to_all()?;
        let mut machine = Machine {
            clock: &SystemClock,
            interrupt,
            environment: self.environment(&program, &place),
            own: own.clone(),
            grace: Duration::from_secs(self.given.grace),
            before_group: BTreeSet::new(),
        };
        let mut statuses = Vec::new();
        let mut cases = Vec::new();
        for iteration in 0..self.given.iterations {
            let mut groups = groups.clone();
            if let Some(seed) = self.given.seed {
                select::shuffle(&mut groups, seed.wrapping_add(iteration));
            }
            let (status, mut of_run) = self.once(&groups, &mut machine, &own.name)?;
            statuses.push(status);
            cases.append(&mut of_run);
        }
        if let Some(file) = &self.given.junit {
            junit::write(file, &cases)?;
        }
        Ok(worst(&statuses))
    }

    /// One iteration.
    fn once(
        &self,
        groups: &[Group],
        machine: &mut Machine<'_>,
        own: &str,
    ) -> Result<(Status, Vec<junit::Case>), RunnerError> {
        let show = Show { quiet: self.given.quiet, json: self.given.json };
        let now = SystemTime::now();
        let mut results = Results::begin(&self.outputdir, now, show, &self.known, own)?;
        let directory = results.directory().to_owned();
        let begin = machine.clock.now();
        let mut played = Ok(());
        for group in groups {
            played = run::play(group, &directory, machine, &mut results);
            if played.is_err() {
                break;
            }
        }
        let took = machine.clock.now().passed.saturating_sub(begin.passed);
        let ended = results.end(took);
        played.and(ended)
    }

    /// For scripts: the program, the directory for pools and mounts, the suite.
    fn environment(&self, program: &Path, place: &Place) -> Vec<(&'static str, OsString)> {
        vec![
            ("COPYHOLD", program.into()),
            ("SUITE_DIR", place.path().into()),
            ("SUITE_ROOT", self.root.clone().into()),
        ]
    }
}

/// Of several runs: one that failed, then one that had only reruns.
fn worst(statuses: &[Status]) -> Status {
    let order = [Status::Failed, Status::OnlyReran, Status::Good];
    order.into_iter().find(|status| statuses.contains(status)).unwrap_or(Status::NothingRan)
}
