//! Growth: a pool uses a longer file or device, while it is in use or before.
//!
//! Problem.  Labels and uberblocks are at both ends of the pool, so the second area moves, and the
//!           power may fail at each write. A label that names more blocks than the device has
//!           makes the pool unusable; data in blocks that the label does not name is lost.
//! Idea.     The first label decides, as ever. All that the larger pool needs is durable before it
//!           changes, and nothing relies on the larger size before the first label is durable.
//!           The copies of the log stay where they are: the label names their places.
//!
//! ```text
//!   device longer → area at the new end: old label, ring of uberblocks → flush
//!                 → label at the new end → flush → first label → flush → space becomes free
//! ```
//!
//! All of it but the first step happens in the lead of a commit, so no uberblock is written
//! meanwhile. The old second area becomes free space, as all other new blocks do.
//!
//! GROW-G1  A crash at any write leaves the pool in its old size or in its new one, with all that
//!          was durable. From the first flush on, one damaged label, the first one too, changes
//!          nothing about that: the label at the end of the device leads to a ring of uberblocks
//!          that is whole.
//! GROW-G2  A mount that writes makes labels of an interrupted growth good: in the old size, the
//!          label at the new end becomes a copy of the first (`labels`).
//! GROW-G3  If the first label cannot be written, it is unknown which size a mount would find. The
//!          pool stops, as after a failed write of the log. Before, an error changes nothing: the
//!          first label is as it was, and the copy at the end of the device is written again.
//! GROW-G4  A size that this program cannot open, or not within its budget of memory, is refused
//!          before anything becomes longer.

use std::ops::Range;
use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_format::label::{AREA_BLOCKS, Label};
use copyhold_runtime::finishing;
use copyhold_types::BLOCK_BYTES;

use crate::group::Lead;
use crate::labels::{copy_at, places, repair_copy, write_label};
use crate::{Pool, PoolError, Sabotage, uberblocks};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The wanted size of a pool, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSize {
    To(u64),
    By(u64),
    /// All of the file or device.
    Max,
}

/// The sizes of a pool before and after, in bytes; they may be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    pub before: u64,
    pub now: u64,
}

/// Why a pool keeps its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowProblem {
    #[error(
        "the pool has {before} bytes and cannot become smaller: make a new pool of {wanted} bytes, \
         mount both, and copy the files"
    )]
    Smaller { before: u64, wanted: u64 },
    #[error("{wanted} bytes are no multiple of 4096")]
    NoMultiple { wanted: u64 },
    #[error(
        "a pool with metaslabs of {metaslab} bytes has at most {most} bytes: make a new pool, \
         mount both, and copy the files"
    )]
    TooLarge { metaslab: u64, most: u64 },
    #[error(
        "the budget of memory is enough for a pool of {most} bytes: mount it with a larger budget \
         before"
    )]
    OverBudget { most: u64 },
    #[error("the pool becomes larger already")]
    Busy,
    #[error(
        "the pool has {before} bytes, and grows by 256 KiB or more: the labels at its end must not \
         overlap"
    )]
    TooLittle { before: u64 },
    #[error(
        "the device has {device} bytes: make the pool as large as that (max), or leave 256 KiB \
         for the copy of the label at its end"
    )]
    NoRoomBehind { device: u64 },
    #[error(
        "the pool has protection information, and cannot grow: make a new pool, mount both, and \
         copy the files"
    )]
    Protected,
}

/// Makes the pool larger. A file becomes longer, and all of the new part is allocated if the pool
/// was created so; a block device must have the size already.
///
/// # Errors
/// The pool has its old size, unless it has stopped (GROW-G3).
pub async fn grow(pool: &Arc<Pool>, to: NewSize) -> Result<Grown, PoolError> {
    pool.check_writable()?;
    let growing = pool.clone();
    // If the caller is cancelled, the growth ends all the same.
    let grown = finishing(pool.runtime(), async move {
        let device = growing.devices.home().clone();
        let name = device.geometry().name;
        let refused = |problem| PoolError::Grow { name: name.clone(), problem };
        let alone = growing.label.growing.try_lock().ok_or_else(|| refused(GrowProblem::Busy))?;
        growing.check_writable()?;
        let old = growing.label.now();
        let size = device.measure()?;
        if size < old.blocks {
            return Err(PoolError::Shrunk { name, wanted: old.blocks, found: size });
        }
        let budget = growing.limits.blocks_max;
        let blocks = wanted(&device, &old, size, to, budget).map_err(refused)?;
        if blocks > old.blocks {
            let longer = lengthen(&growing, &old, blocks, size).await;
            if longer.is_err() {
                put_copy_back(&growing).await;
            }
            longer?;
        }
        drop(alone);
        Ok(Grown { before: old.blocks * BLOCK, now: blocks * BLOCK })
    });
    grown.await
}

/// Makes the device of `size` blocks longer, then the pool.
async fn lengthen(pool: &Arc<Pool>, old: &Label, blocks: u64, size: u64) -> Result<(), PoolError> {
    let room = if old.features.preallocated() { old.blocks } else { blocks - AREA_BLOCKS };
    pool.devices.home().grow(blocks.max(size), room..blocks).await?;
    let _changing = pool.label.changing.lock().await;
    // Features may have come while blocks were allocated.
    let old = pool.label.now();
    let new = Label { blocks, generation: old.generation + 1, ..old.clone() };
    use_longer(pool, &old, &new).await
}

/// After an error: the end of the device leads to the pool again.
async fn put_copy_back(pool: &Pool) {
    let _changing = pool.label.changing.lock().await;
    if pool.check_writable().is_err() {
        return; // GROW-G3
    }
    if let Err(error) = repair_copy(pool.devices.home(), &pool.label.now()).await {
        tracing::error!("the next mount that writes repairs the copy of the label: {error}");
    }
}

/// The blocks of a pool in its new size. The budget of memory is enough for `budget` blocks.
fn wanted(
    device: &DynDevice,
    label: &Label,
    size: u64,
    to: NewSize,
    budget: u64,
) -> Result<u64, GrowProblem> {
    let before = label.blocks * BLOCK;
    let most = label.blocks_max() * BLOCK;
    let wanted = match to {
        NewSize::To(bytes) => bytes,
        NewSize::By(bytes) => before.saturating_add(bytes),
        NewSize::Max => size * BLOCK,
    };
    let blocks = wanted / BLOCK;
    if device.protection().is_some() {
        return Err(GrowProblem::Protected);
    }
    if !wanted.is_multiple_of(BLOCK) {
        return Err(GrowProblem::NoMultiple { wanted });
    }
    if wanted > most {
        return Err(GrowProblem::TooLarge { metaslab: label.metaslab_blocks * BLOCK, most });
    }
    if blocks > budget.max(label.blocks) {
        return Err(GrowProblem::OverBudget { most: budget * BLOCK });
    }
    if blocks < label.blocks {
        return Err(GrowProblem::Smaller { before, wanted });
    }
    if (1..AREA_BLOCKS).contains(&(blocks - label.blocks)) {
        return Err(GrowProblem::TooLittle { before });
    }
    if blocks > label.blocks && (1..AREA_BLOCKS).contains(&size.saturating_sub(blocks)) {
        return Err(GrowProblem::NoRoomBehind { device: size * BLOCK });
    }
    Ok(blocks)
}

/// The pool gets its new label, and uses the new blocks.
async fn use_longer(pool: &Arc<Pool>, old: &Label, new: &Label) -> Result<(), PoolError> {
    if pool.sabotaged(Sabotage::GrowWithoutLabels) {
        pool.space.grow(new.blocks, &usable(old, new));
        return Ok(());
    }
    pool.group.lead(&pool.health).await?;
    let lead = Lead::begin(&pool.group, &pool.health);
    let labelled = write_larger(pool, old, new).await;
    if labelled.is_ok() {
        pool.label.written(new);
        pool.journal.grown(new.blocks);
    }
    lead.end(None);
    labelled?;
    pool.space.grow(new.blocks, &usable(old, new));
    Ok(())
}

async fn write_larger(pool: &Pool, old: &Label, new: &Label) -> Result<(), PoolError> {
    let device = pool.devices.home();
    uberblocks::copy_area(device, old, new.blocks).await?;
    if let Some(at) = copy_at(device, old)
        && at != Label::areas(new.blocks)[1]
    {
        write_label(device, old, at).await?;
    }
    pool.flush_device().await?;
    let ends = places(device, new).skip(1);
    for at in ends {
        write_label(device, new, at).await?;
    }
    pool.flush_device().await?;
    let labelled = async {
        write_label(device, new, 0).await?;
        pool.flush_device().await
    };
    labelled.await.inspect_err(|error| {
        pool.stop(&format!("the labels of the larger pool cannot be written: {error}"));
    })
}

/// The blocks that become usable: those behind the old end up to the new second area, and the old
/// second area.
fn usable(old: &Label, new: &Label) -> [(u64, u64); 2] {
    let run = |Range { start, end }: Range<u64>| (start, end - start);
    let [[_, old_area], [_, new_area]] = [old.blocks, new.blocks].map(Label::areas);
    [run(old_area..old.blocks), run(old.blocks..new_area)]
}
