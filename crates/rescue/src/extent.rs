//! Extents (`docs/format.md`, 9.5): where blocks of a file are, and their checksums.

use crc_fast::{CrcAlgorithm, checksum};

use crate::bytes::Bytes;
use crate::damage::{Parse, demand};
use crate::source::BLOCK;

/// Most blocks of an extent; none crosses a multiple of as many.
pub(crate) const EXTENT_BLOCKS: u64 = 32;

/// A run of blocks of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The file block of its first one.
    pub(crate) start: u64,
    /// Where that is on the device.
    pub(crate) address: u64,
    pub(crate) blocks: u64,
    /// Space without content: it reads as zeros.
    pub(crate) unwritten: bool,
    sums: Vec<u32>,
}

impl Extent {
    pub(crate) fn parse(start: u64, value: &[u8]) -> Parse<Extent> {
        let mut bytes = Bytes(value);
        let address = bytes.u64()?;
        let blocks = u64::from(bytes.u8()?) + 1;
        let flags = bytes.u8()?;
        bytes.take(20)?;
        demand(flags <= 1, "flags that this program does not know")?;
        let unwritten = flags & 1 == 1;
        demand(start % EXTENT_BLOCKS + blocks <= EXTENT_BLOCKS, "it crosses a window of the file")?;
        let ends = [start, address].map(|first| first.checked_add(blocks));
        demand(!ends.contains(&None), "it has no end")?;
        let mut sums = vec![bytes.u32()?];
        for _ in 1..if unwritten { 1 } else { blocks } {
            sums.push(bytes.u32()?);
        }
        bytes.end()?;
        Ok(Extent { start, address, blocks, unwritten, sums })
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.blocks
    }

    /// A written extent, cut into extents of one block.
    pub(crate) fn each_block(&self) -> impl Iterator<Item = Extent> {
        let one = |(nth, sum): (u64, &u32)| Extent {
            start: self.start + nth,
            address: self.address + nth,
            blocks: 1,
            unwritten: false,
            sums: vec![*sum],
        };
        (0..).zip(&self.sums).map(one)
    }

    /// Its blocks, and whether each has its written content.
    pub(crate) fn checked<'a>(
        &'a self,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], bool)> + 'a {
        let blocks = bytes.chunks_exact(BLOCK).zip(&self.sums);
        blocks.map(|(block, sum)| (block, checksum(CrcAlgorithm::Crc32Iscsi, block) as u32 == *sum))
    }
}
