//! The curve of reclaim: scans of a protected tenant's list, as its protection is lowered.
//!
//! One tenant re-reads its set at random by direct reads, and a rival re-reads a larger file in
//! order, one read for so many of the tenant's: that is its rate. The cache has 1.26 times the
//! bytes of the set. `low` is lowered from above the set's size to nothing in six steps; the mount
//! is made anew for each, so the groups begin with nothing in memory and counters of zero. All is
//! counted in reads, so a slow machine gives the same figures later.
//!
//! `curve.PARTS.ARM` is the number of bytes that reclaim has looked at, in hundredths of those
//! without protection; `PARTS` is `low` in nineteenths of the set. `curve.PARTS.ideal` is the part
//! of the set above its protection.

use copyhold_harness::Interrupt;

use super::experiment::{Experiment, Place};
use super::group::Figures;
use super::pair::{Pair, read};
use crate::counters::mib;
use crate::error::BenchError;
use crate::places::{BLOCK, Places};
use crate::plot;
use crate::sample::Sample;
use crate::size;
use crate::target::Target;

/// The protection of each step, in nineteenths of the set. The last is what others compare with.
const STEPS: [u64; 6] = [21, 17, 12, 8, 4, 0];
const PARTS: u64 = 19;
/// The cache, in hundredths of the set.
const CACHE: u64 = 126;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Curve {
    /// Lower the protection of a tenant in six steps, beside a rival that reads
    #[arg(long)]
    curve: bool,
    /// The arms: values of the mount option `reclaim`
    #[arg(long, value_delimiter = ',', default_value = "proportional,published,binary,off")]
    reclaim: Vec<String>,
    /// Reads of the tenant for each read of the rival
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    eagerness: u64,
    /// How often the rival reads its file in each step; as often before it is measured
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    turns: u64,
    /// Most bytes of both files: a number with K, M or G
    #[arg(long, default_value = "512M", value_parser = size::parse)]
    files_max: u64,
}

impl Experiment for Curve {
    fn data_bytes(&self) -> u64 {
        if self.curve { self.files_max } else { 0 }
    }

    fn round(&self, place: &Place<'_>) -> Result<Vec<Sample>, BenchError> {
        if !self.curve {
            return Ok(Vec::new());
        }
        let run = |target: &Target<'_>, arm: &str| self.run(target, arm, place.interrupt);
        let of_arms = place.for_each_reclaim(&self.reclaim, run)?;
        Ok(STEPS
            .map(|parts| share(parts, "ideal", ideal(parts)))
            .into_iter()
            .chain(of_arms)
            .collect())
    }
}

impl Curve {
    fn run(
        &self,
        target: &Target<'_>,
        arm: &str,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let pair = Pair::make(target, self.files_max, interrupt)?;
        let blocks = pair.cache_blocks * 100 / CACHE;
        let mut samples = Vec::new();
        let mut scanned = Vec::new();
        for parts in STEPS {
            eprintln!("groups: {arm}: low is {parts}/{PARTS} of {blocks} blocks");
            let [set, rival] = self.step(target, &pair, (blocks, parts), interrupt)?;
            scanned.push(set.scanned);
            let sample = |metric: &str, unit, value| {
                Sample::new(&format!("curve.{parts}.{arm}"), metric, unit, value)
            };
            samples.extend([
                sample("pgscan", "MiB", mib(set.scanned)),
                sample("pgsteal", "MiB", mib(set.stolen)),
                sample("usage", "MiB", mib(set.current)),
                sample("rival_pgscan", "MiB", mib(rival.scanned)),
                sample("rival_usage", "MiB", mib(rival.current)),
                sample("bypass", "events", (set.bypasses + rival.bypasses) as f64),
                sample("low", "events", set.lows as f64),
            ]);
        }
        let all = scanned.last().copied().unwrap_or_default().max(1);
        let shares = STEPS.into_iter().zip(scanned);
        let shares = shares.map(|(parts, bytes)| share(parts, arm, bytes as f64 / all as f64));
        Ok(shares.chain(samples).collect())
    }

    /// The figures of both groups, of the second half of the reads.
    fn step(
        &self,
        target: &Target<'_>,
        pair: &Pair,
        (blocks, parts): (u64, u64),
        interrupt: &Interrupt,
    ) -> Result<[Figures; 2], BenchError> {
        target.cool()?;
        let groups = pair.groups(target);
        groups[0].set("low", blocks * pair.block_bytes * parts / PARTS)?;
        let files = pair.open()?;
        let mut any = Places::random(blocks, 1);
        let mut next = Places::sequential(BLOCK, pair.file_blocks, 1);
        let mut half = || {
            for _ in 0..self.turns * pair.file_blocks {
                (0..self.eagerness).try_for_each(|_| read(&files[0], &mut any, interrupt))?;
                read(&files[1], &mut next, interrupt)?;
            }
            Ok::<[Figures; 2], BenchError>([groups[0].figures()?, groups[1].figures()?])
        };
        let before = half()?;
        let after = half()?;
        Ok([0, 1].map(|of| after[of].since(before[of])))
    }
}

/// The part of the set above a protection.
fn ideal(parts: u64) -> f64 {
    PARTS.saturating_sub(parts) as f64 / PARTS as f64
}

fn share(parts: u64, arm: &str, part: f64) -> Sample {
    Sample::new(&format!("curve.{parts}"), arm, plot::OF_UNPROTECTED, 100.0 * part)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        curve: Curve,
    }

    #[test]
    fn the_curve_is_drawn_if_its_option_is_given() {
        let parsed = |line: &[&str]| Line::try_parse_from(line).map(|line| line.curve);
        assert_eq!(parsed(&["x"]).unwrap().data_bytes(), 0);
        let curve = parsed(&["x", "--curve", "--reclaim", "off,binary"]).unwrap();
        assert_eq!((curve.data_bytes(), curve.reclaim.len()), (512 << 20, 2));
        assert!(parsed(&["x", "--curve", "--eagerness", "0"]).is_err());
    }

    #[test]
    fn the_ideal_is_the_part_above_the_protection() {
        let shown = STEPS.map(|parts| (ideal(parts) * 1000.0).round());
        assert_eq!(shown, [0.0, 105.0, 368.0, 579.0, 789.0, 1000.0]);
    }
}
