//! A partition in memory, and the ordered list of them.
//!
//! PART-P1  The first partition starts at `Key::MIN`, starts ascend, ids are distinct (TABLE-T4).
//! PART-P2  `frozen` is there exactly while a flush of the partition is under way.
//! PART-P3  Edits of txgs up to `sweep.complete_to` are in the delta above `sweep.resume`, or
//!          frozen, or settled; other edits of the delta are no older than `sweep.fresh`.

use std::sync::Arc;

use copyhold_format::node::PartitionDescriptor;
use copyhold_sync::{Mutex, of};
use copyhold_types::{Key, Txg};

use crate::delta::{Delta, Weight, earlier};
use crate::owner::Owned;
use crate::settled::{Descent, Settled};
use crate::table::Table;
use crate::{Edit, Value};

/// A pass of flushes over all keys of a partition, a bounded number of edits at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    /// The txg that the partition is complete to when the pass is done.
    pub(crate) complete_to: Txg,
    /// The key at which the pass continues.
    pub(crate) resume: Key,
    /// Oldest txg of the edits that came since the pass began.
    pub(crate) fresh: Option<Txg>,
}

#[derive(Debug, Default)]
pub(crate) struct PartitionState {
    pub(crate) settled: Settled,
    pub(crate) delta: Delta,
    pub(crate) frozen: Option<Arc<Delta>>,
    pub(crate) complete_to: Option<Txg>,
    pub(crate) sweep: Option<Sweep>,
}

#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) id: u64,
    pub(crate) start: Key,
    pub(crate) state: Mutex<PartitionState, of::Partition>,
}

impl PartitionState {
    /// Returns the usage that this adds to the delta.
    pub(crate) fn apply(&mut self, txg: Txg, key: Key, edit: Edit) -> Weight {
        if let Some(sweep) = &mut self.sweep {
            sweep.fresh = earlier(sweep.fresh, Some(txg));
        }
        let before = self.weight();
        self.delta.apply(txg, key, edit);
        self.weight() - before
    }

    /// Of the edits in memory only.
    pub(crate) fn weight(&self) -> Weight {
        let frozen = self.frozen.as_ref().map_or(Weight::default(), |frozen| frozen.weight());
        let weight = self.delta.weight() + frozen;
        Weight { partitions: i64::from(weight.edits > 0), ..weight }
    }

    /// The edit of `key`; `None`: look in the settled trees.
    pub(crate) fn unflushed(&self, key: &Key) -> Option<Option<Value>> {
        let edit = match self.delta.get(key) {
            Some(edit) => edit,
            None => self.frozen.as_ref()?.get(key)?,
        };
        Some(edit.value().cloned())
    }

    /// TABLE-T2.
    pub(crate) fn pin(&self) -> Option<Txg> {
        earlier(self.delta.oldest(), self.frozen.as_ref().and_then(|frozen| frozen.oldest()))
    }
}

impl Partition {
    pub(crate) fn new(id: u64, start: Key, state: PartitionState) -> Partition {
        Partition { id, start, state: Mutex::new(state) }
    }

    pub(crate) fn descriptor(&self) -> PartitionDescriptor {
        let state = self.state.lock();
        let Settled { base, layers, .. } = &state.settled;
        PartitionDescriptor {
            start: self.start,
            root: base.root,
            height: base.height,
            items: base.items,
            complete_to: state.complete_to,
            layers: layers.to_vec(),
        }
    }
}

/// All partitions of a table in the order of their keys; never empty.
#[derive(Debug)]
pub(crate) struct Partitions {
    list: Vec<Partition>,
    next_id: u64,
    /// The table that it was forked from, until its partitions are handed over (`fork`). Until then
    /// there is one partition, without a base.
    pub(crate) under: Option<Arc<Table>>,
    pub(crate) descent: Descent,
    pub(crate) owned: Option<Owned>,
}

impl Partitions {
    /// `list` as required by PART-P1.
    pub(crate) fn new(list: Vec<Partition>) -> Partitions {
        assert!(
            list.first().is_some_and(|first| first.start == Key::MIN),
            "PART-P1: keys are covered"
        );
        assert!(list.is_sorted_by(|a, b| a.start < b.start), "PART-P1: starts ascend");
        let next_id = list.iter().map(|partition| partition.id + 1).max().unwrap_or(0);
        Partitions { list, next_id, under: None, descent: Descent::default(), owned: None }
    }

    /// Of the edits in memory only.
    pub(crate) fn weight(&self) -> Weight {
        self.iter().map(|partition| partition.state.lock().weight()).sum()
    }

    /// The edits in memory are so much more, or less: `more`.
    pub(crate) fn charged(&self, more: Weight) -> Weight {
        self.owned.iter().for_each(|owned| owned.change(more));
        more
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.list.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.list.iter_mut()
    }

    pub(crate) fn into_list(self) -> Vec<Partition> {
        self.list
    }

    /// The id of the next partition.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    pub(crate) fn set_next_id(&mut self, id: u64) {
        assert!(self.iter().all(|partition| partition.id < id), "PART-P1: ids are distinct");
        self.next_id = id;
    }

    /// The partition that `key` belongs to.
    pub(crate) fn covering(&self, key: Key) -> &Partition {
        &self.list[self.index_covering(key)]
    }

    pub(crate) fn index_covering(&self, key: Key) -> usize {
        self.list.partition_point(|partition| partition.start <= key) - 1
    }

    /// The partition that starts at `start`.
    pub(crate) fn index_starting(&self, start: Key) -> Option<usize> {
        self.list.binary_search_by_key(&start, |partition| partition.start).ok()
    }

    pub(crate) fn get(&self, index: usize) -> &Partition {
        &self.list[index]
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Partition {
        &mut self.list[index]
    }

    /// Where the range of a partition ends; `None`: it has all keys from its start on.
    pub(crate) fn end(&self, index: usize) -> Option<Key> {
        self.list.get(index + 1).map(|next| next.start)
    }

    /// Puts new partitions behind the one at `index`; they get ids of their own.
    pub(crate) fn insert_behind(&mut self, index: usize, states: Vec<(Key, PartitionState)>) {
        let first_id = self.next_id;
        self.next_id += states.len() as u64;
        let new = states.into_iter().zip(first_id..);
        let partitions = new.map(|((start, state), id)| Partition::new(id, start, state));
        self.list.splice(index + 1..index + 1, partitions);
    }

    /// Takes out the partition at `index`; the one before takes over its keys.
    pub(crate) fn remove(&mut self, index: usize) -> Partition {
        assert!(index > 0, "PART-P1: the first partition stays");
        self.list.remove(index)
    }
}
