//! `copyhold-bench`: one job on a Copyhold mount and on kernel filesystems, alternately.
//!
//! Problem.  A figure alone says little: machines, neighbours and caches differ from hour to hour.
//! Idea.     The same job runs on Copyhold and on its peers in turn, A, B, A, B …, each time on a
//!           fresh filesystem over a file in the same directory. What counts are medians and their
//!           ratios.
//! Order.    `target` makes a filesystem and takes it away again, whatever happens, `traffic` and
//!           `counters` are what is told of it; `job` is what every job is, and each has a file of
//!           its name; `places`, `direct` and `clients` are how they reach files, `meter` their
//!           rates; `summary` turns samples into lines, `machine` says where, `plot` draws them.
//!           `core_list` is the jobs that a change is judged by. `tenant` and `measured` are of
//!           those with many snapshots. `own_process` runs hidden jobs beside the measured one.
//!
//! Beside time it reports device bytes per byte that the job wrote: a benchmark that is over before
//! bookkeeping is due would hide them (P4), so run it with a data set many times the memory for
//! changes, for example `--size 2G --option delta=2M`.
//!
//! What a filesystem cannot do is left out, and the summary says so.

#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "clocks are what a benchmark is about")]

mod aged;
mod busy;
mod cargo_build;
mod clients;
mod core_list;
mod counters;
mod device_limit;
mod direct;
mod error;
mod files;
mod groups;
mod integrity;
mod job;
mod judgement;
mod listing;
mod machine;
mod measured;
mod memory;
mod meter;
mod names;
mod null;
mod own_process;
mod places;
mod plot;
mod random_overwrite;
mod random_read;
mod recovery;
mod rogue;
mod sample;
mod sequential;
mod size;
mod snapshots;
mod sqlite;
mod summary;
mod target;
mod tenant;
mod traffic;
mod tree;
mod unshare;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use copyhold_harness::Interrupt;

use aged::Aged;
use cargo_build::CargoBuild;
use error::{BenchError, On};
use files::Files;
use groups::Groups;
use integrity::Integrity;
use job::Job;
use listing::Listing;
use machine::Machine;
use memory::Memory;
use names::Names;
use null::Null;
use random_overwrite::RandomOverwrite;
use random_read::RandomRead;
use recovery::Recovery;
use rogue::{Rogue, RogueTenant};
use sequential::Sequential;
use snapshots::Snapshots;
use sqlite::Sqlite;
use summary::{Metric, Summary};
use target::{Kind, Site};
use tree::Tree;
use unshare::{Background, Unshare};

const EXAMPLES: &str = "\
Examples:
  copyhold-bench core --against null,btrfs,ext4 --plot core.svg
  copyhold-bench random-overwrite
  copyhold-bench random-overwrite --against btrfs,ext4 --rounds 3
  copyhold-bench random-overwrite --size 2G --ops 2000000 --option delta=2M --variants direct
  copyhold-bench sequential --clients 1,2,4 --against null,ext4
  copyhold-bench files --files 100000 --directories 1,1000 --against null,btrfs
  copyhold-bench listing --files 1000000 --against btrfs,ext4 --rounds 1
  copyhold-bench tree --files 60000 --against btrfs
  copyhold-bench memory --files 1000000 --rounds 1
  copyhold-bench unshare --files 200 --snapshots 50 --quota off,simple --against btrfs
  copyhold-bench unshare --files 200 --snapshots 10,100,1000 --rounds 1
  copyhold-bench snapshots --files 100000 --snapshots 1000 --against btrfs
  copyhold-bench groups --clones 100 --option memory=1G
  copyhold-bench names --create 2000000 --limit 500000 --rounds 1
  copyhold-bench names --create 0 --process 10000000 --process-limit 1600000
  copyhold-bench groups --curve --option memory=512M --rounds 1 --plot curve.svg
  copyhold-bench groups --rogue write,create,walk,read --arms on,off --option memory=512M
  copyhold-bench integrity --against btrfs,ext4 --option delta=25M
  copyhold-bench aged --against btrfs,ext4 --plot aged.svg
  copyhold-bench aged --size 512M --metaslab 1M --arms default,spacelog=off
  copyhold-bench rogue --kinds limit,xattr,queue --seconds 10 --plot rogue.svg";

/// Measure Copyhold, and kernel filesystems beside it
#[derive(Debug, Parser)]
#[command(name = "copyhold-bench", version, after_help = EXAMPLES, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    job: Given,
    #[command(flatten)]
    common: Common,
}

/// What every job takes, before or behind its name.
#[derive(Debug, Args)]
struct Common {
    /// What else to run it on in turn; what cannot be run on is left out with a note
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    against: Vec<Kind>,
    /// How often each; medians are of these
    #[arg(long, global = true, default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One JSON object a line instead of a table
    #[arg(long, global = true)]
    json: bool,
    /// Draw the figures as well, as bars, into this file
    #[arg(long, global = true, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Mount option for Copyhold, as behind -o; may be repeated
    #[arg(long = "option", global = true, value_name = "OPTION")]
    options: Vec<String>,
    /// Where the files that hold the filesystems go
    #[arg(long, global = true, default_value = ".")]
    dir: PathBuf,
    /// The program [default: `copyhold` beside this one]
    #[arg(long, global = true)]
    program: Option<PathBuf>,
    /// Leave Copyhold out
    #[arg(long, global = true, hide = true)]
    peers_only: bool,
}

#[derive(Debug, Subcommand)]
enum Given {
    /// All of the following up to `recovery`, with sizes that keep it to minutes
    Core,
    /// 4 KiB writes at random places of a file that is there
    RandomOverwrite(RandomOverwrite),
    /// 4 KiB reads at random places: direct, and from the page cache
    RandomRead(RandomRead),
    /// A file written and read in order: direct, buffered, cold and warm
    Sequential(Sequential),
    /// Many empty files: create, stat, missing names, listing, rename, unlink
    Files(Files),
    /// A source tree: untar, git, grep -r, rm -rf
    Tree(Tree),
    /// Commits of SQLite, with both of its kinds of log
    Sqlite(Sqlite),
    /// A workspace built by cargo, and built again when something has changed
    CargoBuild(CargoBuild),
    /// A mount after the daemon was killed with a full log
    Recovery(Recovery),
    /// The daemon's memory with many files looked up
    Memory(Memory),
    /// Many tenants, each writing into its own snapshot of one subvolume
    Unshare(Unshare),
    /// Snapshots made and deleted, and what a neighbour notices of it
    Snapshots(Snapshots),
    /// The daemon's memory, as tenants share it
    Groups(Groups),
    /// Names that do not exist, with a limit and without
    Names(Names),
    /// Random overwrites with each way of checksums
    Integrity(Integrity),
    /// An aged pool: the log of space maps and its flushes, with each mount option
    Aged(Aged),
    /// A large directory, listed cold with the attributes of its entries
    Listing(Listing),
    /// The waiting times of a tenant, alone and beside each kind of rogue
    Rogue(Rogue),
    /// A process that `unshare` starts
    #[command(hide = true)]
    Background(Background),
    /// The process of a rogue
    #[command(hide = true)]
    RogueTenant(RogueTenant),
    /// The process that serves the null mount
    #[command(hide = true)]
    Null(Null),
}

/// That of the program, so that the null store has the same.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let CommandLine { job, common } = CommandLine::parse();
    match run(job, &common) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copyhold-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(job: Given, common: &Common) -> Result<(), BenchError> {
    let interrupt = Interrupt::watch()?;
    // Ctrl-C reaches processes that this program started, too; they end with the one that did.
    let jobs: Vec<Box<dyn Job>> = match job {
        Given::Background(job) => return job.run(),
        Given::Null(job) => return job.run(),
        Given::RogueTenant(job) => return job.run(&interrupt),
        Given::Core => core_list::jobs(),
        Given::RandomOverwrite(job) => vec![Box::new(job)],
        Given::RandomRead(job) => vec![Box::new(job)],
        Given::Sequential(job) => vec![Box::new(job)],
        Given::Files(job) => vec![Box::new(job)],
        Given::Tree(job) => vec![Box::new(job)],
        Given::Sqlite(job) => vec![Box::new(job)],
        Given::CargoBuild(job) => vec![Box::new(job)],
        Given::Recovery(job) => vec![Box::new(job)],
        Given::Memory(job) => vec![Box::new(job)],
        Given::Unshare(job) => vec![Box::new(job)],
        Given::Snapshots(job) => vec![Box::new(job)],
        Given::Groups(job) => vec![Box::new(job)],
        Given::Names(job) => vec![Box::new(job)],
        Given::Integrity(job) => vec![Box::new(job)],
        Given::Aged(job) => vec![Box::new(job)],
        Given::Listing(job) => vec![Box::new(job)],
        Given::Rogue(job) => vec![Box::new(job)],
    };
    measure(&jobs, common, &interrupt)
}

/// All rounds of all jobs, and what came out.
fn measure(
    jobs: &[Box<dyn Job>],
    common: &Common,
    interrupt: &Interrupt,
) -> Result<(), BenchError> {
    let machine = Machine::now()?;
    let most = jobs.iter().map(|job| job.data_bytes()).max().unwrap_or_default();
    let site = Site::new(&common.dir, common.program.clone(), &common.options, most)?;
    let kinds = common.kinds();
    let mut summary = Summary::new(machine, &kinds, common.rounds);
    let mut failed = BTreeSet::new();
    for job in jobs {
        for round in 1..=common.rounds {
            for &kind in &kinds {
                if failed.contains(&(job.name(), kind)) {
                    continue;
                }
                if let Some(why) = kind.missing().or(job.left_out(kind).map(String::from)) {
                    site.note(job.name(), kind, &why);
                    continue;
                }
                eprintln!("{}: round {round} of {}: {}", job.name(), common.rounds, kind.name());
                match job.round(&site, kind, round, interrupt) {
                    Ok(samples) => summary.add(job.name(), kind, samples),
                    Err(error) if error.is_interrupt() => return Err(error),
                    // The figures of the others took long, and are good.
                    Err(error) => {
                        eprintln!("{}: {}: {error}", job.name(), kind.name());
                        site.note(job.name(), kind, &format!("round {round} failed: {error}"));
                        failed.insert((job.name(), kind));
                    }
                }
            }
        }
    }
    if let Some(path) = &common.plot {
        let is_drawn =
            |of: &Metric| jobs.iter().all(|job| job.name() != of.job || job.is_drawn(&of.name));
        fs::write(path, plot::svg(&summary, is_drawn)).on(path.display())?;
    }
    for job in jobs {
        let median = |kind: Kind, metric: &str| summary.median(job.name(), kind, metric);
        let judgements = job.judgements(&median);
        summary.judge(job.name(), judgements);
    }
    match common.json {
        true => print!("{}", summary.json_lines(&site.notes())),
        false => print!("{}", summary.table(&site.notes())),
    }
    if failed.is_empty() { Ok(()) } else { Err(BenchError::Failed(failed.len())) }
}

impl Common {
    /// What to run on, in turn.
    fn kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        let ours = (!self.peers_only).then_some(Kind::Copyhold);
        for kind in ours.into_iter().chain(self.against.iter().copied()) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
        let given = ["x", "random-overwrite", "--against", "btrfs,ext4,btrfs", "--size", "64M"];
        let given = CommandLine::try_parse_from(given).unwrap();
        assert_eq!(given.common.kinds(), [Kind::Copyhold, Kind::Btrfs, Kind::Ext4]);
        assert!(matches!(given.job, Given::RandomOverwrite(job) if job.data_bytes() == 64 << 20));
        let given = ["x", "--json", "unshare", "--quota", "off,simple", "--against", "xfs"];
        let given = CommandLine::try_parse_from(given).unwrap();
        assert!(given.common.json && matches!(given.job, Given::Unshare(_)));
    }
}
