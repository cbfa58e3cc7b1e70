//! The frames of the log (`docs/format.md`, 5.1 and 6.2): which of them verify, in either copy.
//!
//! All positions of one lap from the head on are looked at, in both copies. Of a frame only its
//! header is kept; its payload is read again when it is needed. A frame that neither copy has whole
//! is put together from the blocks of both (`mixed`). Where a frame may begin, and a block that
//! cannot be read keeps it from verifying, the frame is *unverified*. The lap is as long as the
//! label says, but positions behind the end of the device are not read one by one.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::bytes::{Bytes, digest_fits};
use crate::damage::{Damage, Parse, demand};
use crate::label::Label;
use crate::mixed;
use crate::source::{BLOCK, Source, read};

const HEADER: usize = 128;
const PAYLOAD_MAX: u32 = 64 << 20;
/// Blocks of the ring that are read at a time.
const STEP: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Piece,
    Batch,
    Mark,
}

/// A frame that verified.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) digest: u128,
    pub(crate) incarnation: u64,
    pub(crate) txg: u64,
    pub(crate) blocks: u64,
    stored: u32,
    payload: u32,
    packing: u8,
    /// Runs of the device in which it verified, in order: first block and count.
    at: Vec<(u64, u64)>,
}

impl Frame {
    /// The header in the first block of a frame; whether the frame verifies is not known yet.
    fn parse(block: &[u8], label: &Label, position: u64, at: u64) -> Parse<Frame> {
        let mut bytes = Bytes(block);
        bytes.magic(b"CHFRAME")?;
        let kind = match bytes.u8()? {
            b'P' => FrameKind::Piece,
            b'B' => FrameKind::Batch,
            b'M' => FrameKind::Mark,
            _ => return Err("a kind of frame that does not exist".into()),
        };
        demand(bytes.array()? == label.pool, "of another pool")?;
        let (digest, incarnation) = (bytes.u128()?, bytes.u64()?);
        demand(bytes.u64()? == position, "of another position")?;
        let txg = bytes.u64()?;
        let (stored, payload, packing) = (bytes.u32()?, bytes.u32()?, bytes.u8()?);
        demand(packing <= 1 && payload.max(stored) <= PAYLOAD_MAX, "an invalid payload")?;
        let blocks = (HEADER + stored as usize).div_ceil(BLOCK) as u64;
        let left = label.log_blocks - position % label.log_blocks;
        demand(blocks <= left, "it crosses the end of the ring")?;
        let at = vec![(at, blocks)];
        Ok(Frame { kind, digest, incarnation, txg, blocks, stored, payload, packing, at })
    }

    /// The payload of the frame.
    pub(crate) fn payload(&self, source: &dyn Source) -> Result<Vec<u8>, Damage> {
        let mut bytes = Vec::new();
        for (at, blocks) in &self.at {
            bytes.extend(read(source, *at, *blocks)?);
        }
        bytes.truncate(HEADER + self.stored as usize);
        let stored = bytes.split_off(HEADER);
        let place = self.at[0].0;
        let wrong = |why: &str| Damage::new(format!("the frame of the log in block {place}"), why);
        if self.packing == 0 {
            return Ok(stored);
        }
        let payload = zstd::bulk::decompress(&stored, self.payload as usize);
        let payload = payload.map_err(|error| wrong(&error.to_string()))?;
        demand(payload.len() == self.payload as usize, "a payload of another length")
            .map_err(|why| wrong(&why))?;
        Ok(payload)
    }
}

/// All frames of a lap that verify.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// By position and digest: at one position the copies may have different ones.
    pub(crate) found: BTreeMap<(u64, u128), Frame>,
    /// Ranges of positions that neither copy gives, in their order.
    pub(crate) unreadable: Vec<Range<u64>>,
    /// Positions of unverified frames.
    pub(crate) unverified: Vec<u64>,
    /// Behind the last block that claims to belong to a frame.
    claimed_end: u64,
}

impl Frames {
    pub(crate) fn scan(source: &dyn Source, label: &Label, head: u64) -> Frames {
        let mut frames = Frames { claimed_end: head, ..Frames::default() };
        let end = head.saturating_add(label.log_blocks);
        let on_device = label.log.map(|copy| source.blocks().saturating_sub(copy));
        let on_device = on_device[0].max(on_device[1]).min(label.log_blocks);
        let mut position = head;
        while position < end {
            let in_ring = position % label.log_blocks;
            if in_ring >= on_device {
                let next = position.saturating_add(label.log_blocks - in_ring).min(end);
                frames.add_unreadable(position..next);
                position = next;
                continue;
            }
            let count = STEP.min(end - position).min(label.log_blocks - in_ring);
            let mut claimed = Vec::new();
            let good = label.log.map(|copy| {
                frames.scan_run(source, label, position, copy + in_ring, count, &mut claimed)
            });
            let mut torn: BTreeMap<u64, Vec<Frame>> = BTreeMap::new();
            for (position, frame) in claimed {
                frames.mix(source, label, position, frame.clone());
                torn.entry(position).or_default().push(frame);
            }
            for (position, nth) in (position..position + count).zip(0..) {
                let can_read = good[0][nth] && good[1][nth];
                let claims = torn.remove(&position).unwrap_or_default();
                frames.judge(source, label, position, can_read, &claims);
            }
            for nth in (0..count as usize).filter(|nth| !good[0][*nth] && !good[1][*nth]) {
                let position = position + nth as u64;
                frames.add_unreadable(position..position + 1);
            }
            position += count;
        }
        frames
    }

    /// Adds positions that come behind all that were added before.
    fn add_unreadable(&mut self, positions: Range<u64>) {
        match self.unreadable.last_mut() {
            Some(last) if last.end == positions.start => last.end = positions.end,
            _ => self.unreadable.push(positions),
        }
    }

    /// Puts together a frame that neither copy has whole.
    fn mix(&mut self, source: &dyn Source, label: &Label, position: u64, mut frame: Frame) {
        let at_position = (position, 0)..=(position, u128::MAX);
        if self.found.range(at_position).next().is_some() {
            return;
        }
        let in_ring = position % label.log_blocks;
        let copies = label.log.map(|copy| copy + in_ring);
        let end = HEADER + frame.stored as usize;
        let verifies = |bytes: &[u8]| digest_fits(&bytes[..end], 24, label.secret).is_ok();
        let head = frame.at[0].0;
        if let Some(at) = mixed::find(source, copies, head, frame.blocks, verifies) {
            frame.at = at.into_iter().map(|block| (block, 1)).collect();
            self.found.insert((position, frame.digest), frame);
        }
    }

    /// Adds a position to the unverified ones, if it is one of them. `claims`: the frames that it
    /// announces and that do not verify in one copy.
    fn judge(
        &mut self,
        source: &dyn Source,
        label: &Label,
        position: u64,
        can_read: bool,
        claims: &[Frame],
    ) {
        let at_position = (position, 0)..=(position, u128::MAX);
        if let Some(blocks) = self.found.range(at_position).map(|(_, found)| found.blocks).max() {
            self.claimed_end = self.claimed_end.max(position.saturating_add(blocks));
            return;
        }
        let is_place = position == self.claimed_end || is_skipped_to(source, label, position);
        let copies = label.log.map(|copy| copy + position % label.log_blocks);
        let can_read_all =
            |frame: &Frame| copies.iter().all(|copy| read(source, *copy, frame.blocks).is_ok());
        if is_place && !can_read || !claims.iter().all(can_read_all) {
            self.unverified.push(position);
        }
        if !claims.is_empty() {
            self.claimed_end = self.claimed_end.max(position + 1);
        }
    }

    /// Which of the blocks could be read. Frames that do not verify are added to `claimed`.
    fn scan_run(
        &mut self,
        source: &dyn Source,
        label: &Label,
        position: u64,
        at: u64,
        count: u64,
        claimed: &mut Vec<(u64, Frame)>,
    ) -> Vec<bool> {
        let together = read(source, at, count).ok();
        let blocks = (0..count).map(|nth| match &together {
            Some(bytes) => Some(bytes[nth as usize * BLOCK..][..BLOCK].to_vec()),
            None => read(source, at + nth, 1).ok(),
        });
        let mut good = Vec::with_capacity(count as usize);
        for (block, nth) in blocks.zip(0..) {
            good.push(block.is_some());
            let Some(block) = block else { continue };
            let Ok(frame) = Frame::parse(&block, label, position + nth, at + nth) else { continue };
            match verifies(source, label, &frame, at + nth) {
                true => drop(self.found.insert((position + nth, frame.digest), frame)),
                false => claimed.push((position + nth, frame)),
            }
        }
        good
    }
}

/// Whether a frame may be at the start of the ring that did not fit before its end. There is none
/// where a copy still has the frame of the lap before.
fn is_skipped_to(source: &dyn Source, label: &Label, position: u64) -> bool {
    let Some(before) = position.checked_sub(label.log_blocks) else { return false };
    let is_old = |at: &u64| {
        let block = read(source, *at, 1);
        block.is_ok_and(|block| Frame::parse(&block, label, before, *at).is_ok())
    };
    position.is_multiple_of(label.log_blocks) && !label.log.iter().any(is_old)
}

fn verifies(source: &dyn Source, label: &Label, frame: &Frame, at: u64) -> bool {
    let Ok(bytes) = read(source, at, frame.blocks) else { return false };
    digest_fits(&bytes[..HEADER + frame.stored as usize], 24, label.secret).is_ok()
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // one range is meant
mod tests {
    use std::io;

    use super::*;

    /// A device of zeros and a few other blocks, of which some cannot be read.
    #[derive(Default)]
    struct Holed {
        blocks: u64,
        bad: Vec<Range<u64>>,
        held: BTreeMap<u64, Vec<u8>>,
    }

    impl Source for Holed {
        fn blocks(&self) -> u64 {
            self.blocks
        }

        fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
            let end = block + (bytes.len() / BLOCK) as u64;
            let is_bad = self.bad.iter().any(|bad| block < bad.end && bad.start < end);
            for (at, bytes) in (block..).zip(bytes.chunks_mut(BLOCK)) {
                if let Some(held) = self.held.get(&at) {
                    bytes.copy_from_slice(held);
                }
            }
            if is_bad { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
        }
    }

    fn unreadable(source: &Holed, log: [u64; 2], log_blocks: u64, head: u64) -> Vec<Range<u64>> {
        let label = Label::with_log(log, log_blocks);
        Frames::scan(source, &label, head).unreadable
    }

    #[test]
    fn positions_that_no_copy_gives_are_joined_to_ranges() {
        let bad = vec![110..113, 150..200, 311..313, 314..315];
        let source = Holed { blocks: 1000, bad, ..Holed::default() };
        assert_eq!(unreadable(&source, [100, 300], 200, 0), [11..13]);
        // The lap begins in the midst of the ring, and the range is where it ends.
        assert_eq!(unreadable(&source, [100, 300], 200, 212), [212..213, 411..412]);
    }

    #[test]
    fn a_log_that_reaches_far_beyond_the_device_takes_no_time() {
        let source = Holed { blocks: 400, ..Holed::default() };
        let blocks = 1 << 47;
        assert_eq!(unreadable(&source, [100, 300], blocks, 0), [300..blocks]);
        assert_eq!(unreadable(&source, [500, 600], blocks, 7), [7..7 + blocks]);
    }

    /// A mark.
    fn mark(position: u64) -> Vec<u8> {
        let mut block = b"CHFRAMEM".to_vec();
        block.resize(BLOCK, 0);
        block[48..56].copy_from_slice(&position.to_le_bytes());
        let digest = xxhash_rust::xxh3::xxh3_128(&block[..HEADER]);
        block[24..40].copy_from_slice(&digest.to_le_bytes());
        block
    }

    /// Where a frame may be that does not verify, in copies at 100 and 300 of 200 blocks. Both have
    /// these marks, but for a block that is bad in the first copy and those that the second lacks.
    fn unverified(marks: Range<u64>, bad: u64, lacks: &[u64]) -> Vec<u64> {
        let head = marks.start;
        let mut source = Holed { blocks: 1000, bad: vec![bad..bad + 1], ..Holed::default() };
        for position in marks {
            source.held.insert(100 + position % 200, mark(position));
            source.held.insert(300 + position % 200, mark(position));
        }
        source.held.retain(|at, _| !lacks.contains(at));
        Frames::scan(&source, &Label::with_log([100, 300], 200), head).unverified
    }

    #[test]
    fn a_frame_that_no_copy_gives_is_unverified_where_one_may_begin() {
        assert_eq!(unverified(0..3, 102, &[]), []);
        assert_eq!(unverified(0..3, 102, &[302]), [2]);
        assert_eq!(unverified(0..3, 103, &[]), [3]);
        assert_eq!(unverified(0..3, 104, &[]), [], "the log ends before");
        assert_eq!(unverified(0..0, 100, &[]), [0]);
    }

    #[test]
    fn a_frame_may_be_at_the_start_of_the_ring_unless_an_old_one_is_there() {
        assert_eq!(unverified(180..190, 100, &[]), [200]);
        let old = mark(0);
        let held = BTreeMap::from([(100, old.clone()), (300, old)]);
        let source = Holed { blocks: 1000, bad: vec![100..101], held };
        let frames = Frames::scan(&source, &Label::with_log([100, 300], 200), 180);
        assert_eq!(frames.unverified, []);
    }
}
