//! Errors of subvolumes, in the words of the person who must act on them.

use copyhold_format::FormatError;
use copyhold_pool::PoolError;
use copyhold_types::{EpochId, Key, SubvolId};

use crate::family::BadFamily;
use crate::quota::QuotaError;
use crate::release::Damage;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    #[error("there is no subvolume {0}")]
    NoSubvolume(SubvolId),
    #[error("subvolume {0} is being deleted; close what is open in it")]
    Dying(SubvolId),
    #[error("subvolume {0} is read-only")]
    ReadOnly(SubvolId),
    #[error("subvolume {0} is the root of the pool: it cannot be deleted, moved or rolled back")]
    Root(SubvolId),
    #[error("subvolume {0} holds subvolume {1}; delete or move that one first")]
    Holds(SubvolId, SubvolId),
    #[error(
        "subvolume {subvol} cannot become what subvolume {snapshot} is: they share no history, or \
         are the same; take a snapshot of it, or of what it was made from"
    )]
    Unrelated { subvol: SubvolId, snapshot: SubvolId },
    #[error("subvolume {0} has taken a newer epoch than the snapshot was given; try again")]
    Overtaken(SubvolId),
    #[error(
        "subvolumes {0} and {1} are no snapshots of each other, nor of one that both were made from"
    )]
    Incomparable(SubvolId, SubvolId),
    #[error(
        "subvolume {0} cannot be freed now: a node is damaged or unreadable; freeing is tried again \
         after a pause; run a check if this lasts"
    )]
    Unfreeable(SubvolId),
    #[error("epoch {0} has pending releases that cannot be taken up, for there is damage")]
    Aside(EpochId),
    #[error(
        "{0} exists already, though its number is to come next: the mark of numbers is damaged; run \
         a check"
    )]
    Mark(String),
    #[error("the record {key} of the system table: {source}")]
    Record {
        key: Key,
        #[source]
        source: FormatError,
    },
    #[error("subvolumes do not go with their epochs: {0}; run a check")]
    Family(#[from] BadFamily),
    #[error("{0}; nothing more is freed here, run a check")]
    Damage(#[from] Damage),
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
