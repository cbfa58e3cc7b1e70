//! The limit on edits that recovery may have to replay, from the time that it may take.
//!
//! Idea.   A recovery measures its edits, and its time from the first read of the log to the last
//!         edit in memory. With `-o replay=SECONDS` the limit is the number of edits that this
//!         rate allows in that time. A recovery of few edits measures the device's latency, not
//!         a rate; then a stated rate counts.
//! Memory. The records of the log are in memory while they are replayed. So the limit is at most
//!         `Limits::replay_edits`, which a daemon sets by its budget.
//!
//! REPLAY-T1  The limit is at least [`LEAST`] edits, or as many as memory allows: so the largest
//!            transaction and the record of a round fit, and a pool goes on. With a log beyond it,
//!            rounds follow each other until the log fits.
//! REPLAY-T2  The rate is that of the recovery at this mount; it is not stored. A mount that
//!            recovers few edits, as after an orderly unmount, uses the stated rate.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use copyhold_types::Nanos;

use crate::config::Limits;

/// Edits from which a recovery measures a rate.
const MEASURED: u64 = 100_000;
/// Edits per second if no rate was measured: the default limit, replayed in one second.
const STATED: u64 = Limits::REPLAY_EDITS;
/// The least limit, several times the largest transaction (REPLAY-T1).
const LEAST: u64 = 4096;
const SECOND: u128 = 1_000_000_000;

/// The recovery of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    pub edits: u64,
    pub ns: Nanos,
}

impl Replay {
    /// Edits per second, if there were enough to tell.
    pub fn rate(&self) -> Option<u64> {
        let is_rate = self.edits >= MEASURED && self.ns > 0;
        is_rate.then(|| (u128::from(self.edits) * SECOND / u128::from(self.ns)) as u64)
    }

    /// The most edits in the log.
    pub(crate) fn limit(&self, limits: &Limits) -> u64 {
        let Some(time) = limits.replay else { return limits.replay_edits };
        let edits = u128::from(self.rate().unwrap_or(STATED)) * time.as_nanos() / SECOND;
        u64::try_from(edits).unwrap_or(u64::MAX).max(LEAST).min(limits.replay_edits)
    }
}

/// The time that a recovery may take: in seconds, `1` or `0.5`, or in milliseconds, `500ms`; from
/// a millisecond up to an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayTime(pub Duration);

impl FromStr for ReplayTime {
    type Err = ();

    fn from_str(text: &str) -> Result<ReplayTime, ()> {
        let (number, unit) = match text.strip_suffix("ms") {
            Some(number) => (number, 1e-3),
            None => (text.strip_suffix('s').unwrap_or(text), 1.0),
        };
        let is_decimal = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number = number.parse::<f64>().ok().filter(|_| is_decimal).ok_or(())?;
        let seconds = Some(number * unit).filter(|seconds| (0.001..=3600.0).contains(seconds));
        seconds.map(|seconds| ReplayTime(Duration::from_secs_f64(seconds))).ok_or(())
    }
}

impl fmt::Display for ReplayTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(replay: Option<Duration>, replay_edits: u64) -> Limits {
        Limits { replay, replay_edits, ..Limits::default() }
    }

    #[test]
    fn the_limit_follows_the_measured_rate() {
        let limit = |edits, ns| {
            let half = limits(Some(Duration::from_millis(500)), u64::MAX);
            Replay { edits, ns }.limit(&half)
        };
        assert_eq!(limit(200_000, 100_000_000), 1_000_000);
        assert_eq!(limit(200_000, 200_000_000), 500_000);
        // Too few to tell, and a clock that stood still.
        assert_eq!(limit(MEASURED - 1, 1_000), STATED / 2);
        assert_eq!(limit(MEASURED, 0), STATED / 2);
    }

    #[test]
    fn memory_caps_the_limit_and_the_largest_transaction_fits() {
        let fast = Replay { edits: 1_000_000, ns: 1_000_000 };
        assert_eq!(fast.limit(&limits(Some(Duration::from_secs(9)), 100)), 100);
        let slow = Replay { edits: MEASURED, ns: Nanos::MAX };
        let least = Some(Duration::from_millis(1));
        assert_eq!(slow.limit(&limits(least, u64::MAX)), LEAST);
        assert_eq!(slow.limit(&limits(least, 100)), 100);
        assert_eq!(fast.limit(&limits(None, 100)), 100);
    }

    #[test]
    fn times_are_seconds_or_milliseconds() {
        let parsed = |text: &str| text.parse().ok().map(|ReplayTime(time)| time.as_millis());
        for (text, millis) in
            [("1", 1000), ("0.5", 500), ("500ms", 500), ("2s", 2000), (".25", 250)]
        {
            assert_eq!(parsed(text), Some(millis), "{text}");
        }
        for text in ["", "0", "-1", "1e3", "inf", "NaN", "ms", "1m", "0.0001", "3601", "+1"] {
            assert_eq!(parsed(text), None, "{text}");
        }
        assert_eq!(ReplayTime(Duration::from_millis(500)).to_string(), "0.5");
    }
}
