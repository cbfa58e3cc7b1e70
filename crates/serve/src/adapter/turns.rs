//! Turns of tenants: beside other tenants, a tenant has few requests under way at a time.
//!
//! Problem.  A tenant with a thousand threads, or one thread with a deep queue, has a thousand
//!           requests in front of each one of its neighbour: at the device, at the locks of the
//!           pool, and in the queues of the executors.
//! Idea.     Requests that change something, or move data, take a turn of their tenant first. Each
//!           tenant has two lanes, for small and for large requests; a lane has room for few at a
//!           time, and admits the others in the order of arrival as room becomes free. So the
//!           requests of a tenant queue behind those of this tenant, and not before those of
//!           others. Look-ups and listings take none: their answers are mostly in memory, and
//!           parking one would cost more.
//! In core.  The lanes of a tenant, while a request of it has a turn or waits for one.
//!
//! A tenant is the outermost subvolume below the root subvolume, with all subvolumes inside: a
//! thousand of them give it no more lanes. Turns are taken beside others only. A tenant that is
//! alone has as many requests under way as it sends, so that a deep queue makes use of a fast
//! device.
//!
//! TURN-Q1  Beside others, a tenant has at most [`SMALL_MAX`] small requests and [`LARGE_MAX`]
//!          bytes of large ones under way, but for those that began before. Two large requests of
//!          any size have room.
//! TURN-Q2  A request with a turn never waits for a turn: it takes one before any lock, and ends it
//!          before the daemon notifies the kernel, which may wait for another request.
//! TURN-Q3  Requests that wait for other processes (locks, questions of programs) take no turn.
//! TURN-Q4  Two tenants never share a lane; a tenant without requests has none.

use std::collections::BTreeMap;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::AtomicUsize as Count;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::time::Duration;

use copyhold_runtime::{FifoMutex, Runtime};
use copyhold_sync::{Mutex, of};
use copyhold_types::SubvolId;
use event_listener::Event;

const SMALL_MAX: usize = 16;
/// Bytes of large requests: two of the largest, or so many of 64 KiB that a device with a latency
/// of a millisecond is still busy.
const LARGE_MAX: usize = 2 << 20;
/// A request of so many bytes is large.
const LARGE: usize = 64 << 10;
/// How long a tenant counts as being there after a request that another tenant followed: longer
/// than most flushes, so that the tenant's own wait does not lift the bound of others.
const PRESENCE: Duration = Duration::from_secs(1);

/// The right to work, until it is dropped; none is needed by a tenant that is alone.
pub(super) type Turn<'t> = Option<Box<Held<'t>>>;

/// The turns of all tenants.
#[derive(Default)]
pub(super) struct Turns {
    active: Mutex<BTreeMap<SubvolId, Arc<Lanes>>, of::Turns>,
    /// The subvolume of the last request, and its tenant.
    last: AtomicU64,
    /// Until when several tenants count as being there, by the clock of the runtime; zero: only
    /// one does.
    crowded_until: AtomicU64,
    /// How many turns were taken.
    #[cfg(test)]
    taken: Count,
}

#[derive(Default)]
struct Lanes {
    small: Lane,
    large: Lane,
}

#[derive(Default)]
struct Lane {
    /// Held by the request that is the next to enter.
    queue: FifoMutex,
    used: AtomicUsize,
    room: Event,
}

/// The part of a lane that a request takes up.
#[derive(Clone, Copy)]
struct Share {
    is_large: bool,
    size: usize,
}

/// A request's reference to the lanes of its tenant.
struct Place<'t> {
    turns: &'t Turns,
    tenant: SubvolId,
    /// `None` while it is dropped.
    lanes: Option<Arc<Lanes>>,
}

/// A turn of a tenant.
pub(super) struct Held<'t> {
    place: Place<'t>,
    share: Share,
}

impl Turns {
    /// Waits for a turn of the tenant of `subvol`, for a request that moves so many bytes.
    pub(super) async fn take(
        &self,
        rt: &dyn Runtime,
        subvol: SubvolId,
        tenant: impl FnOnce() -> SubvolId,
        bytes: usize,
    ) -> Turn<'_> {
        let tenant = self.crowded_tenant(rt, subvol, tenant)?;
        let (place, share) = (self.place(tenant), Share::of(bytes));
        place.lane(share).enter(share).await;
        #[cfg(test)]
        self.taken.fetch_add(1, Relaxed);
        Some(Box::new(Held { place, share }))
    }

    /// How many turns were taken.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    fn place(&self, tenant: SubvolId) -> Place<'_> {
        let lanes = self.active.lock().entry(tenant).or_default().clone();
        Place { turns: self, tenant, lanes: Some(lanes) }
    }

    /// The tenant of a request, if other tenants have sent requests lately. The tenant is not
    /// looked up for a subvolume that is alone.
    fn crowded_tenant(
        &self,
        rt: &dyn Runtime,
        subvol: SubvolId,
        tenant: impl FnOnce() -> SubvolId,
    ) -> Option<SubvolId> {
        let last = self.last.load(Relaxed);
        if last >> 32 == u64::from(subvol.0) && self.crowded_until.load(Relaxed) == 0 {
            return None;
        }
        let tenant = tenant();
        let request = u64::from(subvol.0) << 32 | u64::from(tenant.0);
        if last != request {
            let before = self.last.swap(request, Relaxed) as u32;
            // The first request of all has no other one beside it.
            if before != 0 && before != tenant.0 {
                self.crowded_until.store(rt.now() + PRESENCE.as_nanos() as u64, Relaxed);
            }
        }
        let until = self.crowded_until.load(Relaxed);
        if until == 0 {
            return None;
        }
        let waits = || self.active.lock().keys().any(|other| *other != tenant);
        let is_crowded = rt.now() < until || waits();
        if !is_crowded {
            // Another request may have set a later time.
            let _later = self.crowded_until.compare_exchange(until, 0, Relaxed, Relaxed);
        }
        is_crowded.then_some(tenant)
    }
}

impl Share {
    fn of(bytes: usize) -> Share {
        match bytes < LARGE {
            true => Share { is_large: false, size: 1 },
            false => Share { is_large: true, size: bytes.min(LARGE_MAX / 2) },
        }
    }

    fn lane_size(self) -> usize {
        if self.is_large { LARGE_MAX } else { SMALL_MAX }
    }
}

impl Lane {
    /// Waits for the requests that came before, and for room.
    async fn enter(&self, share: Share) {
        let _next = self.queue.lock().await;
        while !self.use_room(share) {
            let listener = self.room.listen();
            if self.use_room(share) {
                return;
            }
            listener.await;
        }
    }

    fn use_room(&self, share: Share) -> bool {
        let more = |used| Some(used + share.size).filter(|used| *used <= share.lane_size());
        self.used.fetch_update(AcqRel, Relaxed, more).is_ok()
    }

    fn leave(&self, share: Share) {
        self.used.fetch_sub(share.size, AcqRel);
        self.room.notify(1);
    }
}

impl Place<'_> {
    fn lane(&self, share: Share) -> &Lane {
        let lanes = self.lanes.as_ref().expect("it is not being dropped");
        if share.is_large { &lanes.large } else { &lanes.small }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.place.lane(self.share).leave(self.share);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut active = self.turns.active.lock();
        self.lanes = None;
        // The map has the last reference: nothing of this tenant has a turn or waits (TURN-Q4).
        let idle = |lanes: &Arc<Lanes>| Arc::strong_count(lanes) == 1;
        let ended = match active.get(&self.tenant).is_some_and(idle) {
            true => active.remove(&self.tenant),
            false => None,
        };
        drop(active);
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    use copyhold_runtime::{Rt, SeededRuntime};

    use super::*;

    const ROGUE: SubvolId = SubvolId(2);
    const NEIGHBOUR: SubvolId = SubvolId(3);

    async fn take<'t>(turns: &'t Turns, rt: &dyn Runtime, tenant: SubvolId, b: usize) -> Turn<'t> {
        turns.take(rt, tenant, || tenant, b).await
    }

    fn is_ready<F: Future>(future: Pin<&mut F>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn is_free(turns: &Turns, rt: &dyn Runtime, tenant: SubvolId, bytes: usize) -> bool {
        is_ready(pin!(take(turns, rt, tenant, bytes)))
    }

    /// A request of each of these tenants.
    async fn crowd(turns: &Turns, rt: &dyn Runtime, tenants: [SubvolId; 2]) {
        for tenant in tenants {
            drop(take(turns, rt, tenant, 1).await);
        }
    }

    #[test]
    fn a_tenant_that_is_alone_needs_no_turn() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            for n in 0..1000 {
                let subvol = SubvolId(10 + n % 3);
                assert!(turns.take(&*rt, subvol, || ROGUE, LARGE).await.is_none());
            }
            take(&turns, &*rt, NEIGHBOUR, 1).await;
            assert!(take(&turns, &*rt, ROGUE, 1).await.is_some());
            rt.sleep(2 * PRESENCE).await;
            assert!(take(&turns, &*rt, ROGUE, 1).await.is_none(), "the other one has gone");
        });
    }

    #[test]
    fn beside_others_a_tenant_waits_for_its_own_requests_alone() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            crowd(&turns, &*rt, [ROGUE, NEIGHBOUR]).await;
            let mut held = Vec::new();
            for _ in 0..SMALL_MAX {
                held.push(take(&turns, &*rt, ROGUE, LARGE - 1).await);
            }
            assert!(!is_free(&turns, &*rt, ROGUE, 1), "TURN-Q1");
            assert!(is_free(&turns, &*rt, NEIGHBOUR, 1));
            assert!(is_free(&turns, &*rt, ROGUE, LARGE), "large ones have a lane of their own");
            held.clear();
            assert!(is_free(&turns, &*rt, ROGUE, 1));
        });
    }

    #[test]
    fn any_turn_that_ends_makes_room_for_the_next_request() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            crowd(&turns, &*rt, [ROGUE, NEIGHBOUR]).await;
            let mut held = Vec::new();
            for _ in 0..SMALL_MAX {
                held.push(take(&turns, &*rt, ROGUE, 1).await);
            }
            let mut first = pin!(take(&turns, &*rt, ROGUE, 1));
            let mut second = pin!(take(&turns, &*rt, ROGUE, 1));
            assert!(!is_ready(first.as_mut()) && !is_ready(second.as_mut()));
            held.swap_remove(SMALL_MAX / 2);
            assert!(!is_ready(second.as_mut()), "the first one is the next");
            assert!(is_ready(first.as_mut()));
            assert!(is_ready(second.as_mut()), "the first one has come and gone");
        });
    }

    #[test]
    fn subvolumes_of_a_tenant_share_its_lanes_and_those_of_two_tenants_none() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            crowd(&turns, &*rt, [ROGUE, NEIGHBOUR]).await;
            let mut held = Vec::new();
            for n in 0..SMALL_MAX as u32 {
                held.push(turns.take(&*rt, SubvolId(1000 + n), || ROGUE, 1).await);
            }
            let one_more = pin!(turns.take(&*rt, SubvolId(5000), || ROGUE, 1));
            assert!(!is_ready(one_more), "the tenant has as many lanes as with one subvolume");
            for n in 4..2000 {
                assert!(is_free(&turns, &*rt, SubvolId(n), 1), "TURN-Q4: {n}");
            }
        });
    }

    #[test]
    fn a_tenant_without_requests_has_no_lanes() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            crowd(&turns, &*rt, [ROGUE, NEIGHBOUR]).await;
            for n in 4..1000 {
                drop(take(&turns, &*rt, SubvolId(n), 1).await);
            }
            assert_eq!(turns.active.lock().len(), 0);
            let held = [
                take(&turns, &*rt, ROGUE, LARGE_MAX).await,
                take(&turns, &*rt, ROGUE, LARGE_MAX).await,
            ];
            assert!(!is_free(&turns, &*rt, ROGUE, LARGE), "it waited, and was interrupted");
            assert_eq!(turns.active.lock().len(), 1);
            drop(held);
            assert_eq!(turns.active.lock().len(), 0);
        });
    }

    /// Large requests that a tenant completes in ten [`PRESENCE`]s: 32 at a time, of `bytes` each,
    /// on a device that answers each after a millisecond; while a neighbour sends a small request
    /// before each one ends.
    fn completed(bytes: usize, has_neighbour: bool) -> usize {
        let rt = SeededRuntime::new(1);
        let (turns, done) = (Arc::new(Turns::default()), Arc::new(Count::new(0)));
        for _ in 0..32 {
            let (rt, turns, done) = (rt.clone() as Rt, turns.clone(), done.clone());
            rt.clone().spawn(Box::pin(async move {
                loop {
                    let _turn = take(&turns, &*rt, ROGUE, bytes).await;
                    rt.sleep(Duration::from_millis(1)).await;
                    done.fetch_add(1, Relaxed);
                }
            }));
        }
        rt.block_on(async {
            for _ in 0..11 {
                rt.sleep(PRESENCE * 9 / 10).await;
                if has_neighbour {
                    drop(take(&turns, &*rt, NEIGHBOUR, 1).await);
                }
            }
        });
        rt.drop_tasks();
        done.load(Relaxed)
    }

    #[test]
    fn a_neighbour_that_waits_for_a_flush_is_still_there() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            crowd(&turns, &*rt, [ROGUE, NEIGHBOUR]).await;
            rt.sleep(Duration::from_millis(500)).await;
            let flush = take(&turns, &*rt, NEIGHBOUR, 1).await;
            for _ in 0..3 {
                rt.sleep(2 * PRESENCE).await;
                assert!(take(&turns, &*rt, ROGUE, LARGE).await.is_some());
            }
            drop(flush);
            rt.sleep(2 * PRESENCE).await;
            assert!(take(&turns, &*rt, ROGUE, LARGE).await.is_none());
        });
    }

    #[test]
    fn a_rare_request_of_a_neighbour_leaves_a_deep_queue_its_speed() {
        let (alone, beside) = (completed(LARGE, false), completed(LARGE, true));
        assert!(beside * 10 >= alone * 9, "{alone} requests alone, {beside} beside");
    }
}
