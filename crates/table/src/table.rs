//! The table itself: its partitions, and edits.

use std::sync::atomic::{AtomicBool, Ordering};

use copyhold_format::node::{LAYERS_MAX, PartitionDescriptor};
use copyhold_sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, of};
use copyhold_types::{Key, TableId, Txg};

use crate::delta::{Delta, Weight, earlier};
use crate::partition::{Partition, PartitionState, Partitions};
use crate::settled::{Base, Inherited, Settled};
use crate::{Edit, TableError};

/// Sizes of nodes and partitions, and how a flush reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A leaf with more than one item is at most as large. A multiple of 4 KiB.
    pub leaf_bytes: usize,
    /// A partition with more leaves is split when it is flushed; at least 2. 254 leaves fill an
    /// inner node of 16 KiB.
    pub partition_leaves: usize,
    /// Leaves that a flush or a walk reads ahead.
    pub read_ahead: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { leaf_bytes: 32 * 1024, partition_leaves: 254, read_ahead: 16 }
    }
}

/// One table.
#[derive(Debug)]
pub struct Table {
    id: TableId,
    pub(crate) limits: Limits,
    partitions: RwLock<Partitions, of::Partitions>,
    /// Nothing of it is flushed or merged any more.
    pub(crate) retired: AtomicBool,
    /// See [`Table::seal`].
    pub(crate) sealed: AtomicBool,
}

/// The result of a look-up that may not wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cached<T> {
    Known(T),
    /// A node would have to be read.
    Unknown,
}

/// Numbers for the flush policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionStats {
    /// Names the partition to [`Table::freeze`].
    pub start: Key,
    pub id: u64,
    /// Oldest txg of an edit that is in memory only (TABLE-T2).
    pub pin: Option<Txg>,
    /// Edits that the next flush can take.
    pub edits: usize,
    pub delta_bytes: usize,
    /// Edits that are being flushed; 0: no flush is under way.
    pub frozen_edits: usize,
    pub frozen_bytes: usize,
    pub flushing: bool,
    /// Items in the base.
    pub base_items: u64,
    pub layers: usize,
    /// Edits in layers; a key may have one in several.
    pub layer_edits: u64,
}

impl Table {
    /// Memory of a table with one partition, in bytes, without its trees' layers and edits.
    pub const BYTES: usize = size_of::<Table>() + size_of::<Partition>();

    /// A reader holds the partitions of a table while it looks into the table under it, which is
    /// older: so newer tables come first in the order of locks.
    pub(crate) fn read_partitions(&self) -> RwLockReadGuard<'_, Partitions> {
        self.partitions.read_at(u64::MAX - self.id.0)
    }

    pub(crate) fn write_partitions(&self) -> RwLockWriteGuard<'_, Partitions> {
        self.partitions.write_at(u64::MAX - self.id.0)
    }

    /// Without a lock, which nothing else could have.
    pub(crate) fn partitions_mut(&mut self) -> &mut Partitions {
        self.partitions.get_mut()
    }

    /// A table without items.
    pub fn new(id: TableId, limits: Limits) -> Table {
        Table::with_partitions(
            id,
            limits,
            vec![Partition::new(0, Key::MIN, PartitionState::default())],
        )
    }

    /// The table whose partitions the table of tables lists, as (partition id, descriptor) in any
    /// order; without any, a table without items.
    ///
    /// # Errors
    /// The descriptors do not cover all keys exactly once.
    pub fn restore(
        id: TableId,
        limits: Limits,
        mut descriptors: Vec<(u64, PartitionDescriptor)>,
    ) -> Result<Table, TableError> {
        let fault = |why: String| TableError::Descriptors { table: id, why };
        if descriptors.is_empty() {
            return Ok(Table::new(id, limits));
        }
        descriptors.sort_by_key(|(_, descriptor)| descriptor.start);
        let first = descriptors[0].1.start;
        if first != Key::MIN {
            return Err(fault(format!("the first starts at {first}")));
        }
        for pair in descriptors.windows(2) {
            if pair[0].1.start == pair[1].1.start {
                return Err(fault(format!(
                    "{} and {} both start at {}",
                    pair[0].0, pair[1].0, pair[0].1.start
                )));
            }
        }
        let mut list = Vec::with_capacity(descriptors.len());
        for (partition, d) in descriptors {
            let base = Base { root: d.root, height: d.height, items: d.items };
            let inherited = Inherited::Unknown;
            let settled = Settled { base, layers: d.layers.into(), inherited };
            let state =
                PartitionState { settled, complete_to: d.complete_to, ..PartitionState::default() };
            list.push(Partition::new(partition, d.start, state));
        }
        Ok(Table::with_partitions(id, limits, list))
    }

    fn with_partitions(id: TableId, limits: Limits, list: Vec<Partition>) -> Table {
        assert!(limits.leaf_bytes >= 4096, "a leaf has at least one block");
        assert!(limits.partition_leaves >= 2, "a partition that is split has two leaves");
        assert!(limits.read_ahead >= 1, "at least one leaf is read");
        let partitions = RwLock::new(Partitions::new(list));
        Table {
            id,
            limits,
            partitions,
            retired: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
        }
    }

    pub fn id(&self) -> TableId {
        self.id
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// No flush begins any more, not even of layers without edits: its nodes are about to be
    /// released. A flush under way continues; when the table is settled again, its nodes do not
    /// change.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Its nodes are not released after all: it is flushed like any other again.
    pub fn reinstate(&self) {
        self.retired.store(false, Ordering::Release);
    }

    /// Retires a table that was retired before a crash. It was settled then: an edit that replay
    /// brought back is in its bases, or in released parts of them, and pins the log for nothing.
    ///
    /// Returns the usage of the edits that left memory.
    pub fn retire_again(&self) -> Weight {
        self.retire();
        let partitions = self.read_partitions();
        let before = partitions.weight();
        partitions.iter().for_each(|partition| partition.state.lock().delta = Delta::default());
        let more = partitions.charged(partitions.weight() - before);
        Weight::default() - more
    }

    /// Makes an edit that `txg` logs. The locks of the layer above, held since before joining the
    /// txg, order the edits of a key in the log; calls come in that order.
    pub fn apply(&self, txg: Txg, key: Key, edit: Edit) {
        self.apply_weighed(txg, key, edit);
    }

    /// As [`Self::apply`]; returns the usage that this adds to memory.
    pub fn apply_weighed(&self, txg: Txg, key: Key, edit: Edit) -> Weight {
        let partitions = self.read_partitions();
        let more = partitions.covering(key).state.lock().apply(txg, key, edit);
        partitions.charged(more)
    }

    /// The edit of `key` in memory: its value, or that it is deleted; `None` if there is none.
    pub fn unflushed(&self, key: Key) -> Option<Edit> {
        let partitions = self.read_partitions();
        let found = partitions.covering(key).state.lock().unflushed(&key);
        found.map(Edit::from)
    }

    /// TABLE-T2 for the whole table; `None`: everything is settled.
    pub fn pin(&self) -> Option<Txg> {
        let partitions = self.read_partitions();
        partitions.iter().map(|partition| partition.state.lock().pin()).fold(None, earlier)
    }

    /// Every partition in the order of keys.
    pub fn stats(&self) -> Vec<PartitionStats> {
        self.read_partitions().iter().map(stats_of).collect()
    }

    /// Unflushed edits and the memory that they take, frozen ones included.
    pub fn weight(&self) -> Weight {
        self.read_partitions().weight()
    }

    pub fn unflushed_bytes(&self) -> usize {
        self.weight().bytes as usize
    }

    /// Whether a flush of a part of it is under way.
    pub fn is_being_flushed(&self) -> bool {
        self.read_partitions().iter().any(|partition| partition.state.lock().frozen.is_some())
    }

    /// The partitions as they are on disk, by id; the table of tables should contain these.
    pub fn descriptors(&self) -> Vec<(u64, PartitionDescriptor)> {
        let partitions = self.read_partitions();
        partitions.iter().map(|partition| (partition.id, partition.descriptor())).collect()
    }

    /// The layers of the partition that has most.
    pub fn layers_most(&self) -> usize {
        let partitions = self.read_partitions();
        let layers = |partition: &Partition| partition.state.lock().settled.layers.len();
        partitions.iter().map(layers).max().unwrap_or(0)
    }

    /// Whether bases and edits are as they must be; for tests and `check`.
    pub fn check(&self) {
        let partitions = self.read_partitions();
        for (index, partition) in partitions.iter().enumerate() {
            let end = partitions.end(index);
            assert!(end.is_none_or(|end| partition.start < end), "PART-P1: {}", partition.start);
            let state = partition.state.lock();
            let inside = |key: &Key| *key >= partition.start && end.is_none_or(|end| *key < end);
            assert!(
                state.delta.range(..).all(|(key, _)| inside(key)),
                "TABLE-T4: an edit is astray"
            );
            assert!(state.delta.is_empty() == state.delta.oldest().is_none(), "TABLE-T2: delta");
            let Settled { base, layers, .. } = &state.settled;
            assert!(base.root.is_some() == (base.items > 0), "a base and its count");
            assert!(layers.iter().all(|layer| layer.items > 0), "LAYERS-L2: a layer without edits");
            let newest_first = layers.is_sorted_by(|a, b| a.last_txg >= b.last_txg);
            assert!(newest_first && layers.len() <= LAYERS_MAX, "LAYERS-L1: {layers:?}");
        }
    }
}

fn stats_of(partition: &Partition) -> PartitionStats {
    let state = partition.state.lock();
    let frozen = state.frozen.as_ref();
    PartitionStats {
        start: partition.start,
        id: partition.id,
        pin: state.pin(),
        edits: state.delta.len(),
        delta_bytes: state.delta.bytes(),
        frozen_edits: frozen.map_or(0, |frozen| frozen.len()),
        frozen_bytes: frozen.map_or(0, |frozen| frozen.bytes()),
        flushing: frozen.is_some(),
        base_items: state.settled.base.items,
        layers: state.settled.layers.len(),
        layer_edits: state.settled.layers.edits(),
    }
}
