//! All frames of a lap, out of both copies of the ring.

use std::collections::BTreeMap;
use std::ops::Range;

use copyhold_device::DeviceError;
use copyhold_format::log::{Frame, FrameClaim};

use crate::assemble::assemble;
use crate::lap::Lap;
use crate::ring::Ring;

/// What the ring holds.
#[derive(Debug, Default)]
pub struct Scan {
    /// Verified frames by position.
    pub frames: BTreeMap<u64, Found>,
    /// Positions that neither copy can be read at.
    pub unreadable: Vec<u64>,
    /// Claimed frames that do not verify, and may with the blocks that could not be read: their
    /// positions and txgs.
    pub unverified: Vec<(u64, u64)>,
    /// What the device said of the last block that could not be read.
    pub error: Option<DeviceError>,
    /// Behind the last block that claims to belong to a frame, verified or not.
    pub end: u64,
}

/// A frame that verifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub frame: Frame,
    /// Runs of its blocks, counted from its first, that the one and the other copy lack.
    pub lacks: [Vec<Range<u64>>; 2],
}

impl Ring {
    /// Finds every frame of the lap that begins at `head`.
    pub async fn scan(&self, head: u64) -> Scan {
        let mut scan = Scan { end: head, ..Scan::default() };
        let mut laps = [0, 1].map(|copy| Lap::new(self, copy, head));
        let mut at = 0;
        while at < self.blocks() {
            at += self.frame_at(&mut laps, head, at, &mut scan).await;
        }
        let [first, second] = laps;
        scan.unreadable = first.unreadable.intersection(&second.unreadable).copied().collect();
        scan.error = first.error.or(second.error);
        scan
    }

    /// Looks at block `at` of the lap; returns how far to go on.
    async fn frame_at(&self, laps: &mut [Lap<'_>; 2], head: u64, at: u64, scan: &mut Scan) -> u64 {
        let position = head + at;
        read(laps, at, at + 1).await;
        let claims = laps
            .each_ref()
            .map(|lap| Frame::claim(lap.part(at, at + 1).bytes, self.pool(), position));
        let [first, second] = claims;
        let second = second.filter(|_| first != second);
        for claim in first.into_iter().chain(second) {
            scan.end = scan.end.max(position + 1);
            if let Some(blocks) = self.claimed(laps, at, position, claim, scan).await {
                scan.end = scan.end.max(position + blocks);
                return blocks;
            }
        }
        1
    }

    /// Notes the frame that `claim` announces; its blocks, if it verifies.
    async fn claimed(
        &self,
        laps: &mut [Lap<'_>; 2],
        at: u64,
        position: u64,
        claim: FrameClaim,
        scan: &mut Scan,
    ) -> Option<u64> {
        let to_ring_end = self.blocks() - position % self.blocks();
        let until = at + claim.blocks.min(to_ring_end).min(self.blocks() - at);
        read(laps, at, until).await;
        let parts = laps.each_ref().map(|lap| lap.part(at, until));
        let verify = |bytes: &[u8]| Frame::parse(bytes, self.pool(), self.secret(), position).ok();
        let whole = self.takes_whole_copies_only();
        let Some((frame, lacks)) = assemble(&parts, whole, verify) else {
            if parts.iter().any(|part| !part.unreadable.is_empty()) && !whole {
                scan.unverified.push((position, claim.txg));
            }
            return None;
        };
        let blocks = frame.blocks;
        scan.frames.insert(position, Found { frame, lacks });
        Some(blocks)
    }
}

async fn read(laps: &mut [Lap<'_>; 2], at: u64, until: u64) {
    let [first, second] = laps;
    futures_util::join!(first.read(at, until), second.read(at, until));
}
