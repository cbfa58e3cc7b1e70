//! Entries: the metadata of blocks, as they lie in the device below.
//!
//! Problem.  A block of the device below has the entries of up to 512 blocks. If two requests
//!           changed it side by side, each would write back old entries of the other; if each
//!           waited for its turn, many small writes would take one turn after the other.
//! Idea.     A request whose turn it is takes along the changes of all requests that wait for the
//!           same turn: one read and one write for all of them. Blocks of entries that a request
//!           covers as a whole are written without a read. Requests for different blocks do not
//!           wait for each other, unless their blocks have the same turn.
//!
//! ENTRY-T1  A request changes entries of its own blocks only: beside other requests, if it fails,
//!           and through a crash that tears its writes at 512 bytes. Its future must not be dropped
//!           on the way: a write that continues would bring back old entries.
//! ENTRY-T2  A change has the outcome of the write that it was in.
//! ENTRY-T3  Blocks that were never written, or erased since, have metadata of ones.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use copyhold_runtime::{BoxFuture, FifoMutex, FifoMutexGuard};
use copyhold_sync::{Mutex, of};
use copyhold_types::{BLOCK_BYTES, Buf, Purpose};
use futures_util::future::{join, join_all};

use super::layout::{Edge, Layout, complement};
use crate::{Counters, DeviceError, DynDevice};

/// Turns, and so requests that change entries side by side.
const SLOTS: usize = 64;
/// Most blocks of entries that one request writes: the other turns stay free.
const BLOCKS_MAX: u64 = 16;

/// See the module's text.
pub(super) struct Entries {
    below: DynDevice,
    layout: Layout,
    counters: Arc<Counters>,
    /// A block of entries has the slot of its number, modulo [`SLOTS`].
    slots: Vec<Slot>,
}

#[derive(Default)]
struct Slot {
    /// Held while blocks of entries of this slot are changed. A request that takes several takes
    /// them in ascending order.
    turn: FifoMutex,
    waiting: Mutex<Vec<Change>, of::EntryChanges>,
}

/// New bytes of entries, as stored.
struct Change {
    edge: Edge,
    bytes: Vec<u8>,
    outcome: Outcome,
}

type Outcome = Arc<OnceLock<Result<(), DeviceError>>>;

impl Entries {
    /// `counters` count the requests, as [`Purpose::Guard`].
    pub(super) fn new(below: DynDevice, layout: Layout, counters: Arc<Counters>) -> Entries {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        Entries { below, layout, counters, slots }
    }

    /// The blocks of entries of these blocks, to be given to [`Self::metadata`].
    pub(super) fn read(
        &self,
        block: u64,
        blocks: u64,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        self.fetch(self.layout.entries_of(block, blocks))
    }

    /// The metadata of these blocks, out of their blocks of entries.
    pub(super) fn metadata(&self, block: u64, blocks: u64, entries: &[u8]) -> Vec<u8> {
        let mut metadata = Vec::with_capacity(blocks as usize * self.layout.format.entry_bytes());
        for (edge, content) in self.layout.edges(block, blocks).zip(entries.chunks(BLOCK_BYTES)) {
            metadata.extend_from_slice(&content[edge.range()]);
        }
        complement(&mut metadata);
        metadata
    }

    /// Stores the metadata of these blocks, and nothing else (ENTRY-T1).
    pub(super) async fn store(
        &self,
        block: u64,
        blocks: u64,
        metadata: &[u8],
    ) -> Result<(), DeviceError> {
        let mut left = metadata;
        let (mut whole, mut whole_bytes) = (Vec::new(), Vec::new());
        let mut parts = Vec::new();
        for edge in self.layout.edges(block, blocks) {
            let (bytes, rest) = left.split_at(edge.bytes);
            left = rest;
            let mut bytes = bytes.to_vec();
            complement(&mut bytes);
            if self.layout.is_whole(&edge) {
                bytes.resize(BLOCK_BYTES, 0);
                whole.push(edge.block);
                whole_bytes.extend(bytes);
            } else {
                parts.push(self.change(edge, bytes));
            }
        }
        let pieces = whole.chunks(BLOCKS_MAX as usize);
        let pieces = pieces.zip(whole_bytes.chunks(BLOCKS_MAX as usize * BLOCK_BYTES));
        let replaced = async {
            for (blocks, bytes) in pieces {
                self.replace(blocks, bytes).await?;
            }
            Ok(())
        };
        let (replaced, changed) = join(replaced, join_all(parts)).await;
        changed.into_iter().collect::<Result<(), DeviceError>>()?;
        replaced
    }

    /// Gives these blocks metadata of ones (ENTRY-T3).
    pub(super) async fn erase(&self, block: u64, blocks: u64) -> Result<(), DeviceError> {
        let most = BLOCKS_MAX * self.layout.per_block();
        let (mut next, end) = (block, block + blocks);
        let mut ones = Vec::new();
        while next < end {
            // Pieces end where a block of entries does.
            let count = (most - next % most).min(end - next);
            ones.resize(count as usize * self.layout.format.entry_bytes(), u8::MAX);
            self.store(next, count, &ones).await?;
            next += count;
        }
        Ok(())
    }

    /// Writes blocks of entries that follow each other, all of each.
    async fn replace(&self, blocks: &[u64], bytes: &[u8]) -> Result<(), DeviceError> {
        let Some(&first) = blocks.first() else { return Ok(()) };
        let _turns = self.take_turns(blocks).await;
        self.write(first, Buf::from_bytes(bytes)).await
    }

    /// Changes a part of a block of entries, together with all changes that wait for its slot.
    async fn change(&self, edge: Edge, bytes: Vec<u8>) -> Result<(), DeviceError> {
        let slot = self.slot(edge.block);
        let outcome = Outcome::default();
        slot.waiting.lock().push(Change { edge, bytes, outcome: outcome.clone() });
        let _turn = slot.turn.lock().await;
        if outcome.get().is_none() {
            let mut changes = std::mem::take(&mut *slot.waiting.lock());
            changes.sort_by_key(|change| change.edge.block);
            let by_block = changes.chunk_by(|one, other| one.edge.block == other.edge.block);
            join_all(by_block.map(async |of_block| {
                let done = self.change_block(of_block).await;
                for change in of_block {
                    // Only the turn's holder sets outcomes.
                    change.outcome.get_or_init(|| done.clone());
                }
            }))
            .await;
        }
        outcome.get().cloned().expect("ENTRY-T2: the turn's holder has made all changes")
    }

    async fn change_block(&self, changes: &[Change]) -> Result<(), DeviceError> {
        let Some(first) = changes.first() else { return Ok(()) };
        let block = first.edge.block;
        let mut entries = self.fetch(block..block + 1).await?;
        for change in changes {
            entries.make_mut()[change.edge.range()].copy_from_slice(&change.bytes);
        }
        self.write(block, entries).await
    }

    fn slot(&self, block: u64) -> &Slot {
        &self.slots[block as usize % SLOTS]
    }

    /// The turns of blocks that follow each other.
    async fn take_turns(&self, blocks: &[u64]) -> Vec<FifoMutexGuard<'_>> {
        let mut wanted: Vec<usize> =
            blocks.iter().take(SLOTS).map(|block| *block as usize % SLOTS).collect();
        wanted.sort_unstable();
        let mut turns = Vec::with_capacity(wanted.len());
        for slot in wanted {
            turns.push(self.slots[slot].turn.lock().await);
        }
        turns
    }

    fn fetch(&self, blocks: Range<u64>) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        let count = (blocks.end - blocks.start) as u32;
        self.counters.read(Purpose::Guard, count);
        self.below.read(blocks.start, count, Purpose::Guard)
    }

    fn write(&self, block: u64, entries: Buf) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.counters.write(Purpose::Guard, entries.blocks() as u64);
        self.below.write(block, entries.into(), Purpose::Guard)
    }
}
