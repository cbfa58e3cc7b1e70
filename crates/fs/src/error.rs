//! Errors of filesystem operations, one variant for each answer that a caller can distinguish. The
//! front ends map each to their own kind of answer (an errno, a message).

use std::sync::Arc;

use copyhold_format::FormatError;
use copyhold_pool::PoolError;
use copyhold_types::{InodeNo, SubvolId};
use copyhold_volume::VolumeError;
use copyhold_volume::quota::QuotaError;

/// `Clone`: a failed write answers each caller that waits for it, and the next fsync (R34).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("the name exists already")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY
    #[error("the directory is not empty")]
    NotEmpty,
    /// ENAMETOOLONG
    #[error("the name has {len} bytes; at most {max} are allowed")]
    NameTooLong { len: usize, max: usize },
    /// ENAMETOOLONG: no path leads there.
    #[error(
        "directories are not moved to a place more than {max} levels below the root; move the \
         place up first"
    )]
    TooDeep { max: usize },
    /// EMLINK
    #[error("the file has as many links as it can have ({max})")]
    TooManyLinks { max: u32 },
    /// EINVAL
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// EPERM
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// EACCES
    #[error("permission denied")]
    AccessDenied,
    /// EROFS
    #[error("the filesystem is read-only: {why}")]
    ReadOnly { why: String },
    /// ENOSPC
    #[error("{0}")]
    NoSpace(PoolError),
    /// ENOSPC: the rest of the pool's space is promised.
    #[error(
        "{blocks} blocks wanted, but {kept} blocks are kept for quota reserves of other \
         subvolumes; delete files or reduce a reserve"
    )]
    Kept { blocks: u64, kept: u64 },
    /// ENOSPC: not the pool, but a structure of fixed size is full.
    #[error("no room for another {what}")]
    Crowded { what: &'static str },
    /// EFBIG
    #[error("the file would be larger than {max} bytes")]
    FileTooBig { max: u64 },
    /// E2BIG
    #[error("the attribute's value has {len} bytes; at most {max} are allowed")]
    AttributeTooBig { len: usize, max: usize },
    /// E2BIG: an inode of an older version of this program, which did not bound the names.
    #[error(
        "the names of the file's attributes have more than {max} bytes and cannot be listed; \
         remove attributes by name"
    )]
    AttributeListTooBig { max: usize },
    /// ENODATA
    #[error("no such attribute")]
    NoAttribute,
    /// EOPNOTSUPP
    #[error("{0} is not supported")]
    NotSupported(&'static str),
    /// ENXIO: seeking data or a hole at or behind the end.
    #[error("no data at or after this offset")]
    PastEnd,
    /// EXDEV
    #[error("source and target are in different subvolumes")]
    CrossSubvolume,
    /// EBUSY
    #[error("{0} is in use")]
    Busy(&'static str),
    /// EBUSY
    #[error("the entry is subvolume {0}; delete it as a subvolume")]
    IsSubvolume(SubvolId),
    /// ESTALE: a node id of something that is gone.
    #[error("the file no longer exists")]
    Stale,
    /// EIO: the stored data is not the written data. Logged where it was found.
    #[error(
        "subvolume {subvol} inode {ino} is damaged at byte {offset}: {why}; restore the file from a copy"
    )]
    Damaged { subvol: SubvolId, ino: InodeNo, offset: u64, why: String },
    /// EIO: a record that describes the filesystem differs from the written one.
    #[error("{what} is damaged: {source}")]
    Record {
        what: String,
        #[source]
        source: FormatError,
    },
    /// EIO
    #[error(transparent)]
    Pool(PoolError),
    /// EDQUOT, or the code of [`QuotaError::code`].
    #[error(transparent)]
    Quota(QuotaError),
    /// EIO, EBUSY or EINVAL: errors of subvolumes as such.
    #[error(transparent)]
    Volume(Arc<VolumeError>),
    /// EIO: the filesystem was shut down (GOINGDOWN) or is closed.
    #[error("the filesystem is shut down; mount it again")]
    ShutDown,
}

impl FsError {
    /// A device has refused the guards of a write; the data in memory still matches them.
    pub(crate) fn is_refused_guard(&self) -> bool {
        matches!(self, FsError::Pool(error) if error.is_refused_guard())
    }

    /// There is no room, in the pool or under a limit.
    pub(crate) fn is_full(&self) -> bool {
        let exceeded = matches!(self, FsError::Quota(QuotaError::Exceeded(_)));
        exceeded || matches!(self, FsError::NoSpace(_) | FsError::Kept { .. })
    }

    /// The numbers that were obtained for a snapshot are too old, for its source has taken a new
    /// epoch meanwhile: with new ones it works.
    pub(crate) fn is_overtaken(&self) -> bool {
        matches!(self, FsError::Volume(error) if matches!(**error, VolumeError::Overtaken(_)))
    }
}

impl From<PoolError> for FsError {
    fn from(error: PoolError) -> FsError {
        match error {
            PoolError::Full { .. } => FsError::NoSpace(error),
            PoolError::ReadOnly { why } => FsError::ReadOnly { why },
            other => FsError::Pool(other),
        }
    }
}

impl From<VolumeError> for FsError {
    fn from(error: VolumeError) -> FsError {
        match error {
            VolumeError::Pool(error) => error.into(),
            VolumeError::Quota(error) => FsError::Quota(error),
            VolumeError::NoSubvolume(_) | VolumeError::Dying(_) => FsError::Stale,
            VolumeError::ReadOnly(_) => {
                FsError::ReadOnly { why: "this subvolume is read-only".into() }
            }
            other => FsError::Volume(Arc::new(other)),
        }
    }
}

impl From<QuotaError> for FsError {
    fn from(error: QuotaError) -> FsError {
        FsError::Quota(error)
    }
}

pub type Result<T, E = FsError> = std::result::Result<T, E>;
