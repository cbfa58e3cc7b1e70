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
//!              next requests of the subvolume. The creation of a file above `max` is delayed as
//!              one above a `high` of as much.
//!              A copy of many steps ends behind the first one that is delayed, with a short count:
//!              so each step pays, as each write does.
//! THROTTLE-T3  Bytes that a cache in front took earlier are not delayed: the kernel writes its
//!              pages back for others, too.
//! THROTTLE-T4  A front end that has said [`Delays::wait_in_front_end`] waits itself, by
//!              [`owed_delay`], behind each call that may be delayed: it has ended by then all that
//!              other requests of the tenant wait for in the daemon. Without it the call waits
//!              here. A debt ends when the group is no longer above its limits, so a program that
//!              calls this library beside a front end, and does not wait, leaves none for ever.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use copyhold_memory::{Event, Limit, MemoryOwner, OverLimit, delay_above_high, stalled};
use copyhold_pool::{is_edit_part_used_up, reclaim_nodes, wait_for_edit_part};
use copyhold_types::{BLOCK_BYTES, SubvolId};

use crate::item_bytes::INODE_BYTES;
use crate::subvol::Subvol;
use crate::{Filesystem, Result};

/// Where requests above `high` wait.
#[derive(Default)]
pub struct Delays {
    by_front_end: AtomicBool,
    /// A delay was left to the front end.
    any: AtomicBool,
}

impl Delays {
    /// From now on the front end waits as long as [`owed_delay`] says (THROTTLE-T4).
    pub fn wait_in_front_end(&self) {
        self.by_front_end.store(true, Relaxed);
    }
}

/// The wait that requests of this subvolume owe, if it is worth a timer: for a front end, behind a
/// call that may be delayed. One load until the first delay of all.
pub fn owed_delay(fs: &Filesystem, subvol: SubvolId) -> Option<impl Future<Output = ()>> {
    if !fs.delays().any.load(Relaxed) {
        return None;
    }
    let subvol = fs.subvols.read().get(&subvol).cloned()?;
    let owed = subvol.owed_delay.take()?;
    let is_over = |limit| subvol.volume.owner().over_limit(limit, 0).is_some();
    if ![Limit::High, Limit::Max].into_iter().any(is_over) {
        subvol.owed_delay.forgive();
        return None;
    }
    Some(async move { stalled(subvol.volume.owner(), || fs.rt.now(), fs.rt.sleep(owed)).await })
}

/// Before a change of files of this owner: waits while its group has used up its part of edits.
pub(crate) async fn before_change(fs: &Filesystem, owner: &MemoryOwner) -> Result<()> {
    if is_edit_part_used_up(&fs.pool, owner) {
        let wait = Box::pin(wait_for_edit_part(&fs.pool, owner));
        stalled(owner, || fs.rt.now(), wait).await?;
    }
    Ok(())
}

/// After a change that takes so many bytes of memory: waits if the group is above its `high`.
/// Returns whether the request is delayed, here or in the front end: one of many steps ends then.
pub(crate) async fn slow_above_high(fs: &Filesystem, subvol: &Subvol, bytes: usize) -> bool {
    slow(fs, subvol, bytes, &[Limit::High]).await
}

/// Before the creation of a file: waits if the group is above its `high`, or its `max`: no data
/// that could be written back makes room for inodes.
pub(crate) async fn slow_creation(fs: &Filesystem, subvol: &Subvol) {
    slow(fs, subvol, INODE_BYTES, &[Limit::High, Limit::Max]).await;
}

async fn slow(fs: &Filesystem, subvol: &Subvol, bytes: usize, limits: &[Limit]) -> bool {
    if bytes == 0 || !subvol.volume.owner().is_near_limit() {
        return false;
    }
    Box::pin(delay(fs, subvol, bytes, limits)).await
}

async fn delay(fs: &Filesystem, subvol: &Subvol, bytes: usize, limits: &[Limit]) -> bool {
    let pages = bytes.div_ceil(BLOCK_BYTES) as u64;
    let delays = limits.iter().filter_map(|limit| {
        let OverLimit { group, over, .. } = reclaim_over(fs, subvol, *limit)?;
        let (event, bound) = match limit {
            Limit::High => (Event::High, group.limits().high),
            Limit::Max => (Event::Max, group.limits().max),
        };
        group.count(event);
        Some(delay_above_high(over, bound, pages))
    });
    let Some(delay) = delays.max() else { return false };
    subvol.owed_delay.add(delay);
    fs.delays().any.store(true, Relaxed);
    if fs.delays().by_front_end.load(Relaxed) {
        return subvol.owed_delay.is_due();
    }
    match owed_delay(fs, subvol.id()) {
        Some(wait) => wait.await,
        None => return false,
    }
    true
}

/// The group that is above this limit although its nodes were reclaimed.
pub(crate) fn reclaim_over(fs: &Filesystem, subvol: &Subvol, limit: Limit) -> Option<OverLimit> {
    let over = || subvol.volume.owner().over_limit(limit, 0);
    let walks = &subvol.walks[limit as usize];
    let Some(OverLimit { group, over: bytes, .. }) = over() else {
        walks.note_left(0);
        return None;
    };
    if walks.is_due(bytes) {
        reclaim_nodes(&fs.pool, &group, bytes);
        let left = over();
        walks.note_left(left.as_ref().map_or(0, |left| left.over));
        return left;
    }
    over()
}
