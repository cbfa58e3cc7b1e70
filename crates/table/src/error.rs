//! Errors of a table.

use std::error::Error;
use std::sync::Arc;

use copyhold_format::FormatError;
use copyhold_format::node::Level;
use copyhold_types::{Key, NodePtr, TableId};

/// `Clone`: many waiters may receive one failed read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// For a [`crate::NodeSource`]: no copy could be read or verified.
    #[error("{ptr:?} cannot be read from any of its copies; run a check to see what it held")]
    Unreadable { ptr: NodePtr, source: Arc<dyn Error + Send + Sync> },
    #[error("{ptr:?} is not a node as it should be; run a check to see what it held")]
    Damaged { ptr: NodePtr, source: FormatError },
    #[error("{ptr:?} is not the {level:?} node that its parent says; run a check")]
    Level { ptr: NodePtr, level: Level },
    /// For a [`crate::NodeSink`]: no space, or a device that fails.
    #[error("a node of {bytes} bytes cannot be written")]
    Unwritable { bytes: usize, source: Arc<dyn Error + Send + Sync> },
    #[error("keys from {start} of table {table} cannot be settled; other tables are not affected")]
    Partition { table: TableId, start: Key, source: Box<TableError> },
    /// Layers that cannot be read and merged take up all that the partition may have.
    #[error(
        "no more edits can be laid over what cannot be read; {layers} layers are there; run a check"
    )]
    Layers { layers: usize },
    #[error("the partitions of table {table} do not fit together: {why}; run a check")]
    Descriptors { table: TableId, why: String },
}

impl TableError {
    /// The node that is at fault, if one is.
    pub fn node(&self) -> Option<NodePtr> {
        match self {
            TableError::Unreadable { ptr, .. }
            | TableError::Damaged { ptr, .. }
            | TableError::Level { ptr, .. } => Some(*ptr),
            TableError::Partition { source, .. } => source.node(),
            _ => None,
        }
    }

    /// Whether the cause was lack of space or a failing device, not the stored data.
    pub fn is_unwritable(&self) -> bool {
        match self {
            TableError::Unwritable { .. } => true,
            TableError::Partition { source, .. } => source.is_unwritable(),
            _ => false,
        }
    }
}
