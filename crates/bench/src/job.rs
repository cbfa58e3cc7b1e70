//! What every job is to the one that runs them.

use copyhold_harness::Interrupt;

use crate::error::BenchError;
use crate::judgement::{Judgement, Medians};
use crate::sample::Sample;
use crate::target::{Kind, Site, Target};

pub(crate) trait Job {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// What a filesystem holds at most.
    fn data_bytes(&self) -> u64;

    /// Why this kind of filesystem has no part in it, if so.
    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        let _ = kind;
        None
    }

    /// Figures that follow from those of all rounds, with their targets.
    fn judgements(&self, medians: Medians<'_>) -> Vec<Judgement> {
        let _ = medians;
        Vec::new()
    }

    /// Whether a plot shows this metric.
    fn is_drawn(&self, metric: &str) -> bool {
        let _ = metric;
        true
    }

    /// One round on one kind of filesystem, made for it.
    fn round(
        &self,
        site: &Site,
        kind: Kind,
        round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError>;
}

/// Does `work` on a new filesystem of the site, which is gone behind it.
pub(crate) fn on_fresh(
    site: &Site,
    kind: Kind,
    work: impl FnOnce(&Target<'_>) -> Result<Vec<Sample>, BenchError>,
) -> Result<Vec<Sample>, BenchError> {
    let target = site.set_up(kind)?;
    let samples = work(&target);
    let down = target.take_down();
    samples.and_then(|samples| down.map(|()| samples))
}
