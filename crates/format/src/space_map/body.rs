//! The two bodies of a space map, SPACEMAP-F1 and SPACEMAP-F2.

use crate::FormatError;
use crate::wire::{Reader, put_varint};

use super::error::{WHAT, field};

const RUNS: u8 = 0;
const BITMAP: u8 = 1;

/// Runs of set bits in order, as (first, length). Bit `i % 64` of word `i / 64` is number `i`.
pub fn runs(words: &[u64]) -> RunsOf<'_> {
    RunsOf { words, at: 0 }
}

/// See [`runs`].
#[derive(Clone, Debug)]
pub struct RunsOf<'a> {
    words: &'a [u64],
    at: u32,
}

impl RunsOf<'_> {
    /// First bit from `at` on that is set (or clear, with `flip` all ones); the end if none is.
    fn seek(&self, at: u32, flip: u64) -> u32 {
        let mut index = at as usize / 64;
        let Some(&word) = self.words.get(index) else { return at };
        let mut word = (word ^ flip) & (!0 << (at % 64));
        while word == 0 {
            index += 1;
            match self.words.get(index) {
                Some(&next) => word = next ^ flip,
                None => return index as u32 * 64,
            }
        }
        index as u32 * 64 + word.trailing_zeros()
    }
}

impl Iterator for RunsOf<'_> {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        let first = self.seek(self.at, 0);
        let end = self.seek(first, !0);
        self.at = end;
        (end > first).then_some((first, end - first))
    }
}

/// Whether `words` are as many as `blocks` need and name none beyond them.
pub(super) fn fits(words: &[u64], blocks: u32) -> bool {
    let beyond = match (words.last(), blocks % 64) {
        (Some(&last), bits @ 1..) => last >> bits != 0,
        _ => false,
    };
    words.len() == blocks.div_ceil(64) as usize && !beyond
}

/// The smaller of both bodies and its kind.
pub(super) fn encode(words: &[u64]) -> (u8, Vec<u8>) {
    let mut body = Vec::new();
    let mut end = None;
    for (first, blocks) in runs(words) {
        let gap = match end {
            Some(end) => first - end - 1,
            None => first,
        };
        put_varint(&mut body, gap.into());
        put_varint(&mut body, (blocks - 1).into());
        if body.len() >= size_of_val(words) {
            return (BITMAP, words.iter().flat_map(|word| word.to_le_bytes()).collect());
        }
        end = Some(first + blocks);
    }
    (RUNS, body)
}

pub(super) fn parse(kind: u8, body: &[u8], blocks: u32) -> Result<Vec<u64>, FormatError> {
    match kind {
        RUNS => parse_runs(body, blocks),
        BITMAP => parse_bitmap(body, blocks),
        _ => Err(field("body", kind.into())),
    }
}

fn parse_bitmap(body: &[u8], blocks: u32) -> Result<Vec<u64>, FormatError> {
    let (words, rest) = body.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
    if !rest.is_empty() || words.len() != blocks.div_ceil(64) as usize {
        return Err(field("body_len", body.len() as u64));
    }
    if !fits(&words, blocks) {
        return Err(beyond(blocks));
    }
    Ok(words)
}

fn parse_runs(body: &[u8], blocks: u32) -> Result<Vec<u64>, FormatError> {
    let mut words = vec![0u64; blocks.div_ceil(64) as usize];
    let mut reader = Reader::new(WHAT, body);
    let mut end = None;
    while !reader.is_empty() {
        let gap = reader.bounded("gap", blocks.into())? as u32;
        let length = reader.bounded("length", blocks.into())? as u32 + 1;
        let first = end.map_or(gap, |end: u32| end + 1 + gap);
        if first + length > blocks {
            return Err(beyond(blocks));
        }
        set(&mut words, first, length);
        end = Some(first + length);
    }
    Ok(words)
}

fn set(words: &mut [u64], first: u32, length: u32) {
    masks(first, length).for_each(|(word, mask)| words[word] |= mask);
}

/// The words that a run touches, each with the bits of the run.
pub(super) fn masks(first: u32, length: u32) -> impl Iterator<Item = (usize, u64)> {
    let end = first + length;
    let mut at = first;
    std::iter::from_fn(move || {
        let bits = (64 - at % 64).min(end - at);
        let item = (at as usize / 64, (!0u64).checked_shr(64 - bits)? << (at % 64));
        at += bits;
        Some(item)
    })
}

fn beyond(blocks: u32) -> FormatError {
    let detail = format!("a run goes beyond the {blocks} blocks of the metaslab");
    FormatError::Order { what: WHAT, detail }
}
