//! Discards: runs that were freed long ago are returned to the host, late and in large pieces (P6,
//! R15).
//!
//! `space` takes a run out of the free set while it is discarded, so no allocation can take it
//! meanwhile. This module decides only the time: on request (FITRIM), and in the background for
//! runs that have been free for a minute.
//!
//! A run that the device does not discard is free as before. The runs behind it are discarded all
//! the same, and the first error is reported.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use copyhold_device::DeviceError;
use copyhold_runtime::finishing;
use copyhold_space::{CHUNK_BLOCKS, DISCARD_BLOCKS_MAX, Discardable, MetaslabInfo, Tier, Wanted};
use copyhold_types::Txg;

use crate::{Pool, PoolError, loads};

/// Runs that have been free for so long are discarded.
pub(crate) const AGE: Duration = Duration::from_secs(60);
/// Runs discarded at a time.
const RUNS: usize = 64;

/// One pass over runs that can be discarded.
#[derive(Default)]
struct Pass {
    runs: usize,
    /// Blocks that were discarded.
    blocks: u64,
    /// The block behind the last run.
    end: u64,
    /// The first failure.
    failed: Option<DeviceError>,
}

/// A preallocated pool keeps its blocks, also on request.
fn discards(pool: &Pool) -> bool {
    pool.devices.can_discard() && !pool.label.features().preallocated()
}

impl Pool {
    /// Discards the free part of a range of blocks, in runs of at least `min_blocks` blocks, but
    /// no part of one that is less than 1 MiB, and nothing twice while its map is in memory;
    /// returns the number of blocks. If the device fails a discard, all others are made before the
    /// error is returned.
    pub async fn trim(
        self: &Arc<Self>,
        range: Range<u64>,
        min_blocks: u64,
    ) -> Result<u64, PoolError> {
        self.check_writable()?;
        let mut which = Discardable {
            least: min_blocks.min(u32::MAX.into()) as u32,
            freed_before: None,
            keep_warm: false,
            unknown: true,
            from: range.start,
            to: range.end,
            runs: RUNS,
        };
        let (mut blocks, mut failed) = (0, None);
        if !discards(self) {
            return Ok(0);
        }
        // Each map by itself, since they may not fit in memory together.
        for (id, part) in self.space.parts_of(range) {
            (which.from, which.to) = (part.start, part.end);
            loop {
                // No part of a chunk is discarded, so no map is read for one.
                let has_chunk = |info: MetaslabInfo| info.is_loaded || info.free >= CHUNK_BLOCKS;
                if !self.space.metaslab(id).is_some_and(has_chunk) {
                    break;
                }
                // It may have been evicted since the last pass.
                loads::load(self, id).await;
                // A discard reserves its run.
                let free = self.space.metaslab(id).map_or(0, |info| info.free);
                let wanted = Wanted::from(u64::from(free.min(DISCARD_BLOCKS_MAX.max(which.least))));
                let _loading = loads::load_for(self, wanted, Tier::Write).await;
                let pass = self.discard_some(which).await?;
                if pass.runs == 0 {
                    break;
                }
                blocks += pass.blocks;
                // The runs that failed are free again, and an evicted map has no list of holes.
                which.from = pass.end;
                failed = failed.or(pass.failed);
            }
            self.space.evict(self.limits.maps_bytes);
        }
        failed.map_or(Ok(blocks), |error: DeviceError| Err(error.into()))
    }

    /// Discards some of the blocks freed before `txg`, from block `from` on, but keeps warm space;
    /// returns the block to continue from, so that runs that fail do not keep others from their
    /// turn.
    pub(crate) async fn discard_old(&self, txg: Txg, from: u64) -> Result<u64, PoolError> {
        let which = Discardable {
            least: 0,
            freed_before: Some(txg),
            keep_warm: true,
            unknown: false,
            from,
            to: u64::MAX,
            runs: RUNS,
        };
        let pass = self.discard_some(which).await?;
        if let Some(error) = pass.failed {
            tracing::warn!("{error}");
            return Ok(pass.end);
        }
        Ok(if pass.runs == 0 { 0 } else { from })
    }

    async fn discard_some(&self, which: Discardable) -> Result<Pass, PoolError> {
        let mut pass = Pass::default();
        if !discards(self) {
            return Ok(pass);
        }
        for discard in self.space.take_discardable(which) {
            let run = discard.run();
            self.health.check()?;
            let request = self.devices.discard(run);
            // The run is not allocatable while the device may still discard it (R15).
            let done = finishing(&self.rt, async move { request.await.map(|()| discard) });
            match done.await {
                Ok(discard) => {
                    self.space.discard_done(discard);
                    pass.blocks += u64::from(run.blocks);
                }
                Err(error) => pass.failed = pass.failed.or(Some(error)),
            }
            pass.runs += 1;
            pass.end = run.addr.block() + u64::from(run.blocks);
        }
        Ok(pass)
    }
}
