//! How long operations wait before they join a txg: for credit ([`Pool::admit`]), and at the gate
//! while a txg closes.
//!
//! Only a waiting join reads the clock, and writes here: once, when it joins. Joins are counted by
//! the txg that they are in, so a join without a wait has nothing to do with this.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_types::Nanos;

use crate::Pool;
use crate::open_txg::Joined;

/// Waits of at least 2^n nanoseconds, and fewer than 2^(n+1), are counted in bucket n.
const BUCKETS: usize = 64;

#[derive(Debug)]
pub(crate) struct JoinWaits {
    /// Joins of txgs that have closed.
    closed: AtomicU64,
    total: AtomicU64,
    max: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// The waits of operations since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinWait {
    /// Transactions that joined, the pool's own, too.
    pub count: u64,
    /// Those of them that had to wait.
    pub waited: u64,
    pub total: Nanos,
    pub max: Nanos,
    /// Of all joins, those that did not wait among them; at most twice too long.
    pub p50: Nanos,
    pub p95: Nanos,
    pub p99: Nanos,
}

impl Default for JoinWaits {
    fn default() -> JoinWaits {
        let zero = || AtomicU64::new(0);
        let buckets = std::array::from_fn(|_| zero());
        JoinWaits { closed: zero(), total: zero(), max: zero(), buckets }
    }
}

impl JoinWaits {
    /// A txg with this many transactions has closed.
    pub(crate) fn closed(&self, joined: u64) {
        self.closed.fetch_add(joined, Relaxed);
    }

    fn note(&self, waited: Nanos) {
        if waited == 0 {
            return;
        }
        self.total.fetch_add(waited, Relaxed);
        self.max.fetch_max(waited, Relaxed);
        self.buckets[waited.ilog2() as usize].fetch_add(1, Relaxed);
    }

    /// `open`: joins of the txg that is open.
    fn figures(&self, open: u64) -> JoinWait {
        let counts: [u64; BUCKETS] = std::array::from_fn(|at| self.buckets[at].load(Relaxed));
        let waited = counts.iter().sum();
        let count = (self.closed.load(Relaxed) + open).max(waited);
        let max = self.max.load(Relaxed);
        let percentile = |part: u64| {
            let mut below = count - waited;
            let rank = (count * part).div_ceil(100);
            if rank <= below {
                return 0;
            }
            let reaches = |of: &u64| {
                below += of;
                rank <= below
            };
            let bucket = counts.iter().position(reaches).unwrap_or(BUCKETS - 1);
            (u64::MAX >> (BUCKETS - 1 - bucket)).min(max)
        };
        let [p50, p95, p99] = [50, 95, 99].map(percentile);
        JoinWait { count, waited, total: self.total.load(Relaxed), max, p50, p95, p99 }
    }
}

impl Pool {
    /// Joins the open txg. `waited`: the time already spent waiting for credit.
    pub(crate) fn join(&self, waited: Nanos) -> Joined<'_> {
        let (joined, at_gate) = match self.open.try_join() {
            Some(joined) => (joined, 0),
            None => {
                let since = self.rt.now();
                let joined = self.open.join();
                (joined, self.rt.now().saturating_sub(since))
            }
        };
        self.join_waits.note(waited + at_gate);
        joined
    }

    /// The waits of operations before they joined a txg.
    pub fn join_wait(&self) -> JoinWait {
        self.join_waits.figures(self.open.joined())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_joins_whether_they_waited_or_not() {
        let waits = JoinWaits::default();
        assert_eq!(waits.figures(0), JoinWait::default());
        waits.closed(90);
        [0, 1000, 1000, 5000].into_iter().for_each(|ns| waits.note(ns));
        let figures = waits.figures(10);
        assert_eq!((figures.count, figures.waited, figures.total), (100, 3, 7000));
        assert_eq!((figures.p50, figures.p95, figures.max), (0, 0, 5000));
        assert_eq!(figures.p99, 1023, "the two of 1000 are the 98th and the 99th");
        waits.note(u64::MAX);
        assert_eq!(waits.figures(10).max, u64::MAX);
    }
}
