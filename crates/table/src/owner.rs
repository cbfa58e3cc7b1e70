//! The owner of a table's memory: of its edits, and of the nodes that it reads.
//!
//! The charge of the edits is beside the partitions, under their lock: no edit comes or goes while
//! a table gets its owner. A node that another tenant made is shared, and no owner of a table pays
//! for it (OWNFROM-E1).

use copyhold_memory::{MemoryCharge, MemoryClass, MemoryOwner};
use copyhold_types::NodePtr;

use crate::delta::Weight;
use crate::table::Table;

#[derive(Debug)]
pub(crate) struct Owned {
    /// The bytes of the edits in memory.
    edits: MemoryCharge,
}

impl Owned {
    pub(crate) fn owner(&self) -> &MemoryOwner {
        self.edits.owner()
    }

    /// The edits in memory are so much more, or less.
    pub(crate) fn change(&self, more: Weight) {
        self.edits.change(more.bytes);
    }
}

impl Table {
    /// `owner` pays from now on for the table's edits, also for those that it has, and for its own
    /// nodes.
    pub fn set_owner(&self, owner: &MemoryOwner) {
        let mut partitions = self.write_partitions();
        let edits = owner.charge(MemoryClass::Edit, partitions.weight().bytes);
        partitions.owned = Some(Owned { edits });
    }

    /// The owner of the table's edits.
    pub fn owner(&self) -> Option<MemoryOwner> {
        let partitions = self.read_partitions();
        partitions.owned.as_ref().map(|owned| owned.edits.owner().clone())
    }

    /// The owner of a node that this table reads or writes; none, if it is shared.
    pub fn owner_of(&self, node: &NodePtr) -> Option<MemoryOwner> {
        let partitions = self.read_partitions();
        partitions.owned.as_ref()?.edits.owner().if_own(node.epoch).cloned()
    }
}
