//! Headers of protection information that are written again, for `check --repair`.
//!
//! Problem.  A pool on a namespace is not opened without a header, although its labels name all
//!           that a header has. And one copy of another namespace's header may lie beside a
//!           rotten one of the pool's own.
//! Idea.     The labels decide. A rotten copy is written from the other if the pool may be used on
//!           the namespace that this one describes. Where both are lost, the labels give format
//!           and identity, and `pi` writes them only if each label that verifies has its tuple
//!           where the new header says (PIMEND-M2).

use std::collections::BTreeSet;
use std::sync::Arc;

use copyhold_device::pi::{self, Emulated, Format, Headers, Remake};
use copyhold_device::{DeviceError, DynDevice};
use copyhold_format::label::Label;
use copyhold_pool::{PoolError, find_labels, read_labels};
use copyhold_runtime::Rt;
use copyhold_types::Purpose;

/// Writes headers again that are rotten, on a file or disk that is not open as a pool; the blocks
/// that were written. A pool without protection information needs none, and one whose opening
/// explains the problem gets none.
///
/// # Errors
/// The headers are lost and cannot be made from the labels. Nothing is written then, unless the
/// device fails.
pub async fn repair_headers(rt: Rt, below: &DynDevice) -> Result<Vec<u64>, PoolError> {
    match pi::look_at_headers(rt.clone(), below).await {
        Headers::Good { namespace, rotten } => mend(below, &namespace, rotten).await,
        Headers::Unusable(_) => Ok(Vec::new()),
        Headers::Unread(error) => expect_no_need(below, error).await,
        Headers::Lost => remake(rt, below).await,
    }
}

/// Writes rotten copies from the good one of this namespace.
async fn mend(
    below: &DynDevice,
    namespace: &Arc<Emulated>,
    rotten: Vec<u64>,
) -> Result<Vec<u64>, PoolError> {
    let device: DynDevice = namespace.clone();
    if rotten.is_empty() {
        return Ok(rotten);
    }
    let Ok(found) = read_labels(&device).await else { return Ok(Vec::new()) };
    expect_writable(&found.label)?;
    pi::mend_headers(below, namespace.header(), &rotten).await?;
    Ok(rotten)
}

/// Where headers cannot be read, only a pool without protection information is served.
async fn expect_no_need(below: &DynDevice, error: DeviceError) -> Result<Vec<u64>, PoolError> {
    match find_labels(below).await {
        Ok(found) if found.label.namespace.is_some() => Err(refused(below, error.to_string())),
        _ => Ok(Vec::new()),
    }
}

async fn remake(rt: Rt, below: &DynDevice) -> Result<Vec<u64>, PoolError> {
    let Ok(found) = find_labels(below).await else { return Ok(Vec::new()) };
    let Some(needed) = found.label.namespace else { return Ok(Vec::new()) };
    let wrong = |why: String| refused(below, why);
    let format = Format::of_bytes(needed.format).map_err(|problem| wrong(problem.to_string()))?;
    let (all, blocks) = (below.geometry().blocks, found.label.blocks);
    if all < Emulated::blocks_for(format, blocks) {
        return Ok(Vec::new());
    }
    if needed.identity == [0; 16] {
        return Err(wrong("the pool was made on a drive, and this is a copy of its data".into()));
    }
    expect_writable(&found.label)?;
    let room = Emulated::room(&below.geometry().name, format, all)?;
    let known = labels_of(below, [blocks, room]).await;
    let made = pi::remake_headers(rt, below, (format, needed.identity), &known).await;
    made.map_err(|problem| match problem {
        Remake::Device(error) => PoolError::Device(error),
        other => wrong(other.to_string()),
    })
}

/// The places of all labels that verify: of a pool of the first size, and the copy of one in a
/// namespace of the second.
async fn labels_of(below: &DynDevice, sizes: [u64; 2]) -> Vec<u64> {
    let mut known = Vec::new();
    for at in BTreeSet::from_iter(sizes.into_iter().flat_map(Label::areas)) {
        if let Ok(bytes) = below.read(at, 1, Purpose::Label).await
            && Label::parse(&bytes).is_ok()
        {
            known.push(at);
        }
    }
    known
}

fn expect_writable(label: &Label) -> Result<(), PoolError> {
    match label.features.writable() {
        true => Ok(()),
        false => {
            let why = "it uses features that this program can only read; no header was written";
            Err(PoolError::ReadOnly { why: why.into() })
        }
    }
}

fn refused(below: &DynDevice, why: String) -> PoolError {
    PoolError::Damaged {
        what: format!("{}: the header of protection information", below.geometry().name),
        why: format!("it is not made anew: {why}"),
    }
}
