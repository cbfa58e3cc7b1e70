//! A metaslab whose map cannot be read: it is set aside until the map can be read.
//!
//! Problem.  Without its map it is unknown which blocks of a metaslab are allocated. But a read
//!           error may pass, so nothing that is written may depend on it.
//! Idea.     Nothing is allocated in the metaslab, and its descriptor stays as it is. Edits that
//!           the map does not have are kept in memory, one state for each block. When the log has
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

use copyhold_format::space_map::SpaceMap;
use copyhold_types::{NodePtr, Run, Txg};

use crate::bits::Bits;
use crate::error::SpaceError;
use crate::flush::MapJob;
use crate::layout::MetaslabId;
use crate::metaslab::MetaslabState;
use crate::range_set::RangeSet;
use crate::space::Space;

/// The known edits of a metaslab that is set aside.
#[derive(Clone, Debug)]
pub(crate) struct Aside {
    /// Blocks with a known edit that the map does not have, by the newest edit.
    allocated: Bits,
    freed: Bits,
    /// Blocks of labels and log.
    fixed: RangeSet,
    /// Blocks that are not fixed; all of them count as allocated.
    pub(crate) usable: u64,
    /// The last txg of an edit.
    newest: Option<Txg>,
}

/// Edits of a metaslab that is set aside, to be logged again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub allocated: Vec<Run>,
    pub freed: Vec<Run>,
    /// Block of the metaslab from which the next step continues.
    pub next: Option<u32>,
}

impl Aside {
    pub(crate) fn new(blocks: u32, fixed: RangeSet) -> Aside {
        let usable = u64::from(blocks) - fixed.blocks();
        let (allocated, freed) = (Bits::new(blocks), Bits::new(blocks));
        Aside { allocated, freed, fixed, usable, newest: None }
    }

    /// The metaslab becomes longer; the new blocks are not usable yet.
    pub(crate) fn lengthen(&mut self, before: u32, blocks: u32) {
        self.allocated.lengthen(blocks);
        self.freed.lengthen(blocks);
        self.fixed.add(before.into()..blocks.into());
    }

    /// These blocks become usable: no map has them.
    pub(crate) fn make_usable(&mut self, first: u32, blocks: u32) {
        let first = u64::from(first);
        self.usable += self.fixed.remove(first..first + u64::from(blocks));
    }

    /// In the order in which the edits came.
    pub(crate) fn note(&mut self, txg: Txg, first: u32, blocks: u32, free: bool) {
        let (to, from) = match free {
            true => (&mut self.freed, &mut self.allocated),
            false => (&mut self.allocated, &mut self.freed),
        };
        to.set(first, blocks);
        from.clear(first, blocks);
        self.newest = self.newest.max(Some(txg));
    }

    /// The blocks that are allocated by a map and by the edits that it does not have.
    fn apply_to(&self, map: &[u64]) -> Bits {
        let edits = self.allocated.words().iter().zip(self.freed.words());
        // A map that was written before the device grew has fewer blocks.
        let map = map.iter().copied().chain(std::iter::repeat(0));
        let words = map.zip(edits).map(|(map, (set, clear))| (map | set) & !clear);
        Bits::from_words(words.collect())
    }
}

impl Space {
    /// Metaslabs that are set aside.
    pub fn set_aside(&self) -> Vec<MetaslabId> {
        let metaslabs = self.shared.metaslabs.iter();
        metaslabs.filter(|metaslab| metaslab.lock().aside.is_some()).map(|of| of.id).collect()
    }

    /// The map that a metaslab which is set aside waits for, and the txg that it is complete up
    /// to.
    pub fn missing_map(&self, id: MetaslabId) -> Option<(NodePtr, Txg)> {
        let index = self.shared.geometry.index_of(id)?;
        let state = self.shared.metaslabs[index].lock();
        state.aside.as_ref()?;
        state.map.zip(state.complete_to)
    }

    /// All of a metaslab that is set aside but labels and log.
    pub fn usable_runs(&self, id: MetaslabId) -> Vec<Run> {
        let Some(index) = self.shared.geometry.index_of(id) else { return Vec::new() };
        let metaslab = &self.shared.metaslabs[index];
        let state = metaslab.lock();
        let Some(aside) = &state.aside else { return Vec::new() };
        let mut bits = Bits::new(metaslab.blocks());
        bits.set(0, metaslab.blocks());
        for range in aside.fixed.iter() {
            bits.clear(range.start as u32, (range.end - range.start) as u32);
        }
        bits.runs().map(|(first, blocks)| metaslab.run(first, blocks)).collect()
    }

    /// How many runs [`Self::carry`] would log.
    pub fn carried_runs(&self, id: MetaslabId) -> usize {
        let Some(index) = self.shared.geometry.index_of(id) else { return 0 };
        let state = self.shared.metaslabs[index].lock();
        let aside = state.aside.as_ref();
        aside.map_or(0, |aside| aside.allocated.runs().count() + aside.freed.runs().count())
    }

    /// Edits of a metaslab that is set aside, from block `from` on, at most `runs_max` allocated
    /// and `runs_max` freed runs, to be logged in `txg`, which is joined. When the last step is
    /// durable, they pin the log from the first step's txg.
    pub fn carry(&self, job: &MapJob, from: u32, runs_max: usize, txg: Txg) -> Carried {
        let metaslab = &self.shared.metaslabs[job.index()];
        let mut state = metaslab.lock();
        let MetaslabState { aside: Some(aside), live, .. } = &mut *state else {
            return Carried::default();
        };
        let both = [&aside.allocated, &aside.freed];
        let found = both.map(|bits| bits.runs_from(from).take(runs_max).collect::<Vec<_>>());
        // Behind it there may be more.
        let full = found.iter().filter(|runs| runs.len() == runs_max);
        let next = full.filter_map(|runs| runs.last().map(|(at, blocks)| at + blocks)).min();
        let [allocated, freed] = found.map(|runs| {
            let due = runs.into_iter().filter(|(at, _)| next.is_none_or(|next| *at < next));
            due.map(|(at, blocks)| metaslab.run(at, blocks)).collect()
        });
        let carried = Carried { allocated, freed, next };
        (0..carried.len()).for_each(|_| live.note(txg));
        carried
    }

    /// The map of a metaslab that was set aside can be read after all. Its free blocks are
    /// allocatable when `open`, the txg that is open now, is released. Returns whether the
    /// metaslab is in use now: it may have been before, and a flush of it may be under way.
    ///
    /// # Errors
    /// The map is that of another metaslab or time, or allocates a fixed area.
    pub fn supply(&self, id: MetaslabId, map: &SpaceMap, open: Txg) -> Result<bool, SpaceError> {
        let place = map.place();
        let wrong = |what, found, wanted| match found == wanted {
            true => Ok(()),
            false => Err(SpaceError::Mismatch { metaslab: id, what, found, wanted }),
        };
        let Some((_, complete_to)) = self.missing_map(id) else { return Ok(false) };
        wrong("index", place.index.into(), id.index.into())?;
        wrong("complete_to", map.complete_to().get(), complete_to.get())?;
        self.supply_words(id, map.words(), open)
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
        let index = self.shared.geometry.index_of(id);
        let index = index.ok_or(SpaceError::NoMetaslab { metaslab: id })?;
        let mut bits = Bits::new(self.shared.metaslabs[index].blocks());
        for run in allocated {
            let outside = |_| SpaceError::Outside { run };
            for piece in self.shared.geometry.pieces(run).map_err(outside)? {
                if piece.metaslab == index {
                    bits.set(piece.first, piece.blocks);
                }
            }
        }
        self.supply_words(id, bits.words(), open)
    }

    fn supply_words(&self, id: MetaslabId, map: &[u64], open: Txg) -> Result<bool, SpaceError> {
        let index = self.shared.geometry.index_of(id);
        let metaslab =
            &self.shared.metaslabs[index.ok_or(SpaceError::NoMetaslab { metaslab: id })?];
        let mut state = metaslab.lock();
        let Some(aside) = state.aside.as_ref().filter(|_| state.frozen.is_none()) else {
            return Ok(false);
        };
        let logged = aside.apply_to(map);
        let mut free = Bits::new(metaslab.blocks());
        free.set(0, metaslab.blocks());
        free.words_mut().iter_mut().zip(logged.words()).for_each(|(free, used)| *free &= !used);
        for range in aside.fixed.iter() {
            let (first, blocks) = (range.start as u32, (range.end - range.start) as u32);
            if !logged.all_clear(first, blocks) {
                let run = metaslab.run(first, blocks);
                return Err(SpaceError::Fixed { run, metaslab: id });
            }
            free.clear(first, blocks);
        }
        // A reader may pin the blocks that the newest edits freed, as with any free (R3).
        let txg = aside.newest.map_or(open, |newest| newest.max(open));
        let usable = aside.usable;
        self.shared.budget.supply(usable, logged.count().into());
        state.deferred.insert(txg, free.runs().collect());
        state.logged = logged;
        state.aside = None;
        // The map is written anew, whether or not there are edits.
        state.live.note(txg);
        metaslab.publish_deferred(&state);
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
