//! Unflushed edits are shared out among groups when they are scarce.
//!
//! Problem.  Transactions of all tenants wait while the edits in memory are at their limit, also if
//!           one tenant has made nearly all of them.
//! Idea.     From where flush rounds follow commits, each group has a part of the limit
//!           (`memory::Parts`). A group that has used up its part waits before its next change,
//!           until enough of its edits are flushed. While memory presses more than the log, its
//!           tables are flushed first (`units`). The others go on until the whole limit is used.
//!
//! EDITS-E1  Below [`START`] of the limit no group waits for its part, and the shared owner, of the
//!           pool's own tables, never does.
//! EDITS-E2  No group waits for its part while rounds flush nothing, or the pool is being closed:
//!           only a full limit stops it then.
//! EDITS-E3  A caller that waits for its part has no lock that suspends a task: it asks before it
//!           takes any. A writer asks before its data is accepted; to write dirty data back asks
//!           for room in the whole limit only (`admission`).
//! EDITS-E4  A caller that waits looks again after each attempt to flush, also if that flushed
//!           nothing, and when the pool stops or is being closed. So no wait outlasts its reason.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use copyhold_memory::{MemoryClass, MemoryOwner, Parts, Slot};

use crate::{Pool, PoolError, Sabotage};

/// From here on, of the limits of log and edits, a flush round follows each commit.
pub(crate) const START: f64 = 0.7;

#[derive(Debug)]
pub(crate) struct EditParts {
    parts: Parts,
    /// The last rounds have flushed nothing, though the pool wants rounds.
    in_vain: AtomicBool,
}

impl Default for EditParts {
    /// Without a limit.
    fn default() -> EditParts {
        EditParts::new(u64::MAX)
    }
}

impl EditParts {
    pub(crate) fn new(limit: u64) -> EditParts {
        EditParts { parts: Parts::new(MemoryClass::Edit, limit), in_vain: AtomicBool::new(false) }
    }

    /// So many bytes of edits came or went.
    pub(crate) fn note_moved(&self, bytes: i64) {
        self.parts.note_moved(bytes.unsigned_abs());
    }

    /// EDITS-E2.
    pub(crate) fn note_round(&self, in_vain: bool) {
        self.in_vain.store(in_vain, Relaxed);
    }

    /// Whether the group had used up its part when parts were computed last.
    pub(crate) fn was_used_up(&self, owner: &MemoryOwner) -> bool {
        owner.slot() != Slot::SHARED && self.parts.was_used_up(owner)
    }
}

/// Whether a change of this group has to wait for the flush of edits of its own: one comparison
/// while edits are not scarce.
pub fn is_edit_part_used_up(pool: &Pool, owner: &MemoryOwner) -> bool {
    let parts = &pool.admission.parts;
    pool.delta_pressure() > START
        && !parts.in_vain.load(Relaxed)
        && !pool.flusher.is_closing()
        && owner.slot() != Slot::SHARED
        && parts.parts.is_used_up(pool.memory(), owner)
}

/// Waits while this group has used up its part of the edits in memory.
///
/// # Errors
/// The pool has stopped.
pub async fn wait_for_edit_part(pool: &Pool, owner: &MemoryOwner) -> Result<(), PoolError> {
    let has_part = || !is_edit_part_used_up(pool, owner);
    if pool.sabotaged(Sabotage::ForgetEditWaiters) && !has_part() {
        return std::future::pending().await;
    }
    pool.wait_for_rounds(has_part).await
}
