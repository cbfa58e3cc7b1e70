//! A plain bitmap of blocks, by words.

use copyhold_format::space_map::{RunsOf, runs};

/// One bit per block of a metaslab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    pub(crate) fn new(blocks: u32) -> Bits {
        Bits { words: vec![0; blocks.div_ceil(64) as usize] }
    }

    pub(crate) fn from_words(words: Vec<u64>) -> Bits {
        Bits { words }
    }

    /// Appends clear bits, up to `blocks` in all.
    pub(crate) fn lengthen(&mut self, blocks: u32) {
        self.words.resize(blocks.div_ceil(64) as usize, 0);
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Set bits of `[first, first + blocks)`.
    pub(crate) fn count_in(&self, first: u32, blocks: u32) -> u32 {
        masks(first, blocks).map(|(at, mask)| (self.words[at] & mask).count_ones()).sum()
    }

    pub(crate) fn set(&mut self, first: u32, blocks: u32) {
        for (at, mask) in masks(first, blocks) {
            self.words[at] |= mask;
        }
    }

    pub(crate) fn clear(&mut self, first: u32, blocks: u32) {
        for (at, mask) in masks(first, blocks) {
            self.words[at] &= !mask;
        }
    }

    pub(crate) fn all_set(&self, first: u32, blocks: u32) -> bool {
        masks(first, blocks).all(|(at, mask)| self.words[at] & mask == mask)
    }

    pub(crate) fn all_clear(&self, first: u32, blocks: u32) -> bool {
        masks(first, blocks).all(|(at, mask)| self.words[at] & mask == 0)
    }

    /// Runs of set bits, as (first, blocks).
    pub(crate) fn runs(&self) -> RunsOf<'_> {
        runs(&self.words)
    }

    /// Runs of set bits from `first` on, of which one that lies across it is the first.
    pub(crate) fn runs_from(&self, first: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let skipped = (first / 64).min(self.words.len() as u32);
        let runs = runs(&self.words[skipped as usize..]);
        let runs = runs.map(move |(at, blocks)| (skipped * 64 + at, blocks));
        runs.filter_map(move |(at, blocks)| {
            let (from, end) = (at.max(first), at + blocks);
            (from < end).then(|| (from, end - from))
        })
    }
}

/// The words that `[first, first + blocks)` touches, each with its bits.
pub(crate) fn masks(first: u32, blocks: u32) -> impl Iterator<Item = (usize, u64)> {
    let end = first + blocks;
    let mut at = first;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let bits = (64 - at % 64).min(end - at);
        let item = (at as usize / 64, (!0 >> (64 - bits)) << (at % 64));
        at += bits;
        Some(item)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_cross_words() {
        let mut bits = Bits::new(300);
        bits.set(60, 140);
        bits.clear(100, 1);
        assert_eq!(bits.runs().collect::<Vec<_>>(), [(60, 40), (101, 99)]);
        assert_eq!(bits.count_in(90, 20), 19);
    }

    proptest! {
        #[test]
        fn bits_behave_as_a_vector_of_flags(
            steps in prop::collection::vec((any::<bool>(), 0u32..256, 0u32..130), 0..30),
        ) {
            let mut bits = Bits::new(400);
            let mut model = vec![false; 400];
            for (value, first, blocks) in steps {
                let range = first as usize..(first + blocks) as usize;
                prop_assert_eq!(bits.all_set(first, blocks), model[range.clone()].iter().all(|&b| b));
                prop_assert_eq!(
                    bits.all_clear(first, blocks),
                    model[range.clone()].iter().all(|&b| !b)
                );
                model[range].fill(value);
                match value {
                    true => bits.set(first, blocks),
                    false => bits.clear(first, blocks),
                }
                let flags: Vec<u32> = bits.runs().flat_map(|(at, n)| at..at + n).collect();
                let want: Vec<u32> = (0..400).filter(|&i| model[i as usize]).collect();
                let from = bits.runs_from(first).flat_map(|(at, n)| at..at + n).collect::<Vec<_>>();
                let (_, behind) = want.split_at(want.partition_point(|&block| block < first));
                prop_assert_eq!(from, behind);
                prop_assert_eq!(bits.count() as usize, want.len());
                prop_assert_eq!(flags, want);
            }
        }
    }
}
