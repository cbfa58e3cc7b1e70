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
//! within rounds. Where there are several numbers of snapshots, `QUOTA.FSYNC.sN` are those with N.
//!
//! `iops_of_all` counts the writers in the background, too: they and the timed one are equals, who
//! share two processors or a device, so that the more there are the less each can have.
//!
//! `background` runs the writers that nobody times, `copies` makes what they write into, `enable`
//! turns quotas on.

mod background;
pub(crate) mod copies;
pub(crate) mod enable;

use std::time::{Duration, Instant};

use crate::counters::{self, Counters};
use crate::error::BenchError;
use crate::job::{Job, on_fresh};
use crate::measured::Writes;
use crate::sample::{Sample, compared};
use crate::target::{Kind, Site, Target};
use crate::tenant::{self, FILE_BYTES, Fsync, Tenant};
pub(crate) use background::Background;
use background::Processes;
use copies::{SEED, snapshot};
use copyhold_harness::Interrupt;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Unshare {
    /// Files in the subvolume, of 128 KiB each
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
    /// Snapshots with a writer in the background; of several numbers each is run
    #[arg(long, value_delimiter = ',', default_values_t = [100])]
    snapshots: Vec<u32>,
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

impl Job for Unshare {
    fn name(&self) -> &'static str {
        "unshare"
    }

    /// Every snapshot written anew.
    fn data_bytes(&self) -> u64 {
        let most = self.snapshots.iter().max().copied().unwrap_or_default();
        u64::from(self.files) * FILE_BYTES * (u64::from(most) + 2)
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let mut samples = Vec::new();
        for each in self.runs(kind, round) {
            samples.extend(on_fresh(site, kind, |target| self.run(target, each, interrupt))?);
        }
        let compared = compared(&samples, "simple", "off");
        samples.extend(compared);
        Ok(samples)
    }
}

impl Unshare {
    /// What to run on `kind`, each on a fresh filesystem: numbers of snapshots, and for each the
    /// modes of quotas, in the order of this round.
    fn runs(&self, kind: Kind, round: u32) -> Vec<(u32, Quota)> {
        let modes = self.modes(kind, round);
        let with = |&snapshots: &u32| modes.iter().map(move |&quota| (snapshots, quota));
        self.snapshots.iter().flat_map(with).collect()
    }

    fn modes(&self, kind: Kind, round: u32) -> Vec<Quota> {
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
    fn run(
        &self,
        target: &Target<'_>,
        (snapshots, quota): (u32, Quota),
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
        copies.extend((0..snapshots).map(|number| snapshot(&directory, number)));
        let took = copies::make(target, &original, &copies, interrupt)?;
        target.sync()?;

        let mut foreground = Tenant::new(&victim, self.files, SEED, self.fsync())?;
        let mut background = Processes::start(&directory, snapshots, self.files, self.fsync())?;
        let before = Counters::read(target)?;
        let others_before = background.written()?;
        let began = Instant::now();
        let ops = u64::from(self.files) * FILE_BYTES / crate::places::BLOCK as u64;
        let time = Duration::from_secs(self.seconds);
        let writes = Writes::measure(&mut foreground, Duration::ZERO, |done, elapsed| {
            interrupt.check()?;
            Ok(done < ops && elapsed < time)
        })?;
        let others = background.written()? - others_before;
        let all = (writes.ops() + others) as f64 / began.elapsed().as_secs_f64();
        let counters = Counters::read(target)?.since(&before);
        drop(foreground);
        background.end()?;
        let memory = counters::peak_memory(target, &self.variant(snapshots, quota))?;
        let (umount, mount) = target.remount()?;

        let variant = self.variant(snapshots, quota);
        let mut samples = writes.samples(&variant);
        samples.push(Sample::new(&variant, "iops_of_all", "ops/s", all));
        samples.extend(counters.samples(&variant));
        samples.extend(copies::samples(&variant, took));
        let ms =
            |name, time: Duration| Sample::new(&variant, name, "ms", time.as_secs_f64() * 1000.0);
        samples.extend([ms("umount", umount), ms("mount", mount)]);
        samples.extend(memory);
        Ok(samples)
    }

    fn variant(&self, snapshots: u32, quota: Quota) -> String {
        let fsync = self.fsync().name();
        match self.snapshots.len() {
            1 => format!("{quota}.{fsync}"),
            _ => format!("{quota}.{fsync}.s{snapshots}"),
        }
    }

    fn fsync(&self) -> Fsync {
        if self.strict { Fsync::Strict } else { Fsync::Next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(quota: &[Quota]) -> Unshare {
        Unshare { files: 2, snapshots: vec![3], quota: quota.to_vec(), seconds: 1, strict: true }
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
    fn each_number_of_snapshots_is_run_and_named() {
        let mut job = job(&[Quota::Off, Quota::Simple]);
        assert_eq!(job.variant(3, Quota::Off), "off.strict");
        job.snapshots = vec![10, 100];
        let runs = job.runs(Kind::Copyhold, 2);
        let expected = [10, 100].map(|n| [(n, Quota::Simple), (n, Quota::Off)]).concat();
        assert_eq!(runs, expected);
        assert_eq!(job.variant(100, Quota::Off), "off.strict.s100");
        assert_eq!(job.data_bytes(), 2 * FILE_BYTES * 102);
    }
}
