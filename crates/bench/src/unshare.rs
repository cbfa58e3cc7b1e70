//! The job: one tenant writes into a fresh snapshot while many others do, each into its own.
//!
//! After Meta's measurement of simple quotas (`boryas/fsperf`, unshare). A subvolume is filled with
//! F files of 128 KiB and snapshotted S + 1 times. Each snapshot but one gets a background writer:
//! 4 KiB random overwrites over all files, an fsync after each. The timed writer does the same in
//! the one that is left, each block once, until it is through or its time is over. Then counters
//! are read, the background ends, and unmounting and mounting are timed.
//!
//! A kernel filesystem without snapshots gets copies: plain ones on ext4, reflinked ones on xfs.
//!
//! Variants are named `QUOTA.FSYNC`: quotas `off` or `simple`; `next` fsyncs another file than was
//! written (what fio does by default), `strict` the same. Where both modes of quotas run, they
//! alternate on fresh filesystems, in turned order each round, and `simple_to_off` figures compare
//! within rounds.
//!
//! `tenant` is a writer, `background` runs those that nobody times, `copies` makes what they write
//! into, `measured` turns times into figures, `counters` reads what is told of commits, `enable`
//! turns quotas on.

mod background;
mod copies;
mod counters;
mod enable;
mod measured;
mod tenant;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::summary::Sample;
use crate::target::{Kind, Target};
pub(crate) use background::Background;
use background::Processes;
use counters::Counters;
use tenant::{FILE_BYTES, Fsync, Tenant};

/// Seed of the timed writer; background writers count up from the next.
const SEED: u64 = 12345;

/// The snapshot of a background writer.
fn snapshot(mount_point: &Path, number: u32) -> PathBuf {
    mount_point.join(format!("snap.{number}"))
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Unshare {
    /// Files in the subvolume, of 128 KiB each
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
    /// Snapshots with a writer in the background
    #[arg(long, default_value_t = 100)]
    snapshots: u32,
    /// Quotas on Copyhold and btrfs, alternately if both: off, simple
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Quota::Off])]
    quota: Vec<Quota>,
    /// The timed writer ends after this many seconds, or when each block was written once
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// fsync the file just written, and not another one, as fio does by default
    #[arg(long)]
    strict: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Quota {
    Off,
    Simple,
}

impl Quota {
    fn name(self) -> &'static str {
        match self {
            Quota::Off => "off",
            Quota::Simple => "simple",
        }
    }
}

impl std::fmt::Display for Quota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Unshare {
    /// What a filesystem holds at most: every snapshot written anew.
    pub(crate) fn data_bytes(&self) -> u64 {
        u64::from(self.files) * FILE_BYTES * (u64::from(self.snapshots) + 2)
    }

    /// The modes of quotas to run on `kind`, in the order of this round.
    pub(crate) fn modes(&self, kind: Kind, round: u32) -> Vec<Quota> {
        let has_quotas = matches!(kind, Kind::Copyhold | Kind::Btrfs);
        let mut modes = self.quota.clone();
        modes.sort_unstable();
        modes.dedup();
        modes.retain(|mode| has_quotas || *mode == Quota::Off);
        if round.is_multiple_of(2) {
            modes.reverse();
        }
        modes
    }

    /// On an empty filesystem.
    pub(crate) fn run(
        &self,
        target: &Target<'_>,
        quota: Quota,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        if quota == Quota::Simple {
            enable::simple_quotas(target)?;
        }
        let directory = target.directory();
        let original = directory.join("subv");
        copies::make_original(target, &original)?;
        tenant::fill(&original, self.files, interrupt)?;
        let victim = directory.join("snap.victim");
        let mut copies = vec![victim.clone()];
        copies.extend((0..self.snapshots).map(|number| snapshot(&directory, number)));
        let took = copies::make(target, &original, &copies, interrupt)?;
        target.sync()?;

        let mut foreground = Tenant::new(&victim, self.files, SEED, self.fsync())?;
        let background = Processes::start(&directory, self.snapshots, self.files, self.fsync())?;
        let before = Counters::read(target)?;
        let ops = u64::from(self.files) * FILE_BYTES / crate::random_overwrite::BLOCK as u64;
        let time = Duration::from_secs(self.seconds);
        let writes = measured::Writes::measure(&mut foreground, ops, time, interrupt)?;
        let counters = Counters::read(target)?.since(&before);
        drop(foreground);
        background.end()?;
        let memory = counters::memory_bytes(target)?;
        let (umount, mount) = target.remount()?;

        let variant = format!("{quota}.{}", self.fsync().name());
        let mut samples = writes.samples(&variant);
        samples.extend(counters.samples(&variant));
        samples.extend(copies::samples(&variant, took));
        let ms =
            |name, time: Duration| Sample::new(&variant, name, "ms", time.as_secs_f64() * 1000.0);
        samples.extend([ms("umount", umount), ms("mount", mount)]);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        samples.extend(memory.map(|it| Sample::new(&variant, "daemon_memory", "MiB", mib(it))));
        Ok(samples)
    }

    fn fsync(&self) -> Fsync {
        if self.strict { Fsync::Strict } else { Fsync::Next }
    }
}

/// How `simple` compares with `off` in one round of one target.
pub(crate) fn simple_to_off(samples: &[Sample]) -> Vec<Sample> {
    let value_of: BTreeMap<&str, f64> =
        samples.iter().map(|sample| (sample.metric(), sample.value())).collect();
    let compare = |metric: &str, value: f64| {
        let name = metric.strip_prefix("simple.")?;
        let off = *value_of.get(format!("off.{name}").as_str())?;
        (off > 0.0).then(|| Sample::new("simple_to_off", name, "ratio", value / off))
    };
    value_of.iter().filter_map(|(metric, value)| compare(metric, *value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(quota: &[Quota]) -> Unshare {
        Unshare { files: 2, snapshots: 3, quota: quota.to_vec(), seconds: 1, strict: true }
    }

    #[test]
    fn modes_alternate_and_only_where_there_are_quotas() {
        let both = job(&[Quota::Off, Quota::Simple]);
        assert_eq!(both.modes(Kind::Btrfs, 1), [Quota::Off, Quota::Simple]);
        assert_eq!(both.modes(Kind::Copyhold, 2), [Quota::Simple, Quota::Off]);
        assert_eq!(both.modes(Kind::Xfs, 1), [Quota::Off]);
        assert_eq!(job(&[Quota::Simple]).modes(Kind::Ext4, 1), []);
    }

    #[test]
    fn simple_is_compared_with_off_within_a_round() {
        let sample = |variant, value| Sample::new(variant, "iops", "ops/s", value);
        let compared = simple_to_off(&[sample("off.next", 50.0), sample("simple.next", 49.0)]);
        assert_eq!(compared, [Sample::new("simple_to_off", "next.iops", "ratio", 0.98)]);
        assert_eq!(simple_to_off(&[sample("simple.next", 49.0)]), []);
    }
}
