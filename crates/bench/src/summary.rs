//! Samples of several rounds become medians, and medians become ratios.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::target::Kind;

/// One figure of one round.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    metric: String,
    unit: &'static str,
    value: f64,
}

impl Sample {
    pub(crate) fn new(variant: &str, metric: &str, unit: &'static str, value: f64) -> Sample {
        Sample { metric: format!("{variant}.{metric}"), unit, value }
    }

    pub(crate) fn metric(&self) -> &str {
        &self.metric
    }

    pub(crate) fn value(&self) -> f64 {
        self.value
    }
}

/// How the variant `of` compares with the variant `to` within a round, where both have a figure.
pub(crate) fn compared(samples: &[Sample], of: &str, to: &str) -> Vec<Sample> {
    let value_of: BTreeMap<&str, f64> =
        samples.iter().map(|sample| (sample.metric(), sample.value())).collect();
    let variant = format!("{of}_to_{to}");
    let compare = |sample: &Sample| {
        let name = sample.metric.strip_prefix(of)?.strip_prefix('.')?;
        let other = *value_of.get(format!("{to}.{name}").as_str())?;
        (other > 0.0).then(|| Sample::new(&variant, name, "ratio", sample.value / other))
    };
    samples.iter().filter_map(compare).collect()
}

/// All samples of a job.
pub(crate) struct Summary {
    job: &'static str,
    kinds: Vec<Kind>,
    rounds: u32,
    /// Metrics in the order in which they first came.
    metrics: Vec<(String, &'static str)>,
    values: BTreeMap<(Kind, String), Vec<f64>>,
}

#[derive(Serialize)]
struct Line<'a> {
    job: &'a str,
    target: &'a str,
    metric: &'a str,
    unit: &'a str,
    median: f64,
    min: f64,
    max: f64,
    rounds: u32,
}

#[derive(Serialize)]
struct Ratio<'a> {
    job: &'a str,
    metric: &'a str,
    ratio_to: &'a str,
    ratio: f64,
}

impl Summary {
    pub(crate) fn new(job: &'static str, kinds: &[Kind], rounds: u32) -> Summary {
        let (metrics, values) = Default::default();
        Summary { job, kinds: kinds.to_vec(), rounds, metrics, values }
    }

    pub(crate) fn add(&mut self, kind: Kind, samples: Vec<Sample>) {
        for sample in samples {
            if !self.metrics.iter().any(|(metric, _)| *metric == sample.metric) {
                self.metrics.push((sample.metric.clone(), sample.unit));
            }
            self.values.entry((kind, sample.metric)).or_default().push(sample.value);
        }
    }

    /// One object a line: every figure, then every ratio of Copyhold to a peer.
    pub(crate) fn json_lines(&self) -> String {
        let mut text = String::new();
        let mut push = |line: serde_json::Result<String>| {
            text += &line.expect("numbers and names are JSON");
            text.push('\n');
        };
        for (metric, unit) in &self.metrics {
            for &kind in &self.kinds {
                let Some(spread) = self.spread(kind, metric) else { continue };
                push(serde_json::to_string(&Line {
                    job: self.job,
                    target: kind.name(),
                    metric,
                    unit,
                    median: spread.median,
                    min: spread.min,
                    max: spread.max,
                    rounds: self.rounds,
                }));
            }
        }
        for (metric, _) in &self.metrics {
            for &peer in &self.kinds {
                let Some(ratio) = self.ratio(metric, peer) else { continue };
                let ratio_to = peer.name();
                push(serde_json::to_string(&Ratio { job: self.job, metric, ratio_to, ratio }));
            }
        }
        text
    }

    /// The same for people: median, span, and how Copyhold compares.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let width = self.metrics.iter().map(|(metric, _)| metric.len()).max().unwrap_or_default();
        for (metric, unit) in &self.metrics {
            for &kind in &self.kinds {
                let Some(spread) = self.spread(kind, metric) else { continue };
                let span = format!("({} … {})", number(spread.min), number(spread.max));
                let median = number(spread.median);
                let _ = write!(
                    text,
                    "{metric:width$}  {:8}  {median:>10} {unit:10}  {span:24}",
                    kind.name()
                );
                if let Some(ratio) = self.ratio(metric, kind) {
                    let _ = write!(text, "copyhold is {ratio:.2} of it");
                }
                text.truncate(text.trim_end().len());
                text.push('\n');
            }
        }
        text
    }

    fn spread(&self, kind: Kind, metric: &str) -> Option<Spread> {
        Spread::of(self.values.get(&(kind, metric.to_owned()))?)
    }

    /// Copyhold's median over that of `peer`.
    fn ratio(&self, metric: &str, peer: Kind) -> Option<f64> {
        let ours = self.spread(Kind::Copyhold, metric)?.median;
        let theirs = self.spread(peer, metric)?.median;
        (peer != Kind::Copyhold && theirs > 0.0).then(|| ours / theirs)
    }
}

#[derive(Debug, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        Some(Spread { median, min, max })
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_middle() {
        let of = |values: &[f64]| Spread::of(values).unwrap().median;
        assert_eq!(of(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(of(&[4.0, 1.0]), 2.5);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn variants_are_compared_within_a_round() {
        let sample = |variant, value| Sample::new(variant, "iops", "ops/s", value);
        let both = [sample("off.next", 50.0), sample("simple.next", 49.0)];
        let expected = [Sample::new("simple_to_off", "next.iops", "ratio", 0.98)];
        assert_eq!(compared(&both, "simple", "off"), expected);
        assert_eq!(compared(&both[1..], "simple", "off"), []);
    }

    #[test]
    fn lines_are_as_documented() {
        let mut summary = Summary::new("job", &[Kind::Copyhold, Kind::Ext4], 1);
        summary.add(Kind::Copyhold, vec![Sample::new("direct", "iops", "ops/s", 50.0)]);
        summary.add(Kind::Ext4, vec![Sample::new("direct", "iops", "ops/s", 100.0)]);
        let lines = summary.json_lines();
        let lines: Vec<&str> = lines.lines().collect();
        let figure = concat!(
            r#"{"job":"job","target":"ext4","metric":"direct.iops","unit":"ops/s","#,
            r#""median":100.0,"min":100.0,"max":100.0,"rounds":1}"#
        );
        assert_eq!(lines[1], figure);
        assert_eq!(
            lines[2],
            r#"{"job":"job","metric":"direct.iops","ratio_to":"ext4","ratio":0.5}"#
        );
        assert!(summary.table().contains("copyhold is 0.50 of it"));
    }
}
