//! The delay of a request whose group is above its `high`.
//!
//! As Linux has it (`mm/memcontrol.c`, `calculate_high_delay`): it grows with the square of the
//! share by which the group is above, so a group that passes its limit by little is hardly slowed,
//! and one that does not yield comes to a halt.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Of one request.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// A shorter delay is not worth a timer.
const DELAY_MIN: Duration = Duration::from_millis(10);
/// The delay of a request for so many pages is 2^20 / 2^34 s for each 2^-20 of the square of the
/// share: 0.64 s at a tenth above.
const PAGES: u128 = 64;

/// For a request for so many pages of 4 KiB, of a group that is `over` bytes above `high`.
pub fn delay_above_high(over: u64, high: u64, pages: u64) -> Duration {
    let share = (u128::from(over) << 20) / u128::from(high.max(1));
    let max = DELAY_MAX.as_nanos();
    // A larger share has the longest delay for one page.
    let share = share.min(1 << 26);
    let nanos = (share * share * 1_000_000_000) >> 34;
    Duration::from_nanos((nanos * u128::from(pages) / PAGES).min(max) as u64)
}

/// Delays of an owner that were too short for a timer, in nanoseconds.
#[derive(Debug, Default)]
pub struct OwedDelay(AtomicU64);

impl OwedDelay {
    pub fn add(&self, delay: Duration) {
        self.0.fetch_add(delay.as_nanos() as u64, Relaxed);
    }

    /// Whether the sum is worth a timer.
    pub fn is_due(&self) -> bool {
        Duration::from_nanos(self.0.load(Relaxed)) >= DELAY_MIN
    }

    /// There is no reason for a delay any more.
    pub fn forgive(&self) {
        self.0.store(0, Relaxed);
    }

    /// The sum, when it is worth a timer: the delay of the request that takes it. The excess over
    /// the longest delay of one request is left for the others whose delays are in the sum.
    pub fn take(&self) -> Option<Duration> {
        let max = DELAY_MAX.as_nanos() as u64;
        let left =
            |all: u64| (Duration::from_nanos(all) >= DELAY_MIN).then(|| all.saturating_sub(max));
        let all = self.0.fetch_update(Relaxed, Relaxed, left).ok()?;
        Some(Duration::from_nanos(all.min(max)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_delay_grows_with_the_square_of_the_share_above() {
        let delay = |over, pages| delay_above_high(over, 1000 * MIB, pages).as_millis();
        assert_eq!([0, 10, 100, 200].map(|over| delay(over * MIB, 64)), [0, 6, 639, 2000]);
        assert_eq!([1, 16, 32].map(|pages| delay(100 * MIB, pages)), [9, 159, 319]);
    }

    #[test]
    fn extreme_limits_have_a_delay() {
        assert_eq!(delay_above_high(2, 0, 1), DELAY_MAX);
        assert_eq!(delay_above_high(u64::MAX, 1, u64::MAX), DELAY_MAX);
        assert_eq!(delay_above_high(u64::MAX / 2, u64::MAX, 0), Duration::ZERO);
    }

    #[test]
    fn short_delays_add_up() {
        let owed = OwedDelay::default();
        let take = || owed.take().map(|owed| owed.as_millis());
        let add = |millis| {
            owed.add(Duration::from_millis(millis));
            take()
        };
        assert_eq!([6, 3, 4, 9, 1].map(add), [None, None, Some(13), None, Some(10)]);
        assert_eq!((add(1500), take()), (Some(1500), None));
        // Two requests have added theirs before the first one takes its delay.
        owed.add(Duration::from_millis(1500));
        assert_eq!((add(1500), take(), take()), (Some(2000), Some(1000), None));
    }
}
