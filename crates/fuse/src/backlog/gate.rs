//! Before a read of the kernel's queue that may wait: whether a request is in memory.
//!
//! Two counters, of requests in memory and of readers in such a read. A reader counts itself before
//! it looks for a request, and a drain adds a request before it looks for a reader, so at least one
//! of them sees the other (BACKLOG-B4).

#[cfg(not(shuttle))]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

#[cfg(shuttle)]
use parking_lot::atomic::AtomicUsize; // of what stands for that crate there

#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Requests in memory.
    waiting: AtomicUsize,
    /// Readers in a read that may wait.
    reading: AtomicUsize,
}

impl Gate {
    /// Whether no request is in memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(SeqCst) == 0
    }

    /// A request came into memory.
    pub(crate) fn add(&self) {
        self.waiting.fetch_add(1, SeqCst);
    }

    /// A request is begun.
    pub(crate) fn take(&self) {
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// Whether a read may wait for the next request; [`Gate::end_read`] follows then.
    pub(crate) fn begin_read(&self) -> bool {
        self.reading.fetch_add(1, SeqCst);
        let begins = self.is_empty();
        if !begins {
            self.end_read();
        }
        begins
    }

    pub(crate) fn end_read(&self) {
        self.reading.fetch_sub(1, SeqCst);
    }

    /// Whether the kernel's queue has a reader that may sleep.
    pub(crate) fn has_reading(&self) -> bool {
        self.reading.load(SeqCst) > 0
    }
}
