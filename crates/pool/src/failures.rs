//! Counts of reads that failed, of repairs, and of refused guards, by device and kind.
//!
//! Counted since the pool was opened. `unreadable`, `integrity` and both kinds of refused guards
//! are requests, so a block that is read three times in vain counts three times; `mismatch` are
//! copies, or single blocks where each is read alone; `repaired` and `unrepaired` are runs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_types::DeviceId;

/// A kind of failure, or of repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The device returned an error.
    Unreadable,
    /// The device returned content that does not match its protection information.
    Integrity,
    /// The content does not match its digest or checksum.
    Mismatch,
    /// A bad copy was written again from a good one.
    Repaired,
    /// The device refused that.
    Unrepaired,
    /// No copy was good: the read failed. Counted once for each device that has a copy.
    Lost,
    /// The device refused the guards of a write; the data changed on the way (GUARD-G1).
    ChangedOnTheWay,
    /// The device refused the guards of a write; the data changed in memory (GUARD-G2).
    ChangedInMemory,
}

impl Failure {
    /// Of reads, and of the repairs that they make.
    pub const READS: [Failure; 6] = [
        Failure::Unreadable,
        Failure::Integrity,
        Failure::Mismatch,
        Failure::Repaired,
        Failure::Unrepaired,
        Failure::Lost,
    ];

    /// Of writes: the device refused their guards.
    pub const REFUSED_GUARDS: [Failure; 2] = [Failure::ChangedOnTheWay, Failure::ChangedInMemory];

    const KINDS: usize = Failure::READS.len() + Failure::REFUSED_GUARDS.len();

    /// The key of this kind in reports.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Unreadable => "unreadable",
            Failure::Integrity => "integrity",
            Failure::Mismatch => "mismatch",
            Failure::Repaired => "repaired",
            Failure::Unrepaired => "unrepaired",
            Failure::Lost => "lost",
            Failure::ChangedOnTheWay => "changed_on_the_way",
            Failure::ChangedInMemory => "changed_in_memory",
        }
    }
}

/// The counters of each device.
#[derive(Debug)]
pub struct Failures {
    devices: Vec<(DeviceId, [AtomicU64; Failure::KINDS])>,
}

impl Failures {
    pub(crate) fn of(devices: impl Iterator<Item = DeviceId>) -> Failures {
        Failures { devices: devices.map(|id| (id, Default::default())).collect() }
    }

    /// A device that the pool does not have, as in a damaged pointer, has no counters.
    pub(crate) fn count(&self, device: DeviceId, failure: Failure) {
        if let Some((_, counts)) = self.devices.iter().find(|(id, _)| *id == device) {
            counts[failure as usize].fetch_add(1, Relaxed);
        }
    }

    pub fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.devices.iter().map(|(id, _)| *id)
    }

    pub fn get(&self, device: DeviceId, failure: Failure) -> u64 {
        let found = self.devices.iter().find(|(id, _)| *id == device);
        found.map_or(0, |(_, counts)| counts[failure as usize].load(Relaxed))
    }
}
