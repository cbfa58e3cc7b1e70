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
    #[error("{ptr:?} cannot be read in any copy; run `copyhold check` to list the affected files")]
    Unreadable { ptr: NodePtr, source: Arc<dyn Error + Send + Sync> },
    #[error("{ptr:?} is not a valid node; run `copyhold check` to list the affected files")]
    Damaged { ptr: NodePtr, source: FormatError },
    #[error("{ptr:?} is not the {level:?} node that its parent records; run `copyhold check`")]
    Level { ptr: NodePtr, level: Level },
    /// A node with the right digest and the wrong content, which only a program writes.
    #[error(
        "{ptr:?} has keys outside the range from {from} that its parent records; run `copyhold \
         check`"
    )]
    Keys { ptr: NodePtr, from: Key },
    /// For a [`crate::NodeSink`]: no space, or a device that fails.
    #[error("a node of {bytes} bytes cannot be written")]
    Unwritable { bytes: usize, source: Arc<dyn Error + Send + Sync> },
    #[error("keys from {start} of table {table} cannot be flushed; other tables are not affected")]
    Partition { table: TableId, start: Key, source: Box<TableError> },
    /// Layers that cannot be read and merged take up all that the partition may have.
    #[error(
        "an unreadable partition has {layers} layers and accepts no more edits; run `copyhold \
         check`"
    )]
    Layers { layers: usize },
    #[error("the partitions of table {table} contradict each other: {why}; run `copyhold check`")]
    Descriptors { table: TableId, why: String },
}

impl TableError {
    /// The node that is at fault, if one is.
    pub fn node(&self) -> Option<NodePtr> {
        match self {
            TableError::Unreadable { ptr, .. }
            | TableError::Damaged { ptr, .. }
            | TableError::Level { ptr, .. }
            | TableError::Keys { ptr, .. } => Some(*ptr),
            TableError::Partition { source, .. } => source.node(),
            _ => None,
        }
    }

    /// A partition has no place for one more layer.
    pub fn is_of_layers(&self) -> bool {
        match self {
            TableError::Layers { .. } => true,
            TableError::Partition { source, .. } => source.is_of_layers(),
            _ => false,
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
