//! Extents (`docs/format.md`, 9.5): where blocks of a file are, and their checksums: in the item,
//! in tuples beside the blocks, or nowhere.

use crc_fast::{CrcAlgorithm, checksum};

use crate::bytes::Bytes;
use crate::damage::{Damage, Parse, demand};
use crate::namespace::Maker;
use crate::source::{BLOCK, Source};
use crate::tuples::Tuples;

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
    sums: Sums,
}

/// The checksums of the blocks of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sums {
    /// In the item: CRC-32C.
    Item(Vec<u32>),
    /// In tuples, with this birth.
    Tuples(Maker, u32),
    Nowhere,
}

impl Extent {
    pub(crate) fn parse(start: u64, value: &[u8]) -> Parse<Extent> {
        let mut bytes = Bytes(value);
        let address = bytes.u64()?;
        let blocks = u64::from(bytes.u8()?) + 1;
        let flags = bytes.u8()?;
        bytes.take(16)?;
        let birth = bytes.u32()?;
        // Bits 4 and 5; an unwritten extent has none of them.
        let elsewhere = match flags {
            0 | 1 => None,
            0x10 => Some(Sums::Tuples(Maker::Host, birth)),
            0x20 => Some(Sums::Tuples(Maker::Device, birth)),
            0x30 => Some(Sums::Nowhere),
            _ => return Err("flags that this program does not know".into()),
        };
        let unwritten = flags & 1 == 1;
        demand(start % EXTENT_BLOCKS + blocks <= EXTENT_BLOCKS, "it crosses a window of the file")?;
        let ends = [start, address].map(|first| first.checked_add(blocks));
        demand(!ends.contains(&None), "it has no end")?;
        let mut sums = vec![bytes.u32()?];
        for _ in 1..if unwritten || elsewhere.is_some() { 1 } else { blocks } {
            sums.push(bytes.u32()?);
        }
        bytes.end()?;
        let sums = elsewhere.unwrap_or(Sums::Item(sums));
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
            sums: match &self.sums {
                Sums::Item(sums) => Sums::Item(vec![sums[nth as usize]]),
                other => other.clone(),
            },
        })
    }

    /// Whether each of its blocks, which are `bytes`, has its written content. Blocks whose tuples
    /// cannot be found are taken as they are.
    pub(crate) fn verify(
        &self,
        source: &dyn Source,
        tuples: Option<&Tuples>,
        bytes: &[u8],
    ) -> Result<Vec<bool>, Damage> {
        let blocks = bytes.chunks_exact(BLOCK);
        match (&self.sums, tuples) {
            (Sums::Item(sums), _) => {
                let fits = |(block, sum): (&[u8], &u32)| {
                    checksum(CrcAlgorithm::Crc32Iscsi, block) as u32 == *sum
                };
                Ok(blocks.zip(sums).map(fits).collect())
            }
            (Sums::Tuples(maker, birth), Some(tuples)) => {
                tuples.verify(source, self.address, *birth, *maker, bytes)
            }
            _ => Ok(vec![true; blocks.len()]),
        }
    }
}
