//! Figures that a job derives from the medians of a run, with their targets.
//!
//! Clocks and counters of one run are compared with each other only, so most figures are ratios.

use serde::Serialize;

use crate::target::Kind;

/// The median of a metric on a kind of filesystem, if the run has it.
pub(crate) type Medians<'a> = &'a dyn Fn(Kind, &str) -> Option<f64>;

/// A derived figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Judgement {
    /// The name of the figure.
    pub(crate) derived: String,
    pub(crate) value: f64,
    /// As it is written; absent for figures that only stand beside others.
    #[serde(flatten)]
    verdict: Option<Verdict>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Verdict {
    target: String,
    is_met: bool,
}

/// A target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Judgement {
    pub(crate) fn new(derived: String, value: f64, bound: Option<Bound>) -> Judgement {
        let verdict = bound.map(|bound| bound.verdict(value));
        Judgement { derived, value, verdict }
    }

    /// The target and the verdict, for people.
    pub(crate) fn verdict_text(&self) -> String {
        match &self.verdict {
            None => String::new(),
            Some(Verdict { target, is_met: true }) => format!("{target}: met"),
            Some(Verdict { target, is_met: false }) => format!("{target}: MISSED"),
        }
    }
}

impl Bound {
    fn verdict(self, value: f64) -> Verdict {
        let (target, is_met) = match self {
            Bound::AtMost(most) => (format!("at most {most}"), value <= most),
            Bound::AtLeast(least) => (format!("at least {least}"), value >= least),
        };
        Verdict { target, is_met }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_judged_by_its_target() {
        let of = |value, bound| Judgement::new("x".into(), value, bound).verdict_text();
        assert_eq!(of(0.5, Some(Bound::AtMost(0.48))), "at most 0.48: MISSED");
        assert_eq!(of(0.48, Some(Bound::AtMost(0.48))), "at most 0.48: met");
        assert_eq!(of(8.0, Some(Bound::AtLeast(8.0))), "at least 8: met");
        assert_eq!(of(7.9, Some(Bound::AtLeast(8.0))), "at least 8: MISSED");
        assert_eq!(of(1.0, None), "");
    }
}
