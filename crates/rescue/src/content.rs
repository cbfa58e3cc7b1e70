//! The content of a file (`docs/format.md`, 9 and 9.5): blocks in their order, holes left out.
//!
//! What cannot be read is told as lost, with its range, and the rest goes on. What is neither
//! given nor lost reads as zeros.
//!
//! The digest of a content is over the blocks that are not all zeros, each with its number, and
//! then the size. So a hole, an unwritten extent and zeros that were written are the same, and a
//! file that is mostly holes is digested at once.

use xxhash_rust::xxh3::Xxh3;

use crate::damage::{Damage, demand};
use crate::extent::Extent;
use crate::inode::{FileKind, Inode};
use crate::key::{EXTENT, INLINE, Key};
use crate::pool::Files;
use crate::source::{BLOCK, read};
use crate::tables::Found;

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
    let mut reader = Reader { files, size: inode.size, at: 0, take };
    if inode.inline {
        reader.inline(inode.number);
    }
    let last = inode.size.div_ceil(BLOCK as u64);
    let Some(last) = last.checked_sub(1) else { return };
    let (first, last) = (Key::new(inode.number, EXTENT, 0), Key::new(inode.number, EXTENT, last));
    files.scan(first, last, |found| match found {
        Found::Item(key, value) => reader.extent(key.offset, value),
        Found::Lost { first, last, damage } => {
            // An extent that begins before the range reaches into it only if it is known.
            reader.lost(first.offset, last.offset.saturating_add(1), damage);
        }
    });
}

struct Reader<'a, 'f> {
    files: &'a Files<'f>,
    size: u64,
    /// File blocks before this one have been given.
    at: u64,
    take: &'a mut dyn FnMut(Chunk<'_>),
}

impl Reader<'_, '_> {
    /// Block 0 of a tiny file is an item.
    fn inline(&mut self, inode: u64) {
        match self.files.get(Key::new(inode, INLINE, 0)) {
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
            Err(why) => return self.lost(start, start + 1, &wrong(why)),
        };
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
        match read(self.files.source, extent.address, extent.blocks) {
            Ok(bytes) => self.checked(extent, &bytes),
            Err(damage) if extent.blocks == 1 => self.lost(start, start + 1, &damage),
            // Some of its blocks may be readable.
            Err(_) => extent.each_block().for_each(|block| self.read(&block)),
        }
    }

    /// Gives the blocks that match their checksums, runs of them at once.
    fn checked(&mut self, extent: &Extent, bytes: &[u8]) {
        let good: Vec<bool> = extent.checked(bytes).map(|(_, good)| good).collect();
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

    fn lost(&mut self, first: u64, end: u64, damage: &Damage) {
        let offset = first.saturating_mul(BLOCK as u64);
        let end = end.saturating_mul(BLOCK as u64).min(self.size);
        if let Some(length) = end.checked_sub(offset).filter(|length| *length > 0) {
            (self.take)(Chunk::Lost { offset, length, damage });
        }
    }
}

/// Gives the extents of a file to `take`, joined where both sides go on.
pub(crate) fn read_extents(files: &Files<'_>, inode: u64, take: &mut dyn FnMut(Run)) {
    let (first, last) = (Key::new(inode, EXTENT, 0), Key::new(inode, EXTENT, u64::MAX));
    let mut run: Option<Run> = None;
    files.scan(first, last, |found| {
        let Found::Item(key, value) = found else { return };
        let Ok(extent) = Extent::parse(key.offset, value) else { return };
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
}
