//! The job: memory of the daemon, shared by tenants. Each experiment has a file of its own, runs if
//! its option is given, and compares arms: the same on a filesystem made anew with other options.
//!
//! - `--clones N` (`clones`): clones that read their base.

mod clones;

use copyhold_harness::Interrupt;

use crate::error::BenchError;
use crate::job::Job;
use crate::sample::Sample;
use crate::target::{Kind, Site};
use clones::Clones;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Groups {
    #[command(flatten)]
    clones: Clones,
}

impl Job for Groups {
    fn name(&self) -> &'static str {
        "groups"
    }

    fn data_bytes(&self) -> u64 {
        self.clones.data_bytes()
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
        self.clones.round(site, kind, interrupt)
    }
}
