//! The end of a chain of batches, and the blocks there that cannot be read.
//!
//! LOGEND-E1  Batches are placed in order: the next one lies behind the last one of the chain.
//! LOGEND-E2  Pieces of the next batch may lie before that. If the batch is there, it names them.

use std::collections::BTreeSet;
use std::ops::Range;

use copyhold_format::log::{Batch, FrameKind};

use crate::batch::RecoveredBatch;
use crate::scan::{Found, Scan};

/// Where a chain ends.
pub(crate) struct End {
    /// LOGEND-E1.
    from: u64,
    /// Positions of the pieces of the next batch, one of which does not verify (LOGEND-E2).
    pieces: Vec<Range<u64>>,
}

impl End {
    pub(crate) fn at(from: u64) -> End {
        End { from, pieces: Vec::new() }
    }

    /// `batch` comes next, and some of its pieces are missing.
    pub(crate) fn misses(&mut self, batch: &Batch) {
        let pieces = batch.pieces.iter();
        self.pieces = pieces.map(|piece| piece.position..piece.position + piece.blocks).collect();
    }

    /// Positions at which the log may continue with a frame that cannot be read.
    pub(crate) fn unverified(&self, scan: &Scan) -> Vec<u64> {
        let [first, second] = &scan.unreadable;
        let in_neither = first.intersection(second);
        let all: BTreeSet<u64> = scan.unverified.iter().chain(in_neither).copied().collect();
        let is_missing = |at: &u64| self.pieces.iter().any(|piece| piece.contains(at));
        all.into_iter().filter(|at| *at >= self.from || is_missing(at)).collect()
    }

    /// Whether `last`, which ends here, is empty and has only marks of it behind it.
    pub(crate) fn is_idle(&self, scan: &Scan, last: &RecoveredBatch) -> bool {
        let is_mark = |found: &Found| {
            let frame = &found.frame;
            let is_of_last = (frame.txg, frame.incarnation) == (last.txg, last.incarnation);
            frame.kind == FrameKind::Mark && is_of_last
        };
        let is_empty = last.batch.pieces.is_empty() && last.batch.records.is_empty();
        let mut behind = scan.frames.range(self.from..);
        let end = behind.clone().next_back().map_or(self.from, |(_, found)| found.end());
        let can_read = scan.unreadable.iter().all(BTreeSet::is_empty);
        is_empty && can_read && scan.end == end && behind.all(|(_, found)| is_mark(found))
    }

    /// Positions behind the end at which each copy cannot be read, except those of frames.
    pub(crate) fn unreadable(&self, scan: &Scan) -> [Vec<u64>; 2] {
        let is_of_frame = |at: &u64| {
            let before = scan.frames.range(..=at).next_back();
            before.is_some_and(|(_, found)| *at < found.end())
        };
        scan.unreadable.each_ref().map(|positions| {
            let behind = positions.range(self.from..).copied();
            behind.filter(|at| !is_of_frame(at)).collect()
        })
    }
}
