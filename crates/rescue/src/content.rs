//! The content of a file (`docs/format.md`, 9 and 9.5): blocks in their order, holes left out.
//!
//! Unreadable parts are reported as lost, with their ranges, and the reader continues after them.
//! Ranges neither given nor lost read as zeros.
//!
//! A lost extent may have reached behind the keys that are lost with it: to the next extent, or to
//! the end of its window of the file. Those blocks are lost, too.
//!
//! The digest of a content is over the blocks that are not all zeros, each with its number, and
//! then the size. So a hole, an unwritten extent and zeros that were written are the same, and a
//! file that is mostly holes is digested at once.

use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

use crate::damage::{Damage, demand};
use crate::extent::{EXTENT_BLOCKS, Extent};
use crate::files::Files;
use crate::inode::{FileKind, Inode};
use crate::key::{EXTENT, INLINE, Key};
use crate::source::{BLOCK, Source, read};
use crate::tables::Found;
use crate::tuples::Tuples;

/// A part of a file.
#[derive(Debug)]
pub enum Chunk<'a> {
    /// Bytes from an offset on, within the size of the file.
    Data { offset: u64, bytes: &'a [u8] },
    /// Bytes that were there, or may have been, and that nothing gives any more.
    Lost { offset: u64, length: u64, damage: &'a Damage },
}

/// The digest of a content.
#[derive(Default)]
pub struct ContentDigest(Xxh3);

impl ContentDigest {
    /// Takes `bytes`, which begin at a block, and of which only the last block may be short.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        for (block, nth) in bytes.chunks(BLOCK).zip(0..) {
            let end = block.iter().rposition(|byte| *byte != 0);
            if let Some(end) = end {
                self.0.update(&(offset / BLOCK as u64 + nth).to_le_bytes());
                self.0.update(&(end as u64).to_le_bytes());
                self.0.update(&block[..=end]);
            }
        }
    }

    /// The digest of a content of `size` bytes.
    pub fn finish(mut self, size: u64) -> u128 {
        self.0.update(&size.to_le_bytes());
        self.0.digest128()
    }

    /// The digest of a content that is in memory.
    pub fn of(bytes: &[u8]) -> u128 {
        let mut digest = ContentDigest::default();
        digest.add(0, bytes);
        digest.finish(bytes.len() as u64)
    }
}

/// Gives the content of a regular file to `take`, in the order of offsets.
pub(crate) fn read_content(files: &Files<'_>, inode: &Inode, take: &mut dyn FnMut(Chunk<'_>)) {
    debug_assert!(inode.kind == FileKind::Regular);
    let (source, tuples, size) = (files.source, files.tuples, inode.size);
    let mut reader = Reader { source, tuples, size, at: 0, reach: None, take };
    if inode.inline {
        reader.inline(files.get(Key::new(inode.number, INLINE, 0)));
    }
    let last = inode.size.div_ceil(BLOCK as u64);
    let Some(last) = last.checked_sub(1) else { return };
    let (first, last) = (Key::new(inode.number, EXTENT, 0), Key::new(inode.number, EXTENT, last));
    files.scan(first, last, |found| match found {
        Found::Item(key, value) => reader.extent(key.offset, value),
        Found::Lost { first, last, damage } => {
            reader.lost_extents(first.offset, last.offset, damage);
        }
    });
    reader.lost_reach(u64::MAX);
}

struct Reader<'a> {
    source: &'a dyn Source,
    tuples: Option<&'a Tuples>,
    size: u64,
    /// File blocks before this one have been given.
    at: u64,
    /// Blocks that a lost extent may have reached, and why it is lost.
    reach: Option<(Range<u64>, Damage)>,
    take: &'a mut dyn FnMut(Chunk<'_>),
}

impl Reader<'_> {
    /// Block 0 of a tiny file is an item.
    fn inline(&mut self, item: Result<Option<Box<[u8]>>, Damage>) {
        match item {
            Ok(Some(bytes)) => self.data(0, &bytes),
            Ok(None) => self.lost(0, 1, &Damage::new("the content", "its item is missing")),
            Err(damage) => self.lost(0, 1, &damage),
        }
        self.at = 1;
    }

    fn extent(&mut self, start: u64, value: &[u8]) {
        let wrong = |why| Damage::new(format!("the extent at block {start}"), why);
        let extent = match Extent::parse(start, value) {
            Ok(extent) => extent,
            Err(why) => return self.lost_extents(start, start, &wrong(why)),
        };
        if self.reach.as_ref().is_some_and(|(blocks, _)| start >= blocks.start) {
            self.lost_reach(start);
        }
        if let Err(why) = demand(start >= self.at, "it overlaps the one before") {
            return self.lost(start, extent.end(), &wrong(why));
        }
        self.at = extent.end();
        if !extent.unwritten {
            self.read(&extent);
        }
    }

    fn read(&mut self, extent: &Extent) {
        let start = extent.start;
        let bytes = read(self.source, extent.address, extent.blocks);
        let verified =
            bytes.and_then(|bytes| Ok((extent.verify(self.source, self.tuples, &bytes)?, bytes)));
        match verified {
            Ok((good, bytes)) => self.verified(extent, &good, &bytes),
            Err(damage) if extent.blocks == 1 => self.lost(start, start + 1, &damage),
            // Some of its blocks may be readable.
            Err(_) => extent.each_block().for_each(|block| self.read(&block)),
        }
    }

    /// Gives the blocks that match their checksums, runs of them at once.
    fn verified(&mut self, extent: &Extent, good: &[bool], bytes: &[u8]) {
        let mut nth = 0;
        for run in good.chunk_by(|one, other| one == other) {
            let start = extent.start + nth as u64;
            if run[0] {
                self.data(start, &bytes[nth * BLOCK..][..run.len() * BLOCK]);
            } else {
                let at = extent.address + nth as u64;
                let damage = Damage::new(format!("blocks {at}+{}", run.len()), "rotten data");
                self.lost(start, start + run.len() as u64, &damage);
            }
            nth += run.len();
        }
    }

    fn data(&mut self, block: u64, bytes: &[u8]) {
        let Some(offset) = block.checked_mul(BLOCK as u64) else { return };
        let length = self.size.saturating_sub(offset).min(bytes.len() as u64);
        if length > 0 {
            (self.take)(Chunk::Data { offset, bytes: &bytes[..length as usize] });
        }
    }

    /// Extents that began in the blocks from `first` to `last`. Those that begin before are known,
    /// as far as they reach.
    fn lost_extents(&mut self, first: u64, last: u64, damage: &Damage) {
        self.lost_reach(first);
        let end = last.saturating_add(1);
        self.lost(first.max(self.at), end, damage);
        let window_end = end.checked_next_multiple_of(EXTENT_BLOCKS).unwrap_or(u64::MAX);
        self.reach = Some((end..window_end, damage.clone()));
    }

    /// Blocks before `to`, where the next extent begins, that a lost one may have reached.
    fn lost_reach(&mut self, to: u64) {
        if let Some((blocks, damage)) = self.reach.take() {
            self.lost(blocks.start.max(self.at), blocks.end.min(to), &damage);
        }
    }

    fn lost(&mut self, first: u64, end: u64, damage: &Damage) {
        let offset = first.saturating_mul(BLOCK as u64);
        let end = end.saturating_mul(BLOCK as u64).min(self.size);
        if let Some(length) = end.checked_sub(offset).filter(|length| *length > 0) {
            (self.take)(Chunk::Lost { offset, length, damage });
        }
    }
}

/// Gives the extents of a file to `take`, joined where they continue in file and device. Returns
/// the damage.
pub(crate) fn read_extents(
    files: &Files<'_>,
    inode: u64,
    take: &mut dyn FnMut(Run),
) -> Vec<Damage> {
    let (first, last) = (Key::new(inode, EXTENT, 0), Key::new(inode, EXTENT, u64::MAX));
    let mut run: Option<Run> = None;
    let mut lost = Vec::new();
    files.scan(first, last, |found| {
        let (key, value) = match found {
            Found::Item(key, value) => (key, value),
            Found::Lost { damage, .. } => return lost.push(Damage::new("extents", damage)),
        };
        let extent = match Extent::parse(key.offset, value) {
            Ok(extent) => extent,
            Err(why) => {
                let what = format!("the extent at block {}", key.offset);
                return lost.push(Damage::new(what, why));
            }
        };
        let next = Run {
            start: extent.start,
            address: extent.address,
            blocks: extent.blocks,
            unwritten: extent.unwritten,
        };
        match &mut run {
            Some(run) if run.goes_on(&next) => run.blocks += next.blocks,
            _ => run.replace(next).into_iter().for_each(&mut *take),
        }
    });
    run.into_iter().for_each(take);
    lost
}

/// Extents that follow each other in the file and on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first file block.
    pub start: u64,
    /// Where that is on the device.
    pub address: u64,
    pub blocks: u64,
    /// Space without content.
    pub unwritten: bool,
}

impl Run {
    fn goes_on(&self, next: &Run) -> bool {
        self.unwritten == next.unwritten
            && self.start.checked_add(self.blocks) == Some(next.start)
            && self.address.checked_add(self.blocks) == Some(next.address)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // one range is meant
mod tests {
    use super::*;

    #[test]
    fn zeros_and_holes_have_the_same_digest_and_sizes_count() {
        let mut bytes = vec![0; 3 * BLOCK + 5];
        bytes[BLOCK + 7] = 1;
        let mut holes = ContentDigest::default();
        holes.add(BLOCK as u64, &bytes[BLOCK..2 * BLOCK]);
        assert_eq!(holes.finish(bytes.len() as u64), ContentDigest::of(&bytes));
        assert_ne!(ContentDigest::of(&bytes), ContentDigest::of(&bytes[..3 * BLOCK]));
        bytes.swap(BLOCK + 7, BLOCK + 8);
        assert_ne!(ContentDigest::of(&bytes[..2 * BLOCK]), ContentDigest::of(&bytes[BLOCK..]));
    }

    /// A device that has no content; unwritten extents need none.
    struct Empty;

    impl Source for Empty {
        fn blocks(&self) -> u64 {
            0
        }

        fn read(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
            unreachable!("it has no blocks")
        }
    }

    /// The item of an extent without content.
    fn unwritten(blocks: u8) -> Vec<u8> {
        let mut value = 77_u64.to_le_bytes().to_vec();
        value.extend([blocks - 1, 1]);
        value.resize(value.len() + 20 + 4, 0);
        value
    }

    /// Blocks that are reported as lost.
    fn lost(read: impl FnOnce(&mut Reader<'_>)) -> Vec<Range<u64>> {
        let mut blocks = Vec::new();
        let mut take = |chunk: Chunk<'_>| match chunk {
            Chunk::Data { .. } => panic!("there is no data"),
            Chunk::Lost { offset, length, .. } => {
                let block = BLOCK as u64;
                blocks.push(offset / block..(offset + length).div_ceil(block));
            }
        };
        let size = 100 * BLOCK as u64;
        let (source, take) = (&Empty, &mut take);
        let mut reader = Reader { source, tuples: None, size, at: 0, reach: None, take };
        read(&mut reader);
        reader.lost_reach(u64::MAX);
        blocks
    }

    #[test]
    fn a_lost_extent_may_reach_to_the_next_one_or_the_end_of_its_window() {
        let damage = Damage::new("a leaf", "rotten");
        let last = lost(|reader| reader.lost_extents(3, 9, &damage));
        assert_eq!(last, [3..10, 10..32]);
        let next = lost(|reader| {
            reader.lost_extents(3, 9, &damage);
            reader.extent(12, &unwritten(2));
        });
        assert_eq!(next, [3..10, 10..12]);
        // Of an edit over the lost leaf: it is known how far that reaches.
        let over = lost(|reader| {
            reader.lost_extents(3, 9, &damage);
            reader.extent(8, &unwritten(4));
            reader.extent(64, &unwritten(1));
        });
        assert_eq!(over, [3..10, 12..32]);
        let both = lost(|reader| {
            reader.lost_extents(0, 9, &damage);
            reader.lost_extents(10, 63, &damage);
        });
        assert_eq!(both, [0..10, 10..64]);
    }

    #[test]
    fn a_known_extent_reaches_into_lost_keys() {
        let damage = Damage::new("a leaf", "rotten");
        let found = lost(|reader| {
            reader.extent(0, &unwritten(8));
            reader.lost_extents(4, 31, &damage);
        });
        assert_eq!(found, [8..32]);
    }

    #[test]
    fn an_extent_that_says_nonsense_is_lost_as_far_as_it_may_have_reached() {
        let found = lost(|reader| {
            reader.extent(33, b"nonsense");
            reader.extent(40, &unwritten(1));
        });
        assert_eq!(found, [33..34, 34..40]);
    }
}
