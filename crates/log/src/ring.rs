//! The ring's two copies on a device.

use std::collections::BTreeMap;

use copyhold_device::{DeviceError, DynDevice};
use copyhold_format::log::Frame;
use copyhold_types::{BLOCK_BYTES, Buf, PoolId, Purpose};

/// Blocks read at a time when the ring is scanned.
const READ_BLOCKS: u64 = 256;

/// Where a pool's log lies.
#[derive(Clone)]
pub struct Ring {
    device: DynDevice,
    starts: [u64; 2],
    blocks: u64,
    pool: PoolId,
    secret: u64,
}

/// What one copy of the ring holds.
#[derive(Debug, Default)]
pub struct Scan {
    /// Verified frames by position.
    pub frames: BTreeMap<u64, Frame>,
    /// Blocks that could not be read, as positions.
    pub unreadable: Vec<u64>,
    /// Behind the last block that claims to belong to a frame, verified or not.
    pub end: u64,
}

impl Ring {
    /// `starts`: first blocks of the two copies of `blocks` blocks each.
    pub fn new(
        device: DynDevice,
        starts: [u64; 2],
        blocks: u64,
        pool: PoolId,
        secret: u64,
    ) -> Ring {
        Ring { device, starts, blocks, pool, secret }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn pool(&self) -> PoolId {
        self.pool
    }

    pub fn secret(&self) -> u64 {
        self.secret
    }

    fn block(&self, copy: usize, position: u64) -> u64 {
        self.starts[copy] + position % self.blocks
    }

    /// Writes an encoded frame to both copies at once. Durable after the next flush.
    pub async fn write(&self, position: u64, frame: &Buf) -> Result<(), DeviceError> {
        assert!(position % self.blocks + frame.blocks() as u64 <= self.blocks, "K1: wraps");
        let first = self.write_copy(0, position, frame);
        let second = self.write_copy(1, position, frame);
        let (first, second) = futures_util::join!(first, second);
        first.and(second)
    }

    /// Writes one copy alone: the repair of a damaged one.
    pub fn write_copy(
        &self,
        copy: usize,
        position: u64,
        frame: &Buf,
    ) -> copyhold_runtime::BoxFuture<'static, Result<(), DeviceError>> {
        self.device.write(self.block(copy, position), vec![frame.clone()], Purpose::Log)
    }

    /// Reads `blocks` blocks of one copy from `position` on.
    pub async fn read_copy(
        &self,
        copy: usize,
        position: u64,
        blocks: u64,
    ) -> Result<Buf, DeviceError> {
        self.device.read(self.block(copy, position), blocks as u32, Purpose::Log).await
    }

    /// Finds every frame of the lap that begins at `head`.
    pub async fn scan(&self, copy: usize, head: u64) -> Scan {
        let (bytes, unreadable) = self.read_lap(copy, head).await;
        let mut scan = Scan { unreadable, end: head, ..Scan::default() };
        let mut at = 0;
        while at < self.blocks {
            at += self.frame_at(&bytes, head, at, &mut scan);
        }
        scan
    }

    /// Looks at block `at` of the lap; returns how far to go on.
    fn frame_at(&self, bytes: &[u8], head: u64, at: u64, scan: &mut Scan) -> u64 {
        let position = head + at;
        let from = at as usize * BLOCK_BYTES;
        let Some(claimed) = Frame::claimed_blocks(&bytes[from..], self.pool, position) else {
            return 1;
        };
        let to_ring_end = self.blocks - position % self.blocks;
        let until = from + claimed.min(to_ring_end).min(self.blocks - at) as usize * BLOCK_BYTES;
        scan.end = scan.end.max(position + 1);
        match Frame::parse(&bytes[from..until], self.pool, self.secret, position) {
            Ok(frame) => {
                let blocks = frame.blocks;
                scan.end = scan.end.max(position + blocks);
                scan.frames.insert(position, frame);
                blocks
            }
            Err(_) => 1,
        }
    }

    /// The whole ring in the order of positions from `head`; what cannot be read is zero.
    async fn read_lap(&self, copy: usize, head: u64) -> (Vec<u8>, Vec<u64>) {
        let mut bytes = vec![0; self.blocks as usize * BLOCK_BYTES];
        let mut unreadable = Vec::new();
        let mut at = 0;
        while at < self.blocks {
            let to_ring_end = self.blocks - (head + at) % self.blocks;
            let count = READ_BLOCKS.min(to_ring_end).min(self.blocks - at);
            self.read_part(copy, head, at, count, &mut bytes, &mut unreadable).await;
            at += count;
        }
        (bytes, unreadable)
    }

    async fn read_part(
        &self,
        copy: usize,
        head: u64,
        at: u64,
        count: u64,
        bytes: &mut [u8],
        unreadable: &mut Vec<u64>,
    ) {
        let from = at as usize * BLOCK_BYTES;
        if let Ok(buf) = self.read_copy(copy, head + at, count).await {
            bytes[from..from + buf.len()].copy_from_slice(&buf);
            return;
        }
        for i in 0..count {
            match self.read_copy(copy, head + at + i, 1).await {
                Ok(buf) => {
                    let from = from + i as usize * BLOCK_BYTES;
                    bytes[from..from + buf.len()].copy_from_slice(&buf);
                }
                Err(_) => unreadable.push(head + at + i),
            }
        }
    }
}
