//! The refusals of quota operations, and the errors that would be bugs.

use std::fmt;

use copyhold_format::item::GroupId;
use copyhold_types::{EpochId, SubvolId};

use super::PARENTS_MAX;

/// The resource that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Bytes,
    Inodes,
    Snapshots,
    Subvolumes,
}

/// A limit that refuses. `used`, `reserved` and `unflushed` were read one after the other, for the
/// message; their sum decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// The group that refuses.
    pub group: GroupId,
    pub resource: Resource,
    pub wanted: u64,
    /// In use; of a subvolume also by subvolumes inside it.
    pub used: u64,
    /// Promised to writes that were accepted.
    pub reserved: u64,
    /// The most that unflushed changes will take.
    pub unflushed: u64,
    pub limit: u64,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exceeded { group, wanted, used, reserved, unflushed, limit, .. } = self;
        match self.resource {
            Resource::Bytes => write!(
                f,
                "quota group {group} is at its limit: {wanted} bytes wanted, {used} used, \
                 {reserved} reserved, {unflushed} for unflushed changes, of {limit}; delete files \
                 or raise the limit"
            ),
            Resource::Inodes => write!(
                f,
                "quota group {group} is at its limit: {wanted} inodes wanted, {used} used of \
                 {limit}; delete files or raise the limit"
            ),
            Resource::Snapshots => write!(
                f,
                "quota group {group} is at its limit: {wanted} snapshots wanted, {used} of {limit} \
                 there; delete snapshots or raise the limit"
            ),
            Resource::Subvolumes => write!(
                f,
                "quota group {group} is at its limit: {wanted} subvolumes wanted, {used} of \
                 {limit} there; delete subvolumes or raise the limit"
            ),
        }
    }
}

/// An operation that is refused; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    #[error("{0}")]
    Exceeded(Exceeded),
    #[error("quotas are off; turn them on with `quota enable --simple`")]
    Off,
    #[error(
        "full quotas are not implemented: they follow each reference to each extent, which becomes \
         slower with each snapshot; use `quota enable --simple`"
    )]
    FullMode,
    #[error("nothing to rescan: simple quotas are exact after every commit")]
    Rescan,
    #[error("items of the previous quotas are still being removed; try again")]
    Clearing,
    #[error("there is no quota group {0}")]
    NoGroup(GroupId),
    #[error("quota group {0} exists already")]
    Exists(GroupId),
    #[error(
        "quota group {0} is a subvolume; such groups are created and removed with their subvolumes"
    )]
    SubvolumeGroup(GroupId),
    #[error("quota group {0} does not exist, so it cannot be in a relation")]
    NoEnd(GroupId),
    #[error("quota group {child} cannot be a member of {parent}: its level is not below")]
    Level { child: GroupId, parent: GroupId },
    #[error("quota group {child} is a member of {parent} already")]
    Member { child: GroupId, parent: GroupId },
    #[error("quota group {child} is not a member of {parent}")]
    NoMember { child: GroupId, parent: GroupId },
    #[error("quota group {0} would be a member of more than {PARENTS_MAX} groups")]
    TooMany(GroupId),
    #[error("quota group {0} has members; remove them first")]
    HasMembers(GroupId),
    #[error("quota group {0} is a living subvolume; delete the subvolume")]
    Living(GroupId),
    #[error(
        "deleted subvolume {group} still pays for {bytes} bytes; its group is removed with the \
         last byte"
    )]
    StillPays { group: GroupId, bytes: u64 },
    #[error("deleted subvolume {0} is still being freed; `subvolume sync` waits for it")]
    BeingFreed(GroupId),
    #[error("subvolume {0} is deleted")]
    Deleted(SubvolId),
    #[error("subvolume {0} is not deleted; only a deleted subvolume can have an heir")]
    NotDeleted(SubvolId),
    #[error("subvolume {0} has an heir already")]
    HasHeir(SubvolId),
    #[error("subvolume {0} cannot be its own heir")]
    OwnHeir(SubvolId),
    #[error("quota group {0} is not a subvolume; only a subvolume can have a reserve")]
    ReserveOfGroup(GroupId),
    #[error("a reserve of {reserve} bytes is above the limit of {limit}")]
    ReserveAboveLimit { reserve: u64, limit: u64 },
    #[error("a reserve of {reserve} bytes is too large: {free} bytes are free for it")]
    NoRoom { reserve: u64, free: u64 },
    #[error("{0} is not a possible number of bytes")]
    Nonsense(u64),
}

impl QuotaError {
    /// The name of the errno, as programs see it.
    pub fn code(&self) -> &'static str {
        use QuotaError::*;
        match self {
            Exceeded(_) => "EDQUOT",
            Off => "ENOTCONN",
            NoGroup(_) | NoMember { .. } => "ENOENT",
            Exists(_) | Member { .. } | HasHeir(_) => "EEXIST",
            TooMany(_) => "EMLINK",
            FullMode => "EOPNOTSUPP",
            NoRoom { .. } => "ENOSPC",
            Deleted(_) => "ESTALE",
            Clearing | HasMembers(_) | Living(_) | StillPays { .. } | BeingFreed(_) => "EBUSY",
            Rescan
            | SubvolumeGroup(_)
            | NoEnd(_)
            | Level { .. }
            | NotDeleted(_)
            | OwnHeir(_)
            | ReserveOfGroup(_)
            | ReserveAboveLimit { .. }
            | Nonsense(_) => "EINVAL",
        }
    }
}

/// An accounting bug, never a user's mistake. The change was not counted at all, so that sums stay
/// the sums of their rows; a caller that gets this logs it and continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Miscount {
    #[error("epoch {0} counts for quotas, but has no owner; run `copyhold check`")]
    UnknownEpoch(EpochId),
    #[error(
        "epoch {epoch} refunds {data} bytes of data and {metadata} of metadata, more than its \
         usage; run `copyhold check`"
    )]
    Underflow { epoch: EpochId, data: u64, metadata: u64 },
    #[error("subvolume {0} has no account, but changes its inode count; run `copyhold check`")]
    UnknownSubvolume(SubvolId),
    #[error("subvolume {0} removes more inodes than it has; run `copyhold check`")]
    Inodes(SubvolId),
}
