//! Counters of the flusher, as `copyhold info --json` has them (`flush`).

use serde_json::Value;

use crate::sample::Sample;

/// Since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flushes {
    commits: u64,
    units: u64,
    units_most: u64,
    /// Of a mount that logs no changes of space.
    stock: Option<Passes>,
}

/// Rounds of maps that belong to a txg, with its commit as the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Passes {
    txgs: u64,
    single: u64,
    passes: u64,
}

impl Flushes {
    pub(super) fn of_info(info: &Value) -> Option<Flushes> {
        let flush = info.get("flush")?;
        let number = |name: &str| flush.get(name)?.as_u64();
        Some(Flushes {
            commits: number("commits")?,
            units: number("units")?,
            units_most: number("units_most")?,
            stock: flush.get("stock").and_then(Passes::of_stock),
        })
    }

    /// Units that were flushed in each stretch between two of these moments: the mean and the most.
    pub(super) fn units_between(moments: &[Flushes], variant: &str) -> Vec<Sample> {
        let stretches = moments.windows(2).map(|pair| (pair[1].units - pair[0].units) as f64);
        let Some(most) = stretches.clone().reduce(f64::max) else { return Vec::new() };
        let mean = stretches.sum::<f64>() / (moments.len() - 1) as f64;
        vec![
            Sample::new(variant, "units_per_txg_mean", "units", mean),
            Sample::new(variant, "units_per_txg_most", "units", most),
        ]
    }

    /// The units of a commit, the mean since `before` and the most since the mount, and the passes
    /// of a txg in stock mode. Where changes of space are logged, a txg has no pass but its commit.
    pub(super) fn samples(&self, before: &Flushes, variant: &str) -> Vec<Sample> {
        let commits = (self.commits - before.commits) as f64;
        let units = (self.units - before.units) as f64;
        if commits == 0.0 {
            return Vec::new();
        }
        let mut samples = vec![
            Sample::new(variant, "commits", "commits", commits),
            Sample::new(variant, "units_mean", "units", units / commits),
            Sample::new(variant, "units_most", "units", self.units_most as f64),
        ];
        let passes =
            self.stock.zip(before.stock).and_then(|(now, before)| now.per_txg_since(before));
        if let Some((mean, single)) = passes {
            samples.push(Sample::new(variant, "passes_mean", "passes", mean));
            samples.push(Sample::new(variant, "one_pass", "of txgs", single));
        }
        samples
    }
}

impl Passes {
    fn of_stock(stock: &Value) -> Option<Passes> {
        let number = |name: &str| stock.get(name)?.as_u64();
        let (txgs, single, passes) = (number("txgs")?, number("single_pass")?, number("passes")?);
        Some(Passes { txgs, single, passes })
    }

    /// The mean passes of a txg, and the share of txgs with one, if there were txgs.
    fn per_txg_since(self, before: Passes) -> Option<(f64, f64)> {
        let txgs = (self.txgs - before.txgs) as f64;
        let share = |count: u64| count as f64 / txgs;
        let mean_and_single =
            (share(self.passes - before.passes), share(self.single - before.single));
        (txgs > 0.0).then_some(mean_and_single)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_a_commit_are_counted_from_a_moment_on() {
        let info = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let before = info(r#"{"flush": {"commits": 10, "units": 50, "units_most": 9}}"#);
        let after = info(r#"{"flush": {"commits": 14, "units": 60, "units_most": 12}}"#);
        let [before, after] = [before, after].map(|it| Flushes::of_info(&it).unwrap());
        let expected = [
            Sample::new("x", "commits", "commits", 4.0),
            Sample::new("x", "units_mean", "units", 2.5),
            Sample::new("x", "units_most", "units", 12.0),
        ];
        assert_eq!(after.samples(&before, "x"), expected);
        assert_eq!(after.samples(&after, "x"), []);
        assert_eq!(Flushes::of_info(&info("{}")), None);
    }

    #[test]
    fn units_of_each_txg_have_a_mean_and_a_most() {
        let moments = [10, 12, 20, 21].map(|units| Flushes { units, ..Flushes::default() });
        let expected = [
            Sample::new("x", "units_per_txg_mean", "units", 11.0 / 3.0),
            Sample::new("x", "units_per_txg_most", "units", 8.0),
        ];
        assert_eq!(Flushes::units_between(&moments, "x"), expected);
        assert_eq!(Flushes::units_between(&moments[..1], "x"), []);
    }

    #[test]
    fn passes_are_those_of_the_txgs_since_a_moment() {
        let stock = |txgs, single, passes| Flushes {
            commits: passes,
            stock: Some(Passes { txgs, single, passes }),
            ..Flushes::default()
        };
        let samples = stock(14, 3, 40).samples(&stock(10, 2, 30), "x");
        assert!(samples.contains(&Sample::new("x", "passes_mean", "passes", 2.5)));
        assert!(samples.contains(&Sample::new("x", "one_pass", "of txgs", 0.25)));
        let info = r#"{"flush": {"commits": 1, "units": 2, "units_most": 3,
            "stock": {"txgs": 4, "single_pass": 5, "passes": 6}}}"#;
        let expected = Some(Passes { txgs: 4, single: 5, passes: 6 });
        let found = Flushes::of_info(&serde_json::from_str(info).unwrap()).unwrap();
        assert_eq!(found.stock, expected);
    }
}
