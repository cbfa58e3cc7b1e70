//! A group that uses more than its memory allows waits for itself.
//!
//! Problem.  A tenant that changes files faster than the device takes them uses up memory that
//!           others need. To refuse its requests would break programs.
//! Idea.     Its requests wait: before a change, while the group has used up its part of the
//!           unflushed edits (`pool::edit_parts`); for a write or the creation of a file, if the
//!           group is above its `high`. Writers at `max` wait in `dirty_room`.
//!
//! THROTTLE-T1  A request that waits here has no lock that suspends a task.
//! THROTTLE-T2  Above `high`, an fsync and a removal are not delayed, no request fails, and a
//!              request waits two seconds at most. Delays too short for a timer add up, for the
//!              next requests of the subvolume.

use copyhold_memory::{Event, Limit, MemoryOwner, OverLimit, delay_above_high, stalled};
use copyhold_pool::{is_edit_part_used_up, reclaim_nodes, wait_for_edit_part};
use copyhold_types::BLOCK_BYTES;

use crate::subvol::Subvol;
use crate::{Filesystem, Result};

/// Before a change of files of this owner: waits while its group has used up its part of edits.
pub(crate) async fn before_change(fs: &Filesystem, owner: &MemoryOwner) -> Result<()> {
    if is_edit_part_used_up(&fs.pool, owner) {
        let wait = Box::pin(wait_for_edit_part(&fs.pool, owner));
        stalled(owner, || fs.rt.now(), wait).await?;
    }
    Ok(())
}

/// For a change that adds so many bytes: waits if the group is above its `high`.
pub(crate) async fn slow_above_high(fs: &Filesystem, subvol: &Subvol, bytes: usize) {
    let owner = subvol.volume.owner();
    if owner.is_near_limit() {
        Box::pin(delay(fs, subvol, owner, bytes)).await;
    }
}

async fn delay(fs: &Filesystem, subvol: &Subvol, owner: &MemoryOwner, bytes: usize) {
    let Some(OverLimit { group, over, .. }) = reclaim_over(fs, owner, Limit::High) else { return };
    group.count(Event::High);
    let pages = bytes.div_ceil(BLOCK_BYTES) as u64;
    let delay = delay_above_high(over, group.limits().high, pages);
    if let Some(owed) = subvol.owed_delay.add(delay) {
        stalled(owner, || fs.rt.now(), fs.rt.sleep(owed)).await;
    }
}

/// The group that is above this limit although its caches were reclaimed.
pub(crate) fn reclaim_over(
    fs: &Filesystem,
    owner: &MemoryOwner,
    limit: Limit,
) -> Option<OverLimit> {
    let over = || owner.over_limit(0).filter(|over| over.limit == limit);
    let OverLimit { group, over: bytes, .. } = over()?;
    reclaim_nodes(&fs.pool, &group, bytes);
    over()
}
