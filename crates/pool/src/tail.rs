//! Verifying what the last batch introduces.
//!
//! One flush covers a txg's data and its batch, so after a crash the batch may be there while data
//! is not. What a batch introduces are the extents on blocks that it allocates; each has its
//! checksums in its item.

use std::collections::BTreeMap;

use copyhold_device::DynDevice;
use copyhold_format::block_checksum;
use copyhold_format::item::{EXTENT, Extent, ExtentState};
use copyhold_format::log::{Record, Records};
use copyhold_log::RecoveredBatch;
use copyhold_types::{BLOCK_BYTES, Purpose, Run};

use crate::PoolError;

/// Whether all data that `batch` introduces is on the device.
pub(crate) async fn is_whole(
    device: &DynDevice,
    batch: &RecoveredBatch,
) -> Result<bool, PoolError> {
    for extent in introduced(batch)? {
        let (run, ExtentState::Written(checksums)) = (extent.pointer.run, &extent.state) else {
            continue;
        };
        // An unreadable block is not taken for a torn write (rule R13).
        let data = device.read(run.addr.block(), run.blocks, Purpose::Data).await?;
        let sums = data.chunks(BLOCK_BYTES).map(block_checksum);
        if !sums.eq(checksums.iter().copied()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Extents of the batch's puts that lie in its allocations, each once.
fn introduced(batch: &RecoveredBatch) -> Result<Vec<Extent>, PoolError> {
    let wrong = |error| PoolError::damaged(format!("txg {} of the log", batch.txg), error);
    let mut allocated = BTreeMap::new();
    let mut extents = BTreeMap::new();
    for bytes in batch.records() {
        for record in Records::new(bytes) {
            match record.map_err(wrong)? {
                Record::Alloc(run) => {
                    allocated.insert(run.addr, run.blocks);
                }
                Record::Put { key, value, .. } if key.kind == EXTENT => {
                    let extent = Extent::parse(value).map_err(wrong)?;
                    extents.insert(extent.pointer.run.addr, extent);
                }
                _ => {}
            }
        }
    }
    let lies_in = |extent: &Extent| {
        let run = extent.pointer.run;
        allocated.range(..=run.addr).next_back().is_some_and(|(start, blocks)| {
            start.device() == run.addr.device() && run.end() <= Run::new(*start, *blocks).end()
        })
    };
    Ok(extents.into_values().filter(lies_in).collect())
}
