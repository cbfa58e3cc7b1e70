//! A device that remembers what was written to it and what a flush has made durable.
//!
//! Problem.  A run of a workload passes through many states that a crash could leave; each is to be
//!           looked at.
//! Idea.     Run it once, and take note of the moments at which most is undecided: just before a
//!           flush ends, and where the workload says so. Whatever a crash between two of them can
//!           leave, a crash at the later one can leave, too, and more was promised by then.
//!
//! A workload is run at more than one pace: with content far behind metadata, and with metadata far
//! behind content. So whatever does not wait for what it needs is seen without it.
//!
//! TAPE-T1  What had completed when a flush began is durable when the flush ends; nothing else is.
//! TAPE-T2  What is not durable may be there or not, each write for itself, torn at sectors
//!          (`crash`).
//! TAPE-T3  Of writes to one block, the one that completed last lies on top.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use copyhold_device::pi::Format;
use copyhold_device::sim::SimImage;
use copyhold_device::{Counters, Device, DeviceError, DynDevice, Expect, Geometry, Protect};
use copyhold_runtime::{BoxFuture, Rt};
use copyhold_types::{BLOCK_BYTES, Buf, Bufs, DeviceId, Purpose};
use parking_lot::Mutex;

use crate::fs_level::world::{Shared, World};
use crate::machine::Machine;

type Bytes = [u8; BLOCK_BYTES];

/// The content of one block, and a number for it.
#[derive(Clone, Debug)]
pub(super) struct Content {
    bytes: Option<Arc<Bytes>>,
    digest: u64,
}

impl Content {
    pub(super) fn of(bytes: Option<Arc<Bytes>>) -> Content {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Content { bytes, digest: hasher.finish() }
    }

    /// A hole reads as zeros.
    pub(super) fn read(&self) -> Bytes {
        self.bytes.as_deref().copied().unwrap_or([0; BLOCK_BYTES])
    }
}

/// Blocks that went to the device together.
pub(super) type Change = Vec<(u64, Content)>;

/// The blocks of the device that differ from its initial content.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlay(BTreeMap<u64, Content>);

impl Overlay {
    pub(super) fn put(&mut self, block: u64, content: Content) {
        self.0.insert(block, content);
    }

    pub(super) fn get(&self, block: u64) -> Option<&Content> {
        self.0.get(&block)
    }

    /// The same for the same content, whatever led to it.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (block, content) in &self.0 {
            (block, content.digest).hash(&mut hasher);
        }
        hasher.finish()
    }

    pub(super) fn image(&self, beginning: &SimImage) -> SimImage {
        let mut image = beginning.clone();
        for (block, content) in &self.0 {
            image.put(*block, content.bytes.clone());
        }
        image
    }
}

/// All that a crash at some moment depends on.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) durable: Overlay,
    /// Written, in the order of completion; the writes in flight are last.
    pub(super) loose: Vec<Change>,
    /// The state of the model at that moment, and the earlier promises.
    pub(super) world: World,
}

#[derive(Default)]
struct Tape {
    durable: Overlay,
    completed: Vec<Change>,
    /// How many of all completed changes are durable.
    flushed: usize,
    in_flight: BTreeMap<u64, Change>,
    next: u64,
    is_running: bool,
    moments: Vec<Moment>,
}

impl Tape {
    fn begin(&mut self, change: Change) -> u64 {
        self.next += 1;
        self.in_flight.insert(self.next, change);
        self.next
    }

    fn complete(&mut self, request: u64) {
        self.completed.extend(self.in_flight.remove(&request));
    }

    fn moment(&self, world: World) -> Moment {
        let loose = self.completed.iter().chain(self.in_flight.values()).cloned().collect();
        Moment { durable: self.durable.clone(), loose, world }
    }

    /// TAPE-T1. `covers` counts changes from the first one on.
    fn flushed(&mut self, covers: usize) {
        let count = covers.saturating_sub(self.flushed);
        for (block, content) in self.completed.drain(..count).flatten() {
            self.durable.put(block, content);
        }
        self.flushed += count;
    }
}

/// Which writes take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    SlowContent,
    SlowMetadata,
}

/// Longer than any other request.
const LONG: Duration = Duration::from_millis(50);

impl Pace {
    pub(super) const ALL: [Pace; 2] = [Pace::SlowContent, Pace::SlowMetadata];

    fn delay(self, why: Purpose) -> Duration {
        let slow = (why == Purpose::Data) == (self == Pace::SlowContent);
        if slow { LONG } else { Duration::ZERO }
    }
}

pub(super) struct Recorder {
    rt: Rt,
    disk: DynDevice,
    pace: Pace,
    tape: Arc<Mutex<Tape>>,
    shared: Arc<Shared>,
}

impl Recorder {
    pub(super) fn new(machine: &Machine, pace: Pace, shared: Arc<Shared>) -> Arc<Recorder> {
        let (rt, disk) = (machine.rt(), machine.disk.clone());
        Arc::new(Recorder { rt, disk, pace, tape: Arc::default(), shared })
    }

    /// From now on each end of a flush is a moment.
    pub(super) fn start(&self) {
        self.tape.lock().is_running = true;
    }

    /// This moment, which is not one of those that are noted.
    pub(super) fn now(&self) -> Moment {
        let world = self.shared.world.lock().clone();
        self.tape.lock().moment(world)
    }

    /// The recorded requests, and their end.
    pub(super) fn end(&self) -> Vec<Moment> {
        let now = self.now();
        let mut moments = std::mem::take(&mut self.tape.lock().moments);
        moments.push(now);
        moments
    }

    fn change(&self, change: Change) -> u64 {
        self.tape.lock().begin(change)
    }

    /// The request, and then its end.
    fn until_done(
        &self,
        request: u64,
        done: BoxFuture<'static, Result<(), DeviceError>>,
        delay: Duration,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        let (tape, delay) = (self.tape.clone(), self.rt.sleep(delay));
        Box::pin(async move {
            done.await?;
            delay.await;
            tape.lock().complete(request);
            Ok(())
        })
    }
}

impl Device for Recorder {
    fn id(&self) -> DeviceId {
        self.disk.id()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn protection(&self) -> Option<Format> {
        self.disk.protection()
    }

    fn identity(&self) -> Option<[u8; 16]> {
        self.disk.identity()
    }

    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        self.disk.read_expecting(block, blocks, why, expect)
    }

    fn write_protected(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        let blocks = data.iter().flat_map(|buf| buf.chunks_exact(BLOCK_BYTES));
        let contents = blocks.map(|bytes| {
            let bytes: Bytes = bytes.try_into().expect("a whole block");
            Content::of(Some(Arc::new(bytes)))
        });
        let request = self.change((block..).zip(contents).collect());
        let write = self.disk.write_protected(block, data, why, protect);
        self.until_done(request, write, self.pace.delay(why))
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>> {
        let (tape, shared) = (self.tape.clone(), self.shared.clone());
        let covers = {
            let tape = tape.lock();
            tape.flushed + tape.completed.len()
        };
        let flush = self.disk.flush();
        Box::pin(async move {
            flush.await?;
            let world = shared.world.lock().clone();
            let mut tape = tape.lock();
            if tape.is_running {
                let moment = tape.moment(world);
                tape.moments.push(moment);
            }
            tape.flushed(covers);
            Ok(())
        })
    }

    /// A discarded block is zeros, or has its old content.
    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>> {
        let hole = Content::of(None);
        let request = self.change((block..block + blocks).map(|at| (at, hole.clone())).collect());
        self.until_done(request, self.disk.discard(block, blocks), Duration::ZERO)
    }

    fn counters(&self) -> &Counters {
        self.disk.counters()
    }
}
