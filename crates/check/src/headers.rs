//! Headers of protection information that are written again, for `check --repair`.
//!
//! Problem.  A pool on a namespace is not opened without a header, although its labels name all
//!           that a header has.
//! Idea.     One bad copy is written from the other. Where both are lost, a label that verifies
//!           gives format and identity, and `pi` writes them only if the size fits and a label has
//!           its tuple where the new header says (PIMEND-M1).

use copyhold_device::DynDevice;
use copyhold_device::pi::{self, Format, Headers, Remake};
use copyhold_format::label::Label;
use copyhold_pool::{PoolError, find_labels};
use copyhold_runtime::Rt;

/// Writes headers again that are bad, on a file or disk that is not open as a pool; the blocks that
/// were written. A pool without protection information needs none.
///
/// # Errors
/// The headers are lost and cannot be made from the label. Nothing is written then, unless the
/// device fails.
pub async fn repair_headers(rt: Rt, below: &DynDevice) -> Result<Vec<u64>, PoolError> {
    match pi::look_at_headers(below).await {
        Headers::Good(_) => Ok(pi::mend_headers(rt, below).await?),
        // Its opening explains the problem.
        Headers::Unusable(_) => Ok(Vec::new()),
        Headers::Lost => remake(rt, below).await,
    }
}

async fn remake(rt: Rt, below: &DynDevice) -> Result<Vec<u64>, PoolError> {
    let Ok(found) = find_labels(below).await else { return Ok(Vec::new()) };
    let Some(needed) = found.label.namespace else { return Ok(Vec::new()) };
    let wrong = |why: String| PoolError::Damaged {
        what: format!("{}: the header of protection information", below.geometry().name),
        why: format!("it is not made anew: {why}"),
    };
    if needed.identity == [0; 16] {
        return Err(wrong("the pool was made on a drive, and this is a copy of its data".into()));
    }
    let format = Format::of_bytes(needed.format).map_err(|problem| wrong(problem.to_string()))?;
    let blocks = found.label.blocks;
    let wanted = (format, needed.identity);
    let made = pi::remake_headers(rt, below, wanted, blocks, &Label::areas(blocks)).await;
    made.map_err(|refused| match refused {
        Remake::Device(error) => PoolError::Device(error),
        other => wrong(other.to_string()),
    })
}
