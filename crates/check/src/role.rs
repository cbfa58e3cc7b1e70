//! Whose a table is, and which nodes may be in it.

use copyhold_format::node::PartitionDescriptor;
use copyhold_types::{EpochId, Key, TableId};

/// Whose a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Unknown,
    /// The pool's own, or the only one of files: nothing in it is shared.
    Own,
    /// Of the files of an epoch.
    Files {
        epoch: EpochId,
        first: EpochId,
    },
    /// Of the files of a dying subvolume: its nodes are released before this key.
    Released {
        epoch: EpochId,
        first: EpochId,
        before: Key,
    },
}

impl Role {
    /// Whether others may have nodes of this epoch, too.
    pub(crate) fn is_inherited(self, node: EpochId) -> bool {
        match self {
            Role::Files { first, .. } | Role::Released { first, .. } => node < first,
            Role::Unknown | Role::Own => false,
        }
    }

    /// Whether a node of `node` in table `own` may have been written for table `found`.
    pub(crate) fn fits(self, node: EpochId, found: TableId, own: TableId) -> bool {
        match self {
            Role::Files { epoch, .. } | Role::Released { epoch, .. } if node < epoch => found < own,
            // A table that is handed over in steps may outlive its epoch, and then has no other
            // role; it keeps the nodes that it inherited. Others are reported as unknown.
            Role::Unknown => found <= own,
            _ => found == own,
        }
    }

    /// How many partitions have no nodes any more.
    pub(crate) fn released_before(self, partitions: &[(u64, PartitionDescriptor)]) -> usize {
        match self {
            Role::Released { before: Key::MAX, .. } => partitions.len(),
            Role::Released { before, .. } => partitions
                .partition_point(|(_, partition)| partition.start <= before)
                .saturating_sub(1),
            _ => 0,
        }
    }
}
