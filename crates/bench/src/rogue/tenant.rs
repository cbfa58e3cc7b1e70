//! The process of a rogue: its threads, until standard input ends, and the count of their calls.
//!
//! It writes `ready` when all threads have begun, and at the end one line of JSON: a `Report`. A
//! failed call does not end a thread. A rogue that fails all the time is still one.

use std::io::{self, Read};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use copyhold_harness::Interrupt;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::kind::RogueKind;
use super::setting::{Setting, Step};
use super::sizes::Sizes;
use crate::error::{BenchError, On};
use crate::own_process::{READY, raise_open_files, say};
use crate::sample::Sample;
use crate::target::Kind;

/// A rogue may have thousands of threads.
const STACK_BYTES: usize = 256 << 10;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RogueTenant {
    /// The root of the rogue's subvolume
    #[arg(long)]
    directory: PathBuf,
    #[arg(long, value_enum)]
    kind: RogueKind,
    /// Snapshots are made by the ioctls of btrfs
    #[arg(long)]
    btrfs: bool,
    #[command(flatten)]
    sizes: Sizes,
}

/// Steps and calls of all threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    seconds: f64,
    /// Calls of steps that succeeded.
    calls: u64,
    /// Steps that ended with an expected error.
    refused: u64,
    /// Steps that ended with any other error.
    failed: u64,
    /// The first of these errors.
    failure: Option<String>,
}

impl RogueTenant {
    /// Works until standard input ends, or `stop` is set.
    pub(crate) fn run(&self, stop: &Interrupt) -> Result<(), BenchError> {
        raise_open_files()?;
        let kind = if self.btrfs { Kind::Btrfs } else { Kind::Copyhold };
        let setting = Setting { directory: &self.directory, sizes: &self.sizes, kind, stop };
        let steps = self.kind.steps(&setting)?;
        let report = repeat(steps, self.kind.expected(), stop, || {
            say(&READY)?;
            io::stdin().read_to_end(&mut Vec::new()).on("standard input").map(drop)
        })?;
        say(&serde_json::to_string(&report).expect("numbers and text are JSON"))
    }
}

/// Repeats each step in a thread of its own until `wait` returns.
fn repeat(
    steps: Vec<Step<'_>>,
    expected: &[Errno],
    stop: &Interrupt,
    wait: impl FnOnce() -> Result<(), BenchError>,
) -> Result<Report, BenchError> {
    let began = Instant::now();
    thread::scope(|scope| {
        let end = SetOnDrop(stop);
        let mut threads = Vec::new();
        for step in steps {
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            let repeated = move || Report::of(step, expected, stop);
            threads.push(thread.spawn_scoped(scope, repeated).on("a rogue's thread")?);
        }
        wait()?;
        drop(end);
        let mut all = Report::default();
        for thread in threads {
            all.add(thread.join().expect("rogues do not panic"));
        }
        all.seconds = began.elapsed().as_secs_f64();
        Ok(all)
    })
}

/// Ends the threads whatever happens.
struct SetOnDrop<'a>(&'a Interrupt);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

impl Report {
    /// Repeats a step until `stop` is set.
    fn of(mut step: Step<'_>, expected: &[Errno], stop: &Interrupt) -> Report {
        let mut report = Report::default();
        while !stop.is_set() {
            match step() {
                Ok(calls) => report.calls += calls,
                Err(error) if is_one_of(&error, expected) => report.refused += 1,
                Err(error) => {
                    report.failed += 1;
                    report.failure.get_or_insert_with(|| error.to_string());
                }
            }
        }
        report
    }

    fn add(&mut self, other: Report) {
        self.calls += other.calls;
        self.refused += other.refused;
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
    }

    pub(super) fn samples(&self, variant: &str) -> Vec<Sample> {
        let rate = |count: u64| count as f64 / self.seconds.max(f64::MIN_POSITIVE);
        vec![
            Sample::new(variant, "calls", "ops/s", rate(self.calls)),
            Sample::new(variant, "refused", "ops/s", rate(self.refused)),
            Sample::new(variant, "failed", "calls", self.failed as f64),
        ]
    }

    /// Reports failures that do not belong to the kind.
    pub(super) fn complain(&self, kind: RogueKind) {
        if let Some(first) = &self.failure {
            let failed = self.failed;
            eprintln!("rogue: {kind}: {failed} calls failed, the first of them: {first}");
        }
        if self.calls + self.refused == 0 {
            eprintln!("rogue: {kind}: no call succeeded, so its figures show nothing");
        }
    }
}

fn is_one_of(error: &BenchError, expected: &[Errno]) -> bool {
    let BenchError::System { source, .. } = error else { return false };
    Errno::from_io_error(source).is_some_and(|errno| expected.contains(&errno))
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use super::super::setting::threads;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sizes: Sizes,
    }

    /// Runs a kind for a moment on the filesystem of the temporary directory.
    fn run_kind(kind: RogueKind) -> Report {
        let directory = tempfile::tempdir().unwrap();
        let small = "x --threads 4 --writers 4 --workers 2 --depth 4 --entries 10 --limit 1M \
                     --copy 1M --mapping 1M --levels 5";
        let sizes = Line::parse_from(small.split_whitespace()).sizes;
        let stop = Interrupt::never();
        let setting = Setting {
            directory: directory.path(),
            sizes: &sizes,
            kind: Kind::Copyhold,
            stop: &stop,
        };
        let steps = kind.steps(&setting).unwrap();
        let moment = std::time::Duration::from_millis(100);
        let wait = || {
            thread::sleep(moment);
            Ok(())
        };
        repeat(steps, kind.expected(), &stop, wait).unwrap()
    }

    #[test]
    fn each_kind_makes_calls_that_do_not_fail() {
        for &kind in RogueKind::value_variants() {
            // A plain directory has neither limits nor snapshots.
            if kind.left_out(Kind::Plain).is_some() && kind != RogueKind::Copy {
                continue;
            }
            let report = run_kind(kind);
            let first = report.failure.as_deref().unwrap_or_default();
            // Containers may refuse io_uring.
            let is_refused = kind == RogueKind::Queue && first.starts_with("io_uring");
            assert!(report.failed == 0 || is_refused, "{kind}: {first}");
            assert!(report.calls + report.refused > 0 || is_refused, "{kind}");
        }
    }

    #[test]
    fn expected_errors_are_refusals_and_others_failures() {
        let stop = Interrupt::never();
        let errors = [Errno::DQUOT, Errno::IO];
        let steps =
            threads(2, |number| Ok(move || Err::<u64, _>(errors[number as usize]).on("write")));
        let wait = || {
            thread::sleep(std::time::Duration::from_millis(20));
            Ok(())
        };
        let report = repeat(steps.unwrap(), &[Errno::DQUOT], &stop, wait).unwrap();
        assert!(report.refused > 0 && report.failed > 0 && report.calls == 0, "{report:?}");
        assert!(report.failure.as_deref().unwrap().starts_with("write: "), "{report:?}");
        let passed: Report =
            serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(passed, report);
    }

    #[test]
    fn a_wait_that_fails_ends_the_threads() {
        let stop = Interrupt::never();
        let steps = threads(2, |_| Ok(|| Ok(1))).unwrap();
        let wait = || Err(BenchError::NoAnswer("x"));
        assert!(repeat(steps, &[], &stop, wait).is_err() && stop.is_set());
    }
}
