//! Time, for limits and reports.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Readings of both clocks at one moment, from an arbitrary origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Also passes while the machine is suspended.
    pub(crate) passed: Duration,
    /// Passes only while the machine runs.
    pub(crate) awake: Duration,
}

/// The part of the machine that tests of the limits replace.
pub(crate) trait Clock {
    fn now(&self) -> Moment;
}

pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let read = |clock| since_origin(clock_gettime(clock));
        Moment { passed: read(ClockId::Boottime), awake: read(ClockId::Monotonic) }
    }
}

fn since_origin(time: Timespec) -> Duration {
    Duration::try_from(time).unwrap_or_default()
}

/// The time of the day for a line of the log, in UTC: `05:45:09.12`.
pub(crate) fn time_of_day(time: SystemTime) -> String {
    let text = humantime::format_rfc3339_millis(time).to_string();
    text.get(11..22).unwrap_or_default().to_owned()
}

/// The name of a directory of results, in UTC: `20180515T054509`.
pub(crate) fn stamp(time: SystemTime) -> String {
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.chars().filter(|c| !matches!(c, '-' | ':' | 'Z')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_layout_of_logs_says() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_526_363_109_129);
        assert_eq!(stamp(time), "20180515T054509");
        assert_eq!(time_of_day(time), "05:45:09.12");
    }

    #[test]
    fn both_clocks_run() {
        let before = SystemClock.now();
        let after = SystemClock.now();
        assert!(after.passed >= before.passed && after.awake >= before.awake);
    }
}
