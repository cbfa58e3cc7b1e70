//! Turns of tenants: beside other tenants, a tenant has few requests under way at a time.
//!
//! Problem.  A tenant with a thousand threads, or one thread with a deep queue, has a thousand
//!           requests in front of each one of its neighbour: at the device, at the locks of the
//!           pool, and in the queues of the executors.
//! Idea.     Requests that change something, or move data, take a turn of their tenant first. Each
//!           tenant has two lanes, for small and for large requests; a lane has room for the
//!           tenant's part by weight at a time, and admits the others in the order of arrival as
//!           room becomes free. So the requests of a tenant queue behind those of this tenant, and
//!           not before those of others. Look-ups and listings take none: their answers are mostly
//!           in memory, and parking one would cost more.
//! In core.  The lanes of a tenant, while a request of it has a turn or waits for one, and for one
//!           to two [`PRESENCE`]s afterwards.
//!
//! A tenant is the outermost subvolume below the root subvolume, with all subvolumes inside: a
//! thousand of them give it no more lanes. Turns are taken beside others only. A tenant that is
//! alone has as many requests under way as it sends, so that a deep queue makes use of a fast
//! device.
//!
//! TURN-Q1  Beside others, a tenant has at most its part of [`SMALL_ALL`] small requests and of
//!          [`LARGE_ALL`] bytes of large ones under way, but for those that began before. The parts
//!          are by weight, among the tenants with lanes; [`SMALL_LEAST`] and [`LARGE_LEAST`] at
//!          least. A large request has room in a lane without others, whatever its size.
//! TURN-Q2  A request with a turn never waits for a turn: it takes one before any lock, and ends it
//!          before the daemon notifies the kernel, which may wait for another request.
//! TURN-Q3  Requests that wait for other processes (locks, questions of programs) take no turn.
//! TURN-Q4  Two tenants never share a lane. The lanes of a tenant without requests go when others
//!          have sent requests for a while, or are alone.
//! TURN-Q5  A request that is delayed because its group is above a limit of memory has no turn
//!          meanwhile (`fs::throttle`, THROTTLE-T4).
//!
//! A request that waits is parked, so its memory is charged to its subvolume, as class `request`.

use std::collections::BTreeMap;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::AtomicUsize as Count;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::time::Duration;

use copyhold_fuse::Share;
use copyhold_runtime::{FifoMutex, Runtime};
use copyhold_sync::{Mutex, of};
use copyhold_types::{Nanos, SubvolId};
use event_listener::Event;

/// Small requests of all tenants: 16 of each of two.
const SMALL_ALL: usize = 32;
/// Of one tenant: many tenants together still fill a commit of the log.
const SMALL_LEAST: usize = 4;
/// Bytes of large requests of all tenants. With a neighbour, a tenant has two of the largest, or so
/// many of 64 KiB that a device with a latency of a millisecond is still busy.
const LARGE_ALL: usize = 4 << 20;
/// Of one tenant.
const LARGE_LEAST: usize = 512 << 10;
/// A larger request counts as one of so many bytes.
const COUNTED_MAX: usize = 1 << 20;
/// A request of so many bytes is large.
const LARGE: usize = 64 << 10;
/// How long a tenant counts as being there after a request that another tenant followed: longer
/// than most flushes, so that the tenant's own wait does not lift the bound of others.
const PRESENCE: Duration = Duration::from_secs(1);

/// The right to work, until it is dropped; none is needed by a tenant that is alone.
pub(super) type Turn = Option<Box<Held>>;

/// The turns of all tenants.
#[derive(Default)]
pub(super) struct Turns {
    active: Mutex<Active, of::Turns>,
    /// Of the tenants with lanes, together.
    weights: AtomicU64,
    /// The subvolume of the last request, and its tenant.
    last: AtomicU64,
    /// Until when several tenants count as being there, by the clock of the runtime; zero: only
    /// one does.
    crowded_until: AtomicU64,
    /// How many turns were taken.
    #[cfg(test)]
    taken: Count,
}

/// The tenants with lanes.
#[derive(Default)]
struct Active {
    tenants: BTreeMap<u64, Present>,
    /// When the lanes of absent tenants go.
    sweep_at: Nanos,
}

/// A tenant with lanes, and when it sent the last request.
struct Present {
    lanes: Arc<Lanes>,
    seen: Nanos,
}

#[derive(Default)]
struct Lanes {
    weight: AtomicU64,
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
struct Load {
    is_large: bool,
    size: usize,
}

/// A turn of a tenant.
pub(super) struct Held {
    lanes: Arc<Lanes>,
    load: Load,
}

impl Turns {
    /// Waits for a turn of the tenant of `subvol`, for a request that moves so many bytes. `share`
    /// has that tenant and its weight.
    pub(super) async fn take(
        &self,
        rt: &dyn Runtime,
        subvol: SubvolId,
        share: impl FnOnce() -> Share,
        bytes: usize,
    ) -> Turn {
        let share = self.crowded_share(rt, subvol, share)?;
        let (lanes, load) = (self.lanes(share, rt.now()), Load::of(bytes));
        let lane = lanes.lane(load);
        lane.enter(load, || load.part(lanes.weight.load(Relaxed), self.weights.load(Relaxed)))
            .await;
        #[cfg(test)]
        self.taken.fetch_add(1, Relaxed);
        Some(Box::new(Held { lanes, load }))
    }

    /// How many turns were taken.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// The lanes of a tenant that sends a request.
    fn lanes(&self, share: Share, now: Nanos) -> Arc<Lanes> {
        let mut active = self.active.lock();
        if now >= active.sweep_at {
            self.sweep(&mut active, now);
        }
        let new = || Present { lanes: Arc::default(), seen: now };
        let present = active.tenants.entry(share.tenant).or_insert_with(new);
        present.seen = now;
        let weight = u64::from(share.weight.max(1));
        let before = present.lanes.weight.swap(weight, Relaxed);
        if weight != before {
            self.weights.fetch_add(weight.wrapping_sub(before), Relaxed);
        }
        present.lanes.clone()
    }

    /// Removes the lanes of tenants that have sent no request lately, and have none (TURN-Q4).
    fn sweep(&self, active: &mut Active, now: Nanos) {
        active.tenants.retain(|_, present| {
            let stays = present.is_busy() || now < present.seen + presence();
            if !stays {
                self.weights.fetch_sub(present.lanes.weight.load(Relaxed), Relaxed);
            }
            stays
        });
        active.sweep_at = now + presence();
    }

    /// The share of a request's tenant, if other tenants have sent requests lately. It is not
    /// looked up for a subvolume that is alone.
    fn crowded_share(
        &self,
        rt: &dyn Runtime,
        subvol: SubvolId,
        share: impl FnOnce() -> Share,
    ) -> Option<Share> {
        let last = self.last.load(Relaxed);
        if last >> 32 == u64::from(subvol.0) && self.crowded_until.load(Relaxed) == 0 {
            return None;
        }
        let share = share();
        let request = u64::from(subvol.0) << 32 | share.tenant;
        if last != request {
            let before = u64::from(self.last.swap(request, Relaxed) as u32);
            // The first request of all has no other one beside it.
            if before != 0 && before != share.tenant {
                self.crowded_until.store(rt.now() + presence(), Relaxed);
            }
        }
        let until = self.crowded_until.load(Relaxed);
        if until == 0 {
            return None;
        }
        let is_crowded = rt.now() < until || self.has_other(share.tenant);
        if !is_crowded {
            // Another request may have set a later time.
            let _later = self.crowded_until.compare_exchange(until, 0, Relaxed, Relaxed);
            let now = rt.now();
            self.sweep(&mut self.active.lock(), now);
        }
        is_crowded.then_some(share)
    }

    /// Whether another tenant has a request with a turn, or one that waits for a turn.
    fn has_other(&self, tenant: u64) -> bool {
        let active = self.active.lock();
        active.tenants.iter().any(|(other, present)| *other != tenant && present.is_busy())
    }
}

fn presence() -> Nanos {
    PRESENCE.as_nanos() as Nanos
}

impl Present {
    /// A request refers to the lanes.
    fn is_busy(&self) -> bool {
        Arc::strong_count(&self.lanes) > 1
    }
}

impl Load {
    fn of(bytes: usize) -> Load {
        match bytes < LARGE {
            true => Load { is_large: false, size: 1 },
            false => Load { is_large: true, size: bytes.min(COUNTED_MAX) },
        }
    }

    /// The part of a tenant of this weight, among tenants of so much together (TURN-Q1).
    fn part(self, weight: u64, weights: u64) -> usize {
        let (all, least) = match self.is_large {
            true => (LARGE_ALL, LARGE_LEAST),
            false => (SMALL_ALL, SMALL_LEAST),
        };
        let part = all as u64 * weight / weights.max(weight);
        (part as usize).max(least)
    }
}

impl Lanes {
    fn lane(&self, load: Load) -> &Lane {
        if load.is_large { &self.large } else { &self.small }
    }
}

impl Lane {
    /// Waits for the requests that came before, and for room. `part` may change meanwhile.
    async fn enter(&self, load: Load, part: impl Fn() -> usize) {
        let _next = self.queue.lock().await;
        while !self.use_room(load, part()) {
            let listener = self.room.listen();
            if self.use_room(load, part()) {
                return;
            }
            listener.await;
        }
    }

    fn use_room(&self, load: Load, part: usize) -> bool {
        let fits = |used: usize| {
            let more = used + load.size;
            (used == 0 || more <= part).then_some(more)
        };
        self.used.fetch_update(AcqRel, Relaxed, fits).is_ok()
    }

    fn leave(&self, load: Load) {
        self.used.fetch_sub(load.size, AcqRel);
        self.room.notify(1);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.lanes.lane(self.load).leave(self.load);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};

    use copyhold_runtime::{Rt, SeededRuntime};

    use super::super::kernel::poll;
    use super::*;

    const ROGUE: SubvolId = SubvolId(2);
    const NEIGHBOUR: SubvolId = SubvolId(3);
    /// Of two tenants of the same weight.
    const SMALL_EACH: usize = SMALL_ALL / 2;

    fn share(tenant: SubvolId) -> Share {
        Share { tenant: tenant.0.into(), ..Share::default() }
    }

    async fn take(turns: &Turns, rt: &dyn Runtime, tenant: SubvolId, bytes: usize) -> Turn {
        turns.take(rt, tenant, || share(tenant), bytes).await
    }

    fn is_ready<F: Future>(future: Pin<&mut F>) -> bool {
        poll(future).is_some()
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
                assert!(turns.take(&*rt, subvol, || share(ROGUE), LARGE).await.is_none());
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
            for _ in 0..SMALL_EACH {
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
            for _ in 0..SMALL_EACH {
                held.push(take(&turns, &*rt, ROGUE, 1).await);
            }
            let mut first = pin!(take(&turns, &*rt, ROGUE, 1));
            let mut second = pin!(take(&turns, &*rt, ROGUE, 1));
            assert!(!is_ready(first.as_mut()) && !is_ready(second.as_mut()));
            held.swap_remove(SMALL_EACH / 2);
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
            for n in 0..SMALL_EACH as u32 {
                held.push(turns.take(&*rt, SubvolId(1000 + n), || share(ROGUE), 1).await);
            }
            let one_more = pin!(turns.take(&*rt, SubvolId(5000), || share(ROGUE), 1));
            assert!(!is_ready(one_more), "the tenant has as many lanes as with one subvolume");
            for n in 4..2000 {
                assert!(is_free(&turns, &*rt, SubvolId(n), 1), "TURN-Q4: {n}");
            }
        });
    }

    #[test]
    fn the_lanes_of_a_tenant_without_requests_go_when_others_have_sent_some_for_a_while() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            crowd(&turns, &*rt, [ROGUE, NEIGHBOUR]).await;
            let lanes = || turns.active.lock().tenants.len();
            for n in 4..1000 {
                drop(take(&turns, &*rt, SubvolId(n), 1).await);
            }
            assert!(lanes() > 900);
            let held = [
                take(&turns, &*rt, ROGUE, COUNTED_MAX).await,
                take(&turns, &*rt, NEIGHBOUR, 1).await,
            ];
            assert!(!is_free(&turns, &*rt, ROGUE, LARGE), "it waited, and was interrupted");
            rt.sleep(PRESENCE).await;
            drop(take(&turns, &*rt, NEIGHBOUR, 1).await);
            assert_eq!((lanes(), turns.weights.load(Relaxed)), (2, 200), "TURN-Q4");
            drop(held);
            rt.sleep(2 * PRESENCE).await;
            assert!(take(&turns, &*rt, NEIGHBOUR, 1).await.is_none(), "it is alone");
            assert_eq!((lanes(), turns.weights.load(Relaxed)), (0, 0));
        });
    }

    #[test]
    fn a_thousand_direct_readers_leave_their_neighbours_room_by_weight() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            let take = async |tenant: u32, weight, bytes| {
                let share = || Share { tenant: tenant.into(), weight };
                turns.take(&*rt, SubvolId(tenant), share, bytes).await
            };
            let [light, usual, heavy] = [(2, 50), (3, 100), (4, 250)];
            for (tenant, weight) in [light, usual, heavy, light] {
                drop(take(tenant, weight, 1).await);
            }
            let mut begun = Vec::new();
            for ((tenant, weight), bytes) in
                [light, usual, heavy].into_iter().flat_map(|of| [(of, 4096), (of, LARGE)])
            {
                let readers: Vec<_> =
                    (0..1000).map(|_| Box::pin(take(tenant, weight, bytes))).collect();
                let mut readers = readers;
                begun.push(
                    readers.iter_mut().filter_map(|one| poll(one.as_mut())).collect::<Vec<_>>(),
                );
            }
            let counts: Vec<_> = begun.iter().map(Vec::len).collect();
            assert_eq!(counts, [SMALL_LEAST, 8, 8, 16, 20, 40], "TURN-Q1");
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
