//! An operator's orders about memory groups: other limits, and evictions.
//!
//! Limits of zero and above all memory are as likely as those that are reached: no operation fails
//! for them, so the histories of all levels hold beside them.

use std::sync::Arc;

use copyhold_fs::{Filesystem, FsError};
use copyhold_memory::{GroupLimits, Promise};
use copyhold_pool::reclaim_nodes;
use copyhold_types::SubvolId;
use copyhold_volume::{MemoryGroup, VolumeError, change_memory_limits};

use crate::dice::Dice;

/// Bytes of a limit are below this: so much a simulated subvolume has in memory.
const BITS: u64 = 20;

/// Other limits than before: one of the five, or all.
pub(crate) fn other_limits(dice: &mut Dice, was: GroupLimits) -> GroupLimits {
    let mut bytes = |none: u64| match dice.below(4) {
        0 => none,
        1 => 0,
        _ => dice.magnitude(BITS),
    };
    let (min, low, high, max) = (bytes(0), bytes(0), bytes(u64::MAX), bytes(u64::MAX));
    let weight = dice.pick(&[1, 100, GroupLimits::WEIGHT_MAX]);
    match dice.below(6) {
        0 => GroupLimits { promise: Promise { min, ..was.promise }, ..was },
        1 => GroupLimits { promise: Promise { low, ..was.promise }, ..was },
        2 => GroupLimits { high, ..was },
        3 => GroupLimits { max, ..was },
        4 => GroupLimits { weight, ..was },
        _ => GroupLimits { promise: Promise { min, low }, high, max, weight },
    }
}

/// Sets the limits of a subvolume, or of the shared group. Whether they are set: not if they
/// promise more than there can be.
pub(crate) async fn set_limits(
    fs: &Arc<Filesystem>,
    of: Option<SubvolId>,
    limits: &GroupLimits,
) -> Result<bool, FsError> {
    let volumes = fs.volumes();
    let subvol = of.map(|of| volumes.subvol(of).ok_or(FsError::Stale)).transpose()?;
    let group = subvol.as_deref().map_or(MemoryGroup::Shared, MemoryGroup::Of);
    match change_memory_limits(volumes, group, |_| *limits).await {
        Err(VolumeError::MemoryLimits(_)) => Ok(false),
        done => done.map(|_| true).map_err(FsError::from),
    }
}

/// Evicts caches of a subvolume, whatever its own promises.
pub(crate) fn evict(fs: &Arc<Filesystem>, dice: &mut Dice, of: SubvolId) {
    let Some(subvol) = fs.volumes().subvol(of) else { return };
    let bytes = dice.magnitude(BITS);
    let freed = reclaim_nodes(fs.pool(), subvol.owner(), bytes);
    assert!(freed == 0 || bytes > 0, "{freed} bytes are evicted for none");
}

/// A few orders about any of these subvolumes; limits that a full pool refuses stay as they are.
pub(crate) async fn give(fs: &Arc<Filesystem>, dice: &mut Dice, subvols: &[SubvolId]) {
    for _ in 0..dice.below(4) {
        let of = dice.pick(subvols);
        if dice.one_in(3) {
            evict(fs, dice, of);
            continue;
        }
        let group = (!dice.one_in(6)).then_some(of);
        let limits = other_limits(dice, GroupLimits::default());
        match set_limits(fs, group, &limits).await {
            Ok(_) | Err(FsError::NoSpace(_) | FsError::Stale) => {}
            Err(error) => panic!("memory limits: {error}"),
        }
    }
}
