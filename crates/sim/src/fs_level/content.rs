//! The contents of a file: every version since the last one that is known to be durable.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use copyhold_types::{BLOCK_BYTES, Timestamp};

use super::span::Span;

const BLOCK: u64 = BLOCK_BYTES as u64;
static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// The bytes of a file at one moment; a clone shares the blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    size: u64,
    /// Missing blocks are zero, as are bytes behind the size.
    blocks: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl Content {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Content {
        let mut content = Content::default();
        content.write(0, bytes);
        content
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn block(&self, block: u64) -> &[u8] {
        self.blocks.get(&block).map_or(&ZEROS, |bytes| bytes)
    }

    /// Blocks that hold something.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &[u8]> {
        self.blocks.values().map(|bytes| &bytes[..])
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.change(offset, bytes.len() as u64, |at, part| {
            part.copy_from_slice(&bytes[at..at + part.len()]);
        });
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    /// Zeros where there is content; the size stays.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let end = (offset + len).min(self.size);
        if offset < end {
            self.change(offset, end - offset, |_, part| part.fill(0));
        }
    }

    pub(crate) fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    pub(crate) fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = (offset + len).min(self.size);
        let part = |(block, part): (u64, Range<usize>)| &self.block(block)[part];
        pieces(offset, end.saturating_sub(offset)).flat_map(part).copied().collect()
    }

    /// Gives each block that is concerned its new part, with where in the change that begins.
    fn change(&mut self, offset: u64, len: u64, fill: impl Fn(usize, &mut [u8])) {
        let mut at = 0;
        for (block, part) in pieces(offset, len) {
            let block = self.blocks.entry(block).or_insert_with(|| Arc::new(ZEROS.to_vec()));
            let part = &mut Arc::make_mut(block)[part];
            fill(at, part);
            at += part.len();
        }
    }
}

/// A range by blocks, and what it has of each.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = offset + len;
    let blocks = offset / BLOCK..end.div_ceil(BLOCK).max(offset / BLOCK);
    blocks.filter(move |_| len > 0).map(move |block| {
        let (first, next) = (block * BLOCK, (block + 1) * BLOCK);
        (block, (offset.max(first) - first) as usize..(end.min(next) - first) as usize)
    })
}

/// All that a file may hold after a crash.
#[derive(Clone, Debug, Default)]
pub(crate) struct Versions {
    all: Vec<Content>,
    /// The operation that made each of them, for messages.
    names: Vec<&'static str>,
    /// When each was made.
    times: Vec<Span>,
    /// Versions whose operation has returned; a later one may be under way.
    done: usize,
    /// The oldest version that may still be found.
    synced: usize,
    /// A close has made the content of this version durable, and perhaps not its times.
    closed: usize,
}

impl Versions {
    pub(crate) fn of(content: Content, time: Span) -> Versions {
        let (all, names, times) = (vec![content], vec!["base"], vec![time]);
        Versions { all, names, times, done: 0, synced: 0, closed: 0 }
    }

    pub(crate) fn now(&self) -> &Content {
        self.all.last().expect("there is always a version")
    }

    /// An operation begins that will make this of the file.
    pub(crate) fn begin(&mut self, name: &'static str, content: Content, time: Span) {
        self.all.push(content);
        self.names.push(name);
        self.times.push(time);
    }

    pub(crate) fn end(&mut self, now: Timestamp) {
        self.done = self.all.len() - 1;
        self.times[self.done].end(now);
    }

    /// The operation was refused, and changed nothing.
    pub(crate) fn take_back(&mut self) {
        self.all.pop();
        self.names.pop();
        self.times.pop();
    }

    /// When the last change was that has not been made durable since, and those behind it.
    pub(crate) fn times(&self, least: usize) -> &[Span] {
        &self.times[self.synced.max(least)..]
    }

    /// When the last change was.
    pub(crate) fn time(&self) -> Span {
        *self.times.last().expect("there is always a version")
    }

    /// The version that an fsync beginning now makes durable.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    pub(crate) fn synced(&mut self, version: usize) {
        self.synced = self.synced.max(version);
    }

    pub(crate) fn closed(&mut self, version: usize) {
        self.closed = self.closed.max(version);
    }

    /// The oldest version that may still be found.
    pub(crate) fn least(&self) -> usize {
        self.synced
    }

    /// Whether each block of `bytes`, which begin with a whole one, was in its place once, or is
    /// nothing.
    pub(crate) fn ever_held(&self, offset: u64, bytes: &[u8]) -> bool {
        bytes.chunks(BLOCK_BYTES).zip(offset / BLOCK..).all(|(bytes, block)| {
            let was = |version: &Content| version.block(block)[..bytes.len()] == *bytes;
            self.all.iter().any(was) || bytes.iter().all(|byte| *byte == 0)
        })
    }

    /// The error in `found`, which must consist of versions not older than `least`.
    pub(crate) fn problem(&self, found: &[u8], least: usize) -> Option<String> {
        let (synced, names) = (self.synced.max(self.closed), &self.names);
        let history = || format!("synced {synced}, at least {least} of {names:?}");
        let versions = &self.all[synced.max(least)..];
        let sizes = || versions.iter().map(|version| version.size);
        let (short, long) = (sizes().min().expect("one"), sizes().max().expect("one"));
        let size = found.len() as u64;
        if size < short || size > long {
            let history = history();
            return Some(format!("its size is {size}, not between {short} and {long}; {history}"));
        }
        for (block, bytes) in found.chunks(BLOCK_BYTES).enumerate() {
            let was = |version: &Content| version.block(block as u64)[..bytes.len()] == *bytes;
            if !versions.iter().any(was) {
                let of = versions.len();
                let zero = bytes.iter().all(|byte| *byte == 0);
                let what = if zero { "zeros" } else { "not what it ever was" };
                let history = history();
                return Some(format!("block {block} is {what}, by {of} versions; {history}"));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_zero_when_the_file_grows_again() {
        let mut content = Content::from_bytes(&[7; 5000]);
        content.set_size(100);
        content.set_size(6000);
        assert_eq!(content.read(90, 20), [[7; 10], [0; 10]].concat());
        assert_eq!(content.read(5990, 100).len(), 10);
    }

    #[test]
    fn each_block_may_be_of_another_version_but_of_one() {
        let mut versions = Versions::of(Content::from_bytes(&[1; 2 * BLOCK_BYTES]), Span::Any);
        versions.begin("write", Content::from_bytes(&[2; 2 * BLOCK_BYTES]), Span::Any);
        versions.end(Timestamp::default());
        let of = |a: u8, b: u8| [[a; BLOCK_BYTES], [b; BLOCK_BYTES]].concat();
        for (a, b) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            assert_eq!(versions.problem(&of(a, b), 0), None);
        }
        let mut mixed = of(1, 1);
        mixed[0] = 2;
        assert!(versions.problem(&mixed, 0).is_some());
        versions.synced(versions.done());
        assert!(versions.problem(&of(1, 2), 0).is_some());
        assert!(versions.problem(&[2; 10], 0).is_some());
    }
}
