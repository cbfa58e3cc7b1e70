//! The job: the waiting times of one tenant, alone and beside a rogue.
//!
//! Problem.  A tenant with thousands of threads, or with calls that cost the filesystem much, must
//!           not make the other tenants wait. A figure of the whole machine does not show that.
//! Idea.     One neighbour makes the same calls alone, beside a rogue, and alone again, and the
//!           ratios of these figures stand next to them. Each kind of rogue has a fresh filesystem,
//!           so that the files and the unfinished work of the one before have no part in it.
//! Figures.  `alone.KIND.CALL` and `beside.KIND.CALL` have p50, p99 and the number of calls;
//!           `beside_to_alone.KIND.CALL` compares within the round. The alone figures are of both
//!           turns, since a machine changes while it is measured. `rogue.KIND` has the calls of the
//!           rogue: all, refused ones that belong to the kind, and failed ones.
//!
//! `neighbour` has the measured calls, `kind` the list of rogues, and a file for each sort of call
//! has their steps. `tenant` runs the threads of a rogue in another process, so that its signals,
//! its open files and its address space are not the neighbour's. `quota` sets the limit of a rogue
//! that wants one.
//!
//! A rogue and its neighbour share the CPUs. The kind `spin` makes no calls to the filesystem, so
//! its ratios show the part that control groups divide, and the filesystem does not. Kernel
//! filesystems, the null store and directories are measured with the same rogues, except for those
//! that need limits, snapshots or shared copies.

mod copies;
mod creates;
mod deep;
mod holes;
mod interrupts;
mod kind;
mod listings;
mod locks;
mod mapping;
mod neighbour;
mod queue;
mod quota;
mod reads;
mod renames;
mod setting;
mod sizes;
mod spin;
mod subvolumes;
mod tenant;
mod writes;
mod xattrs;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use copyhold_harness::Interrupt;

use crate::error::BenchError;
use crate::job::{Job, on_fresh};
use crate::own_process::OwnProcess;
use crate::sample::{Sample, compared};
use crate::target::{Kind, Site, Target, run};
use crate::unshare::{copies::make_original, enable};
pub(crate) use kind::RogueKind;
use neighbour::{Figures, Neighbour, NeighbourSizes};
use sizes::Sizes;
use tenant::Report;
pub(crate) use tenant::RogueTenant;

/// Time in which all threads of a rogue begin their work, before the neighbour is measured.
const WARM_UP: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Rogue {
    /// Kinds of rogues, one after the other
    #[arg(long, value_enum, value_delimiter = ',')]
    #[arg(default_values_t = RogueKind::value_variants().to_vec())]
    kinds: Vec<RogueKind>,
    #[command(flatten)]
    trial: Trial,
}

/// A neighbour alone, beside a rogue, and alone again.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Trial {
    /// How long the neighbour is measured beside each rogue; alone, half before and half after
    #[arg(long, default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[command(flatten)]
    neighbour: NeighbourSizes,
    #[command(flatten)]
    sizes: Sizes,
}

impl Job for Rogue {
    fn name(&self) -> &'static str {
        "rogue"
    }

    fn data_bytes(&self) -> u64 {
        self.trial.data_bytes()
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let mut samples = Vec::new();
        for &rogue in &self.kinds {
            if let Some(why) = rogue.left_out(kind) {
                site.note(&format!("rogue {rogue}"), kind, why);
                continue;
            }
            eprintln!("rogue: {}: {rogue}", kind.name());
            samples.extend(on_fresh(site, kind, |target| {
                self.trial.run(target, rogue, interrupt, |_| Ok(()))
            })?);
        }
        Ok(samples)
    }
}

impl Trial {
    pub(crate) fn data_bytes(&self) -> u64 {
        self.neighbour.data_bytes() + self.sizes.data_bytes()
    }

    /// On an empty filesystem. `prepare` gets the subvolume of the neighbour.
    pub(crate) fn run(
        &self,
        target: &Target<'_>,
        rogue: RogueKind,
        interrupt: &Interrupt,
        prepare: impl FnOnce(&Path) -> Result<(), BenchError>,
    ) -> Result<Vec<Sample>, BenchError> {
        if quota::has_quotas(target.kind()) {
            enable::simple_quotas(target)?;
        }
        let [home, den] = ["neighbour", "rogue"].map(|name| target.directory().join(name));
        make_original(target, &home)?;
        make_original(target, &den)?;
        prepare(&home)?;
        if rogue.has_limit() {
            quota::limit(target, &den, self.sizes.limit)?;
        }
        let mut neighbour = Neighbour::new(target, &home, &self.neighbour, interrupt)?;
        let time = Duration::from_secs(self.seconds);

        neighbour.forget_names()?;
        let before = neighbour.measure(time / 2)?;
        neighbour.forget_names()?;
        let mut tenant = self.start(target, &den, rogue)?;
        thread::sleep(WARM_UP);
        let beside = neighbour.measure(time)?;
        let report = end(&mut tenant)?;
        settle(target, rogue)?;
        neighbour.forget_names()?;
        let alone = before.then(neighbour.measure(time / 2)?);

        report.complain(rogue);
        Ok(samples(rogue, &alone, &beside, &report))
    }

    /// Returns when all threads of the rogue have begun.
    fn start(
        &self,
        target: &Target<'_>,
        den: &Path,
        rogue: RogueKind,
    ) -> Result<OwnProcess, BenchError> {
        let mut arguments: Vec<OsString> = vec!["--directory".into(), den.into()];
        arguments.extend(["--kind".into(), rogue.to_string().into()]);
        if target.kind() == Kind::Btrfs {
            arguments.push("--btrfs".into());
        }
        arguments.extend(self.sizes.arguments().into_iter().map(OsString::from));
        let mut tenant = OwnProcess::start("rogue-tenant", arguments)?;
        tenant.wait_until_ready()?;
        Ok(tenant)
    }
}

/// Returns when the rogue has ended.
fn end(tenant: &mut OwnProcess) -> Result<Report, BenchError> {
    tenant.close();
    let line = tenant.line()?;
    tenant.wait()?;
    serde_json::from_str(&line).map_err(|_| tenant.no_answer())
}

/// Waits for the work that a rogue leaves to the background.
fn settle(target: &Target<'_>, rogue: RogueKind) -> Result<(), BenchError> {
    target.sync()?;
    if rogue != RogueKind::Snapshots {
        return Ok(());
    }
    let mut wait = match target.kind() {
        Kind::Copyhold => target.copyhold(),
        _ => Command::new("btrfs"),
    };
    run(wait.args(["subvolume", "sync"]).arg(target.directory())).map(drop)
}

fn samples(rogue: RogueKind, alone: &Figures, beside: &Figures, report: &Report) -> Vec<Sample> {
    let mut samples = alone.percentiles(&format!("alone.{rogue}"));
    samples.extend(beside.percentiles(&format!("beside.{rogue}")));
    let ratios = compared(&samples, "beside", "alone");
    samples.extend(ratios);
    samples.extend(alone.counts(&format!("alone.{rogue}")));
    samples.extend(beside.counts(&format!("beside.{rogue}")));
    samples.extend(report.samples(&format!("rogue.{rogue}")));
    samples
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        rogue: Rogue,
    }

    #[test]
    fn kinds_are_chosen_and_all_run_without_a_choice() {
        let kinds = |line: &[&str]| Line::try_parse_from(line).unwrap().rogue.kinds;
        assert_eq!(kinds(&["x"]), RogueKind::value_variants());
        assert_eq!(kinds(&["x", "--kinds", "mmap,list"]), [RogueKind::Mmap, RogueKind::List]);
    }

    #[test]
    fn ratios_are_of_waiting_times_only() {
        let (alone, beside) = (Figures::example(10), Figures::example(30));
        let samples = samples(RogueKind::Limit, &alone, &beside, &Report::default());
        let ratios: Vec<&Sample> = samples.iter().filter(|sample| sample.unit == "ratio").collect();
        assert_eq!(ratios.len(), 2);
        let name = "beside_to_alone.limit.stat";
        assert_eq!(*ratios[0], Sample::new(name, "p50", "ratio", 3.0));
        assert!(samples.contains(&Sample::new("alone.limit.stat", "calls", "calls", 1.0)));
        assert!(samples.contains(&Sample::new("rogue.limit", "failed", "calls", 0.0)));
    }
}
