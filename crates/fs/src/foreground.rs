//! Tenants that wait for the device, which write-back for other tenants leaves room.
//!
//! Problem.  Write-back has many requests at the device at a time, in front of each read and flush
//!           for which a caller waits.
//! Idea.     An fsync, and a read from the device, note their tenant when they begin and end. While
//!           such a note is fresh, fewer tasks write back data of other tenants (`writers`), with
//!           few bytes at the device (`flight`). The notes of a tenant do not slow its own
//!           write-back.
//! In core.  The tenant of the last note, its time, and that of the last note of another tenant.
//!
//! FOREGROUND-F1  `is_beside(tenant)` is true if another tenant has a fresh note. Of two notes at
//!                the same moment one may be lost: the next one follows soon.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use copyhold_types::{Nanos, SubvolId};
use copyhold_volume::tenant_of;

use crate::Filesystem;

/// How long a note is fresh. During a call that waits, and between two calls of a program that
/// makes a block durable now and then, write-back of others has few bytes at the device.
const FRESH: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Foreground {
    tenant: AtomicU32,
    /// Until when its note is fresh.
    until: AtomicU64,
    /// Until when the last note of another tenant is.
    others_until: AtomicU64,
}

impl Foreground {
    /// A call of this tenant begins or ends to wait for the device.
    pub(crate) fn note(&self, tenant: SubvolId, now: Nanos) {
        let until = now + FRESH.as_nanos() as Nanos;
        let before = self.tenant.swap(tenant.0, Relaxed);
        let before_until = self.until.swap(until, Relaxed);
        if before != tenant.0 {
            self.others_until.store(before_until, Relaxed);
        }
    }

    /// Whether a tenant other than this one waits for the device, or did so lately.
    pub(crate) fn is_beside(&self, tenant: SubvolId, now: Nanos) -> bool {
        let until = match self.tenant.load(Relaxed) == tenant.0 {
            true => &self.others_until,
            false => &self.until,
        };
        now < until.load(Relaxed)
    }
}

/// A call on a file of this subvolume begins or ends to wait for the device.
pub(crate) fn note_wait(fs: &Filesystem, subvol: SubvolId) {
    fs.flusher.foreground.note(tenant_of(&fs.volumes, subvol), fs.rt.now());
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SubvolId = SubvolId(1);
    const B: SubvolId = SubvolId(2);
    const C: SubvolId = SubvolId(3);

    #[test]
    fn notes_of_a_tenant_count_for_the_others_while_they_are_fresh() {
        let fresh = FRESH.as_nanos() as Nanos;
        let foreground = Foreground::default();
        let beside = |now| [A, B, C].map(|tenant| foreground.is_beside(tenant, now));
        assert_eq!(beside(0), [false; 3]);
        foreground.note(A, 1);
        foreground.note(A, 2);
        assert_eq!(beside(2), [false, true, true]);
        foreground.note(B, 10);
        assert_eq!(beside(10), [true; 3]);
        foreground.note(B, 20);
        assert_eq!(beside(1 + fresh), [true; 3]);
        assert_eq!(beside(2 + fresh), [true, false, true]);
        assert_eq!(beside(20 + fresh), [false; 3]);
    }
}
