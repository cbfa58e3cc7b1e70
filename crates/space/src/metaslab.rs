//! One metaslab: its logged, its allocatable and its waiting blocks.
//!
//! A block is in one of these states:
//!
//! ```text
//!          claim              log_alloc            log_free            release_deferred
//!   free ────────▶ claimed ────────────▶ allocated ─────────▶ deferred ───────────────▶ free
//!     ▲               │ cancel                                                            │
//!     └───────────────┘                          discarding ◀──── take_discardable ───────┘
//! ```
//!
//! A claim that was written and is not needed is deferred, too (`defer`): until its txg is
//! released, no other content gets the same place.
//!
//! Two bitmaps say it all, since each state but *allocated* vanishes in a crash (R19):
//!
//! META-K1  `logged`: the blocks that are allocated by all applied transactions. Only this reaches
//!          a map on disk.
//! META-K2  `free`: the blocks that may be allocated. Disjoint from `logged`.
//! META-K3  Blocks in neither are fixed (labels, log), claimed, in a lane, deferred or being
//!          discarded. Deferred runs are disjoint from both and from each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use copyhold_sync::{Mutex, MutexGuard, of};
use copyhold_types::{BlockAddr, NodePtr, Run, Txg};

use crate::aside::Aside;
use crate::bits::Bits;
use crate::changes::Changes;
use crate::free::{FreeMap, Grade};
use crate::layout::MetaslabId;

/// A metaslab of the pool. Its mutex is the last in the lock order: its holder takes no other
/// lock.
#[derive(Debug)]
pub(crate) struct Metaslab {
    pub(crate) id: MetaslabId,
    pub(crate) first_block: u64,
    /// Changes under the mutex.
    blocks: AtomicU32,
    state: Mutex<MetaslabState, of::Metaslab>,
    offers: [AtomicU32; Grade::COUNT],
    free_blocks: AtomicU32,
    warm_free: AtomicU64,
    /// Number of the oldest txg whose frees are deferred here; `u64::MAX` when there is none.
    oldest_deferred: AtomicU64,
}

/// The state under the mutex.
#[derive(Debug)]
pub(crate) struct MetaslabState {
    pub(crate) logged: Bits,
    pub(crate) free: FreeMap,
    /// Runs that are freed and not yet allocatable, by the txg that freed them.
    pub(crate) deferred: BTreeMap<Txg, Vec<(u32, u32)>>,
    /// Changes that no map has.
    pub(crate) live: Changes,
    /// A map is being written that has these.
    pub(crate) frozen: Option<Changes>,
    pub(crate) map: Option<NodePtr>,
    pub(crate) complete_to: Option<Txg>,
    /// The map cannot be read: nothing is allocated.
    pub(crate) aside: Option<Box<Aside>>,
}

impl MetaslabState {
    /// Of a metaslab that nothing was ever allocated in, and of which no block is free yet.
    pub(crate) fn unused(blocks: u32) -> MetaslabState {
        MetaslabState {
            logged: Bits::new(blocks),
            free: FreeMap::unused(blocks),
            deferred: BTreeMap::new(),
            live: Changes::default(),
            frozen: None,
            map: None,
            complete_to: None,
            aside: None,
        }
    }

    pub(crate) fn oldest_pin(&self) -> Option<Txg> {
        self.frozen.map_or(self.live, |frozen| self.live.and(frozen)).oldest
    }
}

impl Metaslab {
    pub(crate) fn new(
        id: MetaslabId,
        first_block: u64,
        blocks: u32,
        state: MetaslabState,
    ) -> Metaslab {
        let metaslab = Metaslab {
            id,
            first_block,
            blocks: AtomicU32::new(blocks),
            state: Mutex::new(state),
            offers: Default::default(),
            free_blocks: AtomicU32::new(0),
            warm_free: AtomicU64::new(0),
            oldest_deferred: AtomicU64::new(u64::MAX),
        };
        let state = metaslab.lock();
        metaslab.publish(&state);
        metaslab.publish_deferred(&state);
        drop(state);
        metaslab
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MetaslabState> {
        self.state.lock()
    }

    /// Blocks; the last metaslab of a device may become longer.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks.load(Relaxed)
    }

    /// Appends blocks that are not free, up to `blocks` in all, to a locked metaslab.
    pub(crate) fn lengthen(&self, state: &mut MetaslabState, blocks: u32) {
        let before = self.blocks.swap(blocks, Relaxed);
        state.logged.lengthen(blocks);
        state.free.lengthen(blocks);
        if let Some(aside) = &mut state.aside {
            aside.lengthen(before, blocks);
        }
    }

    pub(crate) fn run(&self, first: u32, blocks: u32) -> Run {
        Run::new(BlockAddr::new(self.id.device, self.first_block + u64::from(first)), blocks)
    }

    /// Chunks of a grade, as of some moment ago.
    pub(crate) fn offer(&self, grade: Grade) -> u32 {
        self.offers[grade as usize].load(Relaxed)
    }

    /// Chunks with a free run of 64 KiB, as of some moment ago.
    pub(crate) fn good_chunks(&self) -> i64 {
        let good = Grade::ALL.into_iter().filter(|grade| grade.is_good());
        good.map(|grade| i64::from(self.offer(grade))).sum()
    }

    /// Free blocks that no lane holds, as of some moment ago.
    pub(crate) fn free_blocks(&self) -> u32 {
        self.free_blocks.load(Relaxed)
    }

    /// Free blocks that are warm, as of some moment ago.
    pub(crate) fn warm_free(&self) -> u64 {
        self.warm_free.load(Relaxed)
    }

    /// Publishes the free space of `state`; returns how many more good chunks that is than before.
    pub(crate) fn publish(&self, state: &MetaslabState) -> i64 {
        let mut more = 0;
        for (grade, count) in Grade::ALL.into_iter().zip(state.free.counts()) {
            let before = self.offers[grade as usize].load(Relaxed);
            if before != count {
                self.offers[grade as usize].store(count, Relaxed);
                more += if grade.is_good() { i64::from(count) - i64::from(before) } else { 0 };
            }
        }
        self.free_blocks.store(state.free.free_blocks(), Relaxed);
        self.warm_free.store(state.free.warm_free(), Relaxed);
        more
    }

    pub(crate) fn publish_deferred(&self, state: &MetaslabState) {
        let oldest = state.deferred.first_key_value().map_or(u64::MAX, |(txg, _)| txg.get());
        self.oldest_deferred.store(oldest, Relaxed);
    }

    /// A claim becomes an allocation.
    pub(crate) fn log_alloc(&self, txg: Txg, first: u32, blocks: u32) {
        let mut state = self.lock();
        assert!(
            state.free.all_used(first, blocks),
            "META-K2: {:?} was not claimed",
            self.run(first, blocks)
        );
        assert!(
            state.logged.all_clear(first, blocks),
            "META-K1: {:?} is allocated",
            self.run(first, blocks)
        );
        state.logged.set(first, blocks);
        state.live.note(txg);
    }

    /// Whether all of the run is logged as allocated.
    pub(crate) fn is_logged(&self, first: u32, blocks: u32) -> bool {
        let state = self.lock();
        state.aside.is_some() || state.logged.all_set(first, blocks)
    }

    /// Frees an allocated run; it is allocatable once `txg` is released. Blocks that count.
    pub(crate) fn log_free(&self, txg: Txg, first: u32, blocks: u32) -> u32 {
        let mut state = self.lock();
        if let Some(aside) = &mut state.aside {
            aside.note(txg, first, blocks, true);
            state.live.note(txg);
            return 0;
        }
        assert!(state.logged.all_set(first, blocks), "freed twice: {:?}", self.run(first, blocks));
        state.logged.clear(first, blocks);
        state.live.note(txg);
        let runs = state.deferred.entry(txg).or_default();
        match runs.last_mut() {
            Some(last) if last.0 + last.1 == first => last.1 += blocks,
            _ => runs.push((first, blocks)),
        }
        self.publish_deferred(&state);
        blocks
    }

    /// A claim becomes allocatable once `txg` is released.
    pub(crate) fn defer(&self, txg: Txg, first: u32, blocks: u32) {
        let mut state = self.lock();
        let run = || self.run(first, blocks);
        assert!(state.free.all_used(first, blocks), "META-K2: {:?} was not claimed", run());
        assert!(state.logged.all_clear(first, blocks), "META-K1: {:?} is allocated", run());
        state.deferred.entry(txg).or_default().push((first, blocks));
        self.publish_deferred(&state);
    }

    /// Makes the frees of txgs up to `up_to` allocatable; returns blocks, and more good chunks.
    pub(crate) fn release_deferred(&self, up_to: Txg) -> (u64, i64) {
        if self.oldest_deferred.load(Relaxed) > up_to.get() {
            return (0, 0);
        }
        let mut state = self.lock();
        let later = state.deferred.split_off(&up_to.next());
        let released = std::mem::replace(&mut state.deferred, later);
        let mut count = 0;
        for (txg, runs) in released {
            for (first, blocks) in runs {
                assert!(
                    state.logged.all_clear(first, blocks),
                    "META-K3: {:?}",
                    self.run(first, blocks)
                );
                state.free.vacate(first, blocks, Some(txg));
                count += u64::from(blocks);
            }
        }
        self.publish_deferred(&state);
        (count, self.publish(&state))
    }

    /// META-K1 to META-K3, as far as one metaslab shows them. The mutex is held.
    pub(crate) fn check(&self, state: &MetaslabState) {
        state.free.check();
        let mut seen = state.logged.clone();
        for (first, blocks) in state.deferred.values().flatten().copied() {
            let run = self.run(first, blocks);
            assert!(
                seen.all_clear(first, blocks),
                "META-K3: {run:?} is deferred and logged or twice"
            );
            assert!(state.free.all_used(first, blocks), "META-K3: {run:?} is deferred and free");
            seen.set(first, blocks);
        }
        for (first, blocks) in state.logged.runs() {
            let run = self.run(first, blocks);
            assert!(state.free.all_used(first, blocks), "META-K2: {run:?} is logged and free");
        }
        let offers = Grade::ALL.map(|grade| self.offer(grade));
        assert_eq!(offers, state.free.counts(), "{}: what it offers", self.id);
        assert_eq!(self.free_blocks(), state.free.free_blocks(), "{}: what is free", self.id);
        let oldest = state.deferred.keys().next().map_or(u64::MAX, |txg| txg.get());
        assert_eq!(self.oldest_deferred.load(Relaxed), oldest, "{}", self.id);
    }
}
