//! Lanes: how CPUs allocate without meeting each other (P8).
//!
//! Each CPU has a lane per class of data, so that small synchronous writes of one group lie side
//! by side (P12) and nodes do not mix with data. A lane takes a chunk of a metaslab, one lock per
//! 256 blocks, and then bumps a cursor inside under its own. When it takes another chunk, it
//! returns the rest of the old one.
//!
//! LANE-L1  The blocks of an open chunk that are the lane's are free nowhere else.
//!
//! Order of locks: lane, then metaslab. No task locks two lanes or two metaslabs, except a check.

use copyhold_types::Run;

use crate::chunk::{ChunkBits, LARGE_RUN};
use crate::free::Grade;
use crate::layout::CHUNK_BLOCKS;
use crate::space::Shared;

/// The class of data that is allocated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaneClass {
    /// File contents, written by the timer.
    Data,
    /// Tree nodes and space maps: each in one run.
    Node,
    /// Small synchronous writes.
    Sync,
}

impl LaneClass {
    pub(crate) const COUNT: usize = 3;

    /// Which chunks are tried, best first. Files want whole chunks. Nodes and small synchronous
    /// writes do with 64 KiB, in space that has been written to before (P6).
    fn preference(self) -> [Grade; Grade::COUNT] {
        use Grade::{LargeCold, LargeWarm, Small, WholeCold, WholeWarm};
        match self {
            LaneClass::Data => [WholeWarm, WholeCold, LargeWarm, LargeCold, Small],
            LaneClass::Node => [LargeWarm, WholeWarm, LargeCold, WholeCold, Small],
            LaneClass::Sync => [WholeWarm, LargeWarm, WholeCold, LargeCold, Small],
        }
    }
}

/// The CPU and class of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The caller's CPU; any number does, equal ones share a lane.
    pub cpu: usize,
    pub class: LaneClass,
}

/// A chunk that a lane holds.
#[derive(Debug)]
pub(crate) struct OpenChunk {
    pub(crate) metaslab: usize,
    pub(crate) chunk: u32,
    /// The blocks that are the lane's.
    pub(crate) bits: ChunkBits,
    cursor: u32,
}

impl OpenChunk {
    fn take(&mut self, first: u32, blocks: u32) -> (usize, u32, u32) {
        self.bits.take(first, blocks);
        self.cursor = (first + blocks) % CHUNK_BLOCKS;
        (self.metaslab, self.chunk * CHUNK_BLOCKS + first, blocks)
    }

    /// A run of `want` blocks.
    fn take_fitting(&mut self, want: u32) -> Option<(usize, u32, u32)> {
        let first = self.bits.find(self.cursor, want)?;
        Some(self.take(first, want))
    }

    /// The longest run, if it has at least `least` blocks.
    fn take_longest(&mut self, least: u32) -> Option<(usize, u32, u32)> {
        let (first, blocks) = self.bits.longest().filter(|run| run.1 >= least)?;
        Some(self.take(first, blocks))
    }
}

/// The state under a lane's mutex.
#[derive(Debug, Default)]
pub(crate) struct LaneState {
    pub(crate) open: Option<OpenChunk>,
    /// The metaslab where the lane looks first.
    pub(crate) at: usize,
}

/// Whether a run shorter than wanted will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    OneRun,
    Pieces,
}

impl Shared {
    /// The next run for a lane, of `want` blocks or, in pieces, fewer: (metaslab, first, blocks).
    /// `None`: lanes have nothing to offer. The lane's mutex is held.
    pub(crate) fn next_run(
        &self,
        lane: &mut LaneState,
        class: LaneClass,
        want: u32,
        shape: Shape,
    ) -> Option<(usize, u32, u32)> {
        loop {
            if let Some(open) = &mut lane.open {
                if let Some(run) = open.take_fitting(want) {
                    return Some(run);
                }
                if shape == Shape::Pieces
                    && let Some(run) = open.take_longest(LARGE_RUN)
                {
                    return Some(run);
                }
            }
            // A good chunk has the wanted blocks or a large run, so the next round returns.
            if self.open_chunk(lane, class, |grade| fits(grade, want, shape)) {
                continue;
            }
            if shape == Shape::OneRun {
                return None;
            }
            if let Some(run) = lane.open.as_mut().and_then(|open| open.take_longest(1)) {
                return Some(run);
            }
            if !self.open_chunk(lane, class, |grade| grade == Grade::Small) {
                return None;
            }
        }
    }

    /// Opens a chunk of the best acceptable grade, in place of the one that the lane has.
    fn open_chunk(
        &self,
        lane: &mut LaneState,
        class: LaneClass,
        accept: impl Fn(Grade) -> bool,
    ) -> bool {
        let scarce = class != LaneClass::Node && self.spare_chunks() == 0;
        for grade in class.preference() {
            if !accept(grade) || (scarce && grade.is_good()) {
                continue;
            }
            for index in self.round_from(lane.at) {
                let metaslab = &self.metaslabs[index];
                if metaslab.offer(grade) == 0 {
                    continue;
                }
                let mut state = metaslab.lock();
                let held = state.free_map().and_then(|free| free.hold_chunk(grade));
                if let Some((chunk, bits)) = held {
                    self.publish(index, &state);
                    drop(state);
                    self.close_chunk(lane);
                    lane.open = Some(OpenChunk { metaslab: index, chunk, bits, cursor: 0 });
                    lane.at = index;
                    return true;
                }
            }
        }
        false
    }

    /// Returns the rest of the lane's chunk.
    pub(crate) fn close_chunk(&self, lane: &mut LaneState) {
        if let Some(OpenChunk { metaslab, chunk, bits, .. }) = lane.open.take() {
            let mut state = self.metaslabs[metaslab].lock();
            state.loaded().free.give_up_chunk(chunk, bits);
            self.publish(metaslab, &state);
        }
    }

    /// Takes whole chunks in one run of at most `most` blocks, for large writes.
    pub(crate) fn whole_chunks(&self, near: usize, most: u32) -> Option<(usize, u32, u32)> {
        let chunks = self.spare_chunks().min(most / CHUNK_BLOCKS);
        if chunks == 0 {
            return None;
        }
        for grade in [Grade::WholeWarm, Grade::WholeCold] {
            for index in self.round_from(near) {
                let metaslab = &self.metaslabs[index];
                if metaslab.offer(grade) == 0 {
                    continue;
                }
                let mut state = metaslab.lock();
                let taken = state.free_map().and_then(|free| free.take_whole(grade, chunks));
                if let Some((first, blocks)) = taken {
                    self.publish(index, &state);
                    return Some((index, first, blocks));
                }
            }
        }
        None
    }

    /// A run straight out of a metaslab, passing by the lanes: for when they would lock up too
    /// much of the free space, or have none. The lanes return their chunks first.
    ///
    /// One caller at a time, so that free blocks on the move are not missed. For one run there is
    /// one attempt: without success the caller takes pieces.
    pub(crate) fn direct_run(
        &self,
        near: usize,
        class: LaneClass,
        want: u32,
        shape: Shape,
    ) -> Option<(usize, u32, u32)> {
        /// Each round that finds nothing has been overtaken by a lane that took a last chunk.
        const ROUNDS: u32 = 100;
        let rounds = if shape == Shape::OneRun { 1 } else { ROUNDS };
        let _one = self.scarce.lock();
        for _ in 0..rounds {
            self.close_lanes();
            let found = match shape {
                Shape::OneRun => self.direct_whole(near, want),
                Shape::Pieces => self.direct_piece(near, class, want),
            };
            if found.is_some() {
                return found;
            }
            if self.budget.loaded_free() < u64::from(want.min(CHUNK_BLOCKS)) {
                return None;
            }
        }
        None
    }

    fn direct_whole(&self, near: usize, want: u32) -> Option<(usize, u32, u32)> {
        self.round_from(near).find_map(|index| {
            if self.metaslabs[index].free_blocks() < want {
                return None;
            }
            let mut state = self.metaslabs[index].lock();
            let first = state.free_map()?.take_run(want)?;
            self.publish(index, &state);
            Some((index, first, want))
        })
    }

    fn direct_piece(&self, near: usize, class: LaneClass, want: u32) -> Option<(usize, u32, u32)> {
        // Good chunks first, unless they are kept for nodes; those only when nothing else is left.
        let kept = class != LaneClass::Node && self.spare_chunks() == 0;
        for good in [!kept, kept] {
            for index in self.round_from(near) {
                let metaslab = &self.metaslabs[index];
                if metaslab.free_blocks() == 0 || (good && metaslab.good_chunks() == 0) {
                    continue;
                }
                let mut state = metaslab.lock();
                let taken = state.free_map().and_then(|free| free.take_some(want, good));
                if let Some((first, blocks)) = taken {
                    self.publish(index, &state);
                    return Some((index, first, blocks));
                }
            }
        }
        None
    }

    /// Takes back the open chunks of all lanes. No lane's mutex is held by the caller.
    pub(crate) fn close_lanes(&self) {
        for lane in &self.lanes {
            self.close_chunk(&mut lane.lock());
        }
    }

    /// All metaslabs whose maps are loaded, from one on and round.
    fn round_from(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        self.sets.loaded.round_from(at)
    }

    /// Blocks that lanes hold; for a check, with all lanes at rest.
    pub(crate) fn held_runs(&self) -> Vec<(usize, Run)> {
        let mut runs = Vec::new();
        for lane in &self.lanes {
            let lane = lane.lock();
            let Some(open) = &lane.open else { continue };
            for (first, blocks) in open.bits.runs() {
                let first = open.chunk * CHUNK_BLOCKS + first;
                runs.push((open.metaslab, self.metaslabs[open.metaslab].run(first, blocks)));
            }
        }
        runs
    }
}

/// Whether a chunk of this grade surely has a run that ends a search.
fn fits(grade: Grade, want: u32, shape: Shape) -> bool {
    match grade {
        Grade::WholeWarm | Grade::WholeCold => true,
        Grade::LargeWarm | Grade::LargeCold => shape == Shape::Pieces || want <= LARGE_RUN,
        Grade::Small => false,
    }
}
