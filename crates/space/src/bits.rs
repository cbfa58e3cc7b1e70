//! A bitmap of blocks that takes the memory of its mixed parts only.
//!
//! Problem.  A map of 16 GiB is half a megabyte, also if all of it is free; a pool of 100 TiB has
//!           6,400 of them.
//! Idea.     The bitmap is cut into segments of 4,096 blocks. A segment with both values has its 64
//!           words; of any other one bit says which value all of its blocks have.
//!
//! BITS-B1  A segment has words if and only if its blocks have both values.
//! BITS-B2  Bits beyond the last block are clear.
//!
//! Costs.    An empty bitmap allocates nothing, a uniform one a bit per segment. The first mixed
//!           segment costs 8 bytes per segment of the bitmap, each one 512 bytes.

use crate::layout::CHUNK_BLOCKS;

const SEGMENT_WORDS: usize = 64;
const SEGMENT_BLOCKS: u32 = SEGMENT_WORDS as u32 * 64;
const CHUNK_WORDS: usize = CHUNK_BLOCKS as usize / 64;

type Words = [u64; SEGMENT_WORDS];

/// One bit per block of a metaslab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits {
    blocks: u32,
    /// One bit per segment without words: the value of its blocks. Empty: none is set.
    full: Vec<u64>,
    /// By segment; empty: none has words.
    mixed: Vec<Option<Box<Words>>>,
    mixed_count: u32,
}

impl Bits {
    /// All clear.
    pub(crate) fn new(blocks: u32) -> Bits {
        Bits { blocks, ..Bits::default() }
    }

    pub(crate) fn all(blocks: u32) -> Bits {
        let mut bits = Bits::new(blocks);
        bits.set(0, blocks);
        bits
    }

    pub(crate) fn from_words(blocks: u32, words: &[u64]) -> Bits {
        assert_eq!(words.len(), blocks.div_ceil(64) as usize, "words of {blocks} blocks");
        let mut bits = Bits::new(blocks);
        for (segment, words) in words.chunks(SEGMENT_WORDS).enumerate() {
            let mut all = [0; SEGMENT_WORDS];
            all[..words.len()].copy_from_slice(words);
            bits.put(segment, &all);
        }
        bits
    }

    pub(crate) fn to_words(&self) -> Vec<u64> {
        (0..self.blocks.div_ceil(64) as usize).map(|at| self.word(at)).collect()
    }

    /// Appends clear bits, up to `blocks` in all.
    pub(crate) fn lengthen(&mut self, blocks: u32) {
        let mut words = self.to_words();
        words.resize(blocks.div_ceil(64) as usize, 0);
        *self = Bits::from_words(blocks, &words);
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The memory of its parts.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.full[..])
            + size_of_val(&self.mixed[..])
            + self.mixed_count as usize * size_of::<Words>()
    }

    /// The most that [`Self::bytes`] can be.
    pub(crate) fn bytes_max(blocks: u32) -> usize {
        let segments = blocks.div_ceil(SEGMENT_BLOCKS) as usize;
        let mixed = size_of::<Option<Box<Words>>>() + size_of::<Words>();
        segments.div_ceil(64) * size_of::<u64>() + segments * mixed
    }

    /// The blocks of segments with both values.
    pub(crate) fn mixed_blocks(&self) -> u32 {
        self.mixed_count * SEGMENT_BLOCKS
    }

    fn segments(&self) -> usize {
        self.blocks.div_ceil(SEGMENT_BLOCKS) as usize
    }

    fn words_of(&self, segment: usize) -> Option<&Words> {
        self.mixed.get(segment)?.as_deref()
    }

    fn is_full(&self, segment: usize) -> bool {
        self.full.get(segment / 64).is_some_and(|word| word >> (segment % 64) & 1 != 0)
    }

    fn set_full(&mut self, segment: usize, value: bool) {
        if value && self.full.is_empty() {
            self.full = vec![0; self.segments().div_ceil(64)];
        }
        if let Some(word) = self.full.get_mut(segment / 64) {
            let bit = 1 << (segment % 64);
            *word = if value { *word | bit } else { *word & !bit };
        }
    }

    /// The word with the bits of a segment's existing blocks.
    fn limit(&self, at: usize) -> u64 {
        let left = self.blocks.saturating_sub(at as u32 * 64);
        if left >= 64 { !0 } else { (1 << left) - 1 }
    }

    fn word(&self, at: usize) -> u64 {
        let segment = at / SEGMENT_WORDS;
        match self.words_of(segment) {
            Some(words) => words[at % SEGMENT_WORDS],
            None if self.is_full(segment) => self.limit(at),
            None => 0,
        }
    }

    /// Makes these the words of a segment.
    fn put(&mut self, segment: usize, words: &Words) {
        let first = segment * SEGMENT_WORDS;
        let is_full = (0..SEGMENT_WORDS).all(|at| words[at] == self.limit(first + at));
        if is_full || *words == [0; SEGMENT_WORDS] {
            self.make_uniform(segment, is_full);
        } else {
            *self.make_mixed(segment) = *words;
        }
    }

    fn make_uniform(&mut self, segment: usize, value: bool) {
        let words = self.mixed.get_mut(segment).and_then(Option::take);
        self.mixed_count -= u32::from(words.is_some());
        self.set_full(segment, value);
    }

    fn make_mixed(&mut self, segment: usize) -> &mut Words {
        if self.words_of(segment).is_none() {
            let first = segment * SEGMENT_WORDS;
            let words = std::array::from_fn(|at| self.word(first + at));
            if self.mixed.is_empty() {
                self.mixed = vec![None; self.segments()];
            }
            self.set_full(segment, false);
            self.mixed[segment] = Some(Box::new(words));
            self.mixed_count += 1;
        }
        self.mixed[segment].as_mut().expect("made above")
    }

    pub(crate) fn set(&mut self, first: u32, blocks: u32) {
        self.assign(first, blocks, true);
    }

    pub(crate) fn clear(&mut self, first: u32, blocks: u32) {
        self.assign(first, blocks, false);
    }

    fn assign(&mut self, first: u32, blocks: u32, value: bool) {
        assert!(first + blocks <= self.blocks, "{first}+{blocks} of {} blocks", self.blocks);
        for (segment, within, count) in parts(first, blocks, SEGMENT_BLOCKS) {
            let size = (self.blocks - segment as u32 * SEGMENT_BLOCKS).min(SEGMENT_BLOCKS);
            if count == size {
                self.make_uniform(segment, value);
            } else if self.words_of(segment).is_some() || self.is_full(segment) != value {
                self.assign_within(segment, within, count, value);
            }
        }
    }

    fn assign_within(&mut self, segment: usize, within: u32, count: u32, value: bool) {
        let first = segment * SEGMENT_WORDS;
        let words = self.make_mixed(segment);
        let mut last = 0;
        for (at, mask) in masks(within, count) {
            words[at] = if value { words[at] | mask } else { words[at] & !mask };
            last = at;
        }
        let wanted = |bits: &Bits, at| if value { bits.limit(first + at) } else { 0 };
        let is_wanted = |bits: &Bits, at| bits.word(first + at) == wanted(bits, at);
        // Nearly always the first look says no.
        if is_wanted(self, last) && (0..SEGMENT_WORDS).all(|at| is_wanted(self, at)) {
            self.make_uniform(segment, value);
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count_in(0, self.blocks)
    }

    /// Set bits of `[first, first + blocks)`.
    pub(crate) fn count_in(&self, first: u32, blocks: u32) -> u32 {
        let in_part = |(segment, within, count)| match self.words_of(segment) {
            Some(words) => {
                masks(within, count).map(|(at, mask)| (words[at] & mask).count_ones()).sum()
            }
            None => u32::from(self.is_full(segment)) * count,
        };
        parts(first, blocks, SEGMENT_BLOCKS).map(in_part).sum()
    }

    pub(crate) fn all_set(&self, first: u32, blocks: u32) -> bool {
        parts(first, blocks, SEGMENT_BLOCKS).all(|(segment, within, count)| {
            match self.words_of(segment) {
                Some(words) => masks(within, count).all(|(at, mask)| words[at] & mask == mask),
                None => self.is_full(segment),
            }
        })
    }

    pub(crate) fn all_clear(&self, first: u32, blocks: u32) -> bool {
        parts(first, blocks, SEGMENT_BLOCKS).all(|(segment, within, count)| {
            match self.words_of(segment) {
                Some(words) => masks(within, count).all(|(at, mask)| words[at] & mask == 0),
                None => !self.is_full(segment),
            }
        })
    }

    /// The blocks of one chunk.
    pub(crate) fn chunk(&self, at: usize) -> [u64; CHUNK_WORDS] {
        std::array::from_fn(|word| self.word(at * CHUNK_WORDS + word))
    }

    /// The blocks that are clear here.
    pub(crate) fn complement(&self) -> Bits {
        let mut bits = Bits::new(self.blocks);
        for segment in 0..self.segments() {
            match self.words_of(segment) {
                Some(words) => {
                    let limit = |at| self.limit(segment * SEGMENT_WORDS + at);
                    *bits.make_mixed(segment) = std::array::from_fn(|at| !words[at] & limit(at));
                }
                None => bits.set_full(segment, !self.is_full(segment)),
            }
        }
        bits
    }

    /// The first block from `at` on with this value; the end if none has.
    fn seek(&self, mut at: u32, value: bool) -> u32 {
        while at < self.blocks {
            let segment = (at / SEGMENT_BLOCKS) as usize;
            let behind = ((segment as u32 + 1) * SEGMENT_BLOCKS).min(self.blocks);
            match self.words_of(segment) {
                None if self.is_full(segment) == value => return at,
                None => at = behind,
                Some(words) => {
                    let flip = if value { 0 } else { !0 };
                    let mut word = (at % SEGMENT_BLOCKS / 64) as usize;
                    let mut bits = (words[word] ^ flip) & (!0 << (at % 64));
                    while bits == 0 && word + 1 < SEGMENT_WORDS {
                        word += 1;
                        bits = words[word] ^ flip;
                    }
                    let found = segment as u32 * SEGMENT_BLOCKS + word as u32 * 64;
                    let found = found.saturating_add(bits.trailing_zeros());
                    if bits != 0 && found < behind {
                        return found;
                    }
                    at = behind;
                }
            }
        }
        self.blocks
    }

    /// Cuts a run where the value changes: (first, blocks, value).
    pub(crate) fn pieces(
        &self,
        first: u32,
        blocks: u32,
    ) -> impl Iterator<Item = (u32, u32, bool)> + '_ {
        let (mut at, end) = (first, first + blocks);
        std::iter::from_fn(move || {
            let first = at;
            let value = first < end && self.all_set(first, 1);
            at = self.seek(first, !value).min(end);
            (first < end).then(|| (first, at - first, value))
        })
    }

    /// Runs of set bits, as (first, blocks).
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.runs_from(0)
    }

    /// Runs of set bits from `first` on, of which one that lies across it is the first.
    pub(crate) fn runs_from(&self, first: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut at = first;
        std::iter::from_fn(move || {
            let first = self.seek(at, true);
            at = self.seek(first, false);
            (at > first).then(|| (first, at - first))
        })
    }
}

/// Cuts a run at multiples of `size`: (part, first block in it, blocks in it).
pub(crate) fn parts(first: u32, blocks: u32, size: u32) -> impl Iterator<Item = (usize, u32, u32)> {
    let end = first + blocks;
    let mut at = first;
    std::iter::from_fn(move || {
        let within = at % size;
        let count = (size - within).min(end - at);
        let part = (at / size) as usize;
        at += count;
        (count > 0).then_some((part, within, count))
    })
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

    /// Three segments, the last of which is short.
    const BLOCKS: u32 = 2 * SEGMENT_BLOCKS + 1000;

    fn check(bits: &Bits) {
        for segment in 0..bits.segments() {
            let first = segment as u32 * SEGMENT_BLOCKS;
            let size = (bits.blocks - first).min(SEGMENT_BLOCKS);
            let count = bits.count_in(first, size);
            let is_mixed = count > 0 && count < size;
            assert_eq!(bits.words_of(segment).is_some(), is_mixed, "BITS-B1: segment {segment}");
            assert!(!is_mixed || !bits.is_full(segment), "BITS-B1: segment {segment}");
        }
        let mixed = bits.mixed.iter().flatten().count();
        assert_eq!(bits.mixed_count as usize, mixed);
        let words = bits.to_words();
        assert_eq!(words.last().unwrap() >> (bits.blocks % 64), 0, "BITS-B2");
        let again = Bits::from_words(bits.blocks, &words);
        assert_eq!(again.to_words(), words);
    }

    #[test]
    fn runs_cross_words_and_segments() {
        let mut bits = Bits::new(3 * SEGMENT_BLOCKS);
        bits.set(60, 140);
        bits.clear(100, 1);
        bits.set(SEGMENT_BLOCKS - 10, SEGMENT_BLOCKS + 20);
        let wanted = [(60, 40), (101, 99), (SEGMENT_BLOCKS - 10, SEGMENT_BLOCKS + 20)];
        assert_eq!(bits.runs().collect::<Vec<_>>(), wanted);
        assert_eq!(bits.count_in(90, 20), 19);
    }

    #[test]
    fn a_bitmap_takes_the_memory_of_its_mixed_segments() {
        let blocks = 1 << 22;
        assert_eq!(Bits::new(blocks).bytes(), 0);
        let mut bits = Bits::all(blocks);
        assert_eq!(bits.bytes(), 1024 / 8);
        bits.clear(7 * SEGMENT_BLOCKS, 100);
        assert_eq!(bits.bytes(), 1024 / 8 + 1024 * 8 + 512);
        bits.clear(7 * SEGMENT_BLOCKS + 100, SEGMENT_BLOCKS - 100);
        bits.set(7 * SEGMENT_BLOCKS, SEGMENT_BLOCKS);
        assert_eq!(bits.bytes(), 1024 / 8 + 1024 * 8, "the segment is uniform again");
    }

    proptest! {
        #[test]
        fn bits_behave_as_a_vector_of_flags(
            steps in prop::collection::vec(
                (any::<bool>(), 0u32..BLOCKS, prop_oneof![0u32..130, Just(SEGMENT_BLOCKS)]),
                0..30,
            ),
            begins_full in any::<bool>(),
        ) {
            let mut bits = if begins_full { Bits::all(BLOCKS) } else { Bits::new(BLOCKS) };
            let mut model = vec![begins_full; BLOCKS as usize];
            for (value, first, blocks) in steps {
                // Whole segments now and then.
                let whole = first / SEGMENT_BLOCKS * SEGMENT_BLOCKS;
                let first = if blocks == SEGMENT_BLOCKS { whole } else { first };
                let blocks = blocks.min(BLOCKS - first);
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
                check(&bits);
                let flags: Vec<u32> = bits.runs().flat_map(|(at, n)| at..at + n).collect();
                let want: Vec<u32> = (0..BLOCKS).filter(|&i| model[i as usize]).collect();
                let from = bits.runs_from(first).flat_map(|(at, n)| at..at + n).collect::<Vec<_>>();
                let (_, behind) = want.split_at(want.partition_point(|&block| block < first));
                prop_assert_eq!(from, behind);
                prop_assert_eq!(bits.count() as usize, want.len());
                let pieces = || bits.pieces(first, (2 * blocks + 7).min(BLOCKS - first));
                let mut behind = first;
                for (at, n, value) in pieces() {
                    prop_assert_eq!((at, n > 0), (behind, true));
                    prop_assert!((at..at + n).all(|at| model[at as usize] == value));
                    behind = at + n;
                }
                prop_assert_eq!(behind, (first + 2 * blocks + 7).min(BLOCKS));
                let values: Vec<bool> = pieces().map(|piece| piece.2).collect();
                prop_assert!(values.is_sorted_by(|a, b| a != b));
                let chunk = (first / CHUNK_BLOCKS) as usize;
                let end = ((chunk as u32 + 1) * CHUNK_BLOCKS).min(BLOCKS);
                let in_chunk = bits.count_in(chunk as u32 * CHUNK_BLOCKS, end - chunk as u32 * CHUNK_BLOCKS);
                let words = bits.chunk(chunk);
                let ones = words.iter().map(|word| word.count_ones()).sum::<u32>();
                prop_assert_eq!(ones, in_chunk);
                prop_assert_eq!(flags, want);
            }
        }

        #[test]
        fn a_complement_has_what_the_bitmap_does_not_have(
            runs in prop::collection::vec((0u32..BLOCKS, 0u32..5000), 0..12),
        ) {
            let mut bits = Bits::new(BLOCKS);
            runs.iter().for_each(|&(first, blocks)| bits.set(first, blocks.min(BLOCKS - first)));
            let mut wanted = Bits::all(BLOCKS);
            bits.runs().for_each(|(first, blocks)| wanted.clear(first, blocks));
            check(&bits.complement());
            prop_assert_eq!(bits.complement().to_words(), wanted.to_words());
        }
    }
}
