//! The owner of a table's memory: of its edits, and of the nodes that it reads.
//!
//! The charge of the edits is beside the partitions, under their lock: no edit comes or goes while
//! a table gets its owner. A node from before the owner's first epoch is shared with others, and
//! no owner of a table pays for it.

use copyhold_memory::{MemoryCharge, MemoryClass, MemoryOwner};
use copyhold_types::{EpochId, NodePtr};

use crate::delta::Weight;
use crate::table::Table;

#[derive(Debug)]
pub(crate) struct Owned {
    /// The bytes of the edits in memory.
    edits: MemoryCharge,
    /// Nodes of this epoch or later are the owner's alone.
    first: EpochId,
}

impl Owned {
    /// The edits in memory are so much more, or less.
    pub(crate) fn change(&self, more: Weight) {
        self.edits.change(more.bytes);
    }
}

impl Table {
    /// `owner` pays from now on for the table's edits, also for those that it has, and for nodes
    /// from `first` on.
    pub fn set_owner(&self, owner: &MemoryOwner, first: EpochId) {
        let mut partitions = self.write_partitions();
        let edits = owner.charge(MemoryClass::Edit, partitions.weight().bytes);
        partitions.owned = Some(Owned { edits, first });
    }

    /// The owner of the table's edits.
    pub fn owner(&self) -> Option<MemoryOwner> {
        let partitions = self.read_partitions();
        partitions.owned.as_ref().map(|owned| owned.edits.owner().clone())
    }

    /// The owner of a node that this table reads or writes; none, if it is shared.
    pub fn owner_of(&self, node: &NodePtr) -> Option<MemoryOwner> {
        let partitions = self.read_partitions();
        let owned = partitions.owned.as_ref().filter(|owned| node.epoch >= owned.first);
        owned.map(|owned| owned.edits.owner().clone())
    }
}
