//! One order for what threads do: each operation has a stamp before and one behind it.
//!
//! CLOCK-C1  An operation that ended before another began comes before it in every crash.
//! CLOCK-C2  What ended before `durable` is there after a crash, as far as it is metadata; what
//!           ended before `synced`, content too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

pub(crate) type Stamp = u64;

#[derive(Default)]
pub(crate) struct Clock {
    now: AtomicU64,
    durable: AtomicU64,
    synced: AtomicU64,
    /// Set before the daemon is killed, or asked to end: errors are expected from here on.
    over: AtomicBool,
}

impl Clock {
    pub(crate) fn stamp(&self) -> Stamp {
        self.now.fetch_add(1, SeqCst) + 1
    }

    /// An fsync has returned, of something that changed last at `change`.
    pub(crate) fn fsynced(&self, change: Stamp) {
        self.durable.fetch_max(change, SeqCst);
    }

    /// A sync that began at `start` has returned.
    pub(crate) fn synced_at(&self, start: Stamp) {
        self.fsynced(start);
        self.synced.fetch_max(start, SeqCst);
    }

    pub(crate) fn durable(&self) -> Stamp {
        self.durable.load(SeqCst)
    }

    pub(crate) fn synced(&self) -> Stamp {
        self.synced.load(SeqCst)
    }

    pub(crate) fn end_round(&self) {
        self.over.store(true, SeqCst);
    }

    pub(crate) fn begin_round(&self) {
        self.over.store(false, SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }
}
