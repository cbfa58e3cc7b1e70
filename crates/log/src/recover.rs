//! Recovery: from an uberblock's head along the chain of batches to the last one.
//!
//! Both copies are read, and each block of a frame is taken from the copy that has it, so that
//! damage to one is repaired by the other. The next batch is the one that names the digest of the
//! batch before; where a cut batch and one of a later incarnation both do, the later incarnation
//! counts (rule R13). A batch is complete when all its pieces verify. The chain may end at an
//! incomplete batch only if nothing valid was written behind it: batches are written one after the
//! other was flushed (LOGFMT-G1), so a later one proves damage (rule R2), and so do an uberblock
//! or a mark that call a later txg durable. If unreadable blocks may hold the continuation
//! (`end`), the log is [`Unreadable`], which is no end (rule R13).

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_device::DeviceError;
use copyhold_format::log::{Batch, Frame, FrameKind};
use copyhold_format::uberblock::Uberblock;
use copyhold_types::{BLOCK_BYTES, Buf, Digest, Incarnation, Txg};

use crate::batch::RecoveredBatch;
use crate::end::End;
use crate::ring::Ring;
use crate::scan::Scan;

/// The log is broken in its middle. The part before can be read; nothing may be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log is damaged after txg {last}: {evidence}; both copies of the blocks between are bad. \
     Mount the pool read-only (-o ro) to copy its state as of txg {last}; `-o cut-tail` continues \
     from txg {last} and discards {lost} permanently",
    lost = self.lost()
)]
pub struct Damage {
    pub last: u64,
    pub evidence: String,
    /// The highest txg that any frame names.
    pub newest: u64,
    /// Frames behind the damage that verify, and their bytes: of no use without the bad part.
    pub frames: u64,
    pub bytes: u64,
}

impl Damage {
    /// A description of the loss from a cut after `last`.
    pub fn lost(&self) -> String {
        let Damage { last, newest, frames, bytes, .. } = self;
        let kib = bytes / 1024;
        format!("what txgs {} to {newest} changed ({frames} frames, {kib} KiB of log)", last + 1)
    }
}

/// Blocks of the log could not be read that may hold the continuation behind its end.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{blocks} blocks of the log after txg {last}, the first at position {position}")]
pub struct Unreadable {
    pub last: u64,
    pub position: u64,
    pub blocks: u64,
    #[source]
    pub error: DeviceError,
}

/// The content of the log.
#[derive(Debug)]
pub struct Recovered {
    pub batches: Vec<RecoveredBatch>,
    /// The last txg that is complete; the uberblock's when there is no batch.
    pub last: u64,
    pub last_digest: Digest,
    pub incarnation: Incarnation,
    /// Whether an uberblock or a mark vouches for the last batch, so that it need not be verified.
    pub confirmed: bool,
    pub damage: Option<Damage>,
    /// First position and txg that were certainly never used.
    pub next_position: u64,
    pub next_txg: Txg,
    /// Blocks that only the other copy has intact: (damaged copy, position, blocks).
    pub repairs: Vec<(usize, u64, u64)>,
    /// Positions that may be more of the log, which does not verify since blocks cannot be read.
    pub unverified: Vec<u64>,
    /// Set if there are any.
    pub in_doubt: Option<Unreadable>,
    /// The last batch is empty, all of the ring can be read, and behind that batch are only marks
    /// of it.
    pub is_idle: bool,
    /// Positions behind the log that the one and the other copy cannot be read at.
    pub unreadable: [Vec<u64>; 2],
}

/// More txgs than can be in flight when the power goes: skipped, so that a txg of which the log has
/// any trace is never used again (rule R13).
const TXG_MARGIN: u64 = 16;

/// How often an unreadable block is read.
const ATTEMPTS: usize = 3;

/// Reads the log that `uberblock` points to. Fails when unreadable blocks may be more of it: they
/// are not a tail (rule R13).
pub async fn recover(ring: &Ring, uberblock: &Uberblock) -> Result<Recovered, Unreadable> {
    let found = recover_readable(ring, uberblock).await;
    match found.in_doubt {
        None => Ok(found),
        Some(in_doubt) => Err(in_doubt),
    }
}

/// As [`recover`], with the readable part: for readers, and for a cut of the rest.
pub async fn recover_readable(ring: &Ring, uberblock: &Uberblock) -> Recovered {
    let mut found = attempt(ring, uberblock).await;
    for _ in 1..ATTEMPTS {
        if found.in_doubt.is_none() {
            break;
        }
        found = attempt(ring, uberblock).await;
    }
    found
}

async fn attempt(ring: &Ring, uberblock: &Uberblock) -> Recovered {
    let scan = ring.scan(uberblock.head).await;
    let frames = Frames::of(&scan);
    let (mut found, end) = follow(&frames, uberblock);
    found.next_position = scan.end;
    // Each txg that may show again has a block of its own that could not be read.
    let [first, second] = &scan.unreadable;
    found.next_txg = found.next_txg.plus(first.union(second).count() as u64);
    found.repairs = repairs(&scan);
    found.unverified = end.unverified(&scan);
    found.in_doubt = in_doubt(&scan, &found);
    found.unreadable = end.unreadable(&scan);
    found.is_idle = found.batches.last().is_some_and(|last| end.is_idle(&scan, last));
    found
}

fn in_doubt(scan: &Scan, found: &Recovered) -> Option<Unreadable> {
    let position = *found.unverified.first()?;
    let (last, blocks) = (found.last, found.unverified.len() as u64);
    Some(Unreadable { last, position, blocks, error: scan.error.clone()? })
}

/// The frames that verify.
struct Frames<'a> {
    by_position: BTreeMap<u64, &'a Frame>,
    batches: Vec<(&'a Frame, Batch)>,
}

impl<'a> Frames<'a> {
    fn of(scan: &'a Scan) -> Frames<'a> {
        let by_position: BTreeMap<u64, &Frame> =
            scan.frames.iter().map(|(position, found)| (*position, &found.frame)).collect();
        let batches = by_position
            .values()
            .filter(|f| f.kind == FrameKind::Batch)
            .filter_map(|f| Some((*f, Batch::parse(&f.payload, f.txg).ok()?)))
            .collect();
        Frames { by_position, batches }
    }

    /// The batch that follows the one with this digest.
    fn successor(
        &self,
        digest: Digest,
        txg: u64,
        at_least: Incarnation,
    ) -> Option<&(&'a Frame, Batch)> {
        self.batches
            .iter()
            .filter(|(frame, batch)| {
                batch.before == digest && frame.txg.get() > txg && frame.incarnation >= at_least
            })
            .max_by_key(|(frame, _)| frame.incarnation)
    }

    /// The payloads of all pieces, or nothing when one is missing.
    fn pieces(&self, batch: &Batch) -> Option<Vec<&'a Frame>> {
        batch
            .pieces
            .iter()
            .map(|piece| {
                let frame = self.by_position.get(&piece.position)?;
                let whole = frame.digest == piece.digest && frame.kind == FrameKind::Piece;
                whole.then_some(*frame)
            })
            .collect()
    }

    fn marks(&self) -> impl Iterator<Item = &&'a Frame> {
        self.by_position.values().filter(|f| f.kind == FrameKind::Mark)
    }
}

fn follow(frames: &Frames<'_>, uberblock: &Uberblock) -> (Recovered, End) {
    let mut found = Recovered {
        batches: Vec::new(),
        last: uberblock.before_head_txg,
        last_digest: uberblock.before_head,
        incarnation: uberblock.incarnation,
        confirmed: true,
        damage: None,
        next_position: 0,
        next_txg: Txg::FIRST,
        repairs: Vec::new(),
        is_idle: false,
        unverified: Vec::new(),
        unreadable: [Vec::new(), Vec::new()],
        in_doubt: None,
    };
    // Batches between the head and the uberblock may be of earlier incarnations than its own.
    let mut incarnation = Incarnation(0);
    let mut end = End::at(uberblock.head);
    let mut incomplete = None;
    while let Some((frame, batch)) = frames.successor(found.last_digest, found.last, incarnation) {
        let Some(pieces) = frames.pieces(batch) else {
            incomplete = Some(frame.txg.get());
            end.misses(batch);
            break;
        };
        end = End::at(frame.position + frame.blocks);
        incarnation = frame.incarnation;
        found.last = frame.txg.get();
        found.last_digest = frame.digest;
        found.batches.push(RecoveredBatch {
            txg: frame.txg,
            incarnation,
            digest: frame.digest,
            start: pieces.iter().map(|p| p.position).fold(frame.position, u64::min),
            batch: batch.clone(),
            pieces: pieces.iter().map(|p| Arc::clone(&p.payload)).collect(),
        });
    }
    found.damage = damage(frames, uberblock, &found, incarnation, incomplete);
    found.confirmed = uberblock.durable.get() >= found.last
        || found.damage.is_some() // Later frames prove it durable (LOGFMT-G1).
        || frames.marks().any(|m| m.txg.get() == found.last && m.incarnation >= incarnation);
    let newest = frames.by_position.values().map(|f| f.txg.get()).max().unwrap_or(0);
    let newest = newest.max(found.last).max(uberblock.durable.get());
    found.next_txg = Txg::FIRST.plus(newest + TXG_MARGIN);
    found.incarnation = frames
        .by_position
        .values()
        .map(|f| f.incarnation)
        .fold(uberblock.incarnation, Incarnation::max);
    (found, end)
}

/// Evidence that the chain continued behind the point to which it can be followed.
fn damage(
    frames: &Frames<'_>,
    uberblock: &Uberblock,
    found: &Recovered,
    incarnation: Incarnation,
    incomplete: Option<u64>,
) -> Option<Damage> {
    let last = found.last;
    let later = |f: &Frame| f.incarnation >= incarnation && f.txg.get() > last;
    let says = |evidence: String| {
        let lost: Vec<&Frame> = frames.by_position.values().copied().filter(|f| later(f)).collect();
        let newest = lost.iter().map(|f| f.txg.get()).fold(uberblock.durable.get(), u64::max);
        let blocks: u64 = lost.iter().map(|f| f.blocks).sum();
        let bytes = blocks * BLOCK_BYTES as u64;
        Some(Damage { last, evidence, newest, frames: lost.len() as u64, bytes })
    };
    if uberblock.durable.get() > last {
        return says(format!("an uberblock says that txg {} is durable", uberblock.durable));
    }
    if let Some(mark) = frames.marks().find(|m| later(m)) {
        return says(format!("a mark says that txg {} is durable", mark.txg));
    }
    // A later batch that itself joins the chain at its end would have been followed: there remain
    // an incomplete last one, which may be cut, and ones that were written after it.
    let beyond = |f: &Frame| later(f) && Some(f.txg.get()) != incomplete;
    frames
        .batches
        .iter()
        .find(|(f, batch)| beyond(f) && batch.before != found.last_digest)
        .and_then(|(f, _)| says(format!("txg {} was written after it", f.txg)))
}

/// The blocks that one copy lacks of frames that verify: (copy, position, blocks).
fn repairs(scan: &Scan) -> Vec<(usize, u64, u64)> {
    let mut repairs = Vec::new();
    for (position, found) in &scan.frames {
        for (copy, lacks) in found.lacks.iter().enumerate() {
            let lacks = lacks.iter();
            repairs.extend(lacks.map(|run| (copy, position + run.start, run.end - run.start)));
        }
    }
    repairs
}

impl Ring {
    /// Writes the blocks that one copy lacks from the other (rule R2), before anything else is
    /// written.
    pub async fn repair(&self, repairs: &[(usize, u64, u64)]) -> Result<(), DeviceError> {
        for &(copy, position, blocks) in repairs {
            let good: Buf = self.read_copy(1 - copy, position, blocks).await?;
            self.write_copy(copy, position, &good).await?;
        }
        Ok(())
    }

    /// Writes zeros where an unverifiable frame may begin, after it has been discarded. No frame
    /// is at `end` or behind it.
    pub async fn give_up(&self, unverified: &[u64], end: u64) -> Result<(), DeviceError> {
        for &position in unverified.iter().take_while(|at| **at < end) {
            self.write(position, &Buf::zeroed(1)).await?;
        }
        Ok(())
    }

    /// Writes zeros to blocks of each copy that cannot be read and are part of no frame, up to
    /// `end`. A device mostly puts another block in the place of a bad one that is written. If a
    /// bad one stayed there, the log would be in doubt as soon as it ends there.
    pub async fn renew(&self, unreadable: &[Vec<u64>; 2], end: u64) -> Result<(), DeviceError> {
        for (copy, positions) in unreadable.iter().enumerate() {
            for &position in positions.iter().take_while(|at| **at < end) {
                self.write_copy(copy, position, &Buf::zeroed(1)).await?;
            }
        }
        Ok(())
    }
}
