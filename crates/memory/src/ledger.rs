//! The reported usage of groups, for the limits `high` and `max`.
//!
//! Problem.  A limit is for a group with all that it holds. A sum over them at each charge would
//!           cost more than the object that is charged.
//! Idea.     An owner reports its usage whenever one of its counters passes a multiple of 64 KiB. A
//!           ledger adds it up for each group above, and the owner keeps the number of the limits
//!           from which all these groups were far. A request that finds another number asks the
//!           ledger.
//!
//! LEDGER-L1  A group's sum in the ledger is its usage when each owner inside reported last; since
//!           then, each has changed by less than 64 KiB a class. A holder that changes, or ends,
//!           takes its sum along.
//! LEDGER-L2  An owner that is not *near* a limit is more than 64 KiB below each limit of its own
//!           and of the groups above, by the ledger of its last report. All are near when a limit
//!           is set, or a group moves: so the next request of each asks.
//! LEDGER-L3  Nothing is reported, and no owner is near, before the first limit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_sync::{Mutex, of};

use crate::place::Slot;

/// A counter that passes a multiple of it is reported.
pub(crate) const STEP: i64 = 64 << 10;

/// A state of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) changes: u64,
    pub(crate) steps: u64,
}

impl Stamp {
    /// Before all states.
    const NONE: Stamp = Stamp { changes: u64::MAX, steps: 0 };
}

impl Default for Stamp {
    fn default() -> Stamp {
        Stamp::NONE
    }
}

/// The reported usage of all groups.
#[derive(Default)]
pub(crate) struct Ledger {
    /// By slot.
    sums: Mutex<Sums, of::MemoryLimits>,
    /// Changes of holders so far.
    pub(crate) moves: AtomicU64,
    /// Changes of `high` and `max` so far, and moves of groups since the first one.
    pub(crate) limits: AtomicU64,
    /// These, changes of promises, and all moves of groups with usage (DRAWN-P2).
    pub(crate) changes: AtomicU64,
    /// Steps that counters passed.
    steps: AtomicU64,
}

/// Of an owner: the number of the limits from which it was far ([`Ledger::limits`]).
#[derive(Debug, Default)]
pub(crate) struct Judged(pub(crate) AtomicU64);

impl Judged {
    pub(crate) const NEAR: u64 = u64::MAX;
}

#[derive(Debug, Default)]
pub(crate) struct Sums(Vec<Sum>);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    /// As its owner reported last.
    pub(crate) own: i64,
    /// With all that the group holds.
    pub(crate) all: i64,
}

impl Ledger {
    /// A counter has passed a multiple of a step. Whether its owner has to report.
    pub(crate) fn count_step(&self) -> bool {
        self.steps.fetch_add(1, Relaxed);
        self.limits.load(Relaxed) > 0
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { changes: self.changes.load(Relaxed), steps: self.steps.load(Relaxed) }
    }

    /// Reads or changes the sums, with the groups above one, which do not change meanwhile.
    pub(crate) fn with<G, T>(
        &self,
        above: &dyn Fn() -> Vec<G>,
        then: impl FnOnce(&mut Sums, &[G]) -> T,
    ) -> T {
        loop {
            let moves = self.moves.load(Relaxed);
            // Found, and dropped, without the lock: a group that ends takes it.
            let above = above();
            let mut sums = self.sums.lock();
            if moves == self.moves.load(Relaxed) {
                return then(&mut sums, &above);
            }
        }
    }

    /// The owner of a slot ends: the groups above lose its sum, and the next owner of it has none.
    pub(crate) fn end(&self, slot: Slot, above: &dyn Fn() -> Vec<Slot>) {
        self.with(above, |sums, above| {
            let Sum { all, .. } = std::mem::take(sums.of(slot));
            above.iter().for_each(|group| sums.of(*group).all -= all);
        });
    }
}

impl Sums {
    pub(crate) fn of(&mut self, slot: Slot) -> &mut Sum {
        let at = slot.0 as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, Sum::default());
        }
        &mut self.0[at]
    }
}
