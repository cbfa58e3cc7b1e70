//! Work before a limit refuses a request: at a bounded rate for each quota group.
//!
//! Problem.  Unflushed edits count by an estimate that is too high, and write-back frees replaced
//!           blocks. So before a limit refuses a request, the edits of its owner are flushed, and
//!           before it refuses a write, all dirty data is written (R22). A tenant at its limit that
//!           tries again and again repeats this work, and all tenants share the device. A tenant
//!           may have thousands of subvolumes.
//! Idea.     Work that makes room has its use. Work that makes none is counted for the group that
//!           refuses, and beyond [`FUTILE_MAX`] times in a [`PERIOD`] the sums decide as they are.
//!           A rollback copies the limit of a subvolume, so a tenant may have thousands of groups
//!           that refuse, too: groups share a fixed number of paces, which bounds the pool's work.
//!
//! SETTLE-P1  One request of a group works at a time. The others look again at the limit when
//!            their turn comes, so none is refused while work makes room for it.
//! SETTLE-P2  A deletion may make more room than its work costs: each one of a refused owner allows
//!            one work more. So beyond the bound, a work costs its owner a deletion.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use copyhold_runtime::{FifoMutex, FifoMutexGuard};
use copyhold_types::Nanos;
use copyhold_volume::quota::GroupId;

/// How often in a period work may make no room.
const FUTILE_MAX: u64 = 4;
const PERIOD: Duration = Duration::from_secs(1);
/// Bounds the work that makes no room, of all groups together, to a part of a disk's time.
const PACES: usize = 16;

/// The paces of a pool's groups.
#[derive(Default)]
pub(crate) struct RefusalPaces([RefusalPace; PACES]);

/// The work of groups with one number.
#[derive(Default)]
pub(crate) struct RefusalPace {
    pub(crate) flush: Pace,
    pub(crate) write_back: Pace,
}

/// The pace of the group that refused an owner last.
pub(crate) struct LastRefusal(AtomicUsize);

impl Default for LastRefusal {
    fn default() -> LastRefusal {
        LastRefusal(AtomicUsize::new(PACES))
    }
}

impl RefusalPaces {
    /// That of `group`, which refuses a request of an owner.
    pub(crate) fn of(&self, group: GroupId, last: &LastRefusal) -> &RefusalPace {
        let number = (u64::from(group.level()) + group.id()) as usize % PACES;
        last.0.store(number, Relaxed);
        &self.0[number]
    }

    /// The owner has deleted something (SETTLE-P2).
    pub(crate) fn note_deletion(&self, last: &LastRefusal) {
        let Some(pace) = self.0.get(last.0.load(Relaxed)) else { return };
        pace.flush.allow_one();
        pace.write_back.allow_one();
    }
}

/// One kind of work.
#[derive(Default)]
pub(crate) struct Pace {
    turn: FifoMutex,
    /// When the period began.
    since: AtomicU64,
    /// Work of the period, without the work that made room.
    futile: AtomicU64,
}

/// The right to work (SETTLE-P1).
pub(crate) struct Turn<'p> {
    pace: &'p Pace,
    _turn: FifoMutexGuard<'p>,
}

impl Pace {
    pub(crate) async fn turn(&self) -> Turn<'_> {
        Turn { pace: self, _turn: self.turn.lock().await }
    }

    fn allow_one(&self) {
        let less = |count: u64| count.checked_sub(1);
        let _was_none = self.futile.fetch_update(Relaxed, Relaxed, less);
    }
}

impl Turn<'_> {
    /// Whether the group may work now; the work counts until [`Self::note_room`].
    pub(crate) fn begin(&self, now: Nanos) -> bool {
        let Pace { since, futile, .. } = self.pace;
        if now.saturating_sub(since.load(Relaxed)) >= PERIOD.as_nanos() as Nanos {
            since.store(now, Relaxed);
            futile.store(0, Relaxed);
        }
        let may = futile.load(Relaxed) < FUTILE_MAX;
        if may {
            futile.fetch_add(1, Relaxed);
        }
        may
    }

    /// The work made room for the request.
    pub(crate) fn note_room(self) {
        self.pace.allow_one();
    }
}

#[cfg(test)]
mod tests {
    use copyhold_runtime::SeededRuntime;

    use super::*;

    #[test]
    fn work_that_makes_no_room_is_bounded() {
        SeededRuntime::new(1).block_on(async {
            let pace = Pace::default();
            let period = PERIOD.as_nanos() as Nanos;
            for now in 0..100 {
                let turn = pace.turn().await;
                assert!(turn.begin(period + now), "it makes room");
                turn.note_room();
            }
            let mut works = 0;
            for now in 0..100 {
                works += u64::from(pace.turn().await.begin(period + now));
            }
            assert_eq!(works, FUTILE_MAX);
            pace.allow_one();
            assert!(pace.turn().await.begin(period + 100), "SETTLE-P2");
            assert!(!pace.turn().await.begin(period + 100));
            assert!(pace.turn().await.begin(3 * period));
        });
    }
}
