//! The edits of a metaslab whose map is not in memory.
//!
//! Each block has one state, that of its newest edit: it is in at most one of three sets of runs.
//! The rules are those of `away`, the meaning of a map that cannot be read is `aside`'s.

use copyhold_types::Txg;

use crate::bits::Bits;
use crate::range_set::RangeSet;

/// Memory of one run of edits.
const RUN_BYTES: usize = 32;

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
        let (allocated, freed, cleared) = Default::default();
        Away { why, allocated, freed, cleared, newest: None, worth }
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
        !overlaps(&self.freed) && !overlaps(&self.cleared)
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

    /// Forgets all frees: [`crate::Space::forget_noted_frees`].
    pub(crate) fn forget_frees(&mut self) {
        (self.freed, self.cleared) = Default::default();
    }

    /// The memory of its parts.
    pub(crate) fn bytes(&self) -> usize {
        self.edit_runs() * RUN_BYTES
    }

    pub(crate) fn edit_runs(&self) -> usize {
        [&self.allocated, &self.freed, &self.cleared].map(RangeSet::count).iter().sum()
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
    /// that was freed and that the map does not have.
    pub(crate) fn apply_to(&self, mut map: Bits) -> Result<Bits, (u32, u32)> {
        if let Some(missing) = runs(&self.cleared).find(|run| !map.all_set(run.0, run.1)) {
            return Err(missing);
        }
        runs(&self.allocated).for_each(|(first, blocks)| map.set(first, blocks));
        for set in [&self.freed, &self.cleared] {
            runs(set).for_each(|(first, blocks)| map.clear(first, blocks));
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
        assert_eq!(away.apply_to(map).unwrap().to_words(), wanted.to_words());
        assert_eq!(away.apply_to(bits(&[(96, 4)])), Err((95, 5)), "AWAY-A5");
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
