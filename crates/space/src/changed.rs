//! The blocks of a loaded map whose state differs from the map on disk.
//!
//! Problem.  A flush that writes what changed must know that without a read of the map on disk.
//! Idea.     Only free blocks are allocated, and only allocated ones are freed. So a block differs
//!           from the map on disk if it had an odd number of edits since: each edit adds its blocks
//!           to a set, or removes those that the set has.
//!
//! CHANGED-C1  The map on disk with the blocks of `frozen` and then those of `live` flipped is the
//!             map in memory. A set that is dropped is unknown; then the next map is written whole.
//! CHANGED-C2  A set takes at most as much memory as a bitmap of its metaslab, or 2 KiB. It is
//!             dropped beyond that, and not begun where a whole map takes one block anyway.
//!
//! A flush freezes the set. The changes that come while the new map is written gather in the next
//! one; if the flush is given up, both become one again.

use copyhold_format::space_map::Change;
use copyhold_types::BLOCK_BYTES;

use crate::bits::Bits;
use crate::range_set::RangeSet;

/// Memory of one run.
pub(crate) const RUN_BYTES: usize = 32;
/// Runs that a set may have in any case.
const RUNS_MIN: usize = 64;

/// See the module. `None`: unknown.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    live: Option<RangeSet>,
    frozen: Option<RangeSet>,
    /// The most runs of a set; 0: there is none.
    runs_max: usize,
}

fn range(first: u32, blocks: u32) -> std::ops::Range<u64> {
    first.into()..u64::from(first) + u64::from(blocks)
}

impl Changed {
    /// Of a map that is as it is on disk. `always`: also of a metaslab whose map takes one block.
    pub(crate) fn none(blocks: u32, always: bool) -> Changed {
        let bytes = blocks.div_ceil(8) as usize;
        let runs_max = (bytes / RUN_BYTES).max(RUNS_MIN);
        let runs_max = if always || bytes > BLOCK_BYTES { runs_max } else { 0 };
        let live = (runs_max > 0).then(RangeSet::new);
        Changed { live, frozen: Some(RangeSet::new()), runs_max }
    }

    /// Nothing is known of them.
    pub(crate) fn unknown(self) -> Changed {
        Changed { live: None, ..self }
    }

    /// The memory of its parts.
    pub(crate) fn bytes(&self) -> usize {
        [&self.live, &self.frozen].into_iter().flatten().map(|set| set.count() * RUN_BYTES).sum()
    }

    /// All blocks of a run have changed their state.
    pub(crate) fn flip(&mut self, first: u32, blocks: u32) {
        let Some(set) = &mut self.live else { return };
        set.flip(range(first, blocks));
        if set.count() > self.runs_max {
            self.live = None;
        }
    }

    /// Gives blocks of `bits` a state, of which some may have it already.
    pub(crate) fn assign(&mut self, bits: &mut Bits, (first, blocks): (u32, u32), value: bool) {
        if self.live.is_some() {
            let pieces = bits.pieces(first, blocks).filter(|piece| piece.2 != value);
            let flipped: Vec<_> = pieces.collect();
            flipped.into_iter().for_each(|(first, blocks, _)| self.flip(first, blocks));
        }
        match value {
            true => bits.set(first, blocks),
            false => bits.clear(first, blocks),
        }
    }

    /// How many runs [`Self::changes`] has at least.
    pub(crate) fn runs(&self) -> usize {
        self.live.as_ref().map_or(0, RangeSet::count)
    }

    /// The changes, with the states that blocks have in `bits`; none is frozen.
    pub(crate) fn changes(&self, bits: &Bits) -> Option<Vec<Change>> {
        let change = |(first, blocks, allocated)| Change { first, blocks, allocated };
        let pieces = |run: std::ops::Range<u64>| {
            bits.pieces(run.start as u32, (run.end - run.start) as u32).map(change)
        };
        Some(self.live.as_ref()?.iter().flat_map(pieces).collect())
    }

    /// A map with all of them is to be written.
    pub(crate) fn freeze(&mut self) {
        self.frozen = self.live.take();
        self.live = (self.runs_max > 0).then(RangeSet::new);
    }

    /// That map is the one on disk.
    pub(crate) fn settle(&mut self) {
        self.frozen = Some(RangeSet::new());
    }

    /// That map is given up.
    pub(crate) fn thaw(&mut self) {
        let frozen = self.frozen.replace(RangeSet::new());
        let both = frozen.zip(self.live.take()).map(|(frozen, mut both)| {
            frozen.iter().for_each(|run| both.flip(run));
            both
        });
        self.live = both.filter(|both| both.count() <= self.runs_max);
    }

    /// Forgets the changes since the freeze: [`crate::Space::forget_late_changes`].
    pub(crate) fn forget(&mut self) {
        self.live = self.live.take().map(|_| RangeSet::new());
    }

    /// The map in memory, made of the one on disk (CHANGED-C1). `None`: unknown.
    pub(crate) fn apply_to(&self, mut map: Bits) -> Option<Bits> {
        for set in [self.frozen.as_ref()?, self.live.as_ref()?] {
            for run in set.iter() {
                let (first, blocks) = (run.start as u32, (run.end - run.start) as u32);
                let pieces: Vec<_> = map.pieces(first, blocks).collect();
                for (first, blocks, is_allocated) in pieces {
                    match is_allocated {
                        true => map.clear(first, blocks),
                        false => map.set(first, blocks),
                    }
                }
            }
        }
        Some(map)
    }

    /// CHANGED-C2
    pub(crate) fn check(&self) {
        let count = self.live.as_ref().map_or(0, RangeSet::count);
        assert!(count <= self.runs_max, "CHANGED-C2: {count} runs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCKS: u32 = 500;

    #[derive(Clone, Debug)]
    enum Step {
        /// Gives a run the other state, as far as it has one.
        Edit(u32, u32),
        Freeze,
        Settle,
        Thaw,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..BLOCKS, 1u32..20).prop_map(|(first, blocks)| Step::Edit(first, blocks)),
            1 => Just(Step::Freeze),
            1 => Just(Step::Settle),
            1 => Just(Step::Thaw),
        ]
    }

    #[test]
    fn a_metaslab_whose_map_takes_one_block_has_no_set() {
        let mut changed = Changed::none(1 << 15, false);
        changed.flip(7, 1);
        assert_eq!((changed.changes(&Bits::new(1 << 15)), changed.bytes()), (None, 0));
        changed.freeze();
        assert_eq!(changed.changes(&Bits::new(1 << 15)), None);
    }

    #[test]
    fn a_set_that_becomes_too_large_is_dropped_until_the_next_map() {
        let blocks = 1 << 18;
        let mut changed = Changed::none(blocks, false);
        let most = blocks / 8 / 32;
        (0..most).for_each(|n| changed.flip(2 * n, 1));
        assert!(changed.bytes() as u32 <= blocks / 8, "CHANGED-C2");
        assert!(changed.changes(&Bits::new(blocks)).is_some());
        changed.flip(2 * most, 1);
        assert_eq!((changed.changes(&Bits::new(blocks)), changed.bytes()), (None, 0));
        changed.freeze();
        changed.flip(3, 1);
        changed.settle();
        let change = Change { first: 3, blocks: 1, allocated: false };
        assert_eq!(changed.changes(&Bits::new(blocks)), Some(vec![change]));
    }

    proptest! {
        #[test]
        fn the_changes_lead_from_the_map_on_disk_to_the_one_in_memory(
            steps in prop::collection::vec(step(), 0..60),
        ) {
            let mut changed = Changed::none(BLOCKS, true);
            let mut bits = Bits::new(BLOCKS);
            let mut disk = vec![false; BLOCKS as usize];
            let mut frozen: Option<Vec<bool>> = None;
            for step in steps {
                match step {
                    Step::Edit(first, blocks) => {
                        let blocks = blocks.min(BLOCKS - first);
                        let value = !bits.all_set(first, blocks);
                        changed.assign(&mut bits, (first, blocks), value);
                    }
                    Step::Freeze if frozen.is_none() => {
                        frozen = Some((0..BLOCKS).map(|at| bits.all_set(at, 1)).collect());
                        changed.freeze();
                    }
                    Step::Settle => {
                        let Some(map) = frozen.take() else { continue };
                        disk = map;
                        changed.settle();
                    }
                    Step::Thaw if frozen.take().is_some() => changed.thaw(),
                    _ => {}
                }
                let before = frozen.as_ref().unwrap_or(&disk);
                let differs = |at: &u32| bits.all_set(*at, 1) != before[*at as usize];
                let wanted: Vec<u32> = (0..BLOCKS).filter(differs).collect();
                let changes = changed.changes(&bits).unwrap();
                let found: Vec<u32> =
                    changes.iter().flat_map(|run| run.first..run.first + run.blocks).collect();
                prop_assert_eq!(found, wanted, "CHANGED-C1");
                for run in changes {
                    let is_set = (0..run.blocks).map(|n| bits.all_set(run.first + n, 1));
                    prop_assert!(is_set.into_iter().all(|set| set == run.allocated));
                }
            }
        }
    }
}
