//! Errors of subvolumes, in the words of the person who must act on them.

use copyhold_format::FormatError;
use copyhold_memory::LimitsError;
use copyhold_pool::PoolError;
use copyhold_types::{EpochId, Key, SubvolId};

use crate::NESTING_MAX;
use crate::family::BadFamily;
use crate::quota::QuotaError;
use crate::release::Damage;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    #[error("there is no subvolume {0}")]
    NoSubvolume(SubvolId),
    #[error("subvolume {0} is being deleted; close its open files")]
    Dying(SubvolId),
    #[error("subvolume {0} is read-only")]
    ReadOnly(SubvolId),
    #[error("subvolume {0} is the root of the pool: it cannot be deleted, moved or rolled back")]
    Root(SubvolId),
    #[error("subvolume {0} holds subvolume {1}; delete or move that one first")]
    Holds(SubvolId, SubvolId),
    #[error(
        "subvolume {0} cannot hold this one: subvolumes are nested at most {NESTING_MAX} deep; \
         choose a directory of a subvolume further up"
    )]
    TooDeep(SubvolId),
    #[error(
        "subvolume {subvol} cannot be rolled back to subvolume {snapshot}: they share no history, \
         or are the same; choose a snapshot of it, or of its snapshot source"
    )]
    Unrelated { subvol: SubvolId, snapshot: SubvolId },
    #[error("subvolume {0} has begun a newer epoch than its snapshot; try again")]
    Overtaken(SubvolId),
    #[error(
        "subvolumes {0} and {1} share no history: neither of them is a snapshot of the other, nor \
         both of a third"
    )]
    Incomparable(SubvolId, SubvolId),
    #[error(
        "subvolume {0} cannot be freed now: a node is damaged or unreadable; the deletion tries \
         again after a pause; run `copyhold check` if this lasts"
    )]
    Unfreeable(SubvolId),
    #[error("damage prevents the pending releases of epoch {0}; run `copyhold check`")]
    Aside(EpochId),
    #[error(
        "{0} exists already, at or above the high-water mark of its numbers, which is damaged; run \
         `copyhold check`"
    )]
    Mark(String),
    #[error("the item {key} of the system table: {source}")]
    Record {
        key: Key,
        #[source]
        source: FormatError,
    },
    #[error("subvolumes and their epochs do not match: {0}; run `copyhold check`")]
    Family(#[from] BadFamily),
    #[error("{0}; no more space is freed here; run `copyhold check`")]
    Damage(#[from] Damage),
    #[error(transparent)]
    MemoryLimits(#[from] LimitsError),
    #[error(transparent)]
    Quota(#[from] QuotaError),
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl VolumeError {
    /// Whether the pool refused space for it.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, VolumeError::Pool(PoolError::Full { .. }))
    }

    /// Whether only this work stops, until its next retry: true for every error but a stopped,
    /// read-only or full pool, also for a read error.
    pub(crate) fn is_damage(&self) -> bool {
        !matches!(
            self,
            VolumeError::Pool(
                PoolError::Stopped { .. }
                    | PoolError::ReadOnly { .. }
                    | PoolError::Full { .. }
                    | PoolError::LogFull
            )
        )
    }
}

pub(crate) type Result<T> = std::result::Result<T, VolumeError>;
