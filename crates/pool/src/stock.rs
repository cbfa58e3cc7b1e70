//! Stock mode (`-o spacelog=off`): each txg writes the maps of all metaslabs that it changed.
//!
//! Problem.  The gain of logging changes of space can be measured only beside a pool that does
//!           not gain it. The published predecessor of such a log appended the changes of a txg
//!           to the map of each metaslab within the txg. To write a map allocates and frees
//!           blocks, and so changes metaslabs again: a txg took several passes until it
//!           converged.
//! Idea.     Policy, not format. A txg is a commit of the timer, or a sync; the commit is its
//!           first pass. Each further pass is a flush round that writes the changes of all
//!           metaslabs, as deltas of their maps or whole. An fsync only writes the log, as it did
//!           there.
//! End.      The predecessor overwrote the blocks of its last passes in place. Here no block is
//!           overwritten (R3), so a map always changes the metaslab in which it is placed. A txg
//!           ends when a pass leaves changes in at most a hundredth of the metaslabs, or in as
//!           many as the pass before.
//! Safety.   The records stay in the log, and a pass is a round like any other (FLUSH-F1,
//!           FLUSH-F2): a crash between two passes loses nothing. Without these bytes in the log
//!           stock mode would write less; the figures count the changes, to subtract them.
//! Kinder.   A map or a delta is one or a few blocks in two copies. There a txg wrote for each
//!           metaslab a data block and two indirect blocks, in three copies.
//!
//! STOCK-M1  The passes of one txg at a time run. The timer closes no txg before the passes of its
//!           last one have ended.
//! STOCK-M2  Maps that cannot be read are not written: their metaslabs are set aside, and the
//!           flush policy logs their changes again.
//! STOCK-M3  A pass that fails ends the passes of its txg, and so do a full log (FLUSH-F4) and the
//!           end of the mount. The changes stay in the log, and the next txg writes their maps.
//! STOCK-M4  A pool in which no transaction was admitted since the last txg writes no map.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_runtime::FifoMutex;
use copyhold_types::{BLOCK_BYTES, Nanos};

use crate::units::{Aim, Unit};
use crate::{Pool, PoolError};

/// The part of the metaslabs that may have changes when a txg ends.
const CONVERGED: usize = 100;
/// The maps of one round, and the bytes of the log that each takes at most.
const MAPS_MIN: usize = 64;
const MAPS_MAX: usize = 512;
const RECORD_BYTES: usize = 1024;
/// The part of the log's share for users that the records of one round may take.
const LOG_PART: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Stock {
    /// STOCK-M1.
    turn: FifoMutex,
    /// Users' admissions at the last txg, and its time.
    asked: AtomicU64,
    at: AtomicU64,
    txgs: AtomicU64,
    single: AtomicU64,
    passes: AtomicU64,
    most: AtomicU64,
    maps: AtomicU64,
    edits: AtomicU64,
}

/// The work of stock mode since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StockFigures {
    pub txgs: u64,
    /// Txgs with one pass: their commits changed no map.
    pub single: u64,
    /// Passes of all txgs, their commits included, and the most of one.
    pub passes: u64,
    pub most: u64,
    /// Maps or deltas that were written, and the changes since the maps before.
    pub maps: u64,
    pub edits: u64,
}

impl Stock {
    pub(crate) fn figures(&self) -> StockFigures {
        let [txgs, single, passes, most, maps, edits] =
            [&self.txgs, &self.single, &self.passes, &self.most, &self.maps, &self.edits]
                .map(|count| count.load(Relaxed));
        StockFigures { txgs, single, passes, most, maps, edits }
    }

    fn note_txg(&self, passes: u64) {
        self.txgs.fetch_add(1, Relaxed);
        self.single.fetch_add(u64::from(passes == 1), Relaxed);
        self.passes.fetch_add(passes, Relaxed);
        self.most.fetch_max(passes, Relaxed);
    }
}

/// Whether the timer closes a txg in stock mode now, even if commits keep the marker busy.
pub(crate) fn is_txg_due(pool: &Pool) -> bool {
    let stock = &pool.flusher.stock;
    let interval = pool.limits.txg_interval.as_nanos() as Nanos;
    !pool.limits.space_log
        && pool.rt.now().saturating_sub(stock.at.load(Relaxed)) >= interval
        && pool.admission.asked() != stock.asked.load(Relaxed)
}

/// Ends a txg of the timer or of a sync: in stock mode, writes the maps of all metaslabs with
/// changes. The caller has committed the txg.
pub async fn end_txg(pool: &Arc<Pool>) {
    if !pool.limits.space_log {
        // In a box, so that a sync in usual mode has a small future.
        Box::pin(run_passes(pool)).await;
    }
}

async fn run_passes(pool: &Arc<Pool>) {
    let stock = &pool.flusher.stock;
    let _turn = stock.turn.lock().await;
    let asked = pool.admission.asked();
    if stock.asked.swap(asked, Relaxed) == asked {
        return;
    }
    stock.at.store(pool.rt.now(), Relaxed);
    let few = pool.space.metaslabs().count() / CONVERGED;
    let (mut passes, mut before) = (1, usize::MAX);
    while !pool.is_closing() {
        let changed = changed(pool);
        let is_end = changed.is_empty() || changed.len() >= before;
        if is_end || passes > 1 && changed.len() <= few || pool.is_log_full() {
            break;
        }
        before = changed.len();
        passes += 1;
        if let Err(error) = write_maps(pool, &changed).await {
            tracing::error!("writing space maps: {error}");
            break;
        }
    }
    stock.note_txg(passes);
}

/// The metaslabs with durable changes that no map has, each with the number of its changes
/// (STOCK-M2).
fn changed(pool: &Pool) -> Vec<(Unit, u64)> {
    let (durable, aside) = (pool.durable_txg(), pool.space.set_aside());
    let pins = pool.space.pins();
    pins.filter(|pin| pin.oldest <= durable && !pin.flushing && !aside.contains(&pin.metaslab))
        .map(|pin| (Unit::Metaslab(pin.metaslab), pin.edits))
        .collect()
}

/// One pass.
async fn write_maps(pool: &Arc<Pool>, changed: &[(Unit, u64)]) -> Result<(), PoolError> {
    let stock = &pool.flusher.stock;
    let log_bytes = pool.journal.user_blocks() as usize * BLOCK_BYTES;
    let most = (log_bytes / LOG_PART / RECORD_BYTES).clamp(MAPS_MIN, MAPS_MAX);
    for part in changed.chunks(most) {
        // While the log is full, records of maps that do not pin it would only use it up.
        if pool.is_log_full() || pool.is_closing() {
            return Ok(());
        }
        let units = part.iter().map(|(unit, _)| *unit).collect();
        let round = pool.flush_units(units, Aim::Trim).await?;
        if let Some(failed) = round.failed {
            return Err(failed);
        }
        if round.is_held_up {
            return Err(PoolError::LogFull);
        }
        stock.maps.fetch_add(round.flushed as u64, Relaxed);
        stock.edits.fetch_add(part.iter().map(|(_, edits)| edits).sum(), Relaxed);
    }
    Ok(())
}
