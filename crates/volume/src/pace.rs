//! How much of the machine freeing takes: little while others work, all of it while none does.
//!
//! Problem.  The space of a thousand deleted snapshots can be freed as fast as the device allows,
//!           and then all other work waits behind it: for the CPU, for commits with its records,
//!           for the device.
//! Idea.     A duty cycle. Steps are bounded (R28). When a step has taken time t and others work,
//!           the next comes no sooner than 3 t later: a quarter of the time at most, and much
//!           less if steps are short. The requests to the pool in the last moments show that
//!           others work, so it needs no report.
//!
//! PACE-W1  While other work runs, freeing has at most one part in four of the time.
//! PACE-W2  Freeing does not rest when no other work came for `QUIET`, or while there is little
//!          space; a task that waits for space takes steps itself.
//! PACE-W3  No rest is longer than `REST_MAX`, so freeing continues under any load.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use copyhold_types::Nanos;

use crate::Volumes;

/// Rest for each nanosecond of work.
const RESTS: u64 = 3;
/// Timers are no finer, and a step that waits for nothing takes less.
const REST_MIN: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(200);
/// Other work that has asked for nothing for so long is over.
const QUIET: Duration = Duration::from_millis(50);
/// Little space is less than this part of the pool.
const SHORT: u64 = 32;

/// The load that is sampled between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) now: Nanos,
    /// A count of the requests of others.
    pub(crate) asked: u64,
    /// Blocks of the pool, and those that writes can have.
    pub(crate) blocks: u64,
    pub(crate) available: u64,
}

/// The work done at this pace since the pool was opened.
#[derive(Debug, Default)]
pub(crate) struct Freeing {
    steps: AtomicU64,
    worked: AtomicU64,
    rested: AtomicU64,
}

impl Freeing {
    pub(crate) fn note(&self, worked: Nanos, rests: Duration) {
        self.steps.fetch_add(1, Relaxed);
        self.worked.fetch_add(worked, Relaxed);
        self.rested.fetch_add(rests.as_nanos() as Nanos, Relaxed);
    }
}

/// How the background has shared the time with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeingWork {
    pub steps: u64,
    /// How long the steps took, and for how long it then left the machine to others.
    pub worked: Nanos,
    pub rested: Nanos,
}

impl Volumes {
    /// The work of freeing in the background so far.
    pub fn freeing_work(&self) -> FreeingWork {
        let Freeing { steps, worked, rested } = &self.state.freeing;
        FreeingWork {
            steps: steps.load(Relaxed),
            worked: worked.load(Relaxed),
            rested: rested.load(Relaxed),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pace {
    asked: u64,
    /// When that was seen to be more than before.
    since: Option<Nanos>,
}

impl Pace {
    /// How long to rest behind a step that took `took`.
    pub(crate) fn rest(&mut self, took: Nanos, load: Load) -> Duration {
        if std::mem::replace(&mut self.asked, load.asked) != load.asked {
            self.since = Some(load.now);
        }
        let quiet_since = |since: Nanos| since + QUIET.as_nanos() as Nanos <= load.now;
        if self.since.is_none_or(quiet_since) || load.available < load.blocks / SHORT {
            return Duration::ZERO;
        }
        Duration::from_nanos(took.saturating_mul(RESTS)).clamp(REST_MIN, REST_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Load = Load { now: 0, asked: 0, blocks: 1000, available: 500 };
    const MS: Nanos = 1_000_000;

    fn load(now: Nanos, asked: u64) -> Load {
        Load { now, asked, ..ROOM }
    }

    #[test]
    fn while_others_work_freeing_has_a_quarter_of_the_time_and_else_all() {
        let mut pace = Pace::default();
        let (took, rest) = (10 * MS, Duration::from_millis(30));
        assert_eq!(pace.rest(took, load(MS, 7)), rest);
        assert_eq!(pace.rest(took, load(40 * MS, 7)), rest, "they were there a moment ago");
        assert_eq!(pace.rest(took, load(51 * MS, 7)), Duration::ZERO, "nobody asks any more");
        assert_eq!(pace.rest(took, load(60 * MS, 8)), rest);
    }

    #[test]
    fn a_rest_is_neither_too_short_to_be_one_nor_without_end() {
        let mut pace = Pace::default();
        assert_eq!(pace.rest(10, load(1, 1)), REST_MIN);
        assert_eq!(pace.rest(Nanos::MAX, load(2, 2)), REST_MAX);
    }

    #[test]
    fn where_space_is_short_nothing_rests() {
        let mut pace = Pace::default();
        let load = |asked, available| Load { asked, available, ..ROOM };
        assert_eq!(pace.rest(MS, load(1, 30)), Duration::ZERO);
        assert!(pace.rest(MS, load(2, 32)) > Duration::ZERO);
    }
}
