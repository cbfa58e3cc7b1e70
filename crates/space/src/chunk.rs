//! The free blocks of one chunk, as four words: a lane holds them and allocates from them.

use copyhold_format::space_map::{RunsOf, runs};

use crate::bits::masks;
use crate::layout::CHUNK_BLOCKS;

/// Free runs of this length make a chunk a good one (64 KiB, P10).
pub(crate) const LARGE_RUN: u32 = 16;

const WORDS: usize = CHUNK_BLOCKS as usize / 64;

/// A set bit is a free block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkBits([u64; WORDS]);

impl ChunkBits {
    pub(crate) fn new(words: [u64; WORDS]) -> ChunkBits {
        ChunkBits(words)
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn runs(&self) -> RunsOf<'_> {
        runs(&self.0)
    }

    pub(crate) fn take(&mut self, first: u32, blocks: u32) {
        for (at, mask) in masks(first, blocks) {
            assert!(self.0[at] & mask == mask, "taking what is not free");
            self.0[at] &= !mask;
        }
    }

    /// The first place at or behind `from`, else the first at all, where `blocks` are free.
    pub(crate) fn find(&self, from: u32, blocks: u32) -> Option<u32> {
        let mut before = None;
        for (first, length) in self.runs() {
            let start = first.max(from);
            if first + length >= start + blocks {
                return Some(start);
            }
            if length >= blocks {
                before = before.or(Some(first));
            }
        }
        before
    }

    /// The longest run, as (first, blocks).
    pub(crate) fn longest(&self) -> Option<(u32, u32)> {
        self.runs().reduce(|best, run| if run.1 > best.1 { run } else { best })
    }

    pub(crate) fn has_large_run(&self) -> bool {
        // A bit survives when the 2, 4, 8, 16 blocks from it on are free.
        let mut starts = self.0;
        let mut reach = 1;
        while reach < LARGE_RUN {
            for at in 0..WORDS {
                let above = starts.get(at + 1).copied().unwrap_or(0);
                starts[at] &= starts[at] >> reach | above << (64 - reach);
            }
            reach *= 2;
        }
        starts.iter().any(|&word| word != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_search_goes_on_from_the_cursor_and_wraps() {
        let mut bits = ChunkBits([!0; WORDS]);
        bits.take(10, 100);
        assert_eq!(bits.find(0, 10), Some(0));
        assert_eq!(bits.find(4, 10), Some(110));
        assert_eq!(bits.find(250, 10), Some(0));
        assert_eq!(bits.find(250, 146), Some(110));
        assert_eq!(bits.find(0, 147), None);
        assert_eq!(bits.longest(), Some((110, 146)));
    }

    proptest! {
        #[test]
        fn a_large_run_is_one_of_sixteen_blocks(
            taken in prop::collection::vec((0u32..256, 1u32..20), 0..24),
        ) {
            let mut free = [true; 256];
            for (first, blocks) in taken {
                free[first as usize..((first + blocks) as usize).min(256)].fill(false);
            }
            let mut words = [0u64; WORDS];
            for (at, _) in free.iter().enumerate().filter(|(_, free)| **free) {
                words[at / 64] |= 1 << (at % 64);
            }
            let bits = ChunkBits(words);
            let longest = bits.longest().map_or(0, |run| run.1);
            prop_assert_eq!(bits.has_large_run(), longest >= LARGE_RUN);
            prop_assert_eq!(free.split(|free| !free).map(<[bool]>::len).max(), Some(longest as usize));
        }
    }
}
