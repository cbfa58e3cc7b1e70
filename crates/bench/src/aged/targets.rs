//! The targets of an aged pool: with the log beside without it, even flushes beside thresholds,
//! and Copyhold beside kernel filesystems.

use crate::aged::arm::Arm;
use crate::judgement::{Bound, Judgement, Medians};
use crate::target::Kind;

const STOCK: &str = "spacelog=off";
const THRESHOLD: &str = "flush=threshold";

/// Percent of the table of 2019 from which a pool is an aged one.
const FRAGMENTATION: Bound = Bound::AtLeast(75.0);
/// Writes of maps in a txg, with the log and without.
const MAP_WRITES: Bound = Bound::AtMost(0.02);
/// Overwrites a second, syncs included, where the operations of the device are the limit, with the
/// log and without.
const IOPS: Bound = Bound::AtLeast(1.4);
/// The same beside a kernel filesystem.
const IOPS_OF_PEERS: Bound = Bound::AtLeast(1.0);
/// Units of the txg with most, beside the mean.
const UNITS: Bound = Bound::AtMost(3.0);
/// Times of a writer, with even flushes and with thresholds.
const P99: Bound = Bound::AtMost(1.0);

const ONE_PASS_METRIC: &str = "free.txg.one_pass";

/// The metric, of the default arm beside another, with its target.
const RATIOS: [(&str, &str, Option<Bound>); 8] = [
    ("free.txg.writes.map", STOCK, Some(MAP_WRITES)),
    ("free.txg.writes", STOCK, None),
    ("free.txg.sync_mean", STOCK, None),
    ("limited.txg.sync_mean", STOCK, None),
    ("limited.txg.iops", STOCK, Some(IOPS)),
    ("limited.loop.durable_iops", STOCK, None),
    ("free.loop.p99", THRESHOLD, Some(P99)),
    ("free.loop.device_bytes", THRESHOLD, None),
];

/// The ends of the names of metrics that a plot shows: there are too many others.
const DRAWN: [&str; 6] = [
    ".txg.iops",
    ".txg.sync_mean",
    ".txg.writes.map",
    ".loop.durable_iops",
    ".loop.p99",
    ".loop.p999",
];

pub(super) fn is_drawn(metric: &str) -> bool {
    DRAWN.iter().any(|end| metric.ends_with(end))
}

pub(super) fn judgements(medians: Medians<'_>) -> Vec<Judgement> {
    let ours = |arm: &str, metric: &str| medians(Kind::Copyhold, &format!("{arm}.{metric}"));
    let mut judgements = Vec::new();
    let mut judge = |name: String, value: Option<f64>, bound| {
        judgements.extend(value.map(|value| Judgement::new(name, value, bound)));
    };
    let fragmentation = ours("image", "fragmentation");
    judge("fragmentation".to_owned(), fragmentation, Some(FRAGMENTATION));
    judge(format!("one_pass.{STOCK}"), ours(STOCK, ONE_PASS_METRIC), None);
    for (metric, other, bound) in RATIOS {
        let value = ratio(ours(Arm::DEFAULT, metric), ours(other, metric));
        judge(format!("{metric}.to.{other}"), value, bound);
    }
    for (arm, bound) in [(Arm::DEFAULT, Some(UNITS)), (THRESHOLD, None)] {
        let units = |name: &str| ours(arm, &format!("free.txg.units_per_txg_{name}"));
        judge(format!("units.most_to_mean.{arm}"), ratio(units("most"), units("mean")), bound);
    }
    for peer in [Kind::Btrfs, Kind::Ext4, Kind::Xfs] {
        for (setting, bound) in [("limited", Some(IOPS_OF_PEERS)), ("free", None)] {
            let metric = format!("{setting}.loop.durable_iops");
            let theirs = medians(peer, &format!("{}.{metric}", Arm::DEFAULT));
            let value = ratio(ours(Arm::DEFAULT, &metric), theirs);
            judge(format!("{metric}.to.{}", peer.name()), value, bound);
        }
    }
    judgements
}

fn ratio(of: Option<f64>, to: Option<f64>) -> Option<f64> {
    let to = to.filter(|to| *to > 0.0)?;
    Some(of? / to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_medians_of_the_same_run() {
        let medians = |kind, metric: &str| match (kind, metric) {
            (Kind::Copyhold, "image.fragmentation") => Some(91.0),
            (Kind::Copyhold, "default.free.txg.writes.map") => Some(20.0),
            (Kind::Copyhold, "spacelog=off.free.txg.writes.map") => Some(2000.0),
            (Kind::Copyhold, "default.limited.txg.iops") => Some(1500.0),
            (Kind::Copyhold, "spacelog=off.limited.txg.iops") => Some(1000.0),
            (Kind::Copyhold, "default.limited.loop.durable_iops") => Some(1500.0),
            (Kind::Copyhold, "default.free.txg.units_per_txg_most") => Some(8.0),
            (Kind::Copyhold, "default.free.txg.units_per_txg_mean") => Some(2.0),
            (Kind::Ext4, "default.limited.loop.durable_iops") => Some(2000.0),
            _ => None,
        };
        let of = |name: &str, value, bound| Judgement::new(name.into(), value, Some(bound));
        let expected = [
            of("fragmentation", 91.0, FRAGMENTATION),
            of("free.txg.writes.map.to.spacelog=off", 0.01, MAP_WRITES),
            of("limited.txg.iops.to.spacelog=off", 1.5, IOPS),
            of("units.most_to_mean.default", 4.0, UNITS),
            of("limited.loop.durable_iops.to.ext4", 0.75, IOPS_OF_PEERS),
        ];
        assert_eq!(judgements(&medians), expected);
        assert_eq!(judgements(&|_, _| None), []);
    }
}
