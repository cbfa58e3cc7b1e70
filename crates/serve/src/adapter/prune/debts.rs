//! Threads that have added a name that does not exist, while their group was above its part at the
//! limit.
//!
//! Problem.  A group above its part is to be held back, but a request for attributes, the only one
//!           that can wait without a lock, may come with one, or from a thread that adds no name.
//! Idea.     A thread that adds a name owes a wait, and its next request for attributes of a
//!           directory pays it. A path requests them before it takes a lock. So only a thread
//!           that adds names waits, once for each.
//!
//! A collision in the table forgives one debt. See PRUNE-P4 and PRUNE-P5.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use copyhold_types::SubvolId;

const DEBTS: usize = 4096;
/// Subvolumes that are counted apart.
const COUNTS: usize = 1024;
/// Requests of a subvolume that wait at a time: the kernel has memory for each.
pub(super) const HELD_MAX: u32 = 256;
/// No thread owes anything.
const NONE: u64 = u64::MAX;

/// The debts, by thread and subvolume, and the requests that wait.
pub(in super::super) struct Debts {
    owed: Box<[AtomicU64]>,
    held: Box<[AtomicU32]>,
}

/// A request that waits.
pub(super) struct Held<'a>(&'a AtomicU32);

impl Default for Debts {
    fn default() -> Debts {
        let owed = (0..DEBTS).map(|_| AtomicU64::new(NONE)).collect();
        Debts { owed, held: (0..COUNTS).map(|_| AtomicU32::new(0)).collect() }
    }
}

impl Debts {
    fn of(&self, thread: u32, subvol: SubvolId) -> (&AtomicU64, u64) {
        let debt = u64::from(subvol.0) << 32 | u64::from(thread);
        let hash = debt.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (&self.owed[hash as usize % DEBTS], debt)
    }

    /// The thread has added a name.
    pub(in super::super) fn note(&self, thread: u32, subvol: SubvolId) {
        let (place, debt) = self.of(thread, subvol);
        place.store(debt, Ordering::Relaxed);
    }

    /// Whether the thread owed a wait. It owes none now.
    pub(in super::super) fn take(&self, thread: u32, subvol: SubvolId) -> bool {
        let (place, debt) = self.of(thread, subvol);
        place.load(Ordering::Relaxed) == debt
            && place.compare_exchange(debt, NONE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// None: as many requests of the subvolume wait as may.
    pub(super) fn hold(&self, subvol: SubvolId) -> Option<Held<'_>> {
        let held = Held(&self.held[subvol.0 as usize % COUNTS]);
        let before = held.0.fetch_add(1, Ordering::Relaxed);
        (before < HELD_MAX).then_some(held)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_that_of_a_thread_in_a_subvolume_and_is_paid_once() {
        let debts = Debts::default();
        let (one, two) = (SubvolId(1), SubvolId(2));
        debts.note(7, one);
        debts.note(7, one);
        debts.note(0, two);
        assert!(!debts.take(8, one) && !debts.take(7, two) && !debts.take(0, one));
        assert!(debts.take(7, one) && !debts.take(7, one));
        assert!(debts.take(0, two) && !debts.take(0, two));
    }

    #[test]
    fn a_collision_forgives_a_debt() {
        let debts = Debts::default();
        let subvol = SubvolId(1);
        (0..2 * DEBTS as u32).for_each(|thread| debts.note(thread, subvol));
        let paid = (0..2 * DEBTS as u32).filter(|thread| debts.take(*thread, subvol)).count();
        assert!((DEBTS / 2..=DEBTS).contains(&paid), "{paid}");
    }

    #[test]
    fn few_requests_of_a_subvolume_wait_at_a_time() {
        let debts = Debts::default();
        let held: Vec<_> = (0..HELD_MAX).map(|_| debts.hold(SubvolId(1))).collect();
        assert!(held.iter().all(Option::is_some) && debts.hold(SubvolId(1)).is_none());
        assert!(debts.hold(SubvolId(2)).is_some());
        drop(held);
        assert!(debts.hold(SubvolId(1)).is_some());
    }
}
