//! Turns of subvolumes: beside other tenants, a tenant has few requests under way at a time.
//!
//! Problem.  A tenant with a thousand threads, or one thread with a deep queue, has a thousand
//!           requests in front of each one of its neighbour: at the device, at the locks of the
//!           pool, and in the queues of the executors.
//! Idea.     Requests that change something, or move data, take a turn of their subvolume first.
//!           The turns are lanes, which requests join in rotation; in each, one works at a time, in
//!           the order of arrival. So the requests of a tenant queue behind those of this tenant,
//!           and not before those of others. Look-ups and listings take none: their answers are
//!           mostly in memory, and parking one would cost more.
//!
//! Turns are taken beside others only. A subvolume that is alone has as many requests under way as
//! it sends, so that a deep queue makes use of a fast device.
//!
//! TURN-Q1  Beside others, a subvolume has at most [`SMALL_LANES`] small and [`LARGE_LANES`] large
//!          requests under way, but for those that began before.
//! TURN-Q2  A request with a turn never waits for a turn: it takes one before any lock, and ends it
//!          before the daemon notifies the kernel, which may wait for another request.
//! TURN-Q3  Requests that wait for other processes (locks, questions of programs) take no turn.
//!
//! A tenant with many subvolumes has the lanes of each.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use copyhold_runtime::{FifoMutex, FifoMutexGuard, Runtime};
use copyhold_types::SubvolId;

/// Subvolumes whose numbers have the same rest share a set of lanes.
const LANE_SETS: usize = 128;
const SMALL_LANES: usize = 16;
const LARGE_LANES: usize = 2;
/// A request of so many bytes is large.
const LARGE: usize = 64 << 10;
/// How long a subvolume counts as being there after a request.
const PRESENCE: Duration = Duration::from_millis(100);

/// The right to work, until it is dropped; none is needed by a subvolume that is alone.
pub(super) type Turn<'t> = Option<FifoMutexGuard<'t>>;

/// The turns of all subvolumes.
pub(super) struct Turns {
    sets: Box<[Lanes]>,
    /// The subvolume of the last request.
    last: AtomicU32,
    /// Until when several subvolumes count as being there, by the clock of the runtime; zero: only
    /// one does.
    crowded_until: AtomicU64,
}

#[derive(Default)]
struct Lanes {
    small: [FifoMutex; SMALL_LANES],
    large: [FifoMutex; LARGE_LANES],
    /// How many turns were taken.
    taken: AtomicUsize,
}

impl Default for Turns {
    fn default() -> Turns {
        let sets = std::iter::repeat_with(Lanes::default).take(LANE_SETS).collect();
        Turns { sets, last: AtomicU32::new(0), crowded_until: AtomicU64::new(0) }
    }
}

impl Turns {
    /// Waits for a turn of `subvol`, for a request that moves so many bytes.
    pub(super) async fn take(&self, rt: &dyn Runtime, subvol: SubvolId, bytes: usize) -> Turn<'_> {
        if !self.is_crowded(rt, subvol) {
            return None;
        }
        Some(self.lane(subvol, bytes).lock().await)
    }

    /// How many turns the subvolumes of this set took.
    #[cfg(test)]
    pub(super) fn taken(&self, subvol: SubvolId) -> usize {
        self.lanes(subvol).taken.load(Relaxed)
    }

    fn lanes(&self, subvol: SubvolId) -> &Lanes {
        &self.sets[subvol.0 as usize % LANE_SETS]
    }

    fn lane(&self, subvol: SubvolId, bytes: usize) -> &FifoMutex {
        let lanes = self.lanes(subvol);
        let turn = lanes.taken.fetch_add(1, Relaxed);
        match bytes < LARGE {
            true => &lanes.small[turn % SMALL_LANES],
            false => &lanes.large[turn % LARGE_LANES],
        }
    }

    /// Whether other subvolumes have sent requests lately.
    fn is_crowded(&self, rt: &dyn Runtime, subvol: SubvolId) -> bool {
        if self.last.load(Relaxed) != subvol.0 {
            let until = rt.now() + PRESENCE.as_nanos() as u64;
            // The first request of all has no other one beside it.
            let is_first = self.last.swap(subvol.0, Relaxed) == 0;
            self.crowded_until.store(if is_first { 0 } else { until }, Relaxed);
        }
        let until = self.crowded_until.load(Relaxed);
        if until == 0 {
            return false;
        }
        let is_crowded = rt.now() < until;
        if !is_crowded {
            // Another request may have set a later time.
            let _later = self.crowded_until.compare_exchange(until, 0, Relaxed, Relaxed);
        }
        is_crowded
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use copyhold_runtime::SeededRuntime;

    use super::*;

    const ROGUE: SubvolId = SubvolId(2);
    const NEIGHBOUR: SubvolId = SubvolId(3);

    fn is_free(turns: &Turns, rt: &dyn Runtime, subvol: SubvolId, bytes: usize) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        pin!(turns.take(rt, subvol, bytes)).poll(&mut cx).is_ready()
    }

    #[test]
    fn a_subvolume_that_is_alone_needs_no_turn() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            for _ in 0..1000 {
                assert!(turns.take(&*rt, ROGUE, LARGE).await.is_none());
            }
            turns.take(&*rt, NEIGHBOUR, 1).await;
            assert!(turns.take(&*rt, ROGUE, 1).await.is_some());
            rt.sleep(2 * PRESENCE).await;
            assert!(turns.take(&*rt, ROGUE, 1).await.is_none(), "the other one has gone");
        });
    }

    #[test]
    fn beside_others_a_subvolume_waits_for_its_own_requests_alone() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            for subvol in [ROGUE, NEIGHBOUR] {
                drop(turns.take(&*rt, subvol, 1).await);
            }
            let mut held = Vec::new();
            for _ in 0..SMALL_LANES {
                held.push(turns.take(&*rt, ROGUE, LARGE - 1).await);
            }
            assert!(!is_free(&turns, &*rt, ROGUE, 1), "TURN-Q1");
            assert!(is_free(&turns, &*rt, NEIGHBOUR, 1));
            assert!(is_free(&turns, &*rt, ROGUE, LARGE), "large ones have lanes of their own");
            held.clear();
            assert!(is_free(&turns, &*rt, ROGUE, 1));
        });
    }
}
