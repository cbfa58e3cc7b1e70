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
//! Two bitmaps say it all, since each state but *allocated* vanishes in a crash (R19). They are in
//! memory while the map is loaded; `away` is about all other metaslabs.
//!
//! META-K1  `logged`: the blocks that are allocated by all applied transactions. Only this reaches
//!          a map on disk.
//! META-K2  `free`: the blocks that may be allocated. Disjoint from `logged`.
//! META-K3  Blocks in neither are fixed (labels, log), claimed, in a lane, deferred or being
//!          discarded. Deferred runs are disjoint from both and from each other.
//! META-K4  `allocated` and `deferred_blocks` are the counts of those blocks; for a map that is
//!          away, AWAY-A4 says how exact. The sets of [`Sets`] have the metaslabs that the state
//!          under the lock puts there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use copyhold_format::space_map::MapRange;
use copyhold_sync::{Mutex, MutexGuard, of};
use copyhold_types::{BlockAddr, Run, Txg};

use crate::bits::Bits;
use crate::changed::Changed;
use crate::changes::Changes;
use crate::free::{FreeMap, Grade};
use crate::index_set::IndexSet;
use crate::layout::MetaslabId;
use crate::noted::{Away, Why};
use crate::range_set::RangeSet;
use crate::space::Config;
use crate::stored::StoredMap;

/// The metaslabs that a walk is about, so that none touches all of them.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    pub(crate) loaded: IndexSet,
    /// With a deferred run.
    pub(crate) deferring: IndexSet,
    /// With an edit that no installed map has.
    pub(crate) pinning: IndexSet,
    /// Whose map cannot be read.
    pub(crate) aside: IndexSet,
    /// Memory of all maps and edits.
    pub(crate) bytes: AtomicI64,
}

/// A metaslab of the pool. Its mutex is the last in the lock order: its holder takes no other
/// lock.
#[derive(Debug)]
pub(crate) struct Metaslab {
    pub(crate) id: MetaslabId,
    /// Its number in the pool.
    index: usize,
    pub(crate) first_block: u64,
    /// Changes under the mutex.
    blocks: AtomicU32,
    sets: Arc<Sets>,
    state: Mutex<MetaslabState, of::Metaslab>,
    offers: [AtomicU32; Grade::COUNT],
    free_blocks: AtomicU32,
    /// While the map is cold: its free blocks, and in the upper half its good chunks.
    cold: AtomicU64,
    bytes: AtomicU32,
    warm_free: AtomicU64,
    /// Number of the oldest txg whose frees are deferred here; `u64::MAX` when there is none.
    oldest_deferred: AtomicU64,
}

/// The state under the mutex.
#[derive(Debug)]
pub(crate) struct MetaslabState {
    /// Blocks of labels and log, counted within the metaslab.
    pub(crate) fixed: RangeSet,
    pub(crate) map: Map,
    /// Blocks that are allocated; of a metaslab that is set aside all usable ones.
    pub(crate) allocated: i64,
    /// Runs that are freed and not yet allocatable, by the txg that freed them.
    pub(crate) deferred: BTreeMap<Txg, Vec<(u32, u32)>>,
    pub(crate) deferred_blocks: u64,
    /// Changes that no map has.
    pub(crate) live: Changes,
    /// A map is being written that has these.
    pub(crate) frozen: Option<Changes>,
    /// The map on disk.
    pub(crate) installed: Option<StoredMap>,
    pub(crate) complete_to: Option<Txg>,
}

/// Whether a map is in memory.
#[derive(Debug)]
pub(crate) enum Map {
    Loaded(Box<Loaded>),
    Away(Box<Away>),
}

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) logged: Bits,
    pub(crate) free: FreeMap,
    /// Where `logged` differs from the map on disk.
    pub(crate) changed: Changed,
}

impl Loaded {
    /// `used`: blocks that are not allocatable, allocated or not.
    pub(crate) fn new(logged: Bits, used: &Bits, changed: Changed, config: &Config) -> Box<Loaded> {
        let blocks = used.blocks();
        let mut free = FreeMap::new(used.complement(), blocks);
        if config.all_warm {
            free.mark_warm(0, blocks);
        }
        Box::new(Loaded { logged, free, changed })
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<Loaded>() + self.logged.bytes() + self.free.bytes() + self.changed.bytes()
    }

    /// About the value of [`Self::bytes`] with these allocated blocks: free ones take as much, and
    /// the chunks differ where blocks do.
    pub(crate) fn bytes_with(logged: &Bits) -> usize {
        let chunks = FreeMap::chunk_bytes(logged.blocks(), logged.mixed_blocks());
        size_of::<Loaded>() + 2 * logged.bytes() + chunks
    }

    /// The most that [`Self::bytes`] can be, of a map that is as it is on disk.
    pub(crate) fn bytes_max(blocks: u32) -> usize {
        size_of::<Loaded>() + Bits::bytes_max(blocks) + FreeMap::bytes_max(blocks)
    }
}

impl Map {
    pub(crate) fn away(&self) -> Option<&Away> {
        match self {
            Map::Away(away) => Some(away),
            Map::Loaded(_) => None,
        }
    }

    pub(crate) fn loaded(&self) -> Option<&Loaded> {
        match self {
            Map::Loaded(loaded) => Some(loaded),
            Map::Away(_) => None,
        }
    }

    pub(crate) fn is_aside(&self) -> bool {
        self.away().is_some_and(|away| away.why == Why::Unreadable)
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.away().is_some_and(|away| away.why == Why::Cold)
    }

    fn bytes(&self) -> usize {
        match self {
            Map::Loaded(map) => map.bytes(),
            Map::Away(away) => size_of::<Away>() + away.bytes(),
        }
    }

    /// A map or a delta with all changes is to be written.
    pub(crate) fn freeze(&mut self) {
        match self {
            Map::Loaded(map) => map.changed.freeze(),
            Map::Away(away) if away.why == Why::Cold => away.freeze(),
            Map::Away(_) => {}
        }
    }

    /// It is installed.
    pub(crate) fn settle(&mut self) {
        match self {
            Map::Loaded(map) => map.changed.settle(),
            Map::Away(away) => away.settle(),
        }
    }

    /// It is given up.
    pub(crate) fn thaw(&mut self) {
        match self {
            Map::Loaded(map) => map.changed.thaw(),
            Map::Away(away) => away.thaw(),
        }
    }
}

impl MetaslabState {
    /// Of a metaslab that nothing was ever allocated in, and of which no block is usable yet.
    pub(crate) fn unused(blocks: u32, config: &Config) -> MetaslabState {
        let mut fixed = RangeSet::new();
        fixed.add(0..blocks.into());
        let (logged, free) = (Bits::new(blocks), FreeMap::unused(blocks));
        let changed = Changed::none(blocks, config.prefer_deltas);
        MetaslabState {
            fixed,
            map: Map::Loaded(Box::new(Loaded { logged, free, changed })),
            allocated: 0,
            deferred: BTreeMap::new(),
            deferred_blocks: 0,
            live: Changes::default(),
            frozen: None,
            installed: None,
            complete_to: None,
        }
    }

    pub(crate) fn oldest_pin(&self) -> Option<Txg> {
        self.frozen.map_or(self.live, |frozen| self.live.and(frozen)).oldest
    }

    /// The map that allocations are made in.
    ///
    /// # Panics
    /// It is not loaded: nothing can be claimed, held or discarded then (AWAY-A1).
    pub(crate) fn loaded(&mut self) -> &mut Loaded {
        match &mut self.map {
            Map::Loaded(loaded) => loaded,
            Map::Away(_) => panic!("AWAY-A1: the map is not loaded"),
        }
    }

    /// As [`Self::loaded`]; `None`: the map was evicted meanwhile.
    pub(crate) fn free_map(&mut self) -> Option<&mut FreeMap> {
        match &mut self.map {
            Map::Loaded(loaded) => Some(&mut loaded.free),
            Map::Away(_) => None,
        }
    }

    fn defer(&mut self, txg: Txg, first: u32, blocks: u32) {
        self.deferred_blocks += u64::from(blocks);
        let runs = self.deferred.entry(txg).or_default();
        match runs.last_mut() {
            Some(last) if last.0 + last.1 == first => last.1 += blocks,
            _ => runs.push((first, blocks)),
        }
    }
}

impl Metaslab {
    /// It is to be published once the list of the pool has it (GROWSPACE-G4).
    pub(crate) fn new(
        id: MetaslabId,
        index: usize,
        (first_block, blocks): (u64, u32),
        sets: &Arc<Sets>,
        state: MetaslabState,
    ) -> Metaslab {
        Metaslab {
            id,
            index,
            first_block,
            blocks: AtomicU32::new(blocks),
            sets: Arc::clone(sets),
            state: Mutex::new(state),
            offers: Default::default(),
            free_blocks: AtomicU32::new(0),
            cold: AtomicU64::new(0),
            bytes: AtomicU32::new(0),
            warm_free: AtomicU64::new(0),
            oldest_deferred: AtomicU64::new(u64::MAX),
        }
    }

    /// Blocks; the last metaslab of a device may become longer.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks.load(Relaxed)
    }

    /// Blocks that are not fixed.
    pub(crate) fn usable(&self, state: &MetaslabState) -> u64 {
        u64::from(self.blocks()) - state.fixed.blocks()
    }

    /// Appends blocks that are not usable yet, up to `blocks` in all, to a locked metaslab.
    pub(crate) fn lengthen(&self, state: &mut MetaslabState, blocks: u32) {
        let before = self.blocks.swap(blocks, Relaxed);
        state.fixed.add(before.into()..blocks.into());
        if let Map::Loaded(map) = &mut state.map {
            map.logged.lengthen(blocks);
            map.free.lengthen(blocks);
        }
        self.publish_edits(state);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MetaslabState> {
        self.state.lock()
    }

    /// Where it is, for its map on disk.
    pub(crate) fn range(&self) -> MapRange {
        let MetaslabId { device, index } = self.id;
        MapRange { device, index, first_block: self.first_block, blocks: self.blocks() }
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

    /// The memory of the map or its edits, as of some moment ago.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed).into()
    }

    /// Free blocks that are warm, as of some moment ago.
    pub(crate) fn warm_free(&self) -> u64 {
        self.warm_free.load(Relaxed)
    }

    /// Free blocks of a cold map, as of some moment ago.
    pub(crate) fn cold_free(&self) -> u32 {
        self.cold.load(Relaxed) as u32
    }

    /// Chunks with a free run of 64 KiB of a cold map that has free blocks, as far as is known.
    pub(crate) fn cold_good_chunks(&self) -> u32 {
        match self.cold.load(Relaxed) {
            cold if cold as u32 == 0 => 0,
            cold => (cold >> 32) as u32,
        }
    }

    /// Blocks of a cold map that count as free; none of a map that cannot be read (ASIDE-Q4).
    pub(crate) fn away_free(&self, state: &MetaslabState) -> i64 {
        match state.map.is_cold() {
            true => self.usable(state) as i64 - state.allocated - state.deferred_blocks as i64,
            false => 0,
        }
    }

    /// Publishes `state`: the free space and what sets it is in; returns how many more good chunks
    /// that is than before.
    pub(crate) fn publish(&self, state: &MetaslabState) -> i64 {
        let loaded = state.map.loaded();
        let free = loaded.map(|map| &map.free);
        let counts = free.map_or([0; Grade::COUNT], FreeMap::counts);
        let mut more = 0;
        for (grade, count) in Grade::ALL.into_iter().zip(counts) {
            let before = self.offers[grade as usize].load(Relaxed);
            if before != count {
                self.offers[grade as usize].store(count, Relaxed);
                more += if grade.is_good() { i64::from(count) - i64::from(before) } else { 0 };
            }
        }
        self.free_blocks.store(free.map_or(0, FreeMap::free_blocks), Relaxed);
        self.warm_free.store(free.map_or(0, FreeMap::warm_free), Relaxed);
        let cold_good = state.map.away().map_or(0, |away| away.worth.good_chunks);
        let cold_free = self.away_free(state).max(0) as u64;
        self.cold.store(cold_free | u64::from(cold_good) << 32, Relaxed);
        self.sets.loaded.set(self.index, loaded.is_some());
        self.sets.aside.set(self.index, state.map.is_aside());
        self.publish_edits(state);
        more
    }

    /// Publishes the deferred runs, the pin and the memory of `state`.
    pub(crate) fn publish_edits(&self, state: &MetaslabState) {
        let oldest = state.deferred.first_key_value().map_or(u64::MAX, |(txg, _)| txg.get());
        self.oldest_deferred.store(oldest, Relaxed);
        self.sets.deferring.set(self.index, oldest != u64::MAX);
        self.sets.pinning.set(self.index, state.oldest_pin().is_some());
        let bytes = state.map.bytes() as u32;
        let before = self.bytes.load(Relaxed);
        if bytes != before {
            self.bytes.store(bytes, Relaxed);
            self.sets.bytes.fetch_add(i64::from(bytes) - i64::from(before), Relaxed);
        }
    }

    /// A claim becomes an allocation.
    pub(crate) fn log_alloc(&self, txg: Txg, first: u32, blocks: u32) {
        let mut state = self.lock();
        let map = state.loaded();
        assert!(
            map.free.all_used(first, blocks),
            "META-K2: {:?} was not claimed",
            self.run(first, blocks)
        );
        assert!(
            map.logged.all_clear(first, blocks),
            "META-K1: {:?} is allocated",
            self.run(first, blocks)
        );
        map.logged.set(first, blocks);
        map.changed.flip(first, blocks);
        state.allocated += i64::from(blocks);
        state.live.note(txg);
        self.publish_edits(&state);
    }

    /// Whether all of the run is logged as allocated; of a map that is away, as far as is known.
    pub(crate) fn is_logged(&self, first: u32, blocks: u32) -> bool {
        match &self.lock().map {
            Map::Loaded(map) => map.logged.all_set(first, blocks),
            Map::Away(away) => away.may_have(first, blocks),
        }
    }

    /// Frees an allocated run; it is allocatable once `txg` is released. Blocks that count.
    pub(crate) fn log_free(&self, txg: Txg, first: u32, blocks: u32) -> u32 {
        let mut state = self.lock();
        let run = || self.run(first, blocks);
        match &mut state.map {
            Map::Loaded(map) => {
                assert!(map.logged.all_set(first, blocks), "freed twice: {:?}", run());
                map.logged.clear(first, blocks);
                map.changed.flip(first, blocks);
            }
            Map::Away(away) => {
                assert!(away.may_have(first, blocks), "freed twice: {:?}", run());
                away.free(txg, first, blocks);
            }
        }
        state.live.note(txg);
        let counts = !state.map.is_aside();
        if counts {
            state.allocated -= i64::from(blocks);
            state.defer(txg, first, blocks);
        }
        self.publish_edits(&state);
        if counts { blocks } else { 0 }
    }

    /// A claim becomes allocatable once `txg` is released.
    pub(crate) fn defer(&self, txg: Txg, first: u32, blocks: u32) {
        let mut state = self.lock();
        let map = state.loaded();
        let run = || self.run(first, blocks);
        assert!(map.free.all_used(first, blocks), "META-K2: {:?} was not claimed", run());
        assert!(map.logged.all_clear(first, blocks), "META-K1: {:?} is allocated", run());
        state.defer(txg, first, blocks);
        self.publish_edits(&state);
    }

    /// Makes the frees of txgs up to `up_to` allocatable.
    pub(crate) fn release_deferred(&self, up_to: Txg) -> Released {
        if self.oldest_deferred.load(Relaxed) > up_to.get() {
            return Released::default();
        }
        let mut state = self.lock();
        let later = state.deferred.split_off(&up_to.next());
        let released = std::mem::replace(&mut state.deferred, later);
        let mut blocks = 0;
        for (txg, runs) in released {
            for (first, count) in runs {
                blocks += u64::from(count);
                let Map::Loaded(map) = &mut state.map else { continue };
                assert!(
                    map.logged.all_clear(first, count),
                    "META-K3: {:?}",
                    self.run(first, count)
                );
                map.free.vacate(first, count, Some(txg));
            }
        }
        state.deferred_blocks -= blocks;
        let cold = if state.map.is_cold() { blocks } else { 0 };
        Released { blocks, cold, good_chunks: self.publish(&state) }
    }

    /// META-K1 to META-K4, as far as one metaslab shows them. The mutex is held.
    pub(crate) fn check(&self, state: &MetaslabState) {
        let deferred = state.deferred.values().flatten().map(|run| u64::from(run.1)).sum::<u64>();
        assert_eq!(state.deferred_blocks, deferred, "META-K4: {}", self.id);
        let oldest = state.deferred.keys().next().map_or(u64::MAX, |txg| txg.get());
        assert_eq!(self.oldest_deferred.load(Relaxed), oldest, "{}", self.id);
        let (sets, index) = (&self.sets, self.index);
        let loaded = state.map.loaded();
        assert_eq!(sets.loaded.contains(index), loaded.is_some(), "META-K4: {}", self.id);
        assert_eq!(sets.aside.contains(index), state.map.is_aside(), "META-K4: {}", self.id);
        assert_eq!(sets.deferring.contains(index), deferred > 0, "META-K4: {}", self.id);
        let pins = state.oldest_pin().is_some();
        assert_eq!(sets.pinning.contains(index), pins, "META-K4: {}", self.id);
        assert_eq!(self.bytes.load(Relaxed) as usize, state.map.bytes(), "META-K4: {}", self.id);
        let counts = loaded.map_or([0; Grade::COUNT], |map| map.free.counts());
        assert_eq!(Grade::ALL.map(|grade| self.offer(grade)), counts, "{}: its offers", self.id);
        if let Some(map) = loaded {
            self.check_loaded(state, map);
        }
    }

    fn check_loaded(&self, state: &MetaslabState, map: &Loaded) {
        map.free.check();
        map.changed.check();
        assert_eq!(state.allocated, i64::from(map.logged.count()), "META-K4: {}", self.id);
        assert_eq!(self.free_blocks(), map.free.free_blocks(), "{}: what is free", self.id);
        let mut seen = map.logged.clone();
        for (first, blocks) in state.deferred.values().flatten().copied() {
            let run = self.run(first, blocks);
            assert!(
                seen.all_clear(first, blocks),
                "META-K3: {run:?} is deferred and logged or twice"
            );
            assert!(map.free.all_used(first, blocks), "META-K3: {run:?} is deferred and free");
            seen.set(first, blocks);
        }
        for (first, blocks) in map.logged.runs() {
            let run = self.run(first, blocks);
            assert!(map.free.all_used(first, blocks), "META-K2: {run:?} is logged and free");
        }
    }
}

/// Frees that are not deferred any more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Released {
    pub(crate) blocks: u64,
    /// Of these in a metaslab whose map is cold.
    pub(crate) cold: u64,
    /// More good chunks than before.
    pub(crate) good_chunks: i64,
}
