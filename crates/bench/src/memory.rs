//! The job: what memory the daemon has when many files have been looked up.
//!
//! The kernel holds on to what it looked up, so the daemon has to know it: `created` is the memory
//! behind the creation of all files, `looked_up` behind a remount and a stat of each. What the
//! daemon has at rest is `empty`. `per_file` is what lookups add for one file. The kernel's own
//! filesystems have no daemon.

use copyhold_harness::Interrupt;

use crate::counters::{Resident, mib};
use crate::error::BenchError;
use crate::files::Forest;
use crate::job::{Job, on_fresh};
use crate::sample::Sample;
use crate::target::{Kind, Site, Target};

const FILES_A_DIRECTORY: u32 = 1000;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Memory {
    /// How many files
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
}

impl Job for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn data_bytes(&self) -> u64 {
        u64::from(self.files) * 4096
    }

    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        (!matches!(kind, Kind::Copyhold | Kind::Null)).then_some("it has no daemon")
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        on_fresh(site, kind, |target| self.run(target, interrupt))
    }
}

impl Memory {
    fn run(&self, target: &Target<'_>, interrupt: &Interrupt) -> Result<Vec<Sample>, BenchError> {
        let directories = self.files.div_ceil(FILES_A_DIRECTORY);
        let forest = Forest::new(target.directory(), self.files, directories);
        let empty = Resident::of(target)?;
        forest.make_directories()?;
        forest.create(interrupt)?;
        let created = Resident::of(target)?;
        target.cool()?;
        let before = Resident::of(target)?;
        forest.stat(interrupt)?;
        let looked_up = Resident::of(target)?;

        let mut samples = Vec::new();
        for (variant, resident) in
            [("empty", empty), ("created", created), ("looked_up", looked_up)]
        {
            let Some(resident) = resident else { continue };
            samples.push(Sample::new(variant, "memory", "MiB", mib(resident.now)));
            samples.push(Sample::new(variant, "memory_peak", "MiB", mib(resident.peak)));
        }
        if let (Some(before), Some(after)) = (before, looked_up) {
            let bytes = after.now.saturating_sub(before.now) as f64 / f64::from(self.files);
            samples.push(Sample::new("looked_up", "per_file", "bytes", bytes));
        }
        Ok(samples)
    }
}
