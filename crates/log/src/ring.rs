//! The ring's two copies on a device.

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_device::{DeviceError, DynDevice};
use copyhold_format::log::Frame;
use copyhold_types::{Buf, PoolId, Purpose};

use crate::lap::Lap;

/// Where a pool's log lies.
#[derive(Clone)]
pub struct Ring {
    device: DynDevice,
    starts: [u64; 2],
    blocks: u64,
    pool: PoolId,
    secret: u64,
}

/// The frames and the bad blocks of one copy of the ring.
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

    /// Finds every frame of the lap that begins at `head`, in both copies. A payload that is the
    /// same in both is in memory once.
    pub async fn scan_both(&self, head: u64) -> [Scan; 2] {
        let first = self.scan(0, head).await;
        let mut second = Scan::default();
        self.scan_beside(&first, 1, head, &mut second).await;
        [first, second]
    }

    /// Finds every frame of the lap that begins at `head`.
    pub async fn scan(&self, copy: usize, head: u64) -> Scan {
        let mut scan = Scan::default();
        self.scan_beside(&Scan::default(), copy, head, &mut scan).await;
        scan
    }

    async fn scan_beside(&self, other: &Scan, copy: usize, head: u64, scan: &mut Scan) {
        scan.end = head;
        let mut lap = Lap::new(self, copy, head);
        let mut at = 0;
        while at < self.blocks {
            at += self.frame_at(&mut lap, head, at, other, scan).await;
        }
        scan.unreadable = lap.unreadable;
    }

    /// Looks at block `at` of the lap; returns how far to go on.
    async fn frame_at(
        &self,
        lap: &mut Lap<'_>,
        head: u64,
        at: u64,
        other: &Scan,
        scan: &mut Scan,
    ) -> u64 {
        let position = head + at;
        let block = lap.blocks(at, at + 1).await;
        let Some(claimed) = Frame::claimed_blocks(block, self.pool, position) else {
            return 1;
        };
        let to_ring_end = self.blocks - position % self.blocks;
        let until = at + claimed.min(to_ring_end).min(self.blocks - at);
        scan.end = scan.end.max(position + 1);
        let bytes = lap.blocks(at, until).await;
        match Frame::parse(bytes, self.pool, self.secret, position) {
            Ok(mut frame) => {
                let blocks = frame.blocks;
                scan.end = scan.end.max(position + blocks);
                if let Some(same) = other.frames.get(&position).filter(|other| **other == frame) {
                    frame.payload = Arc::clone(&same.payload);
                }
                scan.frames.insert(position, frame);
                blocks
            }
            Err(_) => 1,
        }
    }
}
