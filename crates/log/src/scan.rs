//! All frames of a lap, out of both copies of the ring.
//!
//! Problem.  A block that cannot be read may be the first of a frame. If the other copy is rotten
//!           there, no copy claims that a frame is there, and the log seems to end before it.
//! Idea.     A frame begins at the head of the log, behind the last block that claims to belong to
//!           a frame, or at the start of the ring, if it did not fit before the end. At such a
//!           place a block that cannot be read may be the log's next frame.
//!
//! SCAN-H1  A place where a frame may begin is a frame, or unverified, or both copies could be
//!          read.
//! SCAN-H2  No field of a claim is believed before the frame verifies. A rotten txg decides
//!          nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use copyhold_device::DeviceError;
use copyhold_format::log::Frame;

use crate::assemble::assemble;
use crate::lap::Lap;
use crate::ring::{Broken, Ring};

/// The content of the ring.
#[derive(Debug, Default)]
pub struct Scan {
    /// Verified frames by position.
    pub frames: BTreeMap<u64, Found>,
    /// Positions, in ascending order, where a frame may begin that only blocks which could not be
    /// read keep from verifying.
    pub unverified: Vec<u64>,
    /// Positions that the one and the other copy cannot be read at.
    pub unreadable: [BTreeSet<u64>; 2],
    /// The device's error for the last block that could not be read.
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

impl Found {
    /// The position behind it.
    pub(crate) fn end(&self) -> u64 {
        self.frame.position + self.frame.blocks
    }
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
        scan.unreadable = [first.unreadable, second.unreadable];
        scan.error = first.error.or(second.error);
        scan
    }

    /// Looks at block `at` of the lap; returns the distance to the next position to look at.
    async fn frame_at(&self, laps: &mut [Lap<'_>; 2], head: u64, at: u64, scan: &mut Scan) -> u64 {
        let position = head + at;
        read(laps, at, at + 1).await;
        let mut in_doubt = position == scan.end || self.is_skipped_to(laps, at, position);
        in_doubt &= laps.iter().any(|lap| !lap.can_read(position));
        let claims = laps
            .each_ref()
            .map(|lap| Frame::claim(lap.part(at, at + 1).bytes, self.pool(), position));
        let [first, second] = claims;
        let second = second.filter(|_| first != second);
        for claim in first.into_iter().chain(second) {
            scan.end = scan.end.max(position + 1);
            match self.claimed(laps, at, position, claim, scan).await {
                Claimed::Verified(blocks) => {
                    scan.end = scan.end.max(position + blocks);
                    return blocks;
                }
                Claimed::Unverified => in_doubt = true,
                Claimed::Torn => {}
            }
        }
        if in_doubt && !self.breaks(Broken::ErrorIsEnd) {
            scan.unverified.push(position);
        }
        1
    }

    /// Whether a frame may be at the start of the ring that did not fit before its end. There is
    /// none where a copy still has the frame of the lap before.
    fn is_skipped_to(&self, laps: &[Lap<'_>; 2], at: u64, position: u64) -> bool {
        let before = position.checked_sub(self.blocks());
        let Some(before) = before.filter(|at| at.is_multiple_of(self.blocks())) else {
            return false;
        };
        let parts = laps.each_ref().map(|lap| lap.part(at, at + 1));
        !parts.iter().any(|part| Frame::claim(part.bytes, self.pool(), before).is_some())
    }

    /// Looks at a frame that claims to have so many blocks, and adds it to the scan if it verifies.
    async fn claimed(
        &self,
        laps: &mut [Lap<'_>; 2],
        at: u64,
        position: u64,
        claim: u64,
        scan: &mut Scan,
    ) -> Claimed {
        let to_ring_end = self.blocks() - position % self.blocks();
        let until = at + claim.min(to_ring_end).min(self.blocks() - at);
        read(laps, at, until).await;
        let parts = laps.each_ref().map(|lap| lap.part(at, until));
        let verify = |bytes: &[u8]| Frame::parse(bytes, self.pool(), self.secret(), position).ok();
        let whole = self.breaks(Broken::WholeCopiesOnly);
        let Some((frame, lacks)) = assemble(&parts, whole, verify) else {
            let is_whole = parts.iter().all(|part| part.unreadable.is_empty());
            return if is_whole || whole { Claimed::Torn } else { Claimed::Unverified };
        };
        let blocks = frame.blocks;
        scan.frames.insert(position, Found { frame, lacks });
        Claimed::Verified(blocks)
    }
}

/// The result of checking a claim.
enum Claimed {
    /// A frame of so many blocks.
    Verified(u64),
    /// Blocks of it cannot be read.
    Unverified,
    Torn,
}

async fn read(laps: &mut [Lap<'_>; 2], at: u64, until: u64) {
    let [first, second] = laps;
    futures_util::join!(first.read(at, until), second.read(at, until));
}
