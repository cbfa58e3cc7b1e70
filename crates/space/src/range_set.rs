//! An ordered set of blocks as disjoint runs; neighbours are merged.
//!
//! For small or sparse sets: fixed areas, the blocks that a check has reached. Loaded free space
//! is a bitmap (`bits.rs`), whose size does not depend on how scattered it is (P10).
//!
//! RANGESET-S1  Runs are not empty, do not overlap and do not touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks, by number on one device (or by any other `u64`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// First block of each run, and the first behind it.
    runs: BTreeMap<u64, u64>,
    blocks: u64,
}

impl RangeSet {
    pub fn new() -> RangeSet {
        RangeSet::default()
    }

    /// Blocks in the set.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many runs it has.
    pub fn count(&self) -> usize {
        self.runs.len()
    }

    /// The runs in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().map(|(&start, &end)| start..end)
    }

    /// Puts all of `range` into the set; returns how many blocks were not in it before.
    pub fn add(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let (mut start, mut end) = (range.start, range.end);
        let mut had = 0;
        // Everything that overlaps or touches becomes one run.
        while let Some((&first, &last)) = self.runs.range(..=end).next_back() {
            if last < start {
                break;
            }
            self.runs.remove(&first);
            had += last - first;
            start = start.min(first);
            end = end.max(last);
        }
        self.runs.insert(start, end);
        let new = (end - start) - had;
        self.blocks += new;
        new
    }

    /// Takes all of `range` out of the set; returns how many blocks were in it.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let mut removed = 0;
        while let Some(hit) = self.last_overlap(&range) {
            let (first, last) = hit;
            self.runs.remove(&first);
            if first < range.start {
                self.runs.insert(first, range.start);
            }
            if last > range.end {
                self.runs.insert(range.end, last);
            }
            removed += last.min(range.end) - first.max(range.start);
        }
        self.blocks -= removed;
        removed
    }

    /// Blocks of `range` in `self` are removed; the others are added to `to`. With the blocks
    /// freed and the blocks allocated since a flush as the two sets, this is how one more
    /// allocation (or, the other way round, one more free) changes them: both stay disjoint.
    pub fn remove_xor_add(&mut self, range: Range<u64>, to: &mut RangeSet) {
        let inside: Vec<Range<u64>> = self.overlaps(range.clone()).collect();
        let mut at = range.start;
        for part in inside {
            to.add(at..part.start);
            at = part.end;
            self.remove(part);
        }
        to.add(at..range.end);
    }

    /// Blocks of `range` in the set are removed, the others are added.
    pub fn flip(&mut self, range: Range<u64>) {
        if self.last_overlap(&range).is_none() {
            self.add(range);
            return;
        }
        let mut at = range.start;
        let mut gaps = Vec::new();
        for part in self.overlaps(range.clone()) {
            gaps.push(at..part.start);
            at = part.end;
        }
        gaps.push(at..range.end);
        self.remove(range);
        gaps.into_iter().for_each(|gap| {
            self.add(gap);
        });
    }

    pub fn contains(&self, block: u64) -> bool {
        self.last_overlap(&(block..block + 1)).is_some()
    }

    /// Whether all of `range` is in the set.
    pub fn contains_all(&self, range: Range<u64>) -> bool {
        let run = self.runs.range(..=range.start).next_back();
        range.is_empty() || run.is_some_and(|(_, &end)| end >= range.end)
    }

    /// The parts of `range` that are in the set, in order.
    pub fn overlaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.runs.range(..range.start).next_back();
        let within = self.runs.range(range.start..range.end.max(range.start));
        before
            .into_iter()
            .chain(within)
            .map(move |(&first, &last)| first.max(range.start)..last.min(range.end))
            .filter(|part| !part.is_empty())
    }

    fn last_overlap(&self, range: &Range<u64>) -> Option<(u64, u64)> {
        let (&first, &last) = self.runs.range(..range.end).next_back()?;
        (last > range.start && !range.is_empty()).then_some((first, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SPAN: u64 = 48;

    fn as_blocks(set: &RangeSet) -> BTreeSet<u64> {
        set.iter().flatten().collect()
    }

    fn check(set: &RangeSet) {
        let mut end = None;
        for run in set.iter() {
            assert!(!run.is_empty(), "RANGESET-S1: {run:?}");
            assert!(end.is_none_or(|end| end < run.start), "RANGESET-S1: {run:?} touches {end:?}");
            end = Some(run.end);
        }
        assert_eq!(set.blocks(), as_blocks(set).len() as u64);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u64, u64),
        Remove(u64, u64),
        Allocate(u64, u64),
        Free(u64, u64),
        Flip(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let span = || (0..SPAN, 0..12u64);
        let step = prop_oneof![
            span().prop_map(|(at, len)| Step::Add(at, at + len)),
            span().prop_map(|(at, len)| Step::Remove(at, at + len)),
            span().prop_map(|(at, len)| Step::Allocate(at, at + len)),
            span().prop_map(|(at, len)| Step::Free(at, at + len)),
            span().prop_map(|(at, len)| Step::Flip(at, at + len)),
        ];
        prop::collection::vec(step, 0..60)
    }

    #[test]
    fn neighbours_become_one_run() {
        let mut set = RangeSet::new();
        assert_eq!(set.add(5..7), 2);
        assert_eq!(set.add(9..11), 2);
        assert_eq!(set.add(7..9), 2);
        assert_eq!(set.iter().next(), Some(5..11));
        assert_eq!(set.remove(6..8), 2);
        assert_eq!(set.iter().collect::<Vec<_>>(), [5..6, 8..11]);
    }

    proptest! {
        #[test]
        fn range_sets_behave_as_sets_of_blocks(steps in steps()) {
            let (mut a, mut b) = (RangeSet::new(), RangeSet::new());
            let (mut model_a, mut model_b) = (BTreeSet::new(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Add(from, to) => {
                        let new = (from..to).filter(|&x| model_a.insert(x)).count();
                        (from..to).for_each(|x| { model_b.remove(&x); });
                        prop_assert_eq!(a.add(from..to), new as u64);
                        b.remove(from..to);
                    }
                    Step::Remove(from, to) => {
                        let gone = (from..to).filter(|x| model_a.remove(x)).count();
                        prop_assert_eq!(a.remove(from..to), gone as u64);
                    }
                    Step::Flip(from, to) => {
                        let (had, new): (Vec<u64>, Vec<u64>) =
                            (from..to).partition(|x| model_a.remove(x));
                        model_a.extend(new);
                        a.flip(from..to);
                        had.into_iter().for_each(|x| assert!(!a.contains(x)));
                        (from..to).for_each(|x| { model_b.remove(&x); });
                        b.remove(from..to);
                    }
                    Step::Allocate(from, to) => {
                        for x in from..to {
                            if !model_a.remove(&x) {
                                model_b.insert(x);
                            }
                        }
                        a.remove_xor_add(from..to, &mut b);
                    }
                    Step::Free(from, to) => {
                        for x in from..to {
                            if !model_b.remove(&x) {
                                model_a.insert(x);
                            }
                        }
                        b.remove_xor_add(from..to, &mut a);
                    }
                }
                check(&a);
                check(&b);
                prop_assert_eq!(as_blocks(&a), model_a.clone());
                prop_assert_eq!(as_blocks(&b), model_b.clone());
                for x in 0..SPAN {
                    prop_assert_eq!(a.contains(x), model_a.contains(&x));
                    let all = (x..x + 5).all(|y| model_a.contains(&y));
                    prop_assert_eq!(a.contains_all(x..x + 5), all);
                    let part: BTreeSet<u64> = a.overlaps(x..x + 9).flatten().collect();
                    let want = model_a.range(x..x + 9).copied().collect();
                    prop_assert_eq!(part, want);
                }
            }
        }
    }
}
