//! Clean data: blocks of files in memory, for readers that the kernel's page cache does not serve.
//!
//! Problem.  Each clone of a subvolume has inodes, and so pages, of its own: a thousand clones that
//!           read their base fetch it a thousand times. Direct readers have no pages at all.
//! Idea.     The pool keeps blocks by their address, so that all that share a block find the same
//!           one. Which reads use this, and which owner pays, is the caller's choice.
//!
//! CLEAN-D1  A block that is found here is verified by the reader's checksum of it, as a block from
//!           a device (VERIFY-V1). If it does not match, it is dropped, and the device is read.
//! CLEAN-D2  A write, a discard and a free remove their blocks from here first ([`Devices`] does,
//!           and the pool at a free). So no block outlives its content at that address.
//! CLEAN-D3  What a fetch has read is not kept if its blocks were removed meanwhile. Pins (R3)
//!           exclude a fetch beside a write of its blocks; beside a free there is one, and what
//!           nothing refers to would stay.
//! CLEAN-D4  A reader that misses blocks while another reader fetches some of them waits for that
//!           fetch, but for few fetches only; then it reads by itself. So an error reaches only the
//!           reader of its request, and a reader that gives up leaves no other waiting.
//! CLEAN-D5  No reader waits for memory: blocks that find no room are not kept (RINGS-N1).
//! CLEAN-D6  If all that a part had was evicted without a hit, it keeps one fetch in eight. So data
//!           that is read in turn and does not fit costs little, and a part of it stays.
//!
//! Blocks with attached data (ATTACH-B1) are read around this cache.
//!
//! [`Devices`]: crate::Devices

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use copyhold_format::block_checksum;
use copyhold_memory::{Memory, MemoryClass, MemoryOwner, RingKind, Rings, fit_parts};
use copyhold_sync::{Mutex, MutexGuard, of};
use copyhold_types::{BLOCK_BYTES, BlockAddr, Buf, Run};
use event_listener::{Event, EventListener};
use smallvec::SmallVec;

/// Most parts, each under a lock of its own, and the bytes that make one worth while.
const SHARDS: usize = 16;
const SHARD_BYTES: usize = 16 << 20;
/// So many neighbours are in one part.
const CHUNK: u64 = 16;
/// A part without hits keeps one fetch in so many.
const SAMPLE: u64 = 8;
/// A part has room if one in so many of its bytes is unused: more than a walk leaves.
const UNUSED: usize = 8;
/// Blocks of the largest request of FUSE.
const REQUEST: usize = 64;
/// Memory of a block beside its bytes and its entry.
const BUF_BYTES: usize = 64;

/// The blocks of all owners.
pub struct CleanData {
    memory: Arc<Memory>,
    /// Without any, nothing is kept.
    shards: Vec<Mutex<Shard, of::CleanData>>,
    broken: Broken,
}

/// Rules that are broken on purpose.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broken {
    /// CLEAN-D2.
    pub(crate) keep_overwritten: bool,
    /// CLEAN-D3. Pins hide it from the simulation; the tests of this file break it.
    pub(crate) keep_overtaken: bool,
}

/// Figures since the pool was opened, in blocks, and the content now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanStats {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    /// Fetches that waited for another one.
    pub waits: u64,
    /// Fetched blocks that were not kept, since they were removed meanwhile (CLEAN-D3).
    pub overtaken: u64,
    /// Blocks that did not match their checksum: the memory is bad (CLEAN-D1).
    pub mismatches: u64,
    pub blocks: usize,
    pub bytes: usize,
}

/// An address, hashed so that neighbours are far from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At(BlockAddr);

impl Hash for At {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(mixed(self.0.raw()));
    }
}

/// Fibonacci hashing.
fn mixed(number: u64) -> u64 {
    let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}

type Guard<'a> = MutexGuard<'a, Shard>;

struct Shard {
    blocks: Rings<At, Buf>,
    /// The fetches of which blocks belong here.
    fetches: Vec<Arc<Underway>>,
    stats: CleanStats,
    /// Evictions up to the last hit, and fetches that ended since the part is without hits.
    evicted_at_hit: u64,
    without_hits: u64,
}

/// A fetch of a run.
struct Underway {
    run: Run,
    /// Some of its blocks were removed since it began.
    overtaken: AtomicBool,
    ended: Event,
}

/// A fetch under way. Its end wakes those that wait for it, however it ends.
pub(crate) struct Fetch<'a> {
    of: &'a CleanData,
    underway: Arc<Underway>,
}

impl CleanData {
    /// For at most `bytes_max`; it has no room before [`Self::set_bytes_max`].
    pub(crate) fn new(memory: Arc<Memory>, bytes_max: usize, broken: Broken) -> CleanData {
        let shards = match bytes_max {
            0 => 0,
            bytes => (bytes / SHARD_BYTES).clamp(1, SHARDS),
        };
        let shards = (0..shards).map(|_| Mutex::new(Shard::new())).collect();
        CleanData { memory, shards, broken }
    }

    /// Keeps nothing.
    #[cfg(test)]
    pub(crate) fn none() -> Arc<CleanData> {
        Arc::new(CleanData::new(Arc::default(), 0, Broken::default()))
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Whether any block may be here.
    pub(crate) fn is_on(&self) -> bool {
        !self.shards.is_empty()
    }

    /// A new bound, kept at once, whatever is protected.
    pub(crate) fn set_bytes_max(&self, bytes_max: usize) {
        for shard in &self.shards {
            let evicted =
                shard.lock().blocks.set_bytes_max(&self.memory, bytes_max / self.shards.len());
            drop(evicted);
        }
    }

    /// A new bound, as far as protections allow. Returns the bound that is kept now.
    pub(crate) fn fit_bytes_max(&self, bytes_max: usize) -> usize {
        let bound = |shard: usize| self.shards[shard].lock().blocks.bytes_max();
        fit_parts(self.shards.len(), bytes_max, bound, |shard, bytes| {
            let mut shard = self.lock_to_walk(shard);
            let (kept, evicted) = shard.blocks.fit_bytes_max(&self.memory, bytes);
            drop(shard);
            drop(evicted);
            kept
        })
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Evicts `bytes` of a group in one shard, as [`NodeCache::reclaim_in`] does.
    ///
    /// [`NodeCache::reclaim_in`]: copyhold_table::NodeCache::reclaim_in
    pub(crate) fn reclaim_in(&self, shard: usize, group: &MemoryOwner, bytes: u64) -> u64 {
        let evicted = self.lock_to_walk(shard).blocks.reclaim(&self.memory, group, bytes);
        evicted.bytes() as u64
    }

    fn lock_to_walk(&self, shard: usize) -> Guard<'_> {
        let needs_picture = |shard: &Guard<'_>| !self.memory.shows(&shard.blocks.owners());
        self.memory.lock_with_picture(|| self.shards[shard].lock(), needs_picture)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().blocks.bytes()).sum()
    }

    pub fn stats(&self) -> CleanStats {
        let mut sum = CleanStats::default();
        for shard in &self.shards {
            let shard = shard.lock();
            sum.hits += shard.stats.hits;
            sum.misses += shard.stats.misses;
            sum.waits += shard.stats.waits;
            sum.overtaken += shard.stats.overtaken;
            sum.mismatches += shard.stats.mismatches;
            sum.evictions += shard.blocks.evictions();
            sum.blocks += shard.blocks.len();
            sum.bytes += shard.blocks.bytes();
        }
        sum
    }

    /// The content of a run, if all of it is here and matches `sums` (CLEAN-D1). One block is not
    /// copied.
    pub(crate) fn find(&self, run: Run, sums: &[u32]) -> Option<Buf> {
        let mut found: SmallVec<[Buf; REQUEST]> = SmallVec::new();
        for chunk in chunks(run) {
            let mut shard = self.shard(chunk).lock();
            for block in blocks(chunk) {
                let Some(block) = shard.blocks.get(&block) else {
                    drop(shard);
                    self.take_hits(run, chunk.addr.raw());
                    return None;
                };
                found.push(block.clone());
            }
            shard.stats.hits += u64::from(chunk.blocks);
            shard.evicted_at_hit = shard.blocks.evictions();
        }
        let content = match &found[..] {
            [one] => one.clone(),
            _ => {
                let mut whole = Buf::scratch(found.len());
                let places = whole.make_mut().chunks_mut(BLOCK_BYTES);
                places.zip(&found).for_each(|(place, block)| place.copy_from_slice(block));
                whole
            }
        };
        let sums_found = content.chunks(BLOCK_BYTES).map(block_checksum);
        let bad = sums_found.zip(sums).position(|(found, sum)| found != *sum);
        match bad {
            None => Some(content),
            Some(block) => {
                self.drop_bad(run.slice(block as u32, 1), &found[block]);
                self.take_hits(run, u64::MAX);
                None
            }
        }
    }

    /// Blocks of a run before `end` are no hits: the device is read for all of it. A block is a hit
    /// or a miss, never both.
    fn take_hits(&self, run: Run, end: u64) {
        let found = |chunk: &Run| chunk.addr.raw() < end;
        for chunk in chunks(run).take_while(found) {
            self.shard(chunk).lock().stats.hits -= u64::from(chunk.blocks);
        }
    }

    /// Forgets a block that does not match, if it is still there.
    fn drop_bad(&self, block: Run, content: &Buf) {
        let at = At(block.addr);
        let mut shard = self.shard(block).lock();
        let same = shard.blocks.get(&at).is_some_and(|now| now.as_ptr() == content.as_ptr());
        let removed = same.then(|| shard.blocks.remove(&at));
        shard.stats.mismatches += u64::from(same);
        let count = shard.stats.mismatches;
        drop(shard);
        // Bad memory may have many: the log has the first, then each time that they have doubled.
        if removed.is_some() && count.is_power_of_two() {
            let addr = block.addr;
            tracing::error!(
                "block {addr} in memory does not match its checksum, the {count}th here"
            );
        }
    }

    /// Begins a fetch of `run`. The error, with `wait`: the end of another fetch of some of it,
    /// which comes first (CLEAN-D4).
    pub(crate) fn begin(&self, run: Run, wait: bool) -> Result<Fetch<'_>, EventListener> {
        let underway =
            Arc::new(Underway { run, overtaken: AtomicBool::new(false), ended: Event::new() });
        let fetch = Fetch { of: self, underway };
        for chunk in chunks(run) {
            let mut shard = self.shard(chunk).lock();
            let others = shard.fetches.iter().filter(|one| !Arc::ptr_eq(one, &fetch.underway));
            let other = others.into_iter().find(|other| overlap(other.run, chunk));
            if let Some(other) = other.filter(|_| wait) {
                let ended = other.ended.listen();
                shard.stats.waits += 1;
                drop(shard);
                return Err(ended);
            }
            shard.fetches.push(fetch.underway.clone());
        }
        // Not before: a reader that waits looks for them again.
        self.shard(run.slice(0, 1)).lock().stats.misses += u64::from(run.blocks);
        Ok(fetch)
    }

    /// Forgets the blocks of a run, before their content changes or ends (CLEAN-D2).
    pub(crate) fn remove(&self, run: Run) {
        if !self.is_on() || self.broken.keep_overwritten {
            return;
        }
        for chunk in chunks(run) {
            let mut shard = self.shard(chunk).lock();
            for fetch in shard.fetches.iter().filter(|fetch| overlap(fetch.run, chunk)) {
                fetch.overtaken.store(true, Ordering::Relaxed);
            }
            if shard.blocks.is_empty() {
                continue;
            }
            let removed: SmallVec<[_; 1]> =
                blocks(chunk).filter_map(|block| shard.blocks.remove(&block)).collect();
            drop(shard);
            drop(removed);
        }
    }

    /// The part for the blocks of a chunk.
    fn shard(&self, chunk: Run) -> &Mutex<Shard, of::CleanData> {
        let number = mixed(chunk.addr.raw() / CHUNK) as usize;
        &self.shards[number % self.shards.len()]
    }

    /// A test's hook: a block as it is here, unverified.
    #[cfg(test)]
    fn peek(&self, addr: BlockAddr) -> Option<Buf> {
        self.shard(Run::new(addr, 1)).lock().blocks.get(&At(addr)).cloned()
    }

    /// A test's hook: changes a byte of a block in memory, as bad memory does.
    #[cfg(test)]
    pub(crate) fn flip(&self, addr: BlockAddr) {
        let mut shard = self.shard(Run::new(addr, 1)).lock();
        let mut content = shard.blocks.get(&At(addr)).expect("it is here").clone();
        drop(shard.blocks.remove(&At(addr)));
        content.make_mut()[7] ^= 1;
        let bytes = block_bytes();
        let owner = self.memory.shared();
        let (kept, _) = shard.blocks.insert(&self.memory, At(addr), content, bytes, owner);
        assert!(kept);
    }
}

impl Fetch<'_> {
    /// Keeps the blocks that were read, which match their checksums. Returns the bytes that were
    /// evicted or found no room: a measure for how short of room the cache is.
    pub(crate) fn keep(self, content: &Buf, owner: &MemoryOwner) -> usize {
        let CleanData { memory, broken, .. } = self.of;
        let (mut pressed, mut skip) = (0, 0);
        // All of a fetch or nothing: a read finds whole runs only.
        let first = self.underway.run.slice(0, 1);
        if !self.of.shard(first).lock().admits() {
            return 0;
        }
        for chunk in chunks(self.underway.run) {
            let (first, count) = (skip, chunk.blocks as usize);
            skip += count;
            let parts: SmallVec<[Buf; CHUNK as usize]> = match content.blocks() {
                1 => SmallVec::from_iter([content.clone()]),
                _ => content[first * BLOCK_BYTES..][..count * BLOCK_BYTES]
                    .chunks(BLOCK_BYTES)
                    .map(Buf::from_bytes)
                    .collect(),
            };
            let mut all_evicted: SmallVec<[_; 1]> = SmallVec::new();
            let bytes = count * block_bytes();
            let needs_picture =
                |shard: &Guard<'_>| shard.blocks.needs_picture(memory, bytes, owner);
            let mut shard = memory.lock_with_picture(|| self.of.shard(chunk).lock(), needs_picture);
            if self.underway.overtaken.load(Ordering::Relaxed) && !broken.keep_overtaken {
                shard.stats.overtaken += u64::from(chunk.blocks);
                continue;
            }
            for (block, part) in blocks(chunk).zip(parts) {
                if shard.blocks.contains(&block) {
                    continue;
                }
                let bytes = block_bytes();
                let (kept, evicted) = shard.blocks.insert(memory, block, part, bytes, owner);
                pressed += if kept { evicted.bytes() } else { bytes };
                if evicted.bytes() > 0 {
                    all_evicted.push(evicted);
                }
            }
            drop(shard);
            drop(all_evicted);
        }
        pressed
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        for chunk in chunks(self.underway.run) {
            let mut shard = self.of.shard(chunk).lock();
            shard.fetches.retain(|fetch| !Arc::ptr_eq(fetch, &self.underway));
        }
        self.underway.ended.notify(usize::MAX);
    }
}

impl Shard {
    fn new() -> Shard {
        Shard {
            blocks: Rings::new(MemoryClass::Data, RingKind::TwoRings),
            fetches: Vec::new(),
            stats: CleanStats::default(),
            evicted_at_hit: 0,
            without_hits: 0,
        }
    }

    /// CLEAN-D6.
    fn admits(&mut self) -> bool {
        let evicted = self.blocks.evictions() - self.evicted_at_hit;
        let unused = self.blocks.bytes_max() / UNUSED;
        if self.blocks.has_room(unused.max(block_bytes())) || evicted < self.blocks.len() as u64 {
            return true;
        }
        self.without_hits += 1;
        self.without_hits.is_multiple_of(SAMPLE)
    }
}

/// Charged for a block.
fn block_bytes() -> usize {
    BLOCK_BYTES + BUF_BYTES + Rings::<At, Buf>::overhead()
}

/// A run, cut where another chunk begins.
fn chunks(run: Run) -> impl Iterator<Item = Run> {
    let mut skip = 0;
    std::iter::from_fn(move || {
        let left = run.blocks.checked_sub(skip).filter(|left| *left > 0)?;
        let to_next = CHUNK - (run.addr.raw() + u64::from(skip)) % CHUNK;
        let chunk = run.slice(skip, left.min(to_next as u32));
        skip += chunk.blocks;
        Some(chunk)
    })
}

fn blocks(run: Run) -> impl Iterator<Item = At> {
    (0..run.blocks.into()).map(move |n| At(run.addr.offset(n)))
}

fn overlap(a: Run, b: Run) -> bool {
    let end = |run: Run| run.addr.raw() + u64::from(run.blocks);
    a.addr.raw() < end(b) && b.addr.raw() < end(a)
}

#[cfg(test)]
mod tests;
