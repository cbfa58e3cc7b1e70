//! The subvolumes whose space is being freed, as callers see them that wait for it.
//!
//! A caller waits for all, or for some that it knows; neither looks at those that live.

use copyhold_types::SubvolId;

use crate::volumes::Volumes;

/// Whether any of these is still being freed; without ids, any at all.
pub fn is_freeing(volumes: &Volumes, ids: &[SubvolId]) -> bool {
    let map = volumes.state.map.read();
    match ids {
        [] => !map.dying.is_empty(),
        ids => ids.iter().any(|id| map.dying.has(*id)),
    }
}

/// At most `most` of those that are being freed, with ids behind `after`, in order.
pub fn freeing_behind(volumes: &Volumes, after: SubvolId, most: usize) -> Vec<SubvolId> {
    volumes.state.map.read().dying.behind(after, most)
}
