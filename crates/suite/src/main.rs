//! `copyhold-scenarios`: the cases of quotas as files, played on Copyhold and on kernel btrfs.
//!
//! Problem.  Who pays for what after a snapshot, a clone, a deletion is a matter of dozens of small
//!           cases; prose and unit tests drift away from what a mount does.
//! Idea.     Each case is a file that reads like the case: steps, and what is expected. It is
//!           played on the original as well, so what we say of it is true. Where Copyhold differs
//!           the file says why.
//! Order.    `parse` reads a `scenario`; `btrfs` and `copyhold` make a `filesystem`;
//!           `play` performs steps (`files`) and lets `verify` compare; `report` tells.

#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "waits for the kernel's cleaner")]

mod amount;
mod btrfs;
mod copyhold;
mod errno;
mod error;
mod files;
mod filesystem;
mod ioctl;
mod library;
mod outcome;
mod parse;
mod play;
mod report;
mod scenario;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use copyhold_harness::{HarnessError, Interrupt, Program};

use btrfs::Btrfs;
use copyhold::Copyhold;
use error::{On, SuiteError};
use filesystem::Filesystem;
use library::Entry;
use play::Problem;
use report::Play;
use scenario::Kind;

const EXAMPLES: &str = "\
Examples:
  copyhold-scenarios crates/suite/scenarios
  copyhold-scenarios crates/suite/scenarios --target btrfs
  copyhold-scenarios one.scenario --target copyhold,btrfs --json";

/// Play scenarios of quotas on Copyhold and on kernel btrfs
#[derive(Debug, Parser)]
#[command(name = "copyhold-scenarios", version, after_help = EXAMPLES, max_term_width = 100)]
struct CommandLine {
    /// Files, or directories of files that end in .scenario
    #[arg(required = true)]
    scenarios: Vec<PathBuf>,
    /// What to play them on: copyhold, btrfs (root only: it needs a loop device)
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Copyhold])]
    target: Vec<Kind>,
    /// One JSON object a line for each play instead of a table
    #[arg(long)]
    json: bool,
    /// Where the files that hold the filesystems go [default: the system's for temporary files]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The program [default: `copyhold` beside this one]
    #[arg(long)]
    program: Option<PathBuf>,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

fn main() -> ExitCode {
    match run(&CommandLine::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("copyhold-scenarios: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all was as expected.
fn run(given: &CommandLine) -> Result<bool, SuiteError> {
    let interrupt = Interrupt::watch()?;
    let entries = library::load(&given.scenarios)?;
    let directory = given.dir.clone().unwrap_or_else(std::env::temp_dir);
    let site = Site {
        directory: directory.canonicalize().on(directory.display())?,
        program: Program::given_or_beside(given.program.clone())?,
    };
    let mut plays = Vec::new();
    for entry in &entries {
        for &kind in &given.target {
            let play = match site.play(entry, kind, &interrupt) {
                Err(error @ SuiteError::NotRoot) => return Err(error),
                Err(error @ SuiteError::Harness(HarnessError::Interrupted)) => return Err(error),
                Err(error) => Play::failed(entry, kind, error.to_string()),
                Ok(None) => Play::not_here(entry, kind),
                Ok(Some(problems)) => Play::of(entry, kind, &problems),
            };
            match given.json {
                true => println!("{}", play.json()),
                false => eprintln!("{}", play.progress()),
            }
            plays.push(play);
        }
    }
    if !given.json {
        print!("\n{}", report::table(&plays));
    }
    Ok(!plays.iter().any(Play::has_failed))
}

/// Where filesystems are made, and with what.
struct Site {
    directory: PathBuf,
    program: Program,
}

impl Site {
    /// On a filesystem of its own; `None` where the scenario is for another target.
    fn play(
        &self,
        entry: &Entry,
        kind: Kind,
        interrupt: &Interrupt,
    ) -> Result<Option<Vec<Problem>>, SuiteError> {
        let scenario = &entry.scenario;
        if scenario.only.as_ref().is_some_and(|(only, _)| *only != kind) {
            return Ok(None);
        }
        let options = scenario.options.iter().find(|(of, _)| *of == kind);
        let options = options.map(|(_, options)| options.as_str());
        let (directory, bytes) = (&self.directory, scenario.bytes);
        let filesystem: Box<dyn Filesystem> = match kind {
            Kind::Copyhold => Box::new(Copyhold::make(&self.program, directory, bytes, options)?),
            Kind::Btrfs => Box::new(Btrfs::make(directory, bytes, options)?),
        };
        let problems = play::play(scenario, kind, &*filesystem, interrupt);
        let down = filesystem.take_down();
        problems.and_then(|problems| down.map(|()| Some(problems)))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
        let given = CommandLine::try_parse_from(["x", "a", "--target", "copyhold,btrfs"]).unwrap();
        assert_eq!(given.target, [Kind::Copyhold, Kind::Btrfs]);
    }
}
