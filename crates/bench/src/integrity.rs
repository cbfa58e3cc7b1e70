//! The job: random overwrites with each mode of checksums.
//!
//! The experiment of the proposal that brought protection information to a filesystem: four
//! writers overwrite blocks of their files at random, direct with 32 in flight and buffered. The
//! figures are the bytes that the device writes for each byte of a program, and the time of the
//! processors. Copyhold has an emulated namespace under it in all its arms, so that they differ in
//! the checksums alone; its tuples are counted by themselves (`device_bytes.tuples`).
//!
//! btrfs has the arms `item` and `none`: with and without `nodatasum`. Filesystems without
//! checksums have the arm `none`.
//!
//! The report ends with figures that follow from the medians of the run: extra writes of each arm,
//! and `guard` beside `item` and beside btrfs with checksums, each with its target. The targets are
//! those of four writers on a data set of twenty times the delta.

use std::fmt;

use copyhold_harness::Interrupt;

use crate::clients::{self, Clients};
use crate::error::BenchError;
use crate::job::{Job, on_fresh};
use crate::judgement::{Bound, Judgement, Medians};
use crate::places::BLOCK;
use crate::random_overwrite::{RandomOverwrite, Variant};
use crate::sample::{Sample, compared};
use crate::size;
use crate::target::{Kind, Site, Target, run};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Integrity {
    /// Size of all files together: a number with K, M or G
    #[arg(long, default_value = "512M", value_parser = size::parse)]
    size: u64,
    /// A variant ends after this many seconds …
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// … or this many writes [default: as many as there are blocks]
    #[arg(long)]
    ops: Option<u64>,
    /// Writers at once, each on a file of its own
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    writers: u32,
    /// Which of the variants
    #[arg(long, value_enum, value_delimiter = ',')]
    #[arg(default_values_t = [Variant::Direct, Variant::Buffered])]
    variants: Vec<Variant>,
    /// Which checksum modes, in turn
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Mode::ALL)]
    checksum: Vec<Mode>,
    /// Format of Copyhold's emulated namespace
    #[arg(long, default_value = "4096+16:64b")]
    pi: String,
}

/// The checksum mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// In the items of extents
    Item,
    /// Beside the blocks, made by the host
    Guard,
    /// Beside the blocks, made by the device
    Offload,
    /// Nowhere
    None,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Item, Mode::Guard, Mode::Offload, Mode::None];

    fn name(self) -> &'static str {
        match self {
            Mode::Item => "item",
            Mode::Guard => "guard",
            Mode::Offload => "offload",
            Mode::None => "none",
        }
    }

    fn is_of(self, kind: Kind) -> bool {
        match kind {
            Kind::Copyhold => true,
            Kind::Btrfs => matches!(self, Mode::Item | Mode::None),
            Kind::Ext4 | Kind::Xfs | Kind::Null | Kind::Plain => self == Mode::None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Job for Integrity {
    fn name(&self) -> &'static str {
        "integrity"
    }

    /// With all that is overwritten: btrfs frees it at its next commit only, and commits early if
    /// there is no room for it.
    fn data_bytes(&self) -> u64 {
        let blocks = self.size / BLOCK as u64;
        self.size + self.ops.unwrap_or(blocks) * BLOCK as u64
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let mut samples = Vec::new();
        for mode in self.checksum.iter().filter(|mode| mode.is_of(kind)) {
            let site = match (kind, mode) {
                (Kind::Copyhold, _) => site.created_with(["--pi".into(), self.pi.clone()]),
                (Kind::Btrfs, Mode::None) => site.kernels_with(&["nodatasum"]),
                _ => site.kernels_with(&[]),
            };
            let measured = on_fresh(&site, kind, |target| {
                set(target, *mode)?;
                self.overwrites().run(target, self.writers, interrupt)
            })?;
            samples.extend(measured.into_iter().map(|sample| sample.of(mode.name())));
        }
        for mode in [Mode::Guard, Mode::Offload, Mode::None] {
            samples.extend(compared(&samples, mode.name(), Mode::Item.name()));
        }
        Ok(samples)
    }

    fn judgements(&self, medians: Medians<'_>) -> Vec<Judgement> {
        let judged = self.variants.iter().filter(|one| **one != Variant::Fsync);
        let names = judged.map(|one| clients::variant(&one.to_string(), self.writers));
        names.flat_map(|variant| judgements_of(&variant, medians)).collect()
    }
}

/// Bytes that the device writes beside data and tuples, for each byte of data. Blocks that are
/// overwritten in memory are written once, so bytes of the program are no measure; where the
/// filesystem does not tell data apart, only direct writes are surely data.
fn extra_writes(kind: Kind, mode: Mode, variant: &str, medians: Medians<'_>) -> Option<f64> {
    let of = |metric: &str| medians(kind, &format!("{mode}.{variant}.{metric}"));
    let all = of("device_bytes")?;
    let is_direct = variant.starts_with(&Variant::Direct.to_string());
    let data = of("device_bytes.data").or(is_direct.then_some(1.0))?;
    Some((all - of("device_bytes.tuples").unwrap_or_default()) / data - 1.0)
}

/// Extra writes of each mode, and `guard` beside `item` and beside btrfs with checksums.
fn judgements_of(variant: &str, medians: Medians<'_>) -> Vec<Judgement> {
    let mut judgements = Vec::new();
    for (kind, mode) in
        [Kind::Copyhold, Kind::Btrfs].iter().flat_map(|kind| Mode::ALL.map(|mode| (*kind, mode)))
    {
        let Some(extra) = extra_writes(kind, mode, variant, medians) else { continue };
        let is_judged = (kind, mode) == (Kind::Copyhold, Mode::Guard);
        let bound = is_judged.then_some(EXTRA_WRITES);
        let name = format!("{variant}.extra_writes.{}.{mode}", kind.name());
        judgements.push(Judgement::new(name, extra, bound));
    }
    for (metric, peer, bound) in RATIOS {
        let of = |kind, mode: Mode| medians(kind, &format!("{mode}.{variant}.{metric}"));
        let (Some(ours), Some(theirs)) = (of(Kind::Copyhold, Mode::Guard), of(peer, Mode::Item))
        else {
            continue;
        };
        if theirs > 0.0 {
            let name = format!("{variant}.{metric}.guard_to_{}_item", peer.name());
            judgements.push(Judgement::new(name, ours / theirs, Some(bound)));
        }
    }
    judgements
}

/// Targets of `guard`, which are meant for four writers on a data set of twenty times the delta
/// (`--size 512M --option delta=25M`): extra writes …
const EXTRA_WRITES: Bound = Bound::AtMost(0.06);
/// … and each metric beside the same with checksums in tables.
const RATIOS: [(&str, Kind, Bound); 4] = [
    ("iops", Kind::Btrfs, Bound::AtLeast(8.0)),
    ("iops", Kind::Copyhold, Bound::AtLeast(1.0)),
    ("device_bytes", Kind::Btrfs, Bound::AtMost(0.48)),
    ("cpu", Kind::Btrfs, Bound::AtMost(0.42)),
];

impl Integrity {
    fn overwrites(&self) -> RandomOverwrite {
        let clients = Clients::of(self.writers);
        RandomOverwrite::of(self.size, clients, self.seconds, self.ops, self.variants.clone())
    }
}

/// New files of the root directory get these checksums.
fn set(target: &Target<'_>, mode: Mode) -> Result<(), BenchError> {
    if target.kind() != Kind::Copyhold {
        return Ok(());
    }
    let mut command = target.copyhold();
    command.args(["property", "set"]).arg(target.directory()).args(["checksum", mode.name()]);
    run(&mut command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_medians_of_the_same_run() {
        let medians = |kind, metric: &str| match (kind, metric) {
            (Kind::Copyhold, "guard.direct.device_bytes") => Some(0.5625),
            (Kind::Copyhold, "guard.direct.device_bytes.data") => Some(0.5),
            (Kind::Copyhold, "guard.direct.device_bytes.tuples") => Some(0.046875),
            (Kind::Copyhold, "guard.direct.iops") => Some(900.0),
            (Kind::Copyhold, "item.direct.iops") => Some(1000.0),
            (Kind::Btrfs, "item.direct.iops") => Some(100.0),
            (Kind::Btrfs, "item.direct.device_bytes") => Some(2.125),
            _ => None,
        };
        let of =
            |name: &str, value, bound| Judgement::new(format!("direct.{name}"), value, Some(bound));
        let expected = [
            of("extra_writes.copyhold.guard", 0.03125, Bound::AtMost(0.06)),
            Judgement::new("direct.extra_writes.btrfs.item".into(), 1.125, None),
            of("iops.guard_to_btrfs_item", 9.0, Bound::AtLeast(8.0)),
            of("iops.guard_to_copyhold_item", 0.9, Bound::AtLeast(1.0)),
            of("device_bytes.guard_to_btrfs_item", 0.5625 / 2.125, Bound::AtMost(0.48)),
        ];
        assert_eq!(judgements_of("direct", &medians), expected);
        assert_eq!(judgements_of("buffered", &medians), []);
    }
}
