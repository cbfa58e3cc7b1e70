//! A metaslab whose map cannot be read: it is set aside until the map can be read.
//!
//! Problem.  Without its map it is unknown which blocks of a metaslab are allocated. But a read
//!           error may pass, so nothing that is written may depend on it.
//! Idea.     Nothing is allocated in the metaslab, and its descriptor stays as it is. Edits that
//!           the map does not have are kept in memory (`away`). When the log has
//!           grown by many times their size, a flush logs these edits anew, in the txgs that are
//!           open then, so that they pin the log from there on. When the map can be read, or has
//!           been made anew from all references, the edits are applied to it.
//!
//! ASIDE-Q1  A read error changes no descriptor and frees no map.
//! ASIDE-Q2  Edits that are logged again have the state that blocks have when their transaction
//!           joins: no edit of an older txg can follow, and within the txg allocations are applied
//!           before frees. So they may be logged in steps, each with the state at its own time
//!           (R28).
//! ASIDE-Q3  Nothing is allocated in such a metaslab. So each block is freed at most once, and the
//!           edits that are logged again stay bounded by the runs that were allocated.
//! ASIDE-Q4  All of its blocks but labels and log count as allocated, and no free is deferred: when
//!           the map is there, all free blocks are, until the txg that is open then.

use copyhold_format::space_map::SpaceMap;
use copyhold_types::{Run, Txg};

use crate::bits::Bits;
use crate::changed::Changed;
use crate::error::SpaceError;
use crate::flush::MapJob;
use crate::layout::MetaslabId;
use crate::metaslab::{Loaded, Map, Metaslab, MetaslabState};
use crate::noted::{Away, Why};
use crate::space::Space;
use crate::stored::StoredMap;

/// Edits of a metaslab that is set aside, to be logged again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub allocated: Vec<Run>,
    pub freed: Vec<Run>,
    /// Block of the metaslab from which the next step continues.
    pub next: Option<u32>,
}

impl Space {
    /// Metaslabs that are set aside.
    pub fn set_aside(&self) -> Vec<MetaslabId> {
        self.shared.sets.aside.iter().map(|index| self.shared.metaslabs[index].id).collect()
    }

    /// The map that a metaslab which is set aside waits for, and the txg that it is complete up
    /// to.
    pub fn missing_map(&self, id: MetaslabId) -> Option<(StoredMap, Txg)> {
        let index = self.shared.geometry.index_of(id)?;
        let state = self.shared.metaslabs[index].lock();
        state.installed.clone().zip(state.complete_to).filter(|_| state.map.is_aside())
    }

    /// All of a metaslab that is set aside but labels and log.
    pub fn usable_runs(&self, id: MetaslabId) -> Vec<Run> {
        let Some(index) = self.shared.geometry.index_of(id) else { return Vec::new() };
        let metaslab = &self.shared.metaslabs[index];
        let state = metaslab.lock();
        if !state.map.is_aside() {
            return Vec::new();
        }
        let mut bits = Bits::all(metaslab.blocks());
        for range in state.fixed.iter() {
            bits.clear(range.start as u32, (range.end - range.start) as u32);
        }
        bits.runs().map(|(first, blocks)| metaslab.run(first, blocks)).collect()
    }

    /// How many runs [`Self::carry`] would log.
    pub fn carried_runs(&self, id: MetaslabId) -> usize {
        let Some(index) = self.shared.geometry.index_of(id) else { return 0 };
        let state = self.shared.metaslabs[index].lock();
        state.map.away().map_or(0, Away::edit_runs)
    }

    /// Edits of a metaslab that is set aside, from block `from` on, at most `runs_max` allocated
    /// and `runs_max` freed runs, to be logged in `txg`, which is joined. When the last step is
    /// durable, they pin the log from the first step's txg.
    pub fn carry(&self, job: &MapJob, from: u32, runs_max: usize, txg: Txg) -> Carried {
        let metaslab = &self.shared.metaslabs[job.index()];
        let mut state = metaslab.lock();
        let MetaslabState { map: Map::Away(away), live, .. } = &mut *state else {
            return Carried::default();
        };
        let found = away.edits_from(from, runs_max);
        // Behind it there may be more.
        let full = found.iter().filter(|runs| runs.len() == runs_max);
        let next = full.filter_map(|runs| runs.last().map(|(at, blocks)| at + blocks)).min();
        let [allocated, freed] = found.map(|runs| {
            let due = runs.into_iter().filter(|(at, _)| next.is_none_or(|next| *at < next));
            due.map(|(at, blocks)| metaslab.run(at, blocks)).collect()
        });
        let carried = Carried { allocated, freed, next };
        (0..carried.len()).for_each(|_| live.note(txg));
        metaslab.publish_edits(&state);
        carried
    }

    /// The map of a metaslab that was set aside can be read after all. Its free blocks are
    /// allocatable when `open`, the txg that is open now, is released. Returns whether the
    /// metaslab is in use now: it may have been before, and a flush of it may be under way.
    ///
    /// # Errors
    /// The map is that of another metaslab or time, or allocates a fixed area.
    pub fn supply(&self, id: MetaslabId, map: &SpaceMap, open: Txg) -> Result<bool, SpaceError> {
        let Some((_, complete_to)) = self.missing_map(id) else { return Ok(false) };
        let metaslab = self.metaslab_of(id)?;
        metaslab.check_map(map, Some(complete_to))?;
        self.supply_words(metaslab, map.words(), Some(complete_to), open)
    }

    /// As [`Self::supply`], with all that is allocated in the metaslab instead of its map.
    ///
    /// # Errors
    /// A run lies elsewhere, or in a fixed area.
    pub fn supply_runs(
        &self,
        id: MetaslabId,
        allocated: impl IntoIterator<Item = Run>,
        open: Txg,
    ) -> Result<bool, SpaceError> {
        let metaslab = self.metaslab_of(id)?;
        let index = self.shared.geometry.index_of(id);
        let mut bits = Bits::new(metaslab.blocks());
        for run in allocated {
            let outside = |_| SpaceError::Outside { run };
            for piece in self.shared.geometry.pieces(run).map_err(outside)? {
                if Some(piece.metaslab) == index {
                    bits.set(piece.first, piece.blocks);
                }
            }
        }
        if let Some(away) = metaslab.lock().map.away() {
            // The list is of a later time than the map.
            away.cleared().for_each(|(first, blocks)| bits.set(first, blocks));
        }
        self.supply_words(metaslab, &bits.to_words(), None, open)
    }

    fn metaslab_of(&self, id: MetaslabId) -> Result<&Metaslab, SpaceError> {
        let index = self.shared.geometry.index_of(id);
        Ok(&self.shared.metaslabs[index.ok_or(SpaceError::NoMetaslab { metaslab: id })?])
    }

    /// `complete_to`: of a map from disk, which a delta may have overtaken meanwhile.
    fn supply_words(
        &self,
        metaslab: &Metaslab,
        map: &[u64],
        complete_to: Option<Txg>,
        open: Txg,
    ) -> Result<bool, SpaceError> {
        let mut state = metaslab.lock();
        if complete_to.is_some() && state.complete_to != complete_to {
            return Ok(false);
        }
        let away = state.map.away().filter(|away| away.why == Why::Unreadable);
        let Some(away) = away.filter(|_| state.frozen.is_none()) else { return Ok(false) };
        // The map is written anew, whole, whether or not there are edits.
        let mut changed =
            Changed::none(metaslab.blocks(), self.shared.config.prefer_deltas).unknown();
        let logged = metaslab.logged_with(&state, Some(map), &mut changed)?;
        let used = metaslab.used(&logged, &state);
        let free = used.complement();
        // A reader may pin the blocks that the newest edits freed, as with any free (R3).
        let txg = away.newest.map_or(open, |newest| newest.max(open));
        let allocated = u64::from(logged.count());
        self.shared.budget.supply(metaslab.usable(&state), allocated);
        (state.allocated, state.deferred_blocks) = (allocated as i64, free.count().into());
        if state.deferred_blocks > 0 {
            state.deferred.insert(txg, free.runs().collect());
        }
        // All of it is deferred.
        let used = Bits::all(metaslab.blocks());
        let changed = changed.unknown();
        state.map = Map::Loaded(Loaded::new(logged, &used, changed, &self.shared.config));
        state.live.note(txg);
        metaslab.publish(&state);
        Ok(true)
    }
}

impl Carried {
    pub fn len(&self) -> usize {
        self.allocated.len() + self.freed.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
