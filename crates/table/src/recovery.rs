//! A table while the log is replayed: edits only, since replay reads no base (R5).
//!
//! The descriptors come from the table of tables, which is itself replayed; so edits are gathered
//! per key, the last with its txg, and dealt out to partitions when all of the log was read. An
//! edit that its partition has settled already (`complete_to`, TABLE-T3) is dropped then.

use std::collections::BTreeMap;

use copyhold_format::node::PartitionDescriptor;
use copyhold_types::{Key, TableId, Txg};

use crate::delta::{Delta, earlier};
use crate::{Edit, Limits, Table, TableError};

/// Edits from the log for one table, in the order of the log.
#[derive(Debug)]
pub struct RecoveringTable {
    id: TableId,
    edits: BTreeMap<Key, (Txg, Edit)>,
}

impl RecoveringTable {
    pub fn new(id: TableId) -> RecoveringTable {
        RecoveringTable { id, edits: BTreeMap::new() }
    }

    /// Replays an edit; the last of a key wins.
    pub fn apply(&mut self, txg: Txg, key: Key, edit: Edit) {
        self.edits.insert(key, (txg, edit));
    }

    /// Keys that have an edit.
    pub fn edits(&self) -> usize {
        self.edits.len()
    }

    /// The logged edit of `key`.
    pub fn get(&self, key: Key) -> Option<&Edit> {
        self.edits.get(&key).map(|(_, edit)| edit)
    }

    /// The table, from the descriptors that the recovered table of tables has of it.
    ///
    /// # Errors
    /// As [`Table::restore`].
    pub fn finish(
        self,
        limits: Limits,
        descriptors: Vec<(u64, PartitionDescriptor)>,
    ) -> Result<Table, TableError> {
        let table = Table::restore(self.id, limits, descriptors)?;
        let mut edits = self.edits.into_iter().peekable();
        let mut partitions = table.write_partitions();
        for index in 0..partitions.iter().count() {
            let end = partitions.end(index);
            let state = partitions.get_mut(index).state.get_mut();
            let complete_to = state.complete_to;
            let mut oldest = None;
            let here =
                std::iter::from_fn(|| edits.next_if(|(key, _)| end.is_none_or(|end| *key < end)));
            let missing = here.filter(|(_, (txg, _))| complete_to.is_none_or(|done| *txg > done));
            let edits: Vec<(Key, Edit)> = missing
                .map(|(key, (txg, edit))| {
                    oldest = earlier(oldest, Some(txg));
                    (key, edit)
                })
                .collect();
            if let Some(oldest) = oldest {
                state.delta = Delta::from_sorted(edits.into_iter(), oldest);
            }
        }
        drop(partitions);
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key::MIN;

    /// A flush took an edit of a txg that was open, so its descriptor names the txg before.
    fn brought_back() -> Table {
        let flushed = PartitionDescriptor {
            complete_to: Some(Txg::FIRST),
            ..PartitionDescriptor::empty(Key::MIN)
        };
        let mut replayed = RecoveringTable::new(TableId(20));
        replayed.apply(Txg::FIRST.next(), KEY, Edit::put(b"in the base"));
        replayed.finish(Limits::default(), vec![(0, flushed)]).unwrap()
    }

    #[test]
    fn edits_of_a_txg_that_no_base_is_complete_to_are_brought_back() {
        let table = brought_back();
        assert_eq!(table.pin(), Some(Txg::FIRST.next()));
        assert_eq!(table.unflushed(KEY), Some(Edit::put(b"in the base")));
    }

    #[test]
    fn what_replay_brings_back_of_a_retired_table_pins_nothing() {
        let table = brought_back();
        table.retire_again();
        assert!(table.is_settled());
        assert_eq!((table.pin(), table.unflushed(KEY)), (None, None));
    }
}
