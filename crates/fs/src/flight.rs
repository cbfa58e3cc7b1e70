//! Bytes of dirty data that are at the device.
//!
//! Problem.  A request of a caller, an fsync above all, waits at the device behind all that was
//!           sent before it. Eight tasks with two batches of 4 MiB each keep 64 MiB there, and so
//!           do sixteen threads that make large files durable: a second at 64 MB/s, for a
//!           neighbour that made 4 KiB durable.
//! Idea.     A batch takes room for its bytes before its blocks are taken, and gives it back when
//!           the device has them. While a tenant waits for the device, batches of others have
//!           little room: two requests, which keep a device busy, and which the tenant waits for
//!           at most. A tenant that is alone has more room, for a fast device.
//! In core.  A lane for the tasks of write-back, and one for the callers of each tenant that has
//!           some under way.
//!
//! FLIGHT-L1  Tasks have at most [`ALONE`] bytes of file data at the device, of all tenants. While
//!            a tenant waits for the device (`foreground`), a batch for another one begins only if
//!            there are at most [`BESIDE`] with it.
//! FLIGHT-L2  With nothing under way in its lane a batch begins. So write-back never stops.
//! FLIGHT-L3  Batches of a lane begin in the order in which they asked: while the first one waits,
//!            the others wait behind it. So a tenant with little room waits until the bytes of
//!            others have landed, and for no batch that asked later.
//! FLIGHT-L4  Batches that callers wait for, as for an fsync, have a lane for each tenant, with the
//!            bounds of FLIGHT-L1. So an fsync waits for room until bytes of its own tenant's
//!            callers have landed, and for no write-back; and a tenant that makes large files
//!            durable has few bytes at the device before the requests of another one. A batch that
//!            finds its lane empty may take all of the bound: a lone caller has as many requests at
//!            the device.
//! FLIGHT-L5  A batch with room waits for nothing but the device: it takes its blocks and claims
//!            their space without a wait, sends its requests, and gives the room back when the last
//!            one is answered. Before any other wait, for a lock, a cut, credit or a commit, it has
//!            no room. So each wait for room ends as long as the device serves requests, and the
//!            tasks that have room are polled.
//! FLIGHT-L6  A batch that has taken blocks waits for no room, because readers and an fsync of its
//!            file wait for it; nor does one under a lock that other tenants wait for
//!            ([`Lane::Urgent`]). Their bytes count, also beyond the bound.
//!
//! Data that travels with its transaction (P12) takes no room: its bytes are the log's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};
use std::sync::{Arc, Weak};

use copyhold_runtime::FifoMutex;
use copyhold_sync::{Mutex, of};
use copyhold_types::{BLOCK_BYTES, SubvolId};
use event_listener::Event;

use crate::Filesystem;

/// Bytes under way in a lane.
pub(crate) const ALONE: u64 = 16 << 20;
/// The same, while another tenant waits for the device.
pub(crate) const BESIDE: u64 = 2 << 20;

#[derive(Default)]
pub(crate) struct Flight {
    tasks: Arc<Queue>,
    callers: Mutex<CallerQueues, of::CallerLanes>,
}

/// The lane of a batch, and the tenant of its data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lane {
    Tasks(SubvolId),
    Callers(SubvolId),
    /// As that of the callers, without a wait (FLIGHT-L6).
    Urgent(SubvolId),
}

/// The queues of callers, by tenant.
#[derive(Default)]
struct CallerQueues {
    by_tenant: BTreeMap<SubvolId, Weak<Queue>>,
    /// With so many, those without a batch are removed.
    enough: usize,
}

#[derive(Default)]
struct Queue {
    bytes: AtomicU64,
    landed: Event,
    /// Held by the batch that begins next (FLIGHT-L3).
    first: FifoMutex,
}

/// Bytes that may be under way in a lane.
#[derive(Clone, Copy)]
struct Bound {
    all: u64,
    first_may_have_all: bool,
}

/// Room for the bytes of a batch, until it is dropped.
#[must_use = "the room ends when this is dropped"]
pub(crate) struct Flying {
    queue: Arc<Queue>,
    bytes: u64,
}

impl Flight {
    /// Bytes that tasks have under way.
    #[cfg(test)]
    pub(crate) fn bytes_of_tasks(&self) -> u64 {
        self.tasks.bytes.load(Acquire)
    }

    fn queue(&self, lane: Lane) -> Arc<Queue> {
        match lane {
            Lane::Tasks(_) => self.tasks.clone(),
            Lane::Callers(tenant) | Lane::Urgent(tenant) => self.callers.lock().of(tenant),
        }
    }
}

impl CallerQueues {
    fn of(&mut self, tenant: SubvolId) -> Arc<Queue> {
        if let Some(queue) = self.by_tenant.get(&tenant).and_then(Weak::upgrade) {
            return queue;
        }
        if self.by_tenant.len() >= self.enough {
            self.by_tenant.retain(|_, queue| queue.strong_count() > 0);
            self.enough = 2 * self.by_tenant.len() + 1;
        }
        let queue = Arc::default();
        self.by_tenant.insert(tenant, Arc::downgrade(&queue));
        queue
    }
}

impl Lane {
    /// Waits for room for so many blocks, or for as many as the lane's bound lets one batch have:
    /// half of it, or for a caller all of an empty lane.
    pub(crate) async fn take_some(self, fs: &Filesystem, blocks: usize) -> Flying {
        let (Lane::Tasks(tenant) | Lane::Callers(tenant)) = self else {
            return self.overdraw(fs, blocks);
        };
        let is_beside = || fs.flusher.foreground.is_beside(tenant, fs.rt.now());
        let bound = || Bound {
            all: if is_beside() { BESIDE } else { ALONE },
            first_may_have_all: matches!(self, Lane::Callers(_)),
        };
        let bytes = (blocks * BLOCK_BYTES) as u64;
        fs.flusher.flight.queue(self).take(bytes, bound).await
    }

    /// Room for so many blocks without a wait (FLIGHT-L6).
    pub(crate) fn overdraw(self, fs: &Filesystem, blocks: usize) -> Flying {
        fs.flusher.flight.queue(self).overdraw((blocks * BLOCK_BYTES) as u64)
    }
}

impl Bound {
    /// The bytes of a batch that wants so many, beside those that are under way.
    fn part(self, wanted: u64, used: u64) -> u64 {
        let most = if self.first_may_have_all && used == 0 { self.all } else { self.all / 2 };
        wanted.min(most)
    }
}

impl Queue {
    /// Waits for room for so many bytes or fewer. The bound may change meanwhile.
    async fn take(self: Arc<Self>, wanted: u64, bound: impl Fn() -> Bound) -> Flying {
        if wanted == 0 {
            return self.overdraw(0);
        }
        let _first = self.first.lock().await;
        let mut landed = None;
        loop {
            if let Some(flying) = self.try_take(wanted, bound()) {
                return flying;
            }
            match landed.take() {
                // Looks once more: bytes may have landed before.
                None => landed = Some(self.landed.listen()),
                Some(landed) => landed.await,
            }
        }
    }

    fn try_take(self: &Arc<Self>, wanted: u64, bound: Bound) -> Option<Flying> {
        let after = |used: u64| {
            let all = used + bound.part(wanted, used);
            (used == 0 || all <= bound.all).then_some(all)
        };
        let used = self.bytes.fetch_update(AcqRel, Acquire, after).ok()?;
        Some(Flying { queue: self.clone(), bytes: bound.part(wanted, used) })
    }

    fn overdraw(self: Arc<Self>, bytes: u64) -> Flying {
        self.bytes.fetch_add(bytes, AcqRel);
        Flying { queue: self, bytes }
    }
}

impl Flying {
    /// Blocks that there is room for.
    pub(crate) fn blocks(&self) -> usize {
        self.bytes as usize / BLOCK_BYTES
    }

    /// The batch has only so many.
    pub(crate) fn keep_blocks(&mut self, blocks: usize) {
        let kept = self.bytes.min((blocks * BLOCK_BYTES) as u64);
        self.give_back(self.bytes - kept);
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.queue.bytes.fetch_sub(bytes, AcqRel);
        self.queue.landed.notify(usize::MAX);
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;
    const A: SubvolId = SubvolId(1);
    const B: SubvolId = SubvolId(2);

    /// A batch of eight blocks asks for room.
    async fn take(queue: &Arc<Queue>, all: u64) -> Flying {
        queue.clone().take(8 * BLOCK, move || Bound { all, first_may_have_all: false }).await
    }

    fn bytes(queue: &Queue) -> u64 {
        queue.bytes.load(Acquire)
    }

    /// FLIGHT-L1 and FLIGHT-L2.
    #[test]
    fn a_batch_waits_until_so_many_bytes_have_landed_that_it_fits() {
        let queue = Arc::<Queue>::default();
        let take = |max| take(&queue, max);
        let first = take(64 * BLOCK).now_or_never().expect("there is room");
        let mut second = take(64 * BLOCK).now_or_never().expect("there is room");
        assert_eq!((first.blocks(), bytes(&queue)), (8, 16 * BLOCK));
        let mut third = pin!(take(16 * BLOCK));
        assert!(third.as_mut().now_or_never().is_none());
        second.keep_blocks(1);
        assert_eq!(bytes(&queue), 9 * BLOCK);
        assert!(third.as_mut().now_or_never().is_none(), "there would be 17 blocks");
        drop(second);
        let third = third.now_or_never().expect("there is room");
        assert_eq!((third.blocks(), bytes(&queue)), (8, 16 * BLOCK));
        drop((first, third));
        assert_eq!(bytes(&queue), 0);
        let alone = take(2 * BLOCK).now_or_never();
        assert_eq!(alone.map(|flying| flying.blocks()), Some(1), "half of the bound");
        let least = take(BLOCK / 2).now_or_never();
        assert!(least.is_some(), "FLIGHT-L2");
    }

    /// FLIGHT-L4.
    #[test]
    fn a_caller_takes_all_of_an_empty_lane_and_half_of_the_bound_beside_others() {
        let queue = Arc::<Queue>::default();
        let bound = || Bound { all: 16 * BLOCK, first_may_have_all: true };
        let take = |blocks| queue.clone().take(blocks * BLOCK, bound).now_or_never();
        let few = take(2).expect("there is room");
        let half = take(20).expect("there is room");
        assert_eq!((few.blocks(), half.blocks()), (2, 8));
        drop((few, half));
        let all = take(20).expect("there is room");
        assert_eq!(all.blocks(), 16);
        assert!(take(1).is_none(), "the lane is full");
    }

    /// FLIGHT-L6.
    #[test]
    fn bytes_that_wait_for_no_room_count() {
        let queue = Arc::<Queue>::default();
        let stream = take(&queue, 16 * BLOCK).now_or_never().expect("there is room");
        let urgent = queue.clone().overdraw(100 * BLOCK);
        assert_eq!(bytes(&queue), 108 * BLOCK);
        drop(stream);
        assert!(take(&queue, 16 * BLOCK).now_or_never().is_none(), "they are under way");
        let none = queue.clone().take(0, || Bound { all: 0, first_may_have_all: false });
        assert!(none.now_or_never().is_some(), "a batch without bytes needs no room");
        drop(urgent);
        assert_eq!(bytes(&queue), 0);
    }

    /// FLIGHT-L3.
    #[test]
    fn no_batch_overtakes_one_that_waits_for_more_bytes_to_land() {
        let queue = Arc::default();
        let take = |max| Box::pin(take(&queue, max));
        let stream = [take(64 * BLOCK), take(64 * BLOCK)];
        let mut stream = stream.map(|take| take.now_or_never().expect("there is room"));
        let mut beside = take(16 * BLOCK);
        assert!(beside.as_mut().now_or_never().is_none());
        let mut later = take(64 * BLOCK);
        assert!(later.as_mut().now_or_never().is_none(), "it asked later");
        stream[0].keep_blocks(0);
        let beside = beside.now_or_never().expect("the first one fits");
        assert_eq!((beside.blocks(), bytes(&queue)), (8, 16 * BLOCK));
        assert!(later.now_or_never().is_some(), "the next one is first now");
        let mut gone = take(8 * BLOCK);
        assert!(gone.as_mut().now_or_never().is_none());
        drop(gone);
        assert!(take(64 * BLOCK).now_or_never().is_some(), "a batch that is given up is not first");
        drop((stream, beside));
        assert_eq!(bytes(&queue), 0);
    }

    /// FLIGHT-L4.
    #[test]
    fn callers_of_a_tenant_share_a_queue_as_long_as_one_has_room() {
        let flight = Flight::default();
        let of = |lane| flight.queue(lane);
        let room = take(&of(Lane::Callers(A)), 64 * BLOCK).now_or_never();
        let room = room.expect("there is room");
        assert!(Arc::ptr_eq(&of(Lane::Callers(A)), &room.queue));
        for other in [Lane::Callers(B), Lane::Tasks(A)] {
            assert_eq!(bytes(&of(other)), 0, "{other:?}");
        }
        drop(room);
        for tenant in 3..1000 {
            let _ended = of(Lane::Callers(SubvolId(tenant)));
        }
        assert!(flight.callers.lock().by_tenant.len() < 4, "queues without a batch stay");
    }
}
