//! Discards: runs that were freed long ago are returned to the host, late and in large pieces (P6,
//! R15).
//!
//! `space` takes a run out of the free set while it is discarded, so no allocation can take it
//! meanwhile. This module decides only the time: on request (FITRIM), and in the background for
//! runs that have been free for a minute.

use std::ops::Range;
use std::time::Duration;

use copyhold_runtime::finishing;
use copyhold_space::Discardable;
use copyhold_types::Txg;

use crate::{Pool, PoolError};

/// Runs that have been free for so long are discarded.
pub(crate) const AGE: Duration = Duration::from_secs(60);
/// Runs discarded at a time.
const RUNS: usize = 64;

impl Pool {
    /// Discards the free part of a range of blocks, in runs of at least `min_blocks` blocks, but
    /// no part of one that is less than 1 MiB, and nothing twice; returns the number of blocks.
    pub async fn trim(&self, range: Range<u64>, min_blocks: u64) -> Result<u64, PoolError> {
        self.check_writable()?;
        let which = Discardable {
            least: min_blocks.min(u32::MAX.into()) as u32,
            freed_before: None,
            keep_warm: false,
            unknown: true,
            from: range.start,
            to: range.end,
            runs: RUNS,
        };
        let mut blocks = 0;
        loop {
            let now = self.discard_some(which).await?;
            if now == 0 {
                return Ok(blocks);
            }
            blocks += now;
        }
    }

    /// Discards some of the blocks freed before `txg`, but keeps warm space.
    pub(crate) async fn discard_old(&self, txg: Txg) -> Result<u64, PoolError> {
        let which = Discardable {
            least: 0,
            freed_before: Some(txg),
            keep_warm: true,
            unknown: false,
            from: 0,
            to: u64::MAX,
            runs: RUNS,
        };
        self.discard_some(which).await
    }

    async fn discard_some(&self, which: Discardable) -> Result<u64, PoolError> {
        // A preallocated pool keeps its blocks, also on request.
        if !self.devices.can_discard() || self.label.features.preallocated() {
            return Ok(0);
        }
        let mut blocks = 0;
        for discard in self.space.take_discardable(which) {
            let run = discard.run();
            self.health.check()?;
            let request = self.devices.discard(run);
            // The run is not allocatable while the device may still discard it (R15).
            let done = finishing(&self.rt, async move { request.await.map(|()| discard) });
            self.space.discard_done(done.await?);
            blocks += u64::from(run.blocks);
        }
        Ok(blocks)
    }
}
