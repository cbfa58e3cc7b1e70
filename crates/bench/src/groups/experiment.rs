//! An experiment of the job `groups`, and its arms: the same on filesystems made anew, each with
//! another value of a mount option.

use copyhold_harness::Interrupt;

use crate::error::BenchError;
use crate::job::on_fresh;
use crate::sample::Sample;
use crate::target::{Kind, Site, Target};

pub(super) trait Experiment {
    /// Data of a filesystem at most; 0 if the experiment was not chosen.
    fn data_bytes(&self) -> u64;

    /// One round, if the experiment was chosen.
    fn round(&self, place: &Place<'_>) -> Result<Vec<Sample>, BenchError>;
}

/// Where a round runs.
pub(super) struct Place<'a> {
    pub(super) site: &'a Site,
    pub(super) kind: Kind,
    pub(super) interrupt: &'a Interrupt,
}

impl Place<'_> {
    /// Does `work` on an empty filesystem that is mounted with these options.
    pub(super) fn with<const N: usize>(
        &self,
        options: [String; N],
        work: impl FnOnce(&Target<'_>) -> Result<Vec<Sample>, BenchError>,
    ) -> Result<Vec<Sample>, BenchError> {
        on_fresh(&self.site.with_options(options), self.kind, work)
    }

    /// The same for each of these values of `reclaim`, with the data of direct reads in memory.
    pub(super) fn for_each_reclaim(
        &self,
        arms: &[String],
        work: impl Fn(&Target<'_>, &str) -> Result<Vec<Sample>, BenchError>,
    ) -> Result<Vec<Sample>, BenchError> {
        let of_arm = |arm: &String| {
            let options = [format!("reclaim={arm}"), "data_cache=direct".into()];
            self.with(options, |target| work(target, arm))
        };
        let of_arms: Result<Vec<_>, _> = arms.iter().map(of_arm).collect();
        Ok(of_arms?.concat())
    }
}
