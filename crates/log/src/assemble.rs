//! One frame out of two copies of its blocks.
//!
//! Problem.  A frame has one digest over all of its blocks. With a bad block in the one copy and
//!           another bad block in the other neither copy verifies, though each block of the frame
//!           is good in one of them.
//! Idea.     Blocks that both copies have alike are settled, and so are those that only one copy
//!           can be read at. Of the others, which differ, each choice is tried.
//!
//! ASSEMBLE-N1  The returned content has verified as a whole; the choice of its parts proves
//!              nothing.

use std::borrow::Cow;
use std::ops::Range;

use copyhold_types::BLOCK_BYTES;

/// Blocks that may differ between the copies: each doubles the number of choices. A frame that
/// the power tore may differ in more, and is none.
const DISPUTED_MAX: usize = 8;

/// The blocks of a claimed frame in one copy.
pub(crate) struct Part<'a> {
    pub(crate) bytes: &'a [u8],
    /// Which of them could not be read, in ascending order.
    pub(crate) unreadable: Vec<usize>,
}

impl Part<'_> {
    fn block(&self, nth: usize) -> &[u8] {
        &self.bytes[nth * BLOCK_BYTES..(nth + 1) * BLOCK_BYTES]
    }

    fn can_read(&self, nth: usize) -> bool {
        self.unreadable.binary_search(&nth).is_err()
    }

    /// Runs of blocks that are not as in `good`.
    fn lacks(&self, good: &[u8]) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (nth, block) in good.chunks(BLOCK_BYTES).enumerate() {
            if self.can_read(nth) && self.block(nth) == block {
                continue;
            }
            let nth = nth as u64;
            match runs.last_mut() {
                Some(run) if run.end == nth => run.end += 1,
                _ => runs.push(nth..nth + 1),
            }
        }
        runs
    }
}

/// The verified content, and the blocks that each copy lacks of it.
pub(crate) type Assembled<T> = (T, [Vec<Range<u64>>; 2]);

/// Looks for verified content: in the first copy, in the second, then in both together.
pub(crate) fn assemble<T>(
    parts: &[Part<'_>; 2],
    whole_copies_only: bool,
    verify: impl Fn(&[u8]) -> Option<T>,
) -> Option<Assembled<T>> {
    let whole = |part: &Part<'_>| match part.unreadable.is_empty() {
        true => verify(part.bytes),
        false => None,
    };
    if let Some(found) = whole(&parts[0]) {
        let lacks_nothing = parts[1].bytes == parts[0].bytes || whole(&parts[1]).is_some();
        let second = if lacks_nothing { Vec::new() } else { parts[1].lacks(parts[0].bytes) };
        return Some((found, [Vec::new(), second]));
    }
    if let Some(found) = whole(&parts[1]) {
        return Some((found, [parts[0].lacks(parts[1].bytes), Vec::new()]));
    }
    if whole_copies_only {
        return None;
    }
    let (good, found) = mix(parts, verify)?;
    Some((found, parts.each_ref().map(|part| part.lacks(&good))))
}

/// Tries each choice of blocks that neither copy alone makes.
fn mix<T>(parts: &[Part<'_>; 2], verify: impl Fn(&[u8]) -> Option<T>) -> Option<(Vec<u8>, T)> {
    let [first, second] = parts;
    let mut mixed = Cow::Borrowed(first.bytes);
    let mut disputed = Vec::new();
    for nth in 0..first.bytes.len() / BLOCK_BYTES {
        match (first.can_read(nth), second.can_read(nth)) {
            (true, true) if first.block(nth) == second.block(nth) => {}
            (true, true) => disputed.push(nth),
            (true, false) => {}
            (false, true) => put(&mut mixed, nth, second),
            (false, false) => return None,
        }
    }
    if disputed.len() > DISPUTED_MAX {
        return None;
    }
    for choice in 0_u32..1 << disputed.len() {
        for (bit, &nth) in disputed.iter().enumerate() {
            put(&mut mixed, nth, &parts[(choice >> bit & 1) as usize]);
        }
        if let Some(found) = verify(&mixed) {
            return Some((mixed.into_owned(), found));
        }
    }
    None
}

fn put(mixed: &mut Cow<'_, [u8]>, nth: usize, from: &Part<'_>) {
    mixed.to_mut()[nth * BLOCK_BYTES..(nth + 1) * BLOCK_BYTES].copy_from_slice(from.block(nth));
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // one range is meant
mod tests {
    use super::*;

    const BLOCKS: usize = 12;

    fn good() -> Vec<u8> {
        (0..BLOCKS).flat_map(|nth| vec![nth as u8 + 1; BLOCK_BYTES]).collect()
    }

    fn without(blocks: &[usize]) -> Vec<u8> {
        let mut bytes = good();
        blocks.iter().for_each(|nth| bytes[nth * BLOCK_BYTES + 7] ^= 0x40);
        bytes
    }

    fn found(bytes: [&[u8]; 2], unreadable: [&[usize]; 2]) -> Option<Assembled<()>> {
        let part = |copy: usize| Part { bytes: bytes[copy], unreadable: unreadable[copy].to_vec() };
        assemble(&[part(0), part(1)], false, |bytes| (bytes == good()).then_some(()))
    }

    #[test]
    fn each_block_is_taken_from_the_copy_that_has_it() {
        let (one, other) = (without(&[0, 5, 6]), without(&[3]));
        let (_, lacks) = found([&one, &other], [&[], &[]]).expect("no block is bad in both");
        assert_eq!(lacks, [vec![0..1, 5..7], vec![3..4]]);
        let (_, lacks) = found([&one, &other], [&[2], &[7, 8]]).expect("it still is");
        assert_eq!(lacks, [vec![0..1, 2..3, 5..7], vec![3..4, 7..9]]);
    }

    #[test]
    fn one_whole_copy_is_enough_whatever_the_other_is() {
        let (whole, torn) = (good(), without(&Vec::from_iter(0..BLOCKS)));
        let (_, lacks) = found([&whole, &torn], [&[], &[1]]).expect("the first is whole");
        assert_eq!(lacks, [vec![], vec![0..BLOCKS as u64]]);
        let (_, lacks) = found([&torn, &whole], [&[], &[]]).expect("the second is whole");
        assert_eq!(lacks, [vec![0..BLOCKS as u64], vec![]]);
    }

    #[test]
    fn a_block_that_is_bad_in_both_copies_is_not_made_up() {
        assert!(found([&without(&[4]), &without(&[4, 5])], [&[], &[]]).is_none());
        assert!(found([&good(), &without(&[4])], [&[4], &[]]).is_none());
        assert!(found([&good(), &good()], [&[4], &[4]]).is_none());
    }

    #[test]
    fn a_torn_frame_does_not_take_for_ever() {
        let (one, other) = (without(&[0, 2, 4, 6, 8]), without(&[1, 3, 5, 7]));
        assert!(found([&one, &other], [&[], &[]]).is_none());
    }
}
