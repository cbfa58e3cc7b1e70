//! `copyhold-bench`: one job on a Copyhold mount and on kernel filesystems, alternately.
//!
//! Problem.  A figure alone says little: machines, neighbours and caches differ from hour to hour.
//! Idea.     The same job runs on Copyhold and on its peers in turn, A, B, A, B …, each time on a
//!           fresh filesystem over a file in the same directory. What counts are medians and their
//!           ratios.
//! Order.    `target` makes a filesystem and takes it away again, whatever happens;
//!           `random_overwrite`, `unshare` and `snapshots` are the jobs; `tenant` is a writer of
//!           theirs, `measured` its times, `counters` what is told of commits and memory; `summary`
//!           turns samples into lines.
//!
//! Beside time it reports device bytes per byte that the job wrote: a benchmark that is over before
//! bookkeeping is due would hide them (P4), so run it with a data set many times the memory for
//! changes, for example `--size 2G --option delta=2M`.

#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "clocks are what a benchmark is about")]

mod counters;
mod direct;
mod error;
mod interrupt;
mod measured;
mod null;
mod random_overwrite;
mod snapshots;
mod summary;
mod target;
mod tenant;
mod unshare;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use error::BenchError;
use interrupt::Interrupt;
use null::Null;
use random_overwrite::{Bounds, Variant};
use snapshots::Snapshots;
use summary::{Sample, Summary};
use target::{Kind, Site};
use unshare::{Background, Unshare};

const EXAMPLES: &str = "\
Examples:
  copyhold-bench random-overwrite
  copyhold-bench random-overwrite --against btrfs,ext4 --rounds 3
  copyhold-bench random-overwrite --size 2G --ops 2000000 --option delta=2M --variants direct
  copyhold-bench unshare --files 200 --snapshots 50 --quota off,simple --against btrfs
  copyhold-bench unshare --files 200 --snapshots 10,100,1000 --rounds 1
  copyhold-bench snapshots --files 100000 --snapshots 1000 --against btrfs";

/// Measure Copyhold, and kernel filesystems beside it
#[derive(Debug, Parser)]
#[command(name = "copyhold-bench", version, after_help = EXAMPLES, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    job: Job,
    #[command(flatten)]
    common: Common,
}

/// What every job takes, before or behind its name.
#[derive(Debug, Args)]
struct Common {
    /// What else to run it on in turn: btrfs, ext4, xfs (root only: they need loop devices), null
    /// (the transport alone: a mount that throws data away)
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    against: Vec<Kind>,
    /// How often each; medians are of these
    #[arg(long, global = true, default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One JSON object a line instead of a table
    #[arg(long, global = true)]
    json: bool,
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
enum Job {
    /// 4 KiB writes at random places of a file that is there
    RandomOverwrite(RandomOverwrite),
    /// Many tenants, each writing into its own snapshot of one subvolume
    Unshare(Unshare),
    /// Snapshots made and deleted, and what a neighbour notices of it
    Snapshots(Snapshots),
    /// A process that `unshare` starts
    #[command(hide = true)]
    Background(Background),
    /// The process that serves the null mount
    #[command(hide = true)]
    Null(Null),
}

#[derive(Clone, Debug, Args)]
struct RandomOverwrite {
    /// Size of the file that is overwritten: a number with K, M or G
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// A variant ends after this many seconds …
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// … or this many writes [default: as many as the file has blocks]
    #[arg(long)]
    ops: Option<u64>,
    /// Which of the job's variants
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Variant::ALL)]
    variants: Vec<Variant>,
}

impl Job {
    fn name(&self) -> &'static str {
        match self {
            Job::RandomOverwrite(_) => "random-overwrite",
            Job::Unshare(_) => "unshare",
            Job::Snapshots(_) => "snapshots",
            Job::Background(_) => "background",
            Job::Null(_) => "null",
        }
    }

    /// What a filesystem holds at most.
    fn data_bytes(&self) -> u64 {
        match self {
            Job::RandomOverwrite(job) => job.size,
            Job::Unshare(job) => job.data_bytes(),
            Job::Snapshots(job) => job.data_bytes(),
            Job::Background(_) | Job::Null(_) => 0,
        }
    }

    /// One round on one kind of filesystem.
    fn run(
        &self,
        site: &Site,
        kind: Kind,
        round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        match self {
            Job::RandomOverwrite(job) => {
                let blocks = job.size / random_overwrite::BLOCK as u64;
                let bounds = Bounds {
                    blocks,
                    ops: job.ops.unwrap_or(blocks),
                    time: std::time::Duration::from_secs(job.seconds),
                };
                let target = site.set_up(kind)?;
                let samples = random_overwrite::run(&target, bounds, &job.variants, interrupt)?;
                target.take_down()?;
                Ok(samples)
            }
            Job::Unshare(job) => {
                let mut samples = Vec::new();
                for each in job.runs(kind, round) {
                    let target = site.set_up(kind)?;
                    samples.extend(job.run(&target, each, interrupt)?);
                    target.take_down()?;
                }
                let compared = summary::compared(&samples, "simple", "off");
                samples.extend(compared);
                Ok(samples)
            }
            Job::Snapshots(job) => {
                let target = site.set_up(kind)?;
                let samples = job.run(&target, interrupt)?;
                target.take_down()?;
                Ok(samples)
            }
            Job::Background(_) | Job::Null(_) => unreachable!("they have no rounds"),
        }
    }
}

fn main() -> ExitCode {
    let command_line = CommandLine::parse();
    match run(&command_line.job, &command_line.common) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copyhold-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(job: &Job, given: &Common) -> Result<(), BenchError> {
    let interrupt = Interrupt::watch()?;
    // Ctrl-C reaches processes that this program started, too; they end with the one that did.
    match job {
        Job::Background(job) => return job.run(),
        Job::Null(job) => return job.run(),
        _ => {}
    }
    let mut kinds = given.against.clone();
    if !given.peers_only {
        kinds.insert(0, Kind::Copyhold);
    }
    kinds.dedup();
    let site = Site::new(&given.dir, given.program.clone(), &given.options, job.data_bytes())?;
    let mut summary = Summary::new(job.name(), &kinds, given.rounds);
    for round in 1..=given.rounds {
        for &kind in &kinds {
            eprintln!("round {round} of {}: {}", given.rounds, kind.name());
            summary.add(kind, job.run(&site, kind, round, &interrupt)?);
        }
    }
    match given.json {
        true => print!("{}", summary.json_lines()),
        false => print!("{}", summary.table()),
    }
    Ok(())
}

fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.chars().last().map(|letter| letter.to_ascii_uppercase()) {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("'{text}' is no size"))?;
    let bytes = number.checked_shl(shift).filter(|bytes| bytes >> shift == number);
    match bytes {
        Some(bytes) if bytes >= 1 << 20 => Ok(bytes),
        Some(_) => Err("at least 1M".into()),
        None => Err(format!("'{text}' is too large")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
        let given = ["x", "random-overwrite", "--against", "btrfs,ext4", "--size", "64M"];
        let given = CommandLine::try_parse_from(given).unwrap();
        assert_eq!(given.common.against, [Kind::Btrfs, Kind::Ext4]);
        assert!(matches!(given.job, Job::RandomOverwrite(job) if job.size == 64 << 20));
        let given = ["x", "--json", "unshare", "--quota", "off,simple", "--against", "xfs"];
        let given = CommandLine::try_parse_from(given).unwrap();
        assert!(given.common.json && matches!(given.job, Job::Unshare(_)));
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for text in ["", "G", "4K", "1T1", "99999999999G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
