//! What can go wrong with tenants, in the words of who must act on it.

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
    #[error("subvolume {0} cannot be freed any further, for there is damage; run a check")]
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
    /// Whether this work is set aside, and other work goes on: every error but a stopped, read-only
    /// or full pool. A read error counts, which may pass; so it is tried again later.
    pub(crate) fn is_damage(&self) -> bool {
        !matches!(
            self,
            VolumeError::Pool(
                PoolError::Stopped { .. } | PoolError::ReadOnly { .. } | PoolError::Full { .. }
            )
        )
    }
}

pub(crate) type Result<T> = std::result::Result<T, VolumeError>;
