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

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use copyhold_harness::Interrupt;

use super::group::{Figures, Group};
use crate::counters::mib;
use crate::direct::{self, Page, Way};
use crate::error::{BenchError, On};
use crate::job::on_fresh;
use crate::places::{BLOCK, Places, fill_file};
use crate::plot;
use crate::sample::Sample;
use crate::size;
use crate::target::{Kind, Site, Target};
use crate::unshare::copies;

/// The protection of each step, in nineteenths of the set. The last is what others compare with.
const STEPS: [u64; 6] = [21, 17, 12, 8, 4, 0];
const PARTS: u64 = 19;
/// The cache and the rival's file, in hundredths of the set.
const CACHE: u64 = 126;
const FILE: u64 = 135;

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

/// Two tenants of a filesystem, each with a file.
struct Tenants {
    set: PathBuf,
    rival: PathBuf,
    /// Blocks of the set, and the bytes that the cache counts for each.
    blocks: u64,
    block_bytes: u64,
}

impl Curve {
    pub(super) fn data_bytes(&self) -> u64 {
        if self.curve { self.files_max } else { 0 }
    }

    pub(super) fn round(
        &self,
        site: &Site,
        kind: Kind,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let mut samples = Vec::new();
        if !self.curve {
            return Ok(samples);
        }
        samples.extend(STEPS.map(|parts| share(parts, "ideal", ideal(parts))));
        for arm in &self.reclaim {
            let site = site.with_option(format!("reclaim={arm}"));
            let site = site.with_option("data_cache=direct".into());
            samples.extend(on_fresh(&site, kind, |target| self.run(target, arm, interrupt))?);
        }
        Ok(samples)
    }

    fn run(
        &self,
        target: &Target<'_>,
        arm: &str,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let tenants = self.prepare(target, interrupt)?;
        let mut samples = Vec::new();
        let mut scanned = Vec::new();
        for parts in STEPS {
            eprintln!("groups: {arm}: low is {parts}/{PARTS} of {} blocks", tenants.blocks);
            let [set, rival] = self.step(target, &tenants, parts, interrupt)?;
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

    /// Makes the tenants, with files that suit the cache.
    fn prepare(&self, target: &Target<'_>, interrupt: &Interrupt) -> Result<Tenants, BenchError> {
        let directory = target.directory();
        let [set, rival] = ["tenant", "rival"].map(|name| directory.join(name));
        copies::make_original(target, &set)?;
        copies::make_original(target, &rival)?;
        let most = self.files_max / BLOCK as u64;
        fill_file(&rival.join("file"), most / 2, 2, interrupt)?;
        target.cool()?;
        let (kept, block_bytes) = room(target, &rival.join("file"), most / 2, interrupt)?;
        let blocks = kept * 100 / CACHE;
        if blocks * FILE / 100 > most / 2 {
            let least = 2 * blocks * FILE / 100 * BLOCK as u64;
            return Err(BenchError::FilesTooSmall { bytes: self.files_max, least });
        }
        fill_file(&set.join("file"), blocks, 1, interrupt)?;
        Ok(Tenants { set, rival, blocks, block_bytes })
    }

    /// The figures of both groups, of the second half of the reads.
    fn step(
        &self,
        target: &Target<'_>,
        tenants: &Tenants,
        parts: u64,
        interrupt: &Interrupt,
    ) -> Result<[Figures; 2], BenchError> {
        target.cool()?;
        let groups = [&tenants.set, &tenants.rival].map(|path| Group::new(target, path));
        let Tenants { blocks, block_bytes, .. } = *tenants;
        groups[0].set("low", blocks * block_bytes * parts / PARTS)?;
        let [set, rival] =
            [&tenants.set, &tenants.rival].map(|path| direct::open(&path.join("file"), Way::Read));
        let (set, rival) = (set?, rival?);
        let of_rival = blocks * FILE / 100;
        let mut any = Places::random(blocks, 1);
        let mut next = Places::sequential(BLOCK, of_rival, 1);
        let mut half = || {
            for _ in 0..self.turns * of_rival {
                (0..self.eagerness).try_for_each(|_| read(&set, &mut any, interrupt))?;
                read(&rival, &mut next, interrupt)?;
            }
            Ok::<[Figures; 2], BenchError>([groups[0].figures()?, groups[1].figures()?])
        };
        let before = half()?;
        let after = half()?;
        Ok([0, 1].map(|of| after[of].since(before[of])))
    }
}

/// Blocks that the cache keeps of a file that is larger, and the bytes that it counts for each.
fn room(
    target: &Target<'_>,
    path: &Path,
    blocks: u64,
    interrupt: &Interrupt,
) -> Result<(u64, u64), BenchError> {
    let file = direct::open(path, Way::Read)?;
    let mut places = Places::sequential(BLOCK, blocks, 1);
    (0..blocks).try_for_each(|_| read(&file, &mut places, interrupt))?;
    let info = target.info()?;
    let number = |name: &str| info.get("memory")?.pointer(name)?.as_u64();
    let kept = number("/data/blocks").zip(number("/data_bytes")).filter(|(kept, _)| *kept > 0);
    let (kept, bytes) = kept.ok_or_else(|| target.no_counters())?;
    Ok((kept, bytes / kept))
}

/// Reads the next block of a file.
fn read(file: &File, places: &mut Places, interrupt: &Interrupt) -> Result<(), BenchError> {
    interrupt.check()?;
    let mut page = Page([0; BLOCK]);
    file.read_exact_at(&mut page.0, places.next_offset()).on("direct read")
}

/// The part of the set above a protection.
fn ideal(parts: u64) -> f64 {
    PARTS.saturating_sub(parts) as f64 / PARTS as f64
}

fn share(parts: u64, arm: &str, part: f64) -> Sample {
    Sample::new(&format!("curve.{parts}"), arm, plot::LINES, 100.0 * part)
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
