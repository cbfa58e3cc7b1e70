//! Verifying the data that the last batch introduces.
//!
//! One flush covers a txg's data and its batch, so after a crash the batch may be there while data
//! is not. A batch introduces the extents on blocks that it allocates; each has its checksums in
//! its item. If one has not, the data of its txg was flushed before the batch (R8), which says so.
//!
//! A block that does not match proves that the batch was not acknowledged, unless it rotted since
//! (R14). A block that cannot be read proves nothing (R13): then the others decide.

use std::collections::BTreeMap;

use copyhold_device::DeviceError;
use copyhold_format::item::{EXTENT, Extent, ExtentState};
use copyhold_format::log::{Record, Records};
use copyhold_log::RecoveredBatch;
use copyhold_types::{Purpose, Run};

use crate::PoolError;
use crate::verified::Reader;

/// The state of a batch's data.
pub(crate) enum Tail {
    Whole,
    Torn,
    /// All blocks that can be read match.
    Unreadable {
        matching: u64,
        unreadable: u64,
        error: DeviceError,
    },
}

/// Looks at all data that `batch` introduces.
pub(crate) async fn verify(reader: &Reader, batch: &RecoveredBatch) -> Result<Tail, PoolError> {
    let (mut matching, mut unreadable, mut last_error) = (0, 0, None);
    for extent in introduced(batch)? {
        let ExtentState::Written(sums) = &extent.state else { continue };
        let problems = reader.judge(extent.pointer.run, sums, Purpose::Data).await;
        matching += (sums.len() - problems.len()) as u64;
        for problem in problems {
            let Some(error) = problem.unreadable() else { return Ok(Tail::Torn) };
            unreadable += 1;
            last_error = Some(error.clone());
        }
    }
    Ok(match last_error {
        None => Tail::Whole,
        Some(error) => Tail::Unreadable { matching, unreadable, error },
    })
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
