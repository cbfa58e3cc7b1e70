//! Errors of a pool, grouped by the caller's reaction.

use std::error::Error as _;

use copyhold_device::DeviceError;
use copyhold_format::FormatError;
use copyhold_log::{Damage, Unreadable};
use copyhold_space::NoSpace;
use copyhold_table::TableError;

use crate::grow::GrowProblem;
use crate::protection::ProtectionProblem;

/// `Clone`: many waiters receive one failure.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    #[error(
        "pool is full: {wanted} blocks wanted, {free} free, of which {reserve} are kept for \
         deletes; delete files, or subvolumes where snapshots share them, or use a larger pool"
    )]
    /// `on_the_way`: freed, and waited for in vain (R22).
    Full { wanted: u64, free: u64, reserve: u64, on_the_way: u64 },
    #[error("the log is full, and the oldest edits in it cannot be flushed now; free some space")]
    LogFull,
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device has refused guards that do not match the data any more, in these blocks of the
    /// request.
    #[error(
        "the data of a write changed in memory: {error}. Write the file again, and test the \
         host's memory"
    )]
    MemoryChanged {
        blocks: Box<[u32]>,
        #[source]
        error: Box<DeviceError>,
    },
    #[error("{what} is damaged: {why}")]
    Damaged { what: String, why: String },
    #[error(transparent)]
    Log(#[from] Damage),
    /// Nothing is decided by an error (R13): the administrator may.
    #[error(
        "{what} cannot be read ({source}). Mount the pool again; if the error lasts, mount it \
         read-only (-o ro) to copy the readable files, or with `-o cut-tail`, which discards \
         {lost} permanently"
    )]
    Unreadable {
        what: String,
        lost: String,
        #[source]
        source: Box<DeviceError>,
    },
    #[error("{name} is not a Copyhold pool: {why}")]
    NotAPool { name: String, why: String },
    #[error("{name}: {source}")]
    Newer {
        name: String,
        #[source]
        source: FormatError,
    },
    /// The pool needs the protection information of its device.
    #[error("{name}: {problem}; nothing has been changed")]
    Protection { name: String, problem: ProtectionProblem },
    #[error(
        "{name} has shrunk: the pool needs {wanted} blocks of 4 KiB, the device has {found}; \
         restore its size; nothing has been changed"
    )]
    Shrunk { name: String, wanted: u64, found: u64 },
    #[error("{name} is too small for a pool: {found} blocks of 4 KiB, at least {wanted} needed")]
    TooSmall { name: String, wanted: u64, found: u64 },
    /// The pool keeps its size.
    #[error("{name} keeps its size: {problem}")]
    Grow { name: String, problem: GrowProblem },
    #[error("the layout of the new pool is invalid: {0}")]
    Layout(FormatError),
    #[error("the pool is open read-only: {why}")]
    ReadOnly { why: String },
    #[error("the pool has stopped: {why}; it accepts no more writes until it is mounted again")]
    Stopped { why: String },
    #[error("the pool has used all {0} numbers, which are never assigned twice")]
    NoIds(&'static str),
}

impl PoolError {
    /// The blocks of a write that changed in memory, counted from its first.
    pub fn changed_blocks(&self) -> &[u32] {
        match self {
            PoolError::MemoryChanged { blocks, .. } => blocks,
            _ => &[],
        }
    }

    /// The data changed on its way to the device, which has stored nothing. The host still has it.
    pub fn is_refused_guard(&self) -> bool {
        matches!(self, PoolError::Device(error) if error.is_refused_guard())
    }

    pub(crate) fn damaged(what: impl Into<String>, why: impl ToString) -> PoolError {
        PoolError::Damaged { what: what.into(), why: why.to_string() }
    }
}

impl From<Unreadable> for PoolError {
    fn from(unreadable: Unreadable) -> PoolError {
        PoolError::Unreadable {
            what: unreadable.to_string(),
            lost: format!("what was acknowledged behind txg {}", unreadable.last),
            source: Box::new(unreadable.error),
        }
    }
}

impl From<NoSpace> for PoolError {
    fn from(full: NoSpace) -> PoolError {
        let NoSpace { wanted, free, reserve, on_the_way } = full;
        PoolError::Full { wanted, free, reserve, on_the_way }
    }
}

impl From<TableError> for PoolError {
    /// With all that lies behind it: a device that fails and a node that is rotten look the same to
    /// a table.
    fn from(error: TableError) -> PoolError {
        let mut why = error.to_string();
        let mut behind = error.source();
        while let Some(inner) = behind {
            why = format!("{why} ({inner})");
            behind = inner.source();
        }
        PoolError::damaged("a table", why)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use copyhold_types::{EpochId, NodePtr};

    use super::*;

    #[test]
    fn what_a_table_cannot_read_tells_what_the_device_has_said() {
        let ptr = NodePtr {
            copies: [None; 2],
            blocks: 1,
            fragmented: false,
            epoch: EpochId(1),
            digest: copyhold_types::Digest(0),
        };
        let source = Arc::new(std::io::Error::from_raw_os_error(5));
        let error = PoolError::from(TableError::Unreadable { ptr, source });
        assert!(error.to_string().contains("os error 5"), "{error}");
    }
}
