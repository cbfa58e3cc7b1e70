//! The job: what snapshots and their deletion cost, and what a neighbour notices.
//!
//! A subvolume is filled with F files of 4 KiB, over directories of a thousand. Then, with no
//! snapshots and again with S of them, some are made by the ioctl alone (`ioctl`: from inside this
//! process, so the engine and the way there) and some by the program (`program`: a process from
//! start to end). Between any two, blocks of some files of the subvolume change, with fsync, so
//! that all differ. Some of the S are deleted in both ways, out of the middle. `question_ioctl` is
//! a question without work, for comparison: the way there and back, and what else runs here.
//!
//! Meanwhile nobody else works. After that a neighbour in another subvolume overwrites 4 KiB at a
//! time, with fsync, at a fixed rate: alone (`quiet`), while all snapshots are deleted one after
//! the other and until all they held is free (`deleting`), and alone again. The rate leaves time
//! between its writes: what it notices then is others', not its own queue. `deleting_to_quiet`
//! compares within rounds.
//!
//! Kernel filesystems without snapshots have no part in it. `ioctl` asks, `source` is what is
//! snapshotted.

pub(crate) mod ioctl;
mod source;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::counters;
use crate::error::BenchError;
use crate::job::{Job, on_fresh};
use crate::measured::{Writes, at};
use crate::sample::{Sample, compared};
use crate::target::{self, Kind, Target, run};
use crate::tenant::{self, FILE_BYTES, Fsync, Tenant};
use crate::unshare::copies;
use copyhold_harness::Interrupt;
use ioctl::Control;
use source::Source;

/// Calls that are timed, of each kind.
const CALLS: u32 = 20;
const SEED: u64 = 54321;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Snapshots {
    /// Files in the subvolume, of 4 KiB each
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
    /// Snapshots that are there, and are deleted
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..))]
    snapshots: u32,
    /// Blocks that change between any two snapshots
    #[arg(long, default_value_t = 16)]
    changes: u32,
    /// How long the neighbour is measured before, and again behind, the deletion
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// What the neighbour writes in a second; 0: one write after the other
    #[arg(long, default_value_t = 500)]
    rate: u32,
    /// Files of the neighbour, of 128 KiB each
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    neighbour_files: u32,
}

impl Job for Snapshots {
    fn name(&self) -> &'static str {
        "snapshots"
    }

    fn data_bytes(&self) -> u64 {
        let blocks =
            u64::from(self.files) + u64::from(self.snapshots + 4 * CALLS) * u64::from(self.changes);
        blocks * source::FILE_BYTES + 4 * u64::from(self.neighbour_files) * FILE_BYTES
    }

    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        (!matches!(kind, Kind::Copyhold | Kind::Btrfs)).then_some("it has no snapshots")
    }

    fn round(
        &self,
        site: &target::Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        on_fresh(site, kind, |target| self.run(target, interrupt))
    }
}

impl Snapshots {
    /// On an empty filesystem.
    fn run(&self, target: &Target<'_>, interrupt: &Interrupt) -> Result<Vec<Sample>, BenchError> {
        let site = self.fill(target, interrupt)?;
        let mut samples = site.memory("filled")?;
        let mut source = Source::new(&site.original, self.files, self.changes, SEED);

        let mut there = site.time_snapshots("few", 0, &mut source, &mut samples)?;
        while there < self.snapshots {
            interrupt.check()?;
            source.change()?;
            site.control.snapshot(&site.original, &name(there))?;
            there += 1;
        }
        there = site.time_snapshots("many", there, &mut source, &mut samples)?;
        samples.extend(site.memory("many")?);
        let left = site.time_deletions(there, &mut samples)?;
        site.wait_until_freed()?;

        samples.extend(self.beside_a_neighbour(&site, &left, interrupt)?);
        samples.extend(site.memory("deleted")?);
        samples.extend(compared(&samples, "deleting", "quiet"));
        samples.extend(compared(&samples, "many", "few"));
        Ok(samples)
    }

    fn fill<'a>(
        &self,
        target: &'a Target<'a>,
        interrupt: &Interrupt,
    ) -> Result<Site<'a>, BenchError> {
        let directory = target.directory();
        let (original, neighbour) = (directory.join("subv"), directory.join("neighbour"));
        copies::make_original(target, &original)?;
        copies::make_original(target, &neighbour)?;
        source::fill(&original, self.files, interrupt)?;
        tenant::fill(&neighbour, self.neighbour_files, interrupt)?;
        target.sync()?;
        let control = Control::open(target.kind(), &directory)?;
        Ok(Site { target, control, directory, original, neighbour })
    }

    /// The neighbour alone, beside the deletion of `left`, and alone again.
    fn beside_a_neighbour(
        &self,
        site: &Site<'_>,
        left: &[u32],
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let neighbour = &site.neighbour;
        let mut tenant = Tenant::new(neighbour, self.neighbour_files, SEED, Fsync::Strict)?;
        let every = match self.rate {
            0 => Duration::ZERO,
            rate => Duration::from_secs(1) / rate,
        };
        let time = Duration::from_secs(self.seconds);
        let quiet = |tenant: &mut Tenant| {
            Writes::measure(tenant, every, |_, elapsed| {
                interrupt.check()?;
                Ok(elapsed < time)
            })
        };
        let before = quiet(&mut tenant)?;
        let over = AtomicBool::new(false);
        let (deleting, deletion) = thread::scope(|scope| {
            let writes = scope.spawn(|| {
                Writes::measure(&mut tenant, every, |_, _| {
                    interrupt.check()?;
                    Ok(!over.load(Relaxed))
                })
            });
            let deletion = site.delete_all(left, interrupt);
            over.store(true, Relaxed);
            let writes = writes.join().expect("the writer does not panic");
            Ok::<_, BenchError>((writes?, deletion?))
        })?;
        let after = quiet(&mut tenant)?;

        let mut samples = before.and(after).samples_of_both("quiet");
        samples.extend(deleting.samples_of_both("deleting"));
        samples.extend(times("deleting", "return", deletion.returned));
        let seconds = |name, time: Duration| Sample::new("deletion", name, "s", time.as_secs_f64());
        samples.push(seconds("all_returned", deletion.all_returned));
        samples.push(seconds("all_freed", deletion.all_freed));
        Ok(samples)
    }
}

/// A filled filesystem.
struct Site<'a> {
    target: &'a Target<'a>,
    control: Control,
    directory: PathBuf,
    original: PathBuf,
    neighbour: PathBuf,
}

/// What deleting all took.
struct Deletion {
    returned: Vec<Duration>,
    all_returned: Duration,
    all_freed: Duration,
}

impl Site<'_> {
    /// Makes snapshots in both ways, the first of them number `from`; how many there are then.
    fn time_snapshots(
        &self,
        variant: &str,
        from: u32,
        source: &mut Source,
        samples: &mut Vec<Sample>,
    ) -> Result<u32, BenchError> {
        let (mut by_ioctl, mut by_program, mut questions) = (Vec::new(), Vec::new(), Vec::new());
        for number in from..from + 2 * CALLS {
            source.change()?;
            questions.push(timed(|| self.control.question())?);
            let path = self.snapshot(number);
            match number % 2 {
                0 => by_ioctl.push(timed(|| self.control.snapshot(&self.original, &name(number)))?),
                _ => by_program.push(timed(|| {
                    let mut snapshot = self.program();
                    run(snapshot.args(["subvolume", "snapshot"]).args([&self.original, &path]))
                })?),
            }
        }
        if self.target.kind() == Kind::Copyhold {
            samples.extend(times(variant, "question_ioctl", questions));
        }
        samples.extend(times(variant, "snapshot_ioctl", by_ioctl));
        samples.extend(times(variant, "snapshot_program", by_program));
        Ok(from + 2 * CALLS)
    }

    /// Deletes some out of the middle in both ways; which are left.
    fn time_deletions(
        &self,
        there: u32,
        samples: &mut Vec<Sample>,
    ) -> Result<Vec<u32>, BenchError> {
        let (mut by_ioctl, mut by_program) = (Vec::new(), Vec::new());
        let first = there / 2;
        let mut left: Vec<u32> = (0..there).collect();
        for number in left.drain(first as usize..(first + 2 * CALLS) as usize) {
            match number % 2 {
                0 => by_ioctl.push(timed(|| self.control.delete(&name(number)))?),
                _ => by_program.push(timed(|| {
                    let path = self.snapshot(number);
                    run(self.program().args(["subvolume", "delete"]).arg(path))
                })?),
            }
        }
        samples.extend(times("many", "delete_ioctl", by_ioctl));
        samples.extend(times("many", "delete_program", by_program));
        Ok(left)
    }

    fn delete_all(&self, left: &[u32], interrupt: &Interrupt) -> Result<Deletion, BenchError> {
        let began = Instant::now();
        let mut returned = Vec::with_capacity(left.len());
        for number in left {
            interrupt.check()?;
            returned.push(timed(|| self.control.delete(&name(*number)))?);
        }
        let all_returned = began.elapsed();
        self.wait_until_freed()?;
        Ok(Deletion { returned, all_returned, all_freed: began.elapsed() })
    }

    fn wait_until_freed(&self) -> Result<(), BenchError> {
        let mut wait = self.program();
        run(wait.args(["subvolume", "sync"]).arg(&self.directory)).map(drop)
    }

    /// The most memory that the daemon had so far.
    fn memory(&self, when: &str) -> Result<Vec<Sample>, BenchError> {
        Ok(counters::peak_memory(self.target, when)?.into_iter().collect())
    }

    fn program(&self) -> Command {
        match self.target.kind() {
            Kind::Copyhold => self.target.copyhold(),
            _ => Command::new("btrfs"),
        }
    }

    fn snapshot(&self, number: u32) -> PathBuf {
        self.directory.join(name(number))
    }
}

fn name(number: u32) -> String {
    format!("snap.{number}")
}

fn timed<T>(work: impl FnOnce() -> Result<T, BenchError>) -> Result<Duration, BenchError> {
    let began = Instant::now();
    work().map(|_| began.elapsed())
}

fn times(variant: &str, call: &str, mut took: Vec<Duration>) -> Vec<Sample> {
    took.sort_unstable();
    let ms = |name: &str, share| {
        let ms = at(&took, share).as_secs_f64() * 1000.0;
        Sample::new(variant, &format!("{call}_{name}"), "ms", ms)
    };
    vec![ms("min", 0.0), ms("p50", 0.5), ms("max", 1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_calls_the_median_and_the_longest_are_told() {
        let took = [3, 1, 2].map(Duration::from_millis).to_vec();
        let expected = [
            Sample::new("few", "snapshot_ioctl_min", "ms", 1.0),
            Sample::new("few", "snapshot_ioctl_p50", "ms", 2.0),
            Sample::new("few", "snapshot_ioctl_max", "ms", 3.0),
        ];
        assert_eq!(times("few", "snapshot_ioctl", took), expected);
    }
}
