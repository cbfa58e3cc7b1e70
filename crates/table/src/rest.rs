//! Tables at rest: the trees of a table, without the locks and the places for edits.
//!
//! Problem.  A pool has one table for each snapshot, and more where snapshots differ. Nearly all
//!           of them have no edits, and no reader between two mounts; an open one takes several
//!           hundred bytes all the same.
//! Idea.     A table without edits is described by its trees alone. So these are kept, and the
//!           table is made again from them at its next use, without I/O.
//!
//! REST-R1  A table rests only if nothing else refers to it, and all of it is in its trees or in
//!          the table under it: it has no edits, no flush and no sweep under way, and is neither
//!          retired nor sealed. So a table under another one never rests.
//! REST-R2  A table that is opened is the one that was put to rest: the same partitions with the
//!          same ids, trees and inherited edits (LAYERS-L3), over the same table, of the same
//!          owner.

use std::mem::{size_of, size_of_val};
use std::sync::Arc;

use copyhold_memory::MemoryOwner;
use copyhold_types::{Key, TableId, Txg};

use crate::Limits;
use crate::partition::{Partition, PartitionState, Partitions};
use crate::settled::{Descent, Settled};
use crate::table::Table;

/// A table without edits; its id and limits are kept by the caller.
#[derive(Debug)]
pub struct RestingTable {
    /// Empty for one partition without trees, which is as in a new table.
    partitions: Box<[RestingPartition]>,
    next_id: u64,
    under: Option<Arc<Table>>,
    owner: Option<MemoryOwner>,
    descent: Descent,
}

#[derive(Debug)]
struct RestingPartition {
    id: u64,
    start: Key,
    settled: Settled,
    complete_to: Option<Txg>,
}

impl Table {
    /// Puts the table to rest, which nothing else refers to. `None`: REST-R1 forbids it, and the
    /// table is unchanged. Else the table is left empty, to be dropped.
    pub fn rest(&mut self) -> Option<RestingTable> {
        let is_used = *self.retired.get_mut() || *self.sealed.get_mut();
        let partitions = self.partitions_mut();
        if is_used || !partitions.iter_mut().all(|partition| partition.state.get_mut().may_rest()) {
            return None;
        }
        let next_id = partitions.next_id();
        let new = Partition::new(0, Key::MIN, PartitionState::default());
        let old = std::mem::replace(partitions, Partitions::new(vec![new]));
        let owner = old.owned.as_ref().map(|owned| owned.owner().clone());
        let (under, descent) = (old.under.clone(), old.descent);
        let list: Vec<RestingPartition> = old.into_list().into_iter().map(put_to_rest).collect();
        let is_new = next_id == 1 && list.iter().all(RestingPartition::is_new);
        let partitions = if is_new { Box::default() } else { list.into_boxed_slice() };
        Some(RestingTable { partitions, next_id, under, owner, descent })
    }
}

impl RestingTable {
    /// Opens the table (REST-R2).
    pub fn open(self, id: TableId, limits: Limits) -> Table {
        let RestingTable { partitions, next_id, under, owner, descent } = self;
        let table = Table::new(id, limits);
        let mut opened = table.write_partitions();
        if !partitions.is_empty() {
            *opened = Partitions::new(partitions.into_iter().map(open).collect());
        }
        opened.set_next_id(next_id);
        (opened.under, opened.descent) = (under, descent);
        drop(opened);
        owner.iter().for_each(|owner| table.set_owner(owner));
        table
    }

    /// The table under it.
    pub fn under(&self) -> Option<&Arc<Table>> {
        self.under.as_ref()
    }

    /// The owner of the edits that it will have.
    pub fn owner(&self) -> Option<&MemoryOwner> {
        self.owner.as_ref()
    }

    pub fn set_owner(&mut self, owner: &MemoryOwner) {
        self.owner = Some(owner.clone());
    }

    /// Whether a merge could settle more of it in its bases.
    pub fn has_layers(&self) -> bool {
        self.partitions.iter().any(|partition| !partition.settled.layers.is_empty())
    }

    /// The memory that it takes, in bytes. Layers count for each table that has them, though tables
    /// may share them.
    pub fn bytes(&self) -> usize {
        let layers =
            self.partitions.iter().map(|partition| size_of_val(&*partition.settled.layers));
        size_of::<RestingTable>() + size_of_val(&*self.partitions) + layers.sum::<usize>()
    }
}

impl PartitionState {
    fn may_rest(&self) -> bool {
        self.delta.is_empty() && self.frozen.is_none() && self.sweep.is_none()
    }
}

impl RestingPartition {
    fn is_new(&self) -> bool {
        self.settled.is_empty() && self.complete_to.is_none()
    }
}

fn put_to_rest(partition: Partition) -> RestingPartition {
    let Partition { id, start, mut state } = partition;
    let PartitionState { settled, complete_to, .. } = std::mem::take(state.get_mut());
    RestingPartition { id, start, settled, complete_to }
}

fn open(partition: RestingPartition) -> Partition {
    let RestingPartition { id, start, settled, complete_to } = partition;
    let state = PartitionState { settled, complete_to, ..PartitionState::default() };
    Partition::new(id, start, state)
}

#[cfg(test)]
pub(crate) mod tests {
    use copyhold_memory::Memory;

    use super::*;
    use crate::{Edit, PartitionStats};

    type View = (Vec<PartitionStats>, u64, Option<TableId>, Descent, Vec<Settled>);

    fn view(table: &Table) -> View {
        let partitions = table.read_partitions();
        let under = partitions.under.as_ref().map(|under| under.id());
        let settled = partitions.iter().map(|partition| partition.state.lock().settled.clone());
        let (next, descent, settled) =
            (partitions.next_id(), partitions.descent, settled.collect());
        drop(partitions);
        (table.stats(), next, under, descent, settled)
    }

    /// Puts a table to rest and opens it, if it may rest. Whether it did.
    pub(crate) fn rest_and_open(table: &mut Arc<Table>) -> bool {
        let (id, limits, may) = (table.id(), table.limits(), table.pin().is_none());
        let Some(only) = Arc::get_mut(table) else { return false };
        let (before, descriptors) = (format!("{:?}", view(only)), only.descriptors());
        let Some(resting) = only.rest() else { return false };
        assert!(may, "REST-R1: {id} has edits");
        let has_layers = descriptors.iter().any(|(_, of)| !of.layers.is_empty());
        assert_eq!(resting.has_layers(), has_layers);
        let opened = resting.open(id, limits);
        opened.check();
        assert_eq!(format!("{:?}", view(&opened)), before, "REST-R2");
        assert_eq!(opened.descriptors(), descriptors, "REST-R2");
        *table = Arc::new(opened);
        true
    }

    #[test]
    fn tables_with_edits_or_readers_or_others_over_them_do_not_rest() {
        let mut table = Arc::new(Table::new(TableId(5), Limits::default()));
        assert!(rest_and_open(&mut table));
        let reader = table.clone();
        assert!(!rest_and_open(&mut table));
        drop(reader);
        table.apply(Txg::FIRST, Key::MIN, Edit::Delete);
        assert!(!rest_and_open(&mut table));
        let mut over = Arc::new(Table::over(&table, TableId(6)));
        assert!(rest_and_open(&mut over));
        assert_eq!(over.under().map(|under| under.id()), Some(TableId(5)));
        table.retire_again();
        assert!(!rest_and_open(&mut table), "another table lies over it");
        drop(over);
        assert!(!rest_and_open(&mut table), "it is retired");
        table.reinstate();
        assert!(rest_and_open(&mut table));
    }

    #[test]
    fn a_resting_table_keeps_its_owner_and_takes_little_memory() {
        let memory = Memory::default();
        let owner = memory.add_owner();
        let mut table = Table::new(TableId(5), Limits::default());
        table.set_owner(&owner);
        let mut resting = table.rest().unwrap();
        assert_eq!(resting.owner(), Some(&owner));
        assert!(resting.bytes() <= 48, "{} bytes", resting.bytes());
        resting.set_owner(memory.shared());
        let table = resting.open(TableId(5), Limits::default());
        assert_eq!(table.owner().as_ref(), Some(memory.shared()));
        assert!(size_of::<RestingPartition>() <= 160);
    }
}
