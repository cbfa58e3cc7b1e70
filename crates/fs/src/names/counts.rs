//! The counters of a tenant's names.

use std::ops::{AddAssign, Index};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An event that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameEvent {
    /// A name became an entry.
    Created,
    /// Such an entry was left by a removal or a rename.
    Retained,
    /// Such an entry was one before, and was removed to make room: an estimate.
    Returned,
    /// A look-up was answered by an entry.
    Hit,
    /// The pruner kept an entry because a look-up found it since.
    Recycled,
    /// The pruner removed an entry.
    Pruned,
    /// An entry was removed at the limit.
    Forced,
    /// A file got the name.
    Positive,
    /// An entry ended with its directory, its subvolume, the limit, or by command.
    Dropped,
    /// A new entry took its place, and the front end may keep the name.
    Replaced,
    /// An answer waited at the limit.
    Delayed,
    /// Microseconds of these waits.
    DelayUs,
}

impl NameEvent {
    pub const ALL: [NameEvent; 12] = [
        NameEvent::Created,
        NameEvent::Retained,
        NameEvent::Returned,
        NameEvent::Hit,
        NameEvent::Recycled,
        NameEvent::Pruned,
        NameEvent::Forced,
        NameEvent::Positive,
        NameEvent::Dropped,
        NameEvent::Replaced,
        NameEvent::Delayed,
        NameEvent::DelayUs,
    ];

    /// The key in reports.
    pub fn name(self) -> &'static str {
        match self {
            NameEvent::Created => "created",
            NameEvent::Retained => "retained",
            NameEvent::Returned => "returned",
            NameEvent::Hit => "hits",
            NameEvent::Recycled => "recycled",
            NameEvent::Pruned => "pruned",
            NameEvent::Forced => "forced",
            NameEvent::Positive => "turned_positive",
            NameEvent::Dropped => "dropped",
            NameEvent::Replaced => "replaced",
            NameEvent::Delayed => "delayed",
            NameEvent::DelayUs => "delay_us",
        }
    }
}

const KINDS: usize = NameEvent::ALL.len();

/// How often each event was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameCounts([u64; KINDS]);

impl NameCounts {
    /// Entries that there are, by all that came and went.
    pub fn live(&self) -> u64 {
        let ended = [
            NameEvent::Pruned,
            NameEvent::Forced,
            NameEvent::Positive,
            NameEvent::Dropped,
            NameEvent::Replaced,
        ];
        // Shards publish while this is read.
        self[NameEvent::Created].saturating_sub(ended.iter().map(|event| self[*event]).sum())
    }

    pub(super) fn add(&mut self, event: NameEvent) {
        self.add_some(event, 1);
    }

    pub(super) fn add_some(&mut self, event: NameEvent, count: u64) {
        self.0[event as usize] += count;
    }
}

impl Index<NameEvent> for NameCounts {
    type Output = u64;

    fn index(&self, event: NameEvent) -> &u64 {
        &self.0[event as usize]
    }
}

impl AddAssign for NameCounts {
    fn add_assign(&mut self, other: NameCounts) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}

/// Those of a tenant over all shards, as far as the shards have published them.
#[derive(Debug, Default)]
pub(super) struct CountCells([AtomicU64; KINDS]);

impl CountCells {
    pub(super) fn add(&self, event: NameEvent, count: u64) {
        self.0[event as usize].fetch_add(count, Relaxed);
    }

    pub(super) fn publish(&self, counts: &mut NameCounts) {
        for (cell, count) in self.0.iter().zip(std::mem::take(counts).0) {
            if count != 0 {
                cell.fetch_add(count, Relaxed);
            }
        }
    }

    pub(super) fn read(&self) -> NameCounts {
        NameCounts(std::array::from_fn(|kind| self.0[kind].load(Relaxed)))
    }
}
