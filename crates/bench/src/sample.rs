//! Figures of one round.

use std::collections::BTreeMap;
use std::time::Duration;

/// One figure of one round.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) metric: String,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

impl Sample {
    pub(crate) fn new(variant: &str, metric: &str, unit: &'static str, value: f64) -> Sample {
        Sample { metric: format!("{variant}.{metric}"), unit, value }
    }

    /// The same of one arm of an experiment.
    pub(crate) fn of(self, arm: &str) -> Sample {
        Sample { metric: format!("{arm}.{}", self.metric), ..self }
    }

    /// How long a variant took.
    pub(crate) fn seconds(variant: &str, time: Duration) -> Sample {
        Sample::new(variant, "time", "s", time.as_secs_f64())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_compared_within_a_round() {
        let sample = |variant, value| Sample::new(variant, "iops", "ops/s", value);
        let both = [sample("off.next", 50.0), sample("simple.next", 49.0)];
        let expected = [Sample::new("simple_to_off", "next.iops", "ratio", 0.98)];
        assert_eq!(compared(&both, "simple", "off"), expected);
        assert_eq!(compared(&both[1..], "simple", "off"), []);
    }
}
