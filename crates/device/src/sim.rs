//! A device made of memory and a seed: slow, unreliable, and the same each time.
//!
//! Problem.  The recovery of a filesystem depends on which writes had reached the medium. A real
//!           device shows one case in a million; a simulation must show all of them.
//! Idea.     Remember flushed and unflushed writes. A crash keeps the flushed ones and a seeded
//!           subset of the rest, in any order, torn at 512 bytes. A kill of the process keeps the
//!           rest, too, in the device's cache, for the power to fail later. Requests take seeded
//!           times, so those in flight together complete in any order.
//!
//! SIMDEV-D1  A flush makes exactly those requests durable that had completed, and been reported
//!            to their callers, before it began.
//! SIMDEV-D2  Requests in flight at a crash may be there in part, as may those that completed
//!            since the last flush.
//! SIMDEV-D3  After the power is off no request completes or changes anything.
//! SIMDEV-D4  A write whose future was dropped continues, and reaches the medium at some later
//!            time or never.
//! SIMDEV-D5  A read of blocks that are being written sees a mixture.
//! SIMDEV-D6  A kill makes nothing durable: unflushed writes can be read, and lost in a later
//!            crash.
//! SIMDEV-D7  A device that has grown has its old length after a crash, or the new one, until a
//!            flush that began afterwards.
//!
//! A request begins at the call, not at the first poll of its future.

mod disk;
mod fault;
mod image;
mod namespace;
mod state;

use std::future::{pending, poll_fn};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use copyhold_runtime::{BoxFuture, Rt};
use copyhold_sync::{Mutex, of};
use copyhold_types::{BLOCK_BYTES, Buf, Bufs, DeviceId, Nanos, Purpose};
use rand_xoshiro::rand_core::RngCore;

pub use self::disk::SimDisk;
pub use self::fault::{Fault, FaultRates, Lasting, Trigger};
pub use self::image::{SECTOR_BYTES, SimImage};
pub use self::namespace::make_namespace;
use self::state::{DiskState, RequestId};
use crate::error::check_bounds;
use crate::pi::Format;
use crate::{Counters, Device, DeviceError, Expect, Geometry, IoError, Protect, at_once};

/// How a simulated device behaves.
#[derive(Clone, Debug)]
pub struct SimConfig {
    pub seed: u64,
    pub read_latency: Range<Nanos>,
    pub write_latency: Range<Nanos>,
    pub flush_latency: Range<Nanos>,
    /// One request in so many takes twenty times as long; 0 for none.
    pub one_slow_in: u64,
    pub can_discard: bool,
    pub rates: FaultRates,
}

impl SimConfig {
    /// A sound device with the latencies of a fast one.
    pub fn new(seed: u64) -> SimConfig {
        SimConfig {
            seed,
            read_latency: 20_000..120_000,
            write_latency: 10_000..60_000,
            flush_latency: 50_000..500_000,
            one_slow_in: 32,
            can_discard: true,
            rates: FaultRates::default(),
        }
    }
}

/// See the module's text. Blocks that were never written read as zeros and cost no memory.
pub struct SimDevice {
    id: DeviceId,
    rt: Rt,
    config: SimConfig,
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    blocks: AtomicU64,
    counters: Counters,
    state: Mutex<DiskState, of::SimDevice>,
}

impl SimDevice {
    pub fn new(rt: Rt, id: DeviceId, blocks: u64, seed: u64) -> Arc<SimDevice> {
        SimDevice::from_image(rt, id, SimImage::empty(blocks), SimConfig::new(seed))
    }

    /// A device that holds `image`, all of it durable.
    pub fn from_image(rt: Rt, id: DeviceId, image: SimImage, config: SimConfig) -> Arc<SimDevice> {
        SimDevice::from_disk(rt, id, image.into(), config)
    }

    /// A device that continues from the state that a killed process left (SIMDEV-D6).
    pub fn from_disk(rt: Rt, id: DeviceId, disk: SimDisk, config: SimConfig) -> Arc<SimDevice> {
        let shared = Shared {
            name: format!("sim{}", id.0),
            blocks: AtomicU64::new(disk.image().blocks()),
            counters: Counters::default(),
            state: Mutex::new(DiskState::new(config.seed, disk, config.rates)),
        };
        Arc::new(SimDevice { id, rt, config, shared: Arc::new(shared) })
    }

    // Losing power

    /// The power fails (if it has not yet): returns the content afterwards, by `seed`. May be
    /// called for any number of seeds.
    pub fn crash(&self, seed: u64) -> SimImage {
        self.power_off();
        self.shared.state.lock().after_crash(seed)
    }

    /// The process dies, the power stays on (SIMDEV-D6). Requests in flight are carried out as a
    /// whole, in part or not at all, by `seed`.
    pub fn kill(&self, seed: u64) -> SimDisk {
        self.power_off();
        self.shared.state.lock().after_kill(seed)
    }

    /// From now on no request completes.
    pub fn power_off(&self) {
        self.shared.state.lock().off = true;
        self.shared.tell_if_off();
    }

    pub fn is_off(&self) -> bool {
        self.shared.state.lock().off
    }

    /// Completes when the power is off.
    pub fn until_off(&self) -> BoxFuture<'static, ()> {
        let shared = self.shared.clone();
        Box::pin(poll_fn(move |cx| {
            let mut state = shared.state.lock();
            if state.off {
                return Poll::Ready(());
            }
            state.off_wakers.push(cx.waker().clone());
            Poll::Pending
        }))
    }

    /// The content that reads return now: flushed or not, without writes in flight.
    pub fn image(&self) -> SimImage {
        self.shared.state.lock().current.clone()
    }

    // Faults

    /// Lets `fault` happen to the request that `trigger` names.
    pub fn arm(&self, trigger: Trigger, fault: Fault) {
        self.shared.state.lock().armed.arm(trigger, fault);
    }

    /// Lets `fault` happen to the request that `trigger` names and to all of its kind behind it.
    pub fn arm_for_good(&self, trigger: Trigger, fault: Fault) {
        self.shared.state.lock().armed.arm_for_good(trigger, fault);
    }

    /// Forgets all armed faults, and ends the lasting ones.
    pub fn disarm(&self) {
        self.shared.state.lock().armed.disarm();
    }

    pub fn set_rates(&self, rates: FaultRates) {
        self.shared.state.lock().rates = rates;
    }

    /// From now on a request begins that long after the one before; 0: at once.
    pub fn set_interval(&self, interval: Nanos) {
        self.shared.state.lock().interval = interval;
    }

    /// Flips one seeded bit of a block; returns the byte it is in.
    pub fn rot(&self, block: u64) -> usize {
        self.shared.state.lock().rot(block)
    }

    /// Changes a block without a request.
    pub fn corrupt(&self, block: u64, change: impl FnOnce(&mut [u8; BLOCK_BYTES])) {
        self.shared.state.lock().corrupt(block, change);
    }

    /// Lets reads of `block` fail.
    pub fn break_block(&self, block: u64, errno: i32, lasting: Lasting) {
        self.shared.state.lock().armed.set_bad(block, errno, lasting);
    }

    /// All blocks can be read again.
    pub fn heal(&self) {
        self.shared.state.lock().armed.heal();
    }

    /// The host has room for so many more blocks of this sparse file, then ENOSPC; `None`: enough.
    pub fn set_host_free(&self, blocks: Option<u64>) {
        self.shared.state.lock().host_free = blocks;
    }

    /// Whether the host copies on write, as btrfs does: then each write needs room for all of its
    /// blocks, also of those that were written before.
    pub fn set_host_copies(&self, copies: bool) {
        self.shared.state.lock().host_copies = copies;
    }

    /// The device really ends here now, unlike its geometry.
    pub fn shrink(&self, blocks: u64) {
        self.shared.state.lock().end = blocks.min(self.shared.blocks.load(Relaxed));
    }

    // Looking

    /// A block as a read would find it now, without a request.
    pub fn read_block_now(&self, block: u64) -> [u8; BLOCK_BYTES] {
        self.shared.state.lock().current.read_block(block)
    }

    /// Writes that completed since the last flush.
    pub fn unflushed_writes(&self) -> usize {
        self.shared.state.lock().unflushed_writes()
    }

    /// Hash over all requests so far, in order, with their data.
    pub fn digest(&self) -> u64 {
        self.shared.state.lock().digest()
    }

    // Requests

    fn check(&self, block: u64, blocks: u64) -> Result<(), DeviceError> {
        check_bounds(&self.shared.name, self.shared.blocks.load(Relaxed), block, blocks)
    }

    /// The time of a request, drawn at random, and its wait for the requests before it.
    fn delay(&self, state: &mut DiskState, range: &Range<Nanos>) -> BoxFuture<'static, ()> {
        let width = range.end.saturating_sub(range.start).max(1);
        let mut nanos = range.start + state.rng.next_u64() % width;
        let slow = self.config.one_slow_in;
        if slow > 0 && state.rng.next_u64().is_multiple_of(slow) {
            nanos *= 20;
        }
        nanos += state.queued(self.rt.now());
        self.rt.sleep(Duration::from_nanos(nanos))
    }

    /// Notes a request and completes some older, abandoned ones.
    fn note(&self, state: &mut DiskState, words: [u64; 4]) {
        words.into_iter().for_each(|word| state.note(word));
        if !state.off {
            state.land_abandoned();
        }
    }
}

impl Shared {
    fn tell_if_off(&self) {
        let mut state = self.state.lock();
        if state.off {
            let wakers = std::mem::take(&mut state.off_wakers);
            drop(state);
            wakers.into_iter().for_each(std::task::Waker::wake);
        }
    }

    /// The state, unless the power is off: then never.
    async fn when_done<T>(
        &self,
        delay: BoxFuture<'static, ()>,
        done: impl FnOnce(&mut DiskState) -> T,
    ) -> T {
        delay.await;
        let result = {
            let mut state = self.state.lock();
            if state.off { None } else { Some(done(&mut state)) }
        };
        match result {
            Some(result) => result,
            None => pending().await, // SIMDEV-D3
        }
    }
}

/// A write or discard in flight; it continues when this is dropped (SIMDEV-D4).
struct Ticket {
    shared: Arc<Shared>,
    request: RequestId,
}

impl Ticket {
    async fn wait(self, delay: BoxFuture<'static, ()>) -> Result<(), i32> {
        let request = self.request;
        self.shared.when_done(delay, |state| state.complete(request)).await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.state.lock().abandon(self.request);
    }
}

impl Device for SimDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.shared.blocks.load(Relaxed),
            can_discard: self.config.can_discard,
            name: self.shared.name.clone(),
        }
    }

    fn protection(&self) -> Option<Format> {
        None
    }

    fn identity(&self) -> Option<[u8; 16]> {
        None
    }

    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        let plain = expect.check_plain(&self.shared.name);
        if let Err(error) = plain.and_then(|()| self.check(block, blocks.into())) {
            return Box::pin(async { Err(error) });
        }
        self.shared.counters.read(why, blocks);
        let mut state = self.shared.state.lock();
        self.note(&mut state, [1, block, blocks.into(), why as u64]);
        let delay = self.delay(&mut state, &self.config.read_latency);
        let fault = state.begin_read();
        drop(state);
        let shared = self.shared.clone();
        Box::pin(async move {
            let read =
                shared.when_done(delay, |state| state.complete_read(block, blocks, fault)).await;
            let name = || shared.name.clone();
            read.map_err(|errno| DeviceError::of_read(name(), (block, blocks), why, IoError(errno)))
        })
    }

    fn write_protected(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        let blocks = data.iter().map(|buf| buf.blocks() as u64).sum();
        let plain = protect.check_plain(&self.shared.name);
        if let Err(error) = plain.and_then(|()| self.check(block, blocks)) {
            return Box::pin(async { Err(error) });
        }
        self.shared.counters.write(why, blocks);
        let mut state = self.shared.state.lock();
        self.note(&mut state, [2, block, blocks, why as u64]);
        if state.off {
            return Box::pin(pending());
        }
        let delay = self.delay(&mut state, &self.config.write_latency);
        let request = state.begin_write(block, &data, why);
        drop(state);
        self.shared.tell_if_off();
        let (shared, ticket) =
            (self.shared.clone(), Ticket { shared: self.shared.clone(), request });
        Box::pin(async move {
            ticket.wait(delay).await.map_err(|errno| {
                let (name, run) = (shared.name.clone(), (block, blocks as u32));
                DeviceError::of_write(name, run, why, IoError(errno))
            })
        })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.shared.counters.flush();
        let mut state = self.shared.state.lock();
        self.note(&mut state, [3, 0, 0, 0]);
        if state.off {
            return Box::pin(pending());
        }
        let delay = self.delay(&mut state, &self.config.flush_latency);
        let (covers, fault) = state.begin_flush();
        drop(state);
        self.shared.tell_if_off();
        let shared = self.shared.clone();
        Box::pin(async move {
            let flush = shared.when_done(delay, |state| state.complete_flush(covers, fault)).await;
            let name = || shared.name.clone();
            flush.map_err(|errno| DeviceError::Flush { name: name(), source: IoError(errno) })
        })
    }

    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>> {
        if let Err(error) = self.check(block, blocks) {
            return Box::pin(async { Err(error) });
        }
        self.shared.counters.discard(blocks);
        let mut state = self.shared.state.lock();
        self.note(&mut state, [4, block, blocks, 0]);
        if state.off {
            return Box::pin(pending());
        }
        let delay = self.delay(&mut state, &self.config.write_latency);
        let request = state.begin_discard(block, blocks);
        drop(state);
        self.shared.tell_if_off();
        let (shared, ticket) =
            (self.shared.clone(), Ticket { shared: self.shared.clone(), request });
        Box::pin(async move {
            ticket.wait(delay).await.map_err(|errno| DeviceError::Discard {
                name: shared.name.clone(),
                block,
                blocks,
                source: IoError(errno),
            })
        })
    }

    fn grow(&self, blocks: u64, room: Range<u64>) -> BoxFuture<'_, Result<(), DeviceError>> {
        let mut state = self.shared.state.lock();
        let found = self.shared.blocks.load(Relaxed);
        if state.host_free.is_some_and(|free| room.end - room.start > free) {
            let (name, source) = (self.shared.name.clone(), IoError(libc::ENOSPC));
            return at_once(Err(DeviceError::Grow { name, blocks, source }));
        }
        if blocks > found {
            self.note(&mut state, [5, blocks, 0, 0]);
            state.grow(blocks);
            self.shared.blocks.store(blocks, Relaxed);
        }
        at_once(Ok(()))
    }

    fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

#[cfg(test)]
mod tests;
