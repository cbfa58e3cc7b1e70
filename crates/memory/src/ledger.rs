//! The reported usage of groups, for the limits `high` and `max`.
//!
//! Problem.  A limit is for a group with all that it holds. A sum over them at each charge would
//!           cost more than the object that is charged.
//! Idea.     An owner reports its usage when one of its counters passes a multiple of 64 KiB, and
//!           the usage is more than before, or less by as much. A ledger adds it up for each group
//!           above, and the owner keeps the room that all these groups had below their limits, with
//!           the number of the limits. A request that finds too little room, or another number,
//!           asks the ledger.
//!
//! LEDGER-L1  A group's sum in the ledger is its usage when each owner inside reported last; since
//!           then, each has grown by less than 64 KiB a class, or lost less than that and 64 KiB
//!           more. A holder that changes, or ends, takes its sum along.
//! LEDGER-L2  A request for some bytes asks the ledger, unless its owner has as many, and 64 KiB,
//!           below each limit of its own and of the groups above, by its last report. The next
//!           request of each asks when a limit is set, or a group with usage or with others in it
//!           moves.
//! LEDGER-L3  Nothing is reported, and no request asks, before the first limit.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU64};

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
    /// A group moves: one at a time, for it has two steps.
    pub(crate) moving: Mutex<(), of::MemoryMoves>,
    /// Changes of holders so far.
    pub(crate) moves: AtomicU64,
    /// Changes of `high` and `max` so far, and moves of groups since the first one.
    limits: AtomicU64,
    /// These, changes of promises, and all moves of groups with usage (DRAWN-P2).
    pub(crate) changes: AtomicU64,
    /// Steps that counters passed.
    steps: AtomicU64,
}

/// The last report of an owner. It changes under the lock of the sums only.
#[derive(Debug)]
pub(crate) struct Judged {
    usage: AtomicI64,
    /// Bytes below the nearest limit.
    room: AtomicU64,
    /// The number of the limits then ([`Ledger::limits`]).
    limits: AtomicU64,
}

impl Default for Judged {
    fn default() -> Judged {
        let room = AtomicU64::new(u64::MAX);
        Judged { usage: AtomicI64::new(0), room, limits: AtomicU64::new(0) }
    }
}

impl Judged {
    /// Whether there was room for `more` bytes, and a step, below limits of this number.
    pub(crate) fn has_room(&self, more: u64, limits: u64) -> bool {
        let is_of_now = self.limits.load(Acquire) == limits;
        is_of_now && self.room.load(Relaxed) >= more.saturating_add(STEP as u64)
    }

    /// Whether the usage is more, or less by a step.
    pub(crate) fn is_old(&self, usage: u64) -> bool {
        let more = usage as i64 - self.usage.load(Relaxed);
        more > 0 || more <= -STEP
    }

    pub(crate) fn store(&self, usage: i64, room: u64, limits: u64) {
        self.usage.store(usage, Relaxed);
        self.room.store(room, Relaxed);
        self.limits.store(limits, Release);
    }

    /// The next request asks.
    pub(crate) fn has_no_room(&self) {
        self.room.store(0, Relaxed);
    }
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
    /// A counter has passed so many multiples of a step. Whether there are limits.
    pub(crate) fn count_steps(&self, steps: u64) -> bool {
        self.steps.fetch_add(steps, Relaxed);
        self.limits() > 0
    }

    /// The number of the limits. A limit is read after it.
    pub(crate) fn limits(&self) -> u64 {
        self.limits.load(Acquire)
    }

    /// A limit was stored, or a group has moved. Returns the number before.
    pub(crate) fn next_limits(&self) -> u64 {
        self.limits.fetch_add(1, Release)
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
            above.iter().for_each(|group| _ = sums.of(*group).add(-all));
        });
    }
}

impl Sum {
    /// A circle of holders counts its own sums, and more with each move (HELD-T1).
    pub(crate) fn add(&mut self, more: i64) -> i64 {
        self.all = self.all.wrapping_add(more);
        self.all
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
