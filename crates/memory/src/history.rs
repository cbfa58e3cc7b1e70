//! The history of an owner: occasions, amounts, the most bytes so far, and its waits.
//!
//! Of a hundred thousand subvolumes most do nothing between two mounts. So an owner has no record
//! of its history before the first entry, and its readers find zeros until then.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_sync::{Mutex, of};

use crate::events::CountCells;
use crate::pressure::Stalls;

/// The record of an owner, from its first entry on.
#[derive(Default)]
pub(crate) struct History(OnceLock<Box<Record>>);

/// On lines of its own: the charges of owners change far more often.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Record {
    pub(crate) counts: CountCells,
    /// Most bytes so far; of a holder, as far as its usage with all that it holds was read.
    peak: AtomicU64,
    pub(crate) stalls: Mutex<Stalls, of::MemoryStalls>,
}

impl History {
    /// For an entry.
    pub(crate) fn record(&self) -> &Record {
        self.0.get_or_init(Box::default)
    }

    /// For a reader; none: no entry was made.
    pub(crate) fn so_far(&self) -> Option<&Record> {
        self.0.get().map(Box::as_ref)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.so_far().map_or(0, |record| record.peak.load(Relaxed))
    }

    pub(crate) fn note_peak(&self, usage: u64) {
        if usage > self.peak() {
            self.record().peak.fetch_max(usage, Relaxed);
        }
    }
}
