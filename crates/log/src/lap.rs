//! A copy of the ring, read once around from a position on, a part at a time.
//!
//! Problem.  A ring is tens of megabytes, most of it of no interest, and whoever recovers has a
//!           budget for memory.
//! Idea.     What lies behind the reader is let go. A frame is looked at in one piece, so the
//!           window reaches from where the reader is to the end of what is there claimed.

use copyhold_types::BLOCK_BYTES;

use crate::ring::Ring;

/// Blocks read at a time.
const READ_BLOCKS: u64 = 256;

/// Blocks of one copy of the ring, in the order of positions. Distances are in blocks from `head`.
pub(crate) struct Lap<'a> {
    ring: &'a Ring,
    copy: usize,
    head: u64,
    bytes: Vec<u8>,
    /// What `bytes` are.
    from: u64,
    to: u64,
    /// Positions of blocks that could not be read: they are zero.
    pub(crate) unreadable: Vec<u64>,
}

impl<'a> Lap<'a> {
    pub(crate) fn new(ring: &'a Ring, copy: usize, head: u64) -> Lap<'a> {
        Lap { ring, copy, head, bytes: Vec::new(), from: 0, to: 0, unreadable: Vec::new() }
    }

    /// The blocks from `at` up to `until`. `at` never goes back, and nothing is beyond the lap.
    pub(crate) async fn blocks(&mut self, at: u64, until: u64) -> &[u8] {
        if at - self.from >= READ_BLOCKS {
            self.bytes.drain(..(at - self.from) as usize * BLOCK_BYTES);
            self.from = at;
        }
        while self.to < until {
            self.read_part().await;
        }
        let place = |distance: u64| (distance - self.from) as usize * BLOCK_BYTES;
        &self.bytes[place(at)..place(until)]
    }

    async fn read_part(&mut self) {
        let blocks = self.ring.blocks();
        let position = self.head + self.to;
        let to_ring_end = blocks - position % blocks;
        let count = READ_BLOCKS.min(to_ring_end).min(blocks - self.to);
        match self.ring.read_copy(self.copy, position, count).await {
            Ok(buf) => self.bytes.extend_from_slice(&buf),
            Err(_) => self.read_singly(position, count).await,
        }
        self.to += count;
    }

    async fn read_singly(&mut self, position: u64, count: u64) {
        for position in position..position + count {
            match self.ring.read_copy(self.copy, position, 1).await {
                Ok(buf) => self.bytes.extend_from_slice(&buf),
                Err(_) => {
                    self.bytes.resize(self.bytes.len() + BLOCK_BYTES, 0);
                    self.unreadable.push(position);
                }
            }
        }
    }
}
