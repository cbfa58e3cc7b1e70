//! A protected tenant that grows beside a rival that reads: no refusal before memory is used up.
//!
//! The tenant has `low` at 83 hundredths of the cache, and re-reads a set that grows by four
//! hundredths a step, from nothing to more than the cache. The rival reads a file of 1.08 times the
//! cache in order, one read for so many of the tenant's. All is counted in reads.
//!
//! `grow.PERCENT` is the memory of both groups in hundredths of the cache, `PERCENT` the tenant's
//! set. `grow.ARM.first_bypass` is the set at which an object was first refused, and is left out if
//! none was. `grow.ARM.steepest` is the most that the rival lost in a step, in hundredths of the
//! cache.

use copyhold_harness::Interrupt;

use super::experiment::{Experiment, Place};
use super::pair::{Pair, read};
use crate::error::BenchError;
use crate::places::{BLOCK, Places};
use crate::plot;
use crate::sample::Sample;
use crate::size;
use crate::target::Target;

/// The protection, and the growth of a step, in hundredths of the cache.
const LOW: u64 = 83;
const STEP: u64 = 4;
const STEPS: u64 = 27;
/// Reads of the tenant for each read of the rival.
const EAGERNESS: u64 = 4;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Grow {
    /// Grow a protected tenant beside a rival that reads
    #[arg(long)]
    grow: bool,
    /// The arms: values of the mount option `reclaim`
    #[arg(long, value_delimiter = ',', default_value = "proportional,binary")]
    grow_reclaim: Vec<String>,
    /// How often the tenant reads its set in each step
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=100))]
    grow_turns: u64,
    /// Most bytes of both files: a number with K, M or G
    #[arg(long, default_value = "512M", value_parser = size::parse)]
    grow_files_max: u64,
}

/// Memory of both groups in hundredths of the cache, and objects refused so far.
struct Step {
    set: u64,
    used: [f64; 2],
    bypasses: u64,
}

impl Experiment for Grow {
    fn data_bytes(&self) -> u64 {
        if self.grow { self.grow_files_max } else { 0 }
    }

    fn round(&self, place: &Place<'_>) -> Result<Vec<Sample>, BenchError> {
        if !self.grow {
            return Ok(Vec::new());
        }
        let run = |target: &Target<'_>, arm: &str| {
            Ok(figures(arm, &self.run(target, arm, place.interrupt)?))
        };
        place.for_each_reclaim(&self.grow_reclaim, run)
    }
}

impl Grow {
    fn run(
        &self,
        target: &Target<'_>,
        arm: &str,
        interrupt: &Interrupt,
    ) -> Result<Vec<Step>, BenchError> {
        let pair = Pair::make(target, self.grow_files_max, interrupt)?;
        target.cool()?;
        let groups = pair.groups(target);
        let cache = pair.cache_blocks * pair.block_bytes;
        groups[0].set("low", cache * LOW / 100)?;
        let files = pair.open()?;
        let mut next = Places::sequential(BLOCK, pair.file_blocks, 1);
        // The rival has all of the cache before the tenant begins.
        (0..pair.file_blocks).try_for_each(|_| read(&files[1], &mut next, interrupt))?;
        let mut steps = Vec::new();
        for set in (1..=STEPS).map(|step| step * STEP) {
            eprintln!("groups: {arm}: the set is {set} % of {} blocks", pair.cache_blocks);
            let blocks = pair.cache_blocks * set / 100;
            let mut any = Places::random(blocks, set);
            for turn in 0..self.grow_turns * blocks {
                read(&files[0], &mut any, interrupt)?;
                if turn.is_multiple_of(EAGERNESS) {
                    read(&files[1], &mut next, interrupt)?;
                }
            }
            let now = [groups[0].figures()?, groups[1].figures()?];
            let used = now.map(|figures| 100.0 * figures.current as f64 / cache as f64);
            steps.push(Step { set, used, bypasses: now[0].bypasses + now[1].bypasses });
        }
        Ok(steps)
    }
}

fn figures(arm: &str, steps: &[Step]) -> Vec<Sample> {
    let at = |set: u64| format!("grow.{set}");
    let line = |step: &Step, name: &str, part| {
        Sample::new(&at(step.set), &format!("{arm}.{name}"), plot::OF_CACHE, part)
    };
    let lines = steps
        .iter()
        .flat_map(|step| [line(step, "tenant", step.used[0]), line(step, "rival", step.used[1])]);
    let refused = steps.iter().find(|step| step.bypasses > 0);
    let falls = steps.windows(2).map(|pair| pair[0].used[1] - pair[1].used[1]);
    let of_arm = format!("grow.{arm}");
    let sum = |name: &str, part| Sample::new(&of_arm, name, "% of cache", part);
    let first = refused.map(|step| sum("first_bypass", step.set as f64));
    lines.chain(first).chain([sum("steepest", falls.fold(0.0, f64::max))]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_first_refusal_and_the_steepest_fall() {
        let step = |set, rival, bypasses| Step { set, used: [set as f64, rival], bypasses };
        let steps = [step(4, 90.0, 0), step(8, 80.0, 0), step(12, 77.0, 3), step(16, 76.0, 9)];
        let of = |steps: &[Step], name: &str| {
            let all = figures("off", steps);
            let found = all.iter().find(|sample| sample.metric.ends_with(name));
            found.map(|sample| sample.value)
        };
        assert_eq!(of(&steps, "first_bypass"), Some(12.0));
        assert_eq!(of(&steps, "steepest"), Some(10.0));
        assert_eq!(of(&steps[..2], "first_bypass"), None);
    }
}
