//! The places of data and tuples in an emulated namespace.
//!
//! ```text
//!   0 …           data, at its own block numbers
//!   data_blocks … entries: metadata of each block, complemented
//!   end-2, end-1  the header, twice
//! ```
//!
//! An entry is the metadata of 4 KiB of data, and lies in one block. Its bytes are stored as their
//! complement, so a hole reads as metadata of ones: the escape of a block that was never written.

use std::ops::Range;

use copyhold_types::BLOCK_BYTES;

use super::Format;

/// Copies of the header.
pub(super) const HEADERS: u64 = 2;

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) format: Format,
    pub(super) data_blocks: u64,
}

/// A block of entries, and those of its bytes that belong to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) block: u64,
    /// First byte, and number of bytes, in the block.
    pub(super) at: usize,
    pub(super) bytes: usize,
}

impl Edge {
    /// Its bytes in the block.
    pub(super) fn range(&self) -> Range<usize> {
        self.at..self.at + self.bytes
    }
}

impl Layout {
    /// With as much data as a device of this size has room for; `None` without any room.
    pub(super) fn within(format: Format, blocks: u64) -> Option<Layout> {
        let rest = blocks.checked_sub(HEADERS)?;
        let per_block = Layout { format, data_blocks: 0 }.per_block();
        // Each whole block of entries comes with the data of them all; a last one with fewer.
        let (groups, over) = (rest / (per_block + 1), rest % (per_block + 1));
        let data_blocks = groups * per_block + over.saturating_sub(1);
        (data_blocks > 0).then_some(Layout { format, data_blocks })
    }

    /// The fewest blocks of a device that holds it.
    pub(super) fn blocks(&self) -> u64 {
        self.data_blocks.saturating_add(self.data_blocks.div_ceil(self.per_block()) + HEADERS)
    }

    /// Entries of a block.
    pub(super) fn per_block(&self) -> u64 {
        (BLOCK_BYTES / self.format.entry_bytes()) as u64
    }

    /// The blocks that hold entries of `blocks` blocks of data.
    pub(super) fn entries_of(&self, block: u64, blocks: u64) -> Range<u64> {
        let from = self.data_blocks + block / self.per_block();
        let end = match blocks {
            0 => from,
            _ => self.data_blocks + (block + blocks - 1) / self.per_block() + 1,
        };
        from..end
    }

    /// The place of the entry of a block.
    pub(super) fn entry(&self, block: u64) -> Edge {
        let bytes = self.format.entry_bytes();
        let at = (block % self.per_block()) as usize * bytes;
        Edge { block: self.data_blocks + block / self.per_block(), at, bytes }
    }

    /// The entries of `blocks` blocks of data, one after the other, in pieces by their block.
    pub(super) fn edges(&self, block: u64, blocks: u64) -> impl Iterator<Item = Edge> {
        let (layout, end) = (*self, block + blocks);
        let mut next = block;
        std::iter::from_fn(move || {
            let first = layout.entry(next);
            let count = (layout.per_block() - next % layout.per_block()).min(end - next);
            next += count;
            (count > 0).then_some(Edge { bytes: first.bytes * count as usize, ..first })
        })
    }

    /// Whether these are all entries of their block.
    pub(super) fn is_whole(&self, edge: &Edge) -> bool {
        let first = (edge.block - self.data_blocks) * self.per_block();
        let entries = self.per_block().min(self.data_blocks - first) as usize;
        edge.bytes == entries * self.format.entry_bytes()
    }
}

/// Bytes of entries from bytes of metadata, or the other way.
pub(super) fn complement(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::format::tests::formats;
    use super::*;

    proptest! {
        #[test]
        fn no_block_is_wasted_and_no_entry_straddles(
            format in formats(),
            blocks in 0..5_000_u64,
            at in any::<prop::sample::Index>(),
            count in 0..600_u64,
        ) {
            let Some(layout) = Layout::within(format, blocks) else {
                prop_assert!(blocks < 2 + HEADERS);
                return Ok(());
            };
            let more = Layout { data_blocks: layout.data_blocks + 1, ..layout };
            prop_assert!(layout.blocks() <= blocks && more.blocks() > blocks);

            let block = at.index(layout.data_blocks as usize) as u64;
            let count = count.min(layout.data_blocks - block);
            let edges: Vec<Edge> = layout.edges(block, count).collect();
            let seen: Vec<u64> = edges.iter().map(|edge| edge.block).collect();
            prop_assert_eq!(seen, layout.entries_of(block, count).collect::<Vec<_>>());
            let by_one: Vec<Edge> = (block..block + count).map(|one| layout.entry(one)).collect();
            prop_assert!(by_one.iter().all(|entry| entry.at + entry.bytes <= BLOCK_BYTES));
            let bytes: Vec<(u64, usize)> = edges
                .iter()
                .flat_map(|edge| (edge.at..edge.at + edge.bytes).map(|at| (edge.block, at)))
                .collect();
            let wanted: Vec<(u64, usize)> = by_one
                .iter()
                .flat_map(|entry| (entry.at..entry.at + entry.bytes).map(|at| (entry.block, at)))
                .collect();
            prop_assert_eq!(bytes, wanted);
        }
    }

    #[test]
    fn the_last_block_of_entries_is_whole_with_fewer() {
        let format = "4096+16:64b".parse().unwrap();
        let layout = Layout { format, data_blocks: 256 + 3 };
        let whole = |block, blocks| layout.edges(block, blocks).all(|edge| layout.is_whole(&edge));
        assert!(whole(0, 256) && whole(256, 3) && whole(0, 259));
        assert!(!whole(0, 255) && !whole(1, 255) && !whole(256, 2) && !whole(257, 2));
    }
}
