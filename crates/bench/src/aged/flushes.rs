//! Counters of the flusher, as `copyhold info --json` has them (`flush`).

use serde_json::Value;

use crate::sample::Sample;

/// Since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flushes {
    commits: u64,
    units: u64,
    units_most: u64,
}

impl Flushes {
    pub(super) fn of_info(info: &Value) -> Option<Flushes> {
        let number = |name: &str| info.get("flush")?.get(name)?.as_u64();
        Some(Flushes {
            commits: number("commits")?,
            units: number("units")?,
            units_most: number("units_most")?,
        })
    }

    /// The units of a commit: the mean since `before`, and the most since the mount.
    pub(super) fn samples(&self, before: &Flushes, variant: &str) -> Vec<Sample> {
        let commits = (self.commits - before.commits) as f64;
        let units = (self.units - before.units) as f64;
        if commits == 0.0 {
            return Vec::new();
        }
        vec![
            Sample::new(variant, "commits", "commits", commits),
            Sample::new(variant, "units_mean", "units", units / commits),
            Sample::new(variant, "units_most", "units", self.units_most as f64),
        ]
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
}
