//! The edits of a metaslab whose map is not in memory.
//!
//! Problem.  Blocks are freed in a metaslab, and its map is on disk only (`away`) or cannot be read
//!           (`aside`). The edits must be applied to the map later, each once, and before that a
//!           second free of a block must be found.
//! Idea.     Sets of runs. A block is in at most one of three, by its newest edit: allocated or
//!           freed, where recovery or an earlier edit says so and the map may have it already; or
//!           cleared, where a free is the only edit and the map must have the block as allocated
//!           (AWAY-A5).
//! Flush.    The frees become a delta of the map (`stored`). Until that is installed they are in a
//!           fourth set, `frozen`: the map on disk does not have them.

use copyhold_format::space_map::Change;
use copyhold_types::Txg;

use crate::bits::Bits;
use crate::changed::{Changed, RUN_BYTES};
use crate::range_set::RangeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It can be read when it is needed.
    Cold,
    /// It could not be read, or is lost.
    Unreadable,
}

/// The offer and the memory of a map when it is loaded, as far as that is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Worth {
    /// Chunks with a free run of 64 KiB, when the map was last in memory, or at least so many.
    pub(crate) good_chunks: u32,
    /// Its memory then, or the most that it can take.
    pub(crate) bytes: usize,
}

/// The known edits of a metaslab whose map is not in memory.
#[derive(Clone, Debug)]
pub(crate) struct Away {
    pub(crate) why: Why,
    /// Blocks with a known edit that the map may not have, by the newest edit.
    allocated: RangeSet,
    freed: RangeSet,
    /// Freed blocks that the map has as allocated (AWAY-A5).
    cleared: RangeSet,
    /// Those of a delta that is being written.
    frozen: RangeSet,
    /// The last txg of an edit.
    pub(crate) newest: Option<Txg>,
    pub(crate) worth: Worth,
}

fn range(first: u32, blocks: u32) -> std::ops::Range<u64> {
    first.into()..u64::from(first) + u64::from(blocks)
}

pub(crate) fn runs(set: &RangeSet) -> impl Iterator<Item = (u32, u32)> + '_ {
    set.iter().map(|range| (range.start as u32, (range.end - range.start) as u32))
}

impl Away {
    pub(crate) fn new(why: Why, worth: Worth) -> Away {
        let (allocated, freed, cleared, frozen) = Default::default();
        Away { why, allocated, freed, cleared, frozen, newest: None, worth }
    }

    /// An edit of the log, in the order in which the edits came. The map may have it. Returns how
    /// many of its blocks no earlier edit leaves as this one does: edits may be logged again.
    pub(crate) fn replay(&mut self, txg: Txg, first: u32, blocks: u32, free: bool) -> u64 {
        let same = if free { &self.freed } else { &self.allocated };
        let known: u64 =
            same.overlaps(range(first, blocks)).map(|part| part.end - part.start).sum();
        for set in [&mut self.allocated, &mut self.freed, &mut self.cleared] {
            set.remove(range(first, blocks));
        }
        let to = if free { &mut self.freed } else { &mut self.allocated };
        to.add(range(first, blocks));
        self.newest = self.newest.max(Some(txg));
        u64::from(blocks) - known
    }

    /// Whether all of the run may be allocated.
    pub(crate) fn may_have(&self, first: u32, blocks: u32) -> bool {
        let overlaps = |set: &RangeSet| set.overlaps(range(first, blocks)).next().is_some();
        ![&self.freed, &self.cleared, &self.frozen].into_iter().any(overlaps)
    }

    /// A free of a run that may be allocated.
    pub(crate) fn free(&mut self, txg: Txg, first: u32, blocks: u32) {
        let known: Vec<_> = self.allocated.overlaps(range(first, blocks)).collect();
        self.cleared.add(range(first, blocks));
        for part in known {
            self.cleared.remove(part.clone());
            self.allocated.remove(part.clone());
            self.freed.add(part);
        }
        self.newest = self.newest.max(Some(txg));
    }

    /// How many runs [`Self::changes`] has.
    pub(crate) fn change_runs(&self) -> usize {
        self.cleared.count()
    }

    /// The changes of the map, if there are frees only, each of blocks that the map must have as
    /// allocated (STORED-D2).
    pub(crate) fn changes(&self) -> Option<Vec<Change>> {
        let change = |(first, blocks)| Change { first, blocks, allocated: false };
        let is_known = self.allocated.is_empty() && self.freed.is_empty();
        is_known.then(|| runs(&self.cleared).map(change).collect())
    }

    /// A delta with these changes is to be written.
    pub(crate) fn freeze(&mut self) {
        self.frozen = std::mem::take(&mut self.cleared);
    }

    /// That delta is a part of the map on disk.
    pub(crate) fn settle(&mut self) {
        self.frozen = RangeSet::new();
    }

    /// That delta is given up.
    pub(crate) fn thaw(&mut self) {
        for run in std::mem::take(&mut self.frozen).iter() {
            self.cleared.add(run);
        }
    }

    /// Forgets all frees: [`crate::Space::forget_noted_frees`].
    pub(crate) fn forget_frees(&mut self) {
        (self.freed, self.cleared) = Default::default();
    }

    /// The memory of its parts.
    pub(crate) fn bytes(&self) -> usize {
        self.edit_runs() * RUN_BYTES
    }

    pub(crate) fn edit_runs(&self) -> usize {
        let sets = [&self.allocated, &self.freed, &self.cleared, &self.frozen];
        sets.map(RangeSet::count).iter().sum()
    }

    /// At most `most` runs of allocated blocks, and of freed ones, from block `from` on.
    pub(crate) fn edits_from(&self, from: u32, most: usize) -> [Vec<(u32, u32)>; 2] {
        let of = |set: &RangeSet| {
            let parts = set.overlaps(from.into()..u64::MAX).take(most);
            let run =
                |part: std::ops::Range<u64>| (part.start as u32, (part.end - part.start) as u32);
            parts.map(run).collect::<Vec<_>>()
        };
        let mut freed = of(&self.freed);
        freed.extend(of(&self.cleared));
        freed.sort_unstable();
        freed.truncate(most);
        [of(&self.allocated), freed]
    }

    /// The runs that the map has as allocated (AWAY-A5).
    pub(crate) fn cleared(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        runs(&self.cleared)
    }

    /// The blocks that are allocated by a map and by the edits that it does not have, or a run
    /// that was freed and that the map does not have. Notes in `changed` where that differs from
    /// the map.
    pub(crate) fn apply_to(
        &self,
        mut map: Bits,
        changed: &mut Changed,
    ) -> Result<Bits, (u32, u32)> {
        let mut frees = runs(&self.frozen).chain(runs(&self.cleared));
        if let Some(missing) = frees.find(|run| !map.all_set(run.0, run.1)) {
            return Err(missing);
        }
        runs(&self.frozen).for_each(|run| changed.assign(&mut map, run, false));
        changed.freeze();
        runs(&self.allocated).for_each(|run| changed.assign(&mut map, run, true));
        for set in [&self.freed, &self.cleared] {
            runs(set).for_each(|run| changed.assign(&mut map, run, false));
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txg(n: u64) -> Txg {
        Txg::new(n).unwrap()
    }

    fn bits(runs: &[(u32, u32)]) -> Bits {
        let mut bits = Bits::new(1000);
        runs.iter().for_each(|&(first, blocks)| bits.set(first, blocks));
        bits
    }

    #[test]
    fn a_free_that_the_map_does_not_have_is_found() {
        let mut away = Away::new(Why::Cold, Worth::default());
        away.replay(txg(3), 100, 10, false);
        away.replay(txg(3), 200, 10, true);
        assert!(away.may_have(100, 10) && !away.may_have(195, 10));
        away.free(txg(4), 95, 10);
        assert!(!away.may_have(99, 1) && !away.may_have(104, 1) && away.may_have(105, 5));
        let map = bits(&[(90, 10), (200, 5), (300, 1)]);
        let wanted = bits(&[(90, 5), (105, 5), (300, 1)]);
        let apply = |map: Bits| away.apply_to(map, &mut Changed::none(1000, true));
        assert_eq!(apply(map).unwrap().to_words(), wanted.to_words());
        assert_eq!(apply(bits(&[(96, 4)])), Err((95, 5)), "AWAY-A5");
    }

    #[test]
    fn frees_of_a_delta_that_is_being_written_are_not_in_the_map_yet() {
        let mut away = Away::new(Why::Cold, Worth::default());
        away.free(txg(4), 100, 10);
        let change = |first, blocks| Change { first, blocks, allocated: false };
        assert_eq!(away.changes(), Some(vec![change(100, 10)]));
        away.freeze();
        away.free(txg(5), 120, 5);
        assert!(!away.may_have(109, 1) && !away.may_have(124, 1) && away.may_have(110, 10));
        assert_eq!(away.changes(), Some(vec![change(120, 5)]));
        let mut changed = Changed::none(1000, true);
        let map = away.apply_to(bits(&[(90, 40)]), &mut changed).unwrap();
        assert_eq!(map.runs().collect::<Vec<_>>(), [(90, 10), (110, 10), (125, 5)]);
        assert_eq!(changed.changes(&map), Some(vec![change(120, 5)]), "the delta has the others");
        let mut given_up = away.clone();
        given_up.thaw();
        assert_eq!(given_up.changes(), Some(vec![change(100, 10), change(120, 5)]));
        away.settle();
        let map = away.apply_to(bits(&[(90, 10), (110, 20)]), &mut changed).unwrap();
        assert_eq!(map.runs().collect::<Vec<_>>(), [(90, 10), (110, 10), (125, 5)]);
        away.replay(txg(3), 300, 1, false);
        assert_eq!(away.changes(), None, "STORED-D2: the map may have it");
    }

    #[test]
    fn edits_come_in_order_and_in_steps() {
        let mut away = Away::new(Why::Unreadable, Worth::default());
        away.replay(txg(3), 100, 10, true);
        away.free(txg(4), 50, 10);
        away.free(txg(4), 150, 10);
        away.replay(txg(3), 155, 5, false);
        assert_eq!(away.edits_from(0, 9), [vec![(155, 5)], vec![(50, 10), (100, 10), (150, 5)]]);
        assert_eq!(away.edits_from(105, 1), [vec![(155, 5)], vec![(105, 5)]]);
    }
}
