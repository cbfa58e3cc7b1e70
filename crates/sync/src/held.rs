//! The locks that a thread holds, in debug builds: the assertion of RANK-L1.

use crate::Rank;

/// A lock that the current thread holds; dropping it records that the thread holds it no longer.
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    place: (Rank, u64),
}

impl Held {
    /// Before the thread waits for a lock.
    ///
    /// # Panics
    /// In debug builds, unless its place is later than those of all locks that the thread holds
    /// (RANK-L1).
    #[track_caller]
    pub(crate) fn waiting(rank: Rank, key: u64) -> Held {
        #[cfg(debug_assertions)]
        checked::assert_last((rank, key));
        Held::taken(rank, key)
    }

    /// After a thread took a lock without waiting (RANK-L2).
    pub(crate) fn taken(rank: Rank, key: u64) -> Held {
        #[cfg(debug_assertions)]
        {
            checked::push((rank, key));
            Held { place: (rank, key) }
        }
        #[cfg(not(debug_assertions))]
        {
            let _ = (rank, key);
            Held {}
        }
    }

    /// Before the thread releases the lock for a while, and then waits for it again.
    ///
    /// # Panics
    /// In debug builds, if the thread holds a lock that has no earlier place (RANK-L1).
    #[track_caller]
    pub(crate) fn waiting_again(&self) {
        #[cfg(debug_assertions)]
        checked::assert_last_of_held(self.place);
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        checked::remove(self.place);
    }
}

#[cfg(debug_assertions)]
mod checked {
    use std::cell::RefCell;

    #[cfg(shuttle)]
    use parking_lot::thread_local; // one for each of shuttle's threads

    use crate::Rank;

    thread_local! {
        static HELD: RefCell<Vec<(Rank, u64)>> = const { RefCell::new(Vec::new()) };
    }

    #[track_caller]
    pub(super) fn assert_last(place: (Rank, u64)) {
        // While a thread ends, its list may be gone already.
        let last = HELD.try_with(|held| held.borrow().iter().copied().max()).ok().flatten();
        assert_behind(last, place);
    }

    /// As [`assert_last`], for a lock that the thread holds.
    #[track_caller]
    pub(super) fn assert_last_of_held(place: (Rank, u64)) {
        let last = HELD.try_with(|held| {
            let held = held.borrow();
            let own = held.iter().rposition(|there| *there == place);
            let others = held.iter().enumerate().filter(|(nth, _)| Some(*nth) != own);
            others.map(|(_, place)| *place).max()
        });
        assert_behind(last.ok().flatten(), place);
    }

    #[track_caller]
    fn assert_behind(last: Option<(Rank, u64)>, place: (Rank, u64)) {
        if let Some(last) = last.filter(|last| *last >= place) {
            let ((held, held_key), (wanted, key)) = (last, place);
            panic!("RANK-L1: waits for {wanted:?} ({key}) while it holds {held:?} ({held_key})");
        }
    }

    pub(super) fn push(place: (Rank, u64)) {
        let _ = HELD.try_with(|held| held.borrow_mut().push(place));
    }

    pub(super) fn remove(place: (Rank, u64)) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let last = held.iter().rposition(|there| *there == place);
            held.swap_remove(last.expect("a thread drops the guards that it took"));
        });
    }
}
