//! Counters of an owner: occasions on which a limit counted, and the work of reclaim.
//!
//! They only rise, and end with their owner. A reader sums them up over a group and all that it
//! holds, as control groups do. An owner that ends adds its counters to its holder's, so the sum
//! of the holder stays ([`crate::MemoryOwner`]); a group that moves takes its own along.
//!
//! Names are those of memory.events and memory.stat in cgroup v2. Amounts are bytes there where
//! Linux has pages, because nodes of trees differ in size.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An occasion on which a limit counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Reclaim looked at a list below the group's `low`: nothing else was left.
    Low,
    /// A write, a creation, or an object found the group above its `high`, after its caches were
    /// reclaimed.
    High,
    /// The same of `max`.
    Max,
    /// An object was not kept, because reclaim found no room; its reader had it all the same.
    Bypass,
    /// A write was accepted above `max`, since no dirty data was left to wait for; or an inode
    /// came that its request needs.
    Forced,
}

impl Event {
    pub const ALL: [Event; 5] = [Event::Low, Event::High, Event::Max, Event::Bypass, Event::Forced];

    /// The key in reports.
    pub fn name(self) -> &'static str {
        match self {
            Event::Low => "low",
            Event::High => "high",
            Event::Max => "max",
            Event::Bypass => "bypass",
            Event::Forced => "forced",
        }
    }
}

/// An amount that reclaim or a wait adds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// Bytes of objects that reclaim looked at.
    Scan,
    /// Bytes of these that it evicted.
    Steal,
    /// Bytes of objects that came again after reclaim had evicted them (RINGS-N7).
    Refault,
    /// Bytes that requests which needed room looked at: the rest of [`Stat::Scan`] was asked for,
    /// or is that of a smaller budget.
    ScanDirect,
    /// Microseconds that requests waited because memory was short, each by itself.
    Throttle,
}

impl Stat {
    pub const ALL: [Stat; 5] =
        [Stat::Scan, Stat::Steal, Stat::Refault, Stat::ScanDirect, Stat::Throttle];

    /// The key in reports.
    pub fn name(self) -> &'static str {
        match self {
            Stat::Scan => "pgscan",
            Stat::Steal => "pgsteal",
            Stat::Refault => "workingset_refault",
            Stat::ScanDirect => "pgscan_direct",
            Stat::Throttle => "throttle_us",
        }
    }
}

/// Counters as they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    events: [u64; Event::ALL.len()],
    stats: [u64; Stat::ALL.len()],
}

impl Counts {
    pub fn event(&self, event: Event) -> u64 {
        self.events[event as usize]
    }

    pub fn stat(&self, stat: Stat) -> u64 {
        self.stats[stat as usize]
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        let more = |(sum, more): (&mut u64, &u64)| *sum = sum.saturating_add(*more);
        self.events.iter_mut().zip(&other.events).for_each(more);
        self.stats.iter_mut().zip(&other.stats).for_each(more);
    }
}

/// The counters of one owner.
#[derive(Debug, Default)]
pub(crate) struct CountCells {
    events: [AtomicU64; Event::ALL.len()],
    stats: [AtomicU64; Stat::ALL.len()],
}

impl CountCells {
    pub(crate) fn event(&self, event: Event) {
        self.events[event as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn stat(&self, stat: Stat, more: u64) {
        self.stats[stat as usize].fetch_add(more, Relaxed);
    }

    pub(crate) fn read(&self) -> Counts {
        let read = |cell: &AtomicU64| cell.load(Relaxed);
        Counts { events: self.events.each_ref().map(read), stats: self.stats.each_ref().map(read) }
    }

    /// Adds the counters of an owner that ends.
    pub(crate) fn inherit(&self, ended: &Counts) {
        for event in Event::ALL {
            self.events[event as usize].fetch_add(ended.event(event), Relaxed);
        }
        Stat::ALL.into_iter().for_each(|stat| self.stat(stat, ended.stat(stat)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_read_under_its_own_name() {
        let counters = CountCells::default();
        for (n, event) in Event::ALL.into_iter().enumerate() {
            (0..=n).for_each(|_| counters.event(event));
        }
        for (n, stat) in Stat::ALL.into_iter().enumerate() {
            counters.stat(stat, 100 + n as u64);
        }
        let heir = CountCells::default();
        heir.event(Event::Low);
        heir.inherit(&counters.read());
        assert_eq!(Event::ALL.map(|event| heir.read().event(event)), [2, 2, 3, 4, 5]);
        assert_eq!(Stat::ALL.map(|stat| heir.read().stat(stat)), [100, 101, 102, 103, 104]);
        let names = Event::ALL.map(Event::name).into_iter().chain(Stat::ALL.map(Stat::name));
        let names: std::collections::BTreeSet<_> = names.collect();
        assert_eq!(names.len(), Event::ALL.len() + Stat::ALL.len());
    }
}
