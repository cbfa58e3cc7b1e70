//! A group of memory, as `copyhold memory` sets and shows it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::BenchError;
use crate::target::{Target, run};

/// The group of a subvolume.
pub(super) struct Group<'a> {
    target: &'a Target<'a>,
    path: PathBuf,
}

/// Counters since the mount, and the bytes now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) scanned: u64,
    pub(super) stolen: u64,
    pub(super) bypasses: u64,
    pub(super) lows: u64,
    pub(super) current: u64,
}

impl<'a> Group<'a> {
    pub(super) fn new(target: &'a Target<'a>, path: &Path) -> Group<'a> {
        Group { target, path: path.to_owned() }
    }

    /// Sets a limit, in bytes.
    pub(super) fn set(&self, key: &str, bytes: u64) -> Result<(), BenchError> {
        let mut set = self.target.copyhold();
        set.args(["memory", "set"]).arg(&self.path).arg(format!("{key}={bytes}"));
        run(&mut set).map(drop)
    }

    pub(super) fn figures(&self) -> Result<Figures, BenchError> {
        let mut show = self.target.copyhold();
        let shown = run(show.args(["memory", "show", "--json"]).arg(&self.path))?;
        let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
        Figures::of(&shown).ok_or_else(|| self.target.no_counters())
    }
}

impl Figures {
    /// `copyhold memory show` prints the group of the directory first, then those inside.
    fn of(shown: &Value) -> Option<Figures> {
        let number = |pointer: &str| shown.get(0)?.pointer(pointer)?.as_u64();
        Some(Figures {
            scanned: number("/stat/pgscan")?,
            stolen: number("/stat/pgsteal")?,
            bypasses: number("/events/bypass")?,
            lows: number("/events/low")?,
            current: number("/current")?,
        })
    }

    /// The counters since `before`; the bytes are those of now.
    pub(super) fn since(self, before: Figures) -> Figures {
        Figures {
            scanned: self.scanned - before.scanned,
            stolen: self.stolen - before.stolen,
            bypasses: self.bypasses - before.bypasses,
            lows: self.lows - before.lows,
            current: self.current,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_the_first_group_that_is_shown() {
        let shown = r#"[{"current": 5, "events": {"low": 1, "bypass": 2},
            "stat": {"pgscan": 30, "pgsteal": 4}}, {"current": 7}]"#;
        let figures = Figures::of(&serde_json::from_str(shown).unwrap()).unwrap();
        let expected = Figures { scanned: 30, stolen: 4, bypasses: 2, lows: 1, current: 5 };
        assert_eq!(figures, expected);
        let before = Figures { scanned: 10, ..Figures::default() };
        assert_eq!(figures.since(before), Figures { scanned: 20, ..expected });
        assert_eq!(Figures::of(&Value::Null), None);
    }
}
