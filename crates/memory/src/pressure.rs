//! Pressure: the share of time in which at least one request waits because memory is short.
//!
//! Problem.  A count of waits does not say whether a tenant lost a thousandth of its time, or all
//!           of it, and since when.
//! Idea.     That of the kernel (PSI, `kernel/sched/psi.c`): time is cut into periods of two
//!           seconds. At the end of each, its share of stalled time enters three averages, whose
//!           older parts fade with time constants of 10, 60 and 300 s.
//!
//! PSI-S1  Two changes of the state, or a change and a reading, have the same state between them.
//!         So the averages are exact without a timer: each change and each reading first accounts
//!         for the periods that have ended since.
//! PSI-S2  The total never falls, and grows by at most the time that passes, however many requests
//!         wait at once.

use std::time::Duration;

use copyhold_types::Nanos;

const SECOND: Nanos = 1_000_000_000;
const PERIOD: Nanos = 2 * SECOND;
/// Time constants of the averages in seconds.
const WINDOWS: [f64; 3] = [10.0, 60.0, 300.0];

/// The pressure as it was read. Averages are hundredths of the time, 0 to 100.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    /// Time in which a request waited.
    pub total: Duration,
}

/// The state of one owner.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    /// Requests that wait.
    waiting: u64,
    /// The time up to which all is accounted for.
    at: Nanos,
    total: Nanos,
    /// Stalled time of the period that `at` is in.
    of_period: Nanos,
    /// As parts of one.
    averages: [f64; 3],
}

impl Stalls {
    pub(crate) fn begin(&mut self, now: Nanos) {
        self.account(now);
        self.waiting += 1;
    }

    pub(crate) fn end(&mut self, now: Nanos) {
        self.account(now);
        debug_assert!(self.waiting > 0, "a wait that ends has begun");
        self.waiting = self.waiting.saturating_sub(1);
    }

    pub(crate) fn read(&mut self, now: Nanos) -> Pressure {
        self.account(now);
        let [avg10, avg60, avg300] = self.averages.map(|average| 100.0 * average);
        Pressure { avg10, avg60, avg300, total: Duration::from_nanos(self.total) }
    }

    /// Accounts for the time until now, in which the state has not changed (PSI-S1).
    fn account(&mut self, now: Nanos) {
        let Some(passed) = now.checked_sub(self.at) else { return };
        let is_stalled = self.waiting > 0;
        let stalled = |time: Nanos| if is_stalled { time } else { 0 };
        self.total += stalled(passed);
        let left = PERIOD - self.at % PERIOD;
        match passed.checked_sub(left) {
            None => self.of_period += stalled(passed),
            Some(beyond) => {
                let share = (self.of_period + stalled(left)) as f64 / PERIOD as f64;
                self.enter(share, 1);
                self.enter(if is_stalled { 1.0 } else { 0.0 }, beyond / PERIOD);
                self.of_period = stalled(beyond % PERIOD);
            }
        }
        self.at = now;
    }

    /// So many periods end, with this share of stalled time in each.
    fn enter(&mut self, share: f64, periods: u64) {
        for (average, window) in self.averages.iter_mut().zip(WINDOWS) {
            let seconds = (PERIOD / SECOND) as f64 * periods as f64;
            let kept = (-seconds / window).exp();
            *average = *average * kept + share * (1.0 - kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn a_wait_of_a_whole_minute_reaches_the_averages_in_their_order() {
        let mut stalls = Stalls::default();
        stalls.begin(0);
        let after = stalls.read(60 * SECOND);
        let ideal = |window: f64| 100.0 * (1.0 - (-60.0 / window).exp());
        assert!((after.avg10 - ideal(10.0)).abs() < 0.01, "{after:?}");
        assert!((after.avg60 - ideal(60.0)).abs() < 0.01, "{after:?}");
        assert!((after.avg300 - ideal(300.0)).abs() < 0.01, "{after:?}");
        assert_eq!(after.total, Duration::from_secs(60));
        stalls.end(60 * SECOND);
        let later = stalls.read(120 * SECOND);
        assert!(later.avg10 < 1.0 && later.avg300 > 10.0, "{later:?}");
        assert_eq!(later.total, Duration::from_secs(60), "PSI-S2");
    }

    #[test]
    fn two_requests_that_wait_at_once_stall_the_time_once() {
        let mut stalls = Stalls::default();
        stalls.begin(100 * MS);
        stalls.begin(200 * MS);
        stalls.end(300 * MS);
        stalls.end(500 * MS);
        assert_eq!(stalls.read(SECOND).total, Duration::from_millis(400), "PSI-S2");
        assert_eq!(stalls.read(SECOND).avg10, 0.0, "the period has not ended");
        let ideal = 20.0 * (1.0 - (-0.2_f64).exp());
        assert!((stalls.read(2 * SECOND).avg10 - ideal).abs() < 1e-9);
    }

    #[test]
    fn a_clock_that_stands_or_starts_late_is_no_overflow() {
        let mut stalls = Stalls::default();
        stalls.begin(u64::MAX / 2);
        stalls.end(u64::MAX / 2);
        stalls.begin(5);
        assert_eq!(stalls.read(u64::MAX).total, Duration::from_nanos(u64::MAX - u64::MAX / 2));
        assert!((stalls.read(u64::MAX).avg300 - 100.0).abs() < 1e-6);
    }

    /// A model that looks at each period, as the kernel's worker does every two seconds.
    fn model(waits: &[(Nanos, Nanos)], until: Nanos) -> (Nanos, [f64; 3]) {
        let stalled = |from: Nanos, to: Nanos| {
            (from..to).filter(|ms| waits.iter().any(|(a, b)| (a..b).contains(&ms))).count() as u64
        };
        let mut averages = [0.0; 3];
        for period in 0..until / 2000 {
            let share = stalled(2000 * period, 2000 * (period + 1)) as f64 / 2000.0;
            for (average, window) in averages.iter_mut().zip(WINDOWS) {
                let kept = (-2.0 / window).exp();
                *average = *average * kept + 100.0 * share * (1.0 - kept);
            }
        }
        (stalled(0, until), averages)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Lazy accounting, read at any times, is that of a worker that never misses a period.
        #[test]
        fn averages_are_those_of_a_worker_that_looks_at_each_period(
            waits in prop::collection::vec((0..30_000_u64, 1..9000_u64), 0..6),
            reads in prop::collection::vec(0..40_000_u64, 0..6),
        ) {
            let waits: Vec<_> = waits.into_iter().map(|(from, long)| (from, from + long)).collect();
            let mut steps: Vec<(Nanos, i32)> = reads.into_iter().map(|at| (at, 0)).collect();
            steps.extend(waits.iter().flat_map(|(from, to)| [(*from, 1), (*to, -1)]));
            // Of two at the same time, the wait that ends may have begun just then.
            steps.sort_by_key(|(at, change)| (*at, -change));
            let mut stalls = Stalls::default();
            for (at, change) in steps {
                match change {
                    1 => stalls.begin(at * MS),
                    -1 => stalls.end(at * MS),
                    _ => drop(stalls.read(at * MS)),
                }
            }
            let (total, averages) = model(&waits, 45_000);
            let found = stalls.read(45_000 * MS);
            prop_assert_eq!(found.total, Duration::from_millis(total));
            for (found, wanted) in [found.avg10, found.avg60, found.avg300].iter().zip(averages) {
                prop_assert!((found - wanted).abs() < 1e-6, "{} {}", found, wanted);
            }
        }
    }
}
