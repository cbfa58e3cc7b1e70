//! The space of a whole pool: reserve, claim, log, free, release.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use copyhold_sync::{Mutex, of};
use copyhold_types::{Run, Txg};

use crate::append_list::AppendList;
use crate::budget::{Budget, Figures, NoSpace, Reservation, Tier, Wanted};
use crate::claim::{Claim, Claims};
use crate::error::SpaceError;
use crate::lane::{Lane, LaneClass, LaneState, Shape};
use crate::layout::{CHUNK_BLOCKS, Geometry, MetaslabLayout, Piece};
use crate::metaslab::{Metaslab, MetaslabState, Sets};
use crate::restore::Restore;

/// Parameters; the defaults are for production.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// Blocks kept back from writes (R21). `None`: 1/32 of the pool, at least 16 MiB (but at most
    /// a quarter of the pool), at most 8 GiB.
    pub reserve_blocks: Option<u64>,
    /// Free blocks that were written before and are not discarded by the background (P6). `None`:
    /// 1/32 of the pool, at least 256 MiB.
    pub warm_blocks: Option<u64>,
    /// The whole device has been written to: nothing is a hole. For block devices and pools that
    /// were created preallocated.
    pub all_warm: bool,
    /// The longest run that is allocated: for tests of space that is in short runs. `None`: any.
    pub run_max: Option<u32>,
    /// Memory of maps, from which on none is loaded when the pool is opened. `None`: any.
    pub maps_bytes: Option<u64>,
    /// Deltas of maps are written also where they are no smaller than whole maps: for tests with
    /// small metaslabs.
    pub prefer_deltas: bool,
}

impl Config {
    pub(crate) fn reserve(&self, total: u64) -> u64 {
        let least = (16 << 8).min(total / 4);
        self.reserve_blocks.unwrap_or((total / 32).clamp(least, 8 << 18))
    }

    pub(crate) fn warm(&self, total: u64) -> u64 {
        self.warm_blocks.unwrap_or((total / 32).max(256 << 8))
    }
}

/// The state that all handles of one pool's space share. Order of locks: `scarce`, a lane, a
/// metaslab.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) geometry: Geometry,
    pub(crate) metaslabs: AppendList<Metaslab>,
    pub(crate) sets: Arc<Sets>,
    pub(crate) lanes: Vec<Mutex<LaneState, of::Lane>>,
    pub(crate) budget: Budget,
    /// One allocation at a time when space is scarce.
    pub(crate) scarce: Mutex<(), of::ScarceSpace>,
    /// Chunks with a free run of 64 KiB, in all metaslabs.
    good_chunks: AtomicI64,
    pub(crate) config: Config,
    run_max: u32,
}

impl Shared {
    pub(crate) fn new(
        geometry: Geometry,
        states: Vec<MetaslabState>,
        cpus: usize,
        budget: Budget,
        config: &Config,
    ) -> Shared {
        let sets = Arc::<Sets>::default();
        let parts = geometry.metaslabs().zip(states).enumerate();
        let metaslabs: Vec<Metaslab> = parts
            .map(|(index, ((id, layout), state))| {
                let place = (layout.first_block(id.index), layout.blocks_of(id.index));
                Metaslab::new(id, index, place, &sets, state)
            })
            .collect();
        let publish = |metaslab: &Metaslab| metaslab.publish(&metaslab.lock());
        let good_chunks = AtomicI64::new(metaslabs.iter().map(publish).sum());
        // Each CPU begins in a part of the pool of its own.
        let cpus = cpus.max(1);
        let lanes = (0..cpus * LaneClass::COUNT).map(|lane| {
            let at = lane / LaneClass::COUNT * metaslabs.len() / cpus;
            Mutex::new(LaneState { open: None, at })
        });
        Shared {
            lanes: lanes.collect(),
            scarce: Mutex::new(()),
            good_chunks,
            config: *config,
            run_max: config.run_max.unwrap_or(u32::MAX),
            geometry,
            metaslabs: AppendList::new(metaslabs),
            sets,
            budget,
        }
    }

    /// To be called after a change of a metaslab's free map, with its new state.
    pub(crate) fn publish(&self, metaslab: usize, state: &MetaslabState) {
        self.add_good_chunks(self.metaslabs[metaslab].publish(state));
    }

    pub(crate) fn add_good_chunks(&self, more: i64) {
        if more != 0 {
            self.good_chunks.fetch_add(more, Relaxed);
        }
    }

    /// Good chunks beyond those that are kept for nodes, which are read and written faster in one
    /// run.
    pub(crate) fn spare_chunks(&self) -> u32 {
        let spare = self.good_chunks.load(Relaxed) - self.kept_chunks();
        u32::try_from(spare.max(0)).unwrap_or(u32::MAX)
    }

    /// Half of the reserve, or of its part in loaded maps.
    fn kept_chunks(&self) -> i64 {
        let blocks = match self.budget.is_all_loaded() {
            true => self.budget.reserve_blocks(),
            false => self.budget.loaded_reserve(),
        };
        (blocks / 2 / u64::from(CHUNK_BLOCKS)) as i64
    }

    /// Whether good chunks are so few that lanes may soon have only those in short runs.
    pub(crate) fn has_few_runs(&self) -> bool {
        self.good_chunks() < 2 * self.kept_chunks()
    }

    pub(crate) fn good_chunks(&self) -> i64 {
        self.good_chunks.load(Relaxed)
    }

    /// Whether so little is free that lanes would hold a good part of it.
    fn is_scarce(&self) -> bool {
        self.budget.loaded_free() < 2 * self.lanes.len() as u64 * u64::from(CHUNK_BLOCKS)
    }

    fn lane(&self, lane: Lane) -> &Mutex<LaneState, of::Lane> {
        let cpus = self.lanes.len() / LaneClass::COUNT;
        &self.lanes[lane.cpu % cpus * LaneClass::COUNT + lane.class as usize]
    }

    /// One run of `want` blocks or, in pieces, fewer.
    fn take(&self, lane: Lane, want: u32, shape: Shape) -> Option<(usize, u32, u32)> {
        if shape == Shape::OneRun && want > self.run_max {
            return None;
        }
        let want = want.min(self.run_max);
        let mut state = self.lane(lane).lock();
        let near = state.at;
        if !self.is_scarce() && want <= CHUNK_BLOCKS {
            let run = self.next_run(&mut state, lane.class, want, shape);
            if run.is_some() {
                return run;
            }
        }
        drop(state);
        self.direct_run(near, lane.class, want, shape)
    }

    /// A claim's run is free again; it stays reserved.
    pub(crate) fn unclaim(&self, piece: Piece) {
        let mut state = self.metaslabs[piece.metaslab].lock();
        state.loaded().free.vacate(piece.first, piece.blocks, None);
        self.publish(piece.metaslab, &state);
        drop(state);
        self.budget.unclaim(piece.blocks.into());
    }
}

/// The space of a pool; a handle that is cheap to clone. See the crate for how it is used.
#[derive(Clone, Debug)]
pub struct Space {
    pub(crate) shared: Arc<Shared>,
}

impl Space {
    /// A new pool: everything is free but the `fixed` areas (labels, log rings).
    ///
    /// `cpus`: how many callers allocate at once; each gets lanes of its own.
    pub fn new(layouts: &[MetaslabLayout], fixed: &[Run], cpus: usize, config: Config) -> Space {
        let restore = Restore::new(layouts, fixed, cpus, config).expect("fixed areas lie inside");
        restore.finish(None).expect("nothing that could be wrong was loaded")
    }

    /// Reserves blocks for the caller. Refused when that would take more of the reserve than `tier`
    /// may; the caller then waits for space that is being freed (R22), or loads maps
    /// ([`Self::wants_map`]).
    pub fn reserve(&self, wanted: impl Into<Wanted>, tier: Tier) -> Result<Reservation, NoSpace> {
        let wanted = wanted.into();
        self.shared.budget.reserve(wanted, tier)?;
        Ok(Reservation::new(&self.shared, wanted.blocks, tier))
    }

    /// By how many blocks of the whole pool [`Self::reserve`] falls short; 0: there is room.
    pub fn missing(&self, wanted: impl Into<Wanted>, tier: Tier) -> u64 {
        self.shared.budget.missing(wanted.into(), tier)
    }

    /// Takes `blocks` free blocks out of `from`, as few and large runs as there are: whole chunks
    /// for a request larger than one, else runs of 64 KiB or the whole request, else smaller runs.
    ///
    /// Fails only when nothing is free at all, which a reservation of any tier but the internal
    /// one rules out; then `from` is as it was.
    pub fn claim(
        &self,
        lane: Lane,
        blocks: u64,
        from: &mut Reservation,
    ) -> Result<Claims, NoSpace> {
        assert!(blocks <= from.blocks(), "{blocks} blocks of {from:?}");
        let mut claims = Claims::new();
        let mut left = blocks;
        while left > 0 {
            let Some((metaslab, first, count)) = self.take_for(lane, left) else {
                claims.into_iter().for_each(|claim: Claim| claim.cancel_into(from));
                return Err(self.shared.budget.no_space(blocks));
            };
            claims.push(self.claimed(metaslab, first, count, from));
            left -= u64::from(count);
        }
        Ok(claims)
    }

    /// Takes `blocks` blocks in one run: for nodes and maps. Fails when no run is that long; then
    /// [`Self::claim`] claims as many blocks in pieces.
    pub fn claim_run(
        &self,
        lane: Lane,
        blocks: u32,
        from: &mut Reservation,
    ) -> Result<Claim, NoSpace> {
        assert!(u64::from(blocks) <= from.blocks(), "{blocks} blocks of {from:?}");
        match self.shared.take(lane, blocks, Shape::OneRun) {
            Some((metaslab, first, count)) => Ok(self.claimed(metaslab, first, count, from)),
            None => Err(self.shared.budget.no_space(blocks.into())),
        }
    }

    /// The error that `blocks` blocks cannot be reserved.
    pub fn no_space(&self, blocks: u64) -> NoSpace {
        self.shared.budget.no_space(blocks)
    }

    fn take_for(&self, lane: Lane, left: u64) -> Option<(usize, u32, u32)> {
        let want = left.min(u64::from(u32::MAX / 2)) as u32;
        if want >= CHUNK_BLOCKS && self.shared.run_max >= want {
            let near = self.shared.lane(lane).lock().at;
            if let Some(run) = self.shared.whole_chunks(near, want) {
                return Some(run);
            }
        }
        self.shared.take(lane, want.min(CHUNK_BLOCKS), Shape::Pieces)
    }

    fn claimed(&self, metaslab: usize, first: u32, blocks: u32, from: &mut Reservation) -> Claim {
        self.shared.budget.claim(blocks.into());
        from.take(blocks.into());
        Claim::new(&self.shared, metaslab, first, blocks)
    }

    /// Turns a claim into an allocation of `txg`: in the transaction that adds the pointer to it
    /// (R19). Does not wait.
    pub fn log_alloc(&self, txg: Txg, claim: Claim) -> Run {
        let run = claim.run();
        let piece = claim.settle();
        self.shared.metaslabs[piece.metaslab].log_alloc(txg, piece.first, piece.blocks);
        self.shared.budget.log_alloc(piece.blocks.into());
        run
    }

    /// Frees a run in the transaction of `txg` that drops the last pointer to it. Not allocatable
    /// before [`Self::release_deferred`] of that txg. Does not wait.
    ///
    /// When any of it is not allocated nothing is changed: a pointer or a map is damaged, and the
    /// pool must stop writing.
    pub fn log_free(&self, txg: Txg, run: Run) -> Result<(), SpaceError> {
        self.check_allocated(run)?;
        let pieces = self.shared.geometry.pieces(run).expect("looked at before");
        for piece in pieces {
            let metaslab = &self.shared.metaslabs[piece.metaslab];
            let blocks = metaslab.log_free(txg, piece.first, piece.blocks);
            self.shared.budget.log_free(blocks.into());
        }
        Ok(())
    }

    /// Whether all of `run` is logged as allocated. Of a metaslab whose map is not in memory only
    /// its edits are known.
    pub fn check_allocated(&self, run: Run) -> Result<(), SpaceError> {
        let outside = |_| SpaceError::Outside { run };
        for piece in self.shared.geometry.pieces(run).map_err(outside)? {
            let metaslab = &self.shared.metaslabs[piece.metaslab];
            if !metaslab.is_logged(piece.first, piece.blocks) {
                return Err(SpaceError::NotAllocated { run, metaslab: metaslab.id });
            }
        }
        Ok(())
    }

    /// Makes the frees of txgs up to `up_to` allocatable; returns the number of blocks. To be
    /// called when a batch that names `up_to` as durable is durable itself, and no reader has
    /// pinned it or an earlier txg (R3).
    pub fn release_deferred(&self, up_to: Txg) -> u64 {
        let (mut released, mut cold) = (0, 0);
        for index in self.shared.sets.deferring.iter() {
            let freed = self.shared.metaslabs[index].release_deferred(up_to);
            self.shared.add_good_chunks(freed.good_chunks);
            released += freed.blocks;
            cold += freed.cold;
        }
        self.shared.budget.release(released, cold);
        released
    }

    /// The numbers for `statfs`. Costs a few loads.
    pub fn figures(&self) -> Figures {
        self.shared.budget.figures()
    }

    /// Records that all of `run` has been written to, so that it is no hole in the pool file (P6).
    pub fn mark_warm(&self, run: Run) -> Result<(), SpaceError> {
        let outside = |_| SpaceError::Outside { run };
        for piece in self.shared.geometry.pieces(run).map_err(outside)? {
            let mut state = self.shared.metaslabs[piece.metaslab].lock();
            let Some(free) = state.free_map() else { continue };
            free.mark_warm(piece.first, piece.blocks);
            self.shared.publish(piece.metaslab, &state);
        }
        Ok(())
    }
}
