//! A copy of the ring, read once around from a position on, a part at a time.
//!
//! Problem.  A ring is tens of megabytes, most of it of no interest, and recovery has a budget for
//!           memory.
//! Idea.     Blocks behind the reader are released. A frame is parsed in one piece, so the window
//!           reaches from the reader to the end of the frame that is claimed there.

use std::collections::BTreeSet;

use copyhold_device::DeviceError;
use copyhold_types::BLOCK_BYTES;

use crate::assemble::Part;
use crate::ring::Ring;

/// Blocks read at a time.
const READ_BLOCKS: u64 = 256;

/// Blocks of one copy of the ring, in the order of positions. Distances are in blocks from `head`.
pub(crate) struct Lap<'a> {
    ring: &'a Ring,
    copy: usize,
    head: u64,
    bytes: Vec<u8>,
    /// The positions of `bytes`.
    from: u64,
    to: u64,
    /// Positions of blocks that could not be read: they are zero.
    pub(crate) unreadable: BTreeSet<u64>,
    /// The device's error for the last one.
    pub(crate) error: Option<DeviceError>,
}

impl<'a> Lap<'a> {
    pub(crate) fn new(ring: &'a Ring, copy: usize, head: u64) -> Lap<'a> {
        let (bytes, unreadable) = (Vec::new(), BTreeSet::new());
        Lap { ring, copy, head, bytes, from: 0, to: 0, unreadable, error: None }
    }

    /// Reads the blocks from `at` up to `until`. `at` never goes back, and nothing is beyond the
    /// lap.
    pub(crate) async fn read(&mut self, at: u64, until: u64) {
        if at - self.from >= READ_BLOCKS {
            self.bytes.drain(..(at - self.from) as usize * BLOCK_BYTES);
            self.from = at;
        }
        while self.to < until {
            self.read_part().await;
        }
    }

    /// Blocks that were read before.
    pub(crate) fn part(&self, at: u64, until: u64) -> Part<'_> {
        let place = |distance: u64| (distance - self.from) as usize * BLOCK_BYTES;
        let positions = self.head + at..self.head + until;
        let unreadable = self.unreadable.range(positions);
        Part {
            bytes: &self.bytes[place(at)..place(until)],
            unreadable: unreadable.map(|position| (position - self.head - at) as usize).collect(),
        }
    }

    /// Whether a block that was read before could be read.
    pub(crate) fn can_read(&self, position: u64) -> bool {
        !self.unreadable.contains(&position)
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
                Err(error) => {
                    self.bytes.resize(self.bytes.len() + BLOCK_BYTES, 0);
                    self.unreadable.insert(position);
                    self.error = Some(error);
                }
            }
        }
    }
}
