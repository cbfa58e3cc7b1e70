//! The job: memory of the daemon, shared by tenants. Each experiment has a file of its own, runs if
//! its option is given, and compares arms: the same on a filesystem made anew with other options.
//!
//! - `--clones N` (`clones`): clones that read their base.
//! - `--curve` (`curve`): scans of a tenant's memory, as its protection is lowered.
//! - `--grow` (`grow`): a protected tenant that grows beside a rival.
//! - `--rogue KINDS` (`beside`): the waiting times of a neighbour beside a rogue, with groups and
//!   without.

mod beside;
mod clones;
mod curve;
mod experiment;
mod group;
mod grow;
mod pair;

use copyhold_harness::Interrupt;

use crate::error::BenchError;
use crate::job::Job;
use crate::sample::Sample;
use crate::target::{Kind, Site};
use beside::Beside;
use clones::Clones;
use curve::Curve;
use experiment::{Experiment, Place};
use grow::Grow;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Groups {
    #[command(flatten)]
    clones: Clones,
    #[command(flatten)]
    curve: Curve,
    #[command(flatten)]
    grow: Grow,
    #[command(flatten)]
    beside: Beside,
}

impl Groups {
    fn experiments(&self) -> [&dyn Experiment; 4] {
        [&self.clones, &self.curve, &self.grow, &self.beside]
    }
}

impl Job for Groups {
    fn name(&self) -> &'static str {
        "groups"
    }

    fn data_bytes(&self) -> u64 {
        self.experiments()
            .map(|experiment| experiment.data_bytes())
            .into_iter()
            .max()
            .unwrap_or_default()
    }

    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        (kind != Kind::Copyhold).then_some("it has no groups of memory")
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let place = Place { site, kind, interrupt };
        let of_each: Result<Vec<_>, _> =
            self.experiments().map(|experiment| experiment.round(&place)).into_iter().collect();
        Ok(of_each?.concat())
    }
}
