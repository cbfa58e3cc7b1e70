//! Turns of tenants: beside other tenants, a tenant has few requests under way at a time.
//!
//! Problem.  A tenant with a thousand threads, or one thread with a deep queue, has a thousand
//!           requests in front of each one of its neighbour: at the device, at the locks of the
//!           pool, and in the queues of the executors.
//! Idea.     Requests that change something, or move data, take a turn of their tenant first. Each
//!           tenant has lanes, for small requests, for large ones, and for flushes; a lane has room
//!           for the tenant's part by weight at a time, and admits the others in the order of
//!           arrival as room becomes free. So the requests of a tenant queue behind those of this
//!           tenant, and not before those of others. Look-ups and listings take none: their answers
//!           are mostly in memory, and parking one would cost more.
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
//!          are by weight, among the tenants that are busy, as of [`SUM_EVERY`] ago: half at most,
//!          and [`SMALL_LEAST`] and [`LARGE_LEAST`] at least. So a neighbour that sends a request
//!          now and then costs a tenant no more than its half. A large request has room in a lane
//!          without others, whatever its size.
//! TURN-Q2  A request with a turn never waits for a turn: it takes one before any lock, and ends it
//!          before the daemon notifies the kernel, which may wait for another request.
//! TURN-Q3  Requests that wait for other processes (locks, questions of programs) take no turn.
//! TURN-Q4  Two tenants never share a lane. The lanes of a tenant without requests go when others
//!          have sent requests for a while, or are alone.
//! TURN-Q5  A request that is delayed because its group is above `high`, or that follows the pace
//!          of write-back, has no turn meanwhile (THROTTLE-T4, DIRTYPACE-D5). One that waits for
//!          room or a flush of its own data keeps its turn; an fsync, which makes room, has a lane
//!          without such requests.
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
/// A tenant whose last request is younger is busy, as is one with a request under way.
const RECENT: Duration = Duration::from_millis(20);
/// Between two sums of the weights of busy tenants.
const SUM_EVERY: Duration = Duration::from_millis(10);
/// How long a tenant counts as being there after a request that another tenant followed: longer
/// than most flushes, so that the tenant's own wait does not lift the bound of others.
const PRESENCE: Duration = Duration::from_secs(1);

/// The right to work, until it is dropped; none is needed by a tenant that is alone.
pub(super) type Turn = Option<Box<Held>>;

/// The turns of all tenants.
#[derive(Default)]
pub(super) struct Turns {
    active: Mutex<Active, of::Turns>,
    /// Of the busy tenants, together (TURN-Q1).
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
    /// When the weights of busy tenants are added up.
    sum_at: Nanos,
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
    flushes: Lane,
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
pub(super) struct Load {
    kind: Kind,
    size: usize,
}

/// A kind of request, with a lane of its own.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Small,
    Large,
    Flush,
}

/// A turn of a tenant.
pub(super) struct Held {
    lanes: Arc<Lanes>,
    load: Load,
}

impl Turns {
    /// Waits for a turn of the tenant of `subvol`. `share` has that tenant and its weight.
    pub(super) async fn take(
        &self,
        rt: &dyn Runtime,
        subvol: SubvolId,
        share: impl FnOnce() -> Share,
        load: Load,
    ) -> Turn {
        let share = self.crowded_share(rt, subvol, share)?;
        let lanes = self.lanes(share, rt.now());
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
            active.sweep(now);
        }
        let new = || Present { lanes: Arc::default(), seen: now };
        let present = active.tenants.entry(share.tenant).or_insert_with(new);
        present.seen = now;
        present.lanes.weight.store(share.weight.max(1).into(), Relaxed);
        let lanes = present.lanes.clone();
        if now >= active.sum_at {
            self.weights.store(active.busy_weights(now), Relaxed);
            active.sum_at = now + SUM_EVERY.as_nanos() as Nanos;
        }
        lanes
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
        let now = rt.now();
        let is_crowded = now < until || self.active.lock().has_other(share.tenant, now);
        if !is_crowded {
            // Another request may have set a later time.
            let _later = self.crowded_until.compare_exchange(until, 0, Relaxed, Relaxed);
            self.active.lock().sweep(now);
        }
        is_crowded.then_some(share)
    }
}

impl Active {
    /// Removes the lanes of tenants that have sent no request lately, and have none (TURN-Q4).
    fn sweep(&mut self, now: Nanos) {
        self.tenants.retain(|_, present| present.is_there(now));
        self.sweep_at = now + presence();
    }

    fn has_other(&mut self, tenant: u64, now: Nanos) -> bool {
        let mut others = self.tenants.iter_mut().filter(|(other, _)| **other != tenant);
        others.any(|(_, present)| present.is_there(now))
    }

    fn busy_weights(&self, now: Nanos) -> u64 {
        let recent = now.saturating_sub(RECENT.as_nanos() as Nanos);
        let is_busy = |present: &&Present| present.seen >= recent || present.has_request();
        let weight = |present: &Present| present.lanes.weight.load(Relaxed);
        self.tenants.values().filter(is_busy).map(weight).sum()
    }
}

fn presence() -> Nanos {
    PRESENCE.as_nanos() as Nanos
}

impl Present {
    /// A request refers to the lanes.
    fn has_request(&self) -> bool {
        Arc::strong_count(&self.lanes) > 1
    }

    /// Presence lasts behind the end of a long request, too.
    fn is_there(&mut self, now: Nanos) -> bool {
        if self.has_request() {
            self.seen = now;
        }
        now < self.seen + presence()
    }
}

impl Load {
    pub(super) const FLUSH: Load = Load { kind: Kind::Flush, size: 1 };

    /// A request that moves so many bytes.
    pub(super) fn of(bytes: usize) -> Load {
        match bytes < LARGE {
            true => Load { kind: Kind::Small, size: 1 },
            false => Load { kind: Kind::Large, size: bytes.min(COUNTED_MAX) },
        }
    }

    /// The part of a tenant of this weight, among busy tenants of so much together (TURN-Q1).
    fn part(self, weight: u64, weights: u64) -> usize {
        let (all, least) = match self.kind {
            Kind::Large => (LARGE_ALL, LARGE_LEAST),
            Kind::Small | Kind::Flush => (SMALL_ALL, SMALL_LEAST),
        };
        let part = all as u64 * weight / weights.max(weight);
        (part as usize).clamp(least, all / 2)
    }
}

impl Lanes {
    fn lane(&self, load: Load) -> &Lane {
        match load.kind {
            Kind::Small => &self.small,
            Kind::Large => &self.large,
            Kind::Flush => &self.flushes,
        }
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
        turns.take(rt, tenant, || share(tenant), Load::of(bytes)).await
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
                assert!(turns.take(&*rt, subvol, || share(ROGUE), Load::of(LARGE)).await.is_none());
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
            let flush = pin!(turns.take(&*rt, ROGUE, || share(ROGUE), Load::FLUSH));
            assert!(is_ready(flush), "TURN-Q5");
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
                held.push(turns.take(&*rt, SubvolId(1000 + n), || share(ROGUE), Load::of(1)).await);
            }
            let one_more = pin!(turns.take(&*rt, SubvolId(5000), || share(ROGUE), Load::of(1)));
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
            rt.sleep(SUM_EVERY).await;
            let held = [
                take(&turns, &*rt, ROGUE, COUNTED_MAX).await,
                take(&turns, &*rt, NEIGHBOUR, 1).await,
            ];
            assert!(!is_free(&turns, &*rt, ROGUE, LARGE), "it waited, and was interrupted");
            rt.sleep(PRESENCE).await;
            drop(take(&turns, &*rt, NEIGHBOUR, 1).await);
            assert_eq!((lanes(), turns.weights.load(Relaxed)), (2, 200), "TURN-Q4, TURN-Q1");
            drop(held);
            rt.sleep(2 * PRESENCE).await;
            assert!(take(&turns, &*rt, NEIGHBOUR, 1).await.is_none(), "it is alone");
            assert_eq!(lanes(), 0);
        });
    }

    #[test]
    fn a_thousand_direct_readers_leave_their_neighbours_room_by_weight() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let turns = Turns::default();
            let take = async |tenant: u32, weight, bytes| {
                let share = || Share { tenant: tenant.into(), weight };
                turns.take(&*rt, SubvolId(tenant), share, Load::of(bytes)).await
            };
            let [light, usual, heavy] = [(2, 50), (3, 100), (4, 250)];
            for (tenant, weight) in [light, usual, heavy, light] {
                drop(take(tenant, weight, 1).await);
            }
            rt.sleep(SUM_EVERY).await;
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
            assert_eq!(counts, [SMALL_LEAST, 8, 8, 16, 16, 32], "TURN-Q1");
        });
    }

    /// Large requests that a tenant completes in ten [`PRESENCE`]s: 32 at a time, of `bytes` each,
    /// on a device that answers each after a millisecond; while neighbours of these weights send a
    /// small request before each one ends.
    fn completed(bytes: usize, neighbours: &[u32]) -> usize {
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
                for (number, &weight) in neighbours.iter().enumerate() {
                    let tenant = NEIGHBOUR.0 + number as u32;
                    let share = || Share { tenant: tenant.into(), weight };
                    drop(turns.take(&*rt, SubvolId(tenant), share, Load::of(1)).await);
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
            rt.sleep(Duration::from_millis(5)).await;
            assert!(take(&turns, &*rt, ROGUE, LARGE).await.is_some(), "it sends the next one now");
            rt.sleep(2 * PRESENCE).await;
            assert!(take(&turns, &*rt, ROGUE, LARGE).await.is_none());
        });
    }

    #[test]
    fn rare_requests_of_neighbours_leave_a_deep_queue_its_speed() {
        let alone = completed(LARGE, &[]);
        for neighbours in [&[100][..], &[100; 3], &[100; 16], &[10_000]] {
            let beside = completed(LARGE, neighbours);
            assert!(beside * 10 >= alone * 9, "{neighbours:?}: {alone} alone, {beside} beside");
        }
    }
}
