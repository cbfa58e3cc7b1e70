//! Discards: reporting to the host that freed space is no longer needed, late and in large pieces.
//!
//! A run is discarded only while it is allocatable, is taken out of the free set meanwhile, and
//! goes back when the discard is over (R15). Only whole chunks that have been written to are worth
//! it, and some of those stay, for writing into a hole halves the rate of fsync (P6). The list of
//! written chunks is forgotten when the pool is closed or the map evicted; a requested trim
//! includes those that may have been written, too. Only loaded maps are looked at: the caller loads
//! them.

use std::sync::Arc;

use copyhold_types::{Run, Txg};

use crate::budget::Tier;
use crate::free::Grade;
use crate::layout::{CHUNK_BLOCKS, Piece};
use crate::space::{Shared, Space};

/// One discard is at most this long, so that none keeps much out of reach (64 MiB).
pub const DISCARD_BLOCKS_MAX: u32 = 64 * CHUNK_BLOCKS;

/// The runs that may be discarded.
#[derive(Clone, Copy, Debug)]
pub struct Discardable {
    /// Only runs of at least this many blocks; never less than 1 MiB.
    pub least: u32,
    /// Only blocks freed before this txg. The pool knows the time of that txg, and waits a minute
    /// (P6).
    pub freed_before: Option<Txg>,
    /// Leave the warm space that [`Config`](crate::Config) requires. Not for a trim that the user
    /// has requested.
    pub keep_warm: bool,
    /// Also chunks that may have been written to or not: those that were free when the pool was
    /// opened. Each is taken once.
    pub unknown: bool,
    /// Only blocks from the first of these on, and before the second.
    pub from: u64,
    pub to: u64,
    /// At most this many runs.
    pub runs: usize,
}

/// A free run that is not allocatable until its discard is over. Dropping it makes it free as
/// before.
#[must_use = "a discard is ended by discard_done"]
#[derive(Debug)]
pub struct Discard {
    shared: Arc<Shared>,
    run: Run,
    piece: Piece,
    done: bool,
}

impl Discard {
    pub fn run(&self) -> Run {
        self.run
    }
}

impl Drop for Discard {
    fn drop(&mut self) {
        let Piece { metaslab, first, blocks } = self.piece;
        let mut state = self.shared.metaslabs[metaslab].lock();
        state.loaded().free.end_discard(first, blocks, self.done);
        self.shared.publish(metaslab, &state);
        drop(state);
        self.shared.budget.end_discard(blocks.into());
    }
}

impl Space {
    /// Takes runs out of the free set to be discarded. Never takes reserved blocks or the reserve.
    pub fn take_discardable(&self, which: Discardable) -> Vec<Discard> {
        let shared = &self.shared;
        let mut spare = match which.keep_warm {
            true => {
                let loaded = shared.sets.loaded.iter();
                let warm: u64 = loaded.map(|index| shared.metaslabs[index].warm_free()).sum();
                warm.saturating_sub(shared.config.warm(shared.budget.total()))
            }
            false => u64::MAX,
        };
        let grades = match which.unknown {
            true => &[Grade::WholeWarm, Grade::WholeCold][..],
            false => &[Grade::WholeWarm],
        };
        let mut found = Vec::new();
        for index in shared.sets.loaded.iter() {
            let offers = || grades.iter().any(|grade| shared.metaslabs[index].offer(*grade) > 0);
            while found.len() < which.runs && offers() {
                let Some(discard) = self.take_one(index, which, spare) else { break };
                spare -= u64::from(discard.run.blocks);
                found.push(discard);
            }
        }
        found
    }

    fn take_one(&self, metaslab: usize, which: Discardable, spare: u64) -> Option<Discard> {
        let shared = &self.shared;
        // Reserve it for the discard first, so that no accepted write can miss it.
        let loaded = self.loaded_left().saturating_sub(shared.budget.loaded_reserve());
        let in_loaded = if shared.budget.is_all_loaded() { u64::MAX } else { loaded };
        let available = shared.budget.figures().available().min(spare).min(in_loaded);
        let most = available.min(DISCARD_BLOCKS_MAX.max(which.least).into()) as u32;
        let mut promise = self.reserve(u64::from(most), Tier::Write).ok()?;
        let mut state = shared.metaslabs[metaslab].lock();
        let at = shared.metaslabs[metaslab].run(0, 1).addr.block();
        let chunks = which.from.saturating_sub(at).div_ceil(CHUNK_BLOCKS.into()) as usize
            ..(which.to.saturating_sub(at) / u64::from(CHUNK_BLOCKS)) as usize;
        let (first, blocks) = state.free_map()?.take_discardable(which, most, chunks)?;
        shared.publish(metaslab, &state);
        drop(state);
        promise.take(blocks.into());
        shared.budget.begin_discard(blocks.into());
        let run = shared.metaslabs[metaslab].run(first, blocks);
        let piece = Piece { metaslab, first, blocks };
        Some(Discard { shared: Arc::clone(shared), run, piece, done: false })
    }

    /// The run has been discarded; it is free again, as a hole.
    pub fn discard_done(&self, mut discard: Discard) {
        discard.done = true;
    }
}
