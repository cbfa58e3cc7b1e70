//! Walks of reclaim over the nodes of a group that is above a limit.
//!
//! Problem.  Each request of such a group would walk over all shards of the cache, though little or
//!           nothing is left there to evict.
//! Idea.     A walk is due when the group has grown since the last one.
//!
//! WALKS-W1  Requests of a subvolume walk again only when the group has grown by [`GROWTH`] since
//!           the last walk, or was below its limit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A walk is worth its time for so many bytes.
const GROWTH: u64 = 64 << 10;

/// Walks of reclaim for requests of a subvolume and one limit.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    /// Bytes above the limit that the last walk left; 0: none, so a walk is due.
    left: AtomicU64,
}

impl Walks {
    pub(crate) fn is_due(&self, over: u64) -> bool {
        let left = self.left.load(Relaxed);
        left == 0 || over >= left + GROWTH
    }

    /// The group is so many bytes above its limit after a walk, or without one.
    pub(crate) fn note_left(&self, over: u64) {
        self.left.store(over, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WALKS-W1.
    #[test]
    fn a_walk_is_due_when_the_group_has_grown_since_the_last_one() {
        let walks = Walks::default();
        assert!(walks.is_due(1));
        walks.note_left(100);
        let due = [100, 99 + GROWTH, 100 + GROWTH].map(|over| walks.is_due(over));
        assert_eq!(due, [false, false, true]);
        walks.note_left(0);
        assert!(walks.is_due(1), "it was below its limit meanwhile");
    }
}
