//! Content that snapshots and clones share: which group pays for it in memory.
//!
//! Problem.  If the group of shared content paid for all that a subvolume has in common with
//!           others, a tenant that takes a snapshot of itself would have no usage any more, and no
//!           limits.
//! Idea.     A tenant pays for what it made itself, whichever of its subvolumes reads it. The
//!           shared group pays for what another tenant made: the image from which it was cloned.
//!           Epochs are ordered, so a reader's own content is all from one epoch on.
//!
//! OWNFROM-E1  Content from [`MemoryOwner::own_from`] on was made by the subvolume's tenant, before
//!             or after snapshots of it, or no other subvolume refers to it. The layer of
//!             subvolumes finds that epoch in the records on disk (MADEBY-M1 to MADEBY-M3).
//! OWNFROM-E2  The reader's subvolume pays for content of its own, so the tenant's group counts it.

use std::sync::atomic::Ordering::Relaxed;

use copyhold_types::EpochId;

use crate::owner::MemoryOwner;

impl MemoryOwner {
    pub fn own_from(&self) -> EpochId {
        EpochId(self.place().own_from.load(Relaxed))
    }

    pub fn set_own_from(&self, epoch: EpochId) {
        self.place().own_from.store(epoch.0, Relaxed);
    }

    /// The owner of content from an epoch that a reader of this owner finds; none: it is shared.
    pub fn if_own(&self, epoch: EpochId) -> Option<&MemoryOwner> {
        (epoch >= self.own_from()).then_some(self)
    }

    /// The group above all that hold this one, below the root: of the same tenant.
    pub fn tenant(&self) -> MemoryOwner {
        self.above().pop().unwrap_or_else(|| self.clone())
    }
}
