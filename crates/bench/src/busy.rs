//! The time that all processors together were busy.
//!
//! A kernel's filesystem works in threads of the kernel, and Copyhold in a process, so only the
//! machine's time compares both. Nothing else should run beside a job.

use std::fs;
use std::time::Duration;

use crate::error::{BenchError, On};
use crate::sample::Sample;

const STAT: &str = "/proc/stat";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy(Duration);

impl Busy {
    /// Since the start of the machine.
    pub(crate) fn now() -> Result<Busy, BenchError> {
        let stat = fs::read_to_string(STAT).on(STAT)?;
        let ticks = rustix::param::clock_ticks_per_second();
        Ok(Busy::of_stat(&stat, ticks))
    }

    /// The first line has ticks: user, nice, system, idle, iowait, irq, softirq, steal, …
    fn of_stat(stat: &str, ticks_per_second: u64) -> Busy {
        let line = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
        let ticks: Vec<u64> = line.map(|number| number.parse().unwrap_or_default()).collect();
        let busy = [0, 1, 2, 5, 6].iter().filter_map(|&at| ticks.get(at)).sum::<u64>();
        Busy(Duration::from_micros(busy * 1_000_000 / ticks_per_second.max(1)))
    }

    pub(crate) fn since(self, before: Busy) -> Busy {
        Busy(self.0.saturating_sub(before.0))
    }

    pub(crate) fn sample(self, variant: &str, ops: u64) -> Sample {
        Sample::new(variant, "cpu", "us/op", self.0.as_secs_f64() * 1e6 / ops.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_and_stolen_time_are_not_busy() {
        let before = Busy::of_stat("cpu  100 10 50 900 70 2 3 40 0 0\ncpu0 1 1", 100);
        let after = Busy::of_stat("cpu  150 10 60 990 99 2 3 90 0 0", 100);
        let busy = after.since(before);
        assert_eq!(busy, Busy(Duration::from_millis(600)));
        assert_eq!(busy.sample("x", 6), Sample::new("x", "cpu", "us/op", 100_000.0));
    }
}
