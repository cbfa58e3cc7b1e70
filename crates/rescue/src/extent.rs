//! Extents (`docs/format.md`, 9.5): where blocks of a file are, and their checksums.
//!
//! This program reads the data of a device only, not the tuples beside it. Content of which the
//! checksums are there, or nowhere, is taken as it is.

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
    /// None: they are not in the item.
    sums: Option<Vec<u32>>,
}

/// Bits 4 and 5 of the flags: guards of the host, tuples of the device, no checksums.
const ELSEWHERE: [u8; 3] = [1 << 4, 2 << 4, 3 << 4];

impl Extent {
    pub(crate) fn parse(start: u64, value: &[u8]) -> Parse<Extent> {
        let mut bytes = Bytes(value);
        let address = bytes.u64()?;
        let blocks = u64::from(bytes.u8()?) + 1;
        let flags = bytes.u8()?;
        bytes.take(20)?;
        let is_elsewhere = ELSEWHERE.contains(&flags);
        demand(flags <= 1 || is_elsewhere, "flags that this program does not know")?;
        let unwritten = flags & 1 == 1;
        demand(start % EXTENT_BLOCKS + blocks <= EXTENT_BLOCKS, "it crosses a window of the file")?;
        let ends = [start, address].map(|first| first.checked_add(blocks));
        demand(!ends.contains(&None), "it has no end")?;
        let mut sums = vec![bytes.u32()?];
        for _ in 1..if unwritten || is_elsewhere { 1 } else { blocks } {
            sums.push(bytes.u32()?);
        }
        bytes.end()?;
        let sums = (!is_elsewhere).then_some(sums);
        Ok(Extent { start, address, blocks, unwritten, sums })
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.blocks
    }

    /// A written extent, cut into extents of one block.
    pub(crate) fn each_block(&self) -> impl Iterator<Item = Extent> {
        (0..self.blocks).map(|nth| Extent {
            start: self.start + nth,
            address: self.address + nth,
            blocks: 1,
            unwritten: false,
            sums: self.sums.as_ref().map(|sums| vec![sums[nth as usize]]),
        })
    }

    /// Its blocks, and whether each has its written content.
    pub(crate) fn checked<'a>(
        &'a self,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], bool)> + 'a {
        bytes.chunks_exact(BLOCK).enumerate().map(|(nth, block)| {
            let sum = self.sums.as_ref().map(|sums| sums[nth]);
            (block, sum.is_none_or(|sum| checksum(CrcAlgorithm::Crc32Iscsi, block) as u32 == sum))
        })
    }
}
