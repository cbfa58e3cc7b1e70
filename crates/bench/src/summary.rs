//! Samples of several rounds become medians, and medians become ratios.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::judgement::Judgement;
use crate::machine::Machine;
use crate::sample::Sample;
use crate::target::Kind;

/// All samples of a run.
pub(crate) struct Summary {
    machine: Machine,
    kinds: Vec<Kind>,
    rounds: u32,
    /// Metrics in the order in which they first came.
    metrics: Vec<Metric>,
    values: BTreeMap<(Kind, Metric), Vec<f64>>,
    /// By job.
    judgements: Vec<(&'static str, Judgement)>,
}

/// What is measured, and by which job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Metric {
    pub(crate) job: &'static str,
    pub(crate) name: String,
    pub(crate) unit: &'static str,
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
struct Judged<'a> {
    job: &'a str,
    #[serde(flatten)]
    judgement: &'a Judgement,
}

#[derive(Serialize)]
struct Ratio<'a> {
    job: &'a str,
    metric: &'a str,
    ratio_to: &'a str,
    ratio: f64,
}

impl Summary {
    pub(crate) fn new(machine: Machine, kinds: &[Kind], rounds: u32) -> Summary {
        let (metrics, values, judgements) = Default::default();
        Summary { machine, kinds: kinds.to_vec(), rounds, metrics, values, judgements }
    }

    pub(crate) fn add(&mut self, job: &'static str, kind: Kind, samples: Vec<Sample>) {
        for sample in samples {
            let metric = Metric { job, name: sample.metric, unit: sample.unit };
            if !self.metrics.contains(&metric) {
                self.metrics.push(metric.clone());
            }
            self.values.entry((kind, metric)).or_default().push(sample.value);
        }
    }

    /// Adds figures that a job has derived.
    pub(crate) fn judge(&mut self, job: &'static str, judgements: Vec<Judgement>) {
        self.judgements.extend(judgements.into_iter().map(|judgement| (job, judgement)));
    }

    /// The median of a metric that has this name.
    pub(crate) fn median(&self, job: &str, kind: Kind, name: &str) -> Option<f64> {
        let metric = self.metrics.iter().find(|metric| metric.job == job && metric.name == name)?;
        Some(self.spread(kind, metric)?.median)
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    pub(crate) fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// One object a line: the machine, every figure, every ratio of Copyhold to a peer, derived
    /// figures with their targets, and what was left out.
    pub(crate) fn json_lines(&self, notes: &[String]) -> String {
        let mut text = String::new();
        let mut push = |line: serde_json::Result<String>| {
            text += &line.expect("numbers and names are JSON");
            text.push('\n');
        };
        push(serde_json::to_string(&self.machine));
        for metric in &self.metrics {
            for &kind in &self.kinds {
                let Some(spread) = self.spread(kind, metric) else { continue };
                push(serde_json::to_string(&Line {
                    job: metric.job,
                    target: kind.name(),
                    metric: &metric.name,
                    unit: metric.unit,
                    median: spread.median,
                    min: spread.min,
                    max: spread.max,
                    rounds: self.rounds,
                }));
            }
        }
        for metric in &self.metrics {
            for &peer in &self.kinds {
                let Some(ratio) = self.ratio(metric, peer) else { continue };
                let (job, name, ratio_to) = (metric.job, &metric.name, peer.name());
                push(serde_json::to_string(&Ratio { job, metric: name, ratio_to, ratio }));
            }
        }
        for (job, judgement) in &self.judgements {
            push(serde_json::to_string(&Judged { job, judgement }));
        }
        for note in notes {
            push(serde_json::to_string(&serde_json::json!({ "left_out": note })));
        }
        text
    }

    /// The same for people: median, span, and how Copyhold compares.
    pub(crate) fn table(&self, notes: &[String]) -> String {
        let mut text = format!("{}rounds: {}\n", self.machine, self.rounds);
        let names = self.metrics.iter().map(|metric| metric.name.len());
        let width = names.max().unwrap_or_default();
        let mut job = "";
        for metric in &self.metrics {
            if metric.job != job {
                job = metric.job;
                let _ = writeln!(text, "\n{job}");
            }
            for &kind in &self.kinds {
                let Some(spread) = self.spread(kind, metric) else { continue };
                let span = format!("({} … {})", number(spread.min), number(spread.max));
                let (name, unit, target) = (&metric.name, metric.unit, kind.name());
                let median = number(spread.median);
                let _ =
                    write!(text, "{name:width$}  {target:8}  {median:>10} {unit:10}  {span:24}");
                if let Some(ratio) = self.ratio(metric, kind) {
                    let _ = write!(text, "copyhold is {ratio:.2} of it");
                }
                text.truncate(text.trim_end().len());
                text.push('\n');
            }
        }
        text += &self.judged_text();
        if !notes.is_empty() {
            let _ = writeln!(text, "\nNotes:\n  {}", notes.join("\n  "));
        }
        text
    }

    /// Derived figures, each with its target.
    fn judged_text(&self) -> String {
        let names = self.judgements.iter().map(|(_, it)| it.derived.len());
        let width = names.max().unwrap_or_default();
        let mut text = String::new();
        let mut before = "";
        for (job, judgement) in &self.judgements {
            if *job != before {
                before = job;
                let _ = writeln!(text, "\n{job}: derived figures");
            }
            let (name, value) = (&judgement.derived, number(judgement.value));
            let line = format!("{name:width$}  {value:>10}  {}", judgement.verdict_text());
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }

    pub(crate) fn spread(&self, kind: Kind, metric: &Metric) -> Option<Spread> {
        Spread::of(self.values.get(&(kind, metric.clone()))?)
    }

    /// Copyhold's median over that of `peer`.
    fn ratio(&self, metric: &Metric, peer: Kind) -> Option<f64> {
        let ours = self.spread(Kind::Copyhold, metric)?.median;
        let theirs = self.spread(peer, metric)?.median;
        (peer != Kind::Copyhold && theirs > 0.0).then(|| ours / theirs)
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
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

pub(crate) fn number(value: f64) -> String {
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
    fn lines_are_as_documented() {
        let kinds = [Kind::Copyhold, Kind::Ext4];
        let mut summary = Summary::new(Machine::example(), &kinds, 1);
        summary.add("job", Kind::Copyhold, vec![Sample::new("direct", "iops", "ops/s", 50.0)]);
        summary.add("job", Kind::Ext4, vec![Sample::new("direct", "iops", "ops/s", 100.0)]);
        let lines = summary.json_lines(&["job on null: why".into()]);
        let lines: Vec<&str> = lines.lines().collect();
        let figure = concat!(
            r#"{"job":"job","target":"ext4","metric":"direct.iops","unit":"ops/s","#,
            r#""median":100.0,"min":100.0,"max":100.0,"rounds":1}"#
        );
        assert_eq!(lines[2], figure);
        assert_eq!(
            lines[3],
            r#"{"job":"job","metric":"direct.iops","ratio_to":"ext4","ratio":0.5}"#
        );
        assert_eq!(lines[4], r#"{"left_out":"job on null: why"}"#);
        let bound = Some(crate::judgement::Bound::AtLeast(2.0));
        assert_eq!(summary.median("job", Kind::Ext4, "direct.iops"), Some(100.0));
        summary.judge("job", vec![Judgement::new("extra".into(), 1.5, bound)]);
        let lines = summary.json_lines(&[]);
        let judged =
            r#"{"job":"job","derived":"extra","value":1.5,"target":"at least 2","is_met":false}"#;
        assert_eq!(lines.lines().next_back(), Some(judged));
        let table = summary.table(&[]);
        assert!(table.contains("job: derived figures\nextra       1.500  at least 2: MISSED\n"));
        assert!(table.contains("copyhold is 0.50 of it"));
        assert!(table.contains("load"));
    }
}
