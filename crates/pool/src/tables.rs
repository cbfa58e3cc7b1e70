//! The open tables of a pool, and the root of them all.
//!
//! The table of tables has one partition, whose descriptor lies nowhere in a table: it is a field
//! of each batch and of the uberblock (rule R5).
//!
//! There are a few tables for each snapshot, and most of them are at rest: settled, with no edits.
//! What looks for work asks the busy ones only, so it costs what is being changed, not what exists.
//!
//! B1  A table that has edits or lies over another is in `busy`, or an edit is being applied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use copyhold_format::node::PartitionDescriptor;
use copyhold_table::{Edit, Limits, Table};
use copyhold_types::{Key, TableId, Txg};
use parking_lot::{Mutex, RwLock};

use crate::Pool;

#[derive(Debug)]
pub(crate) struct Tables {
    limits: Limits,
    open: RwLock<BTreeMap<TableId, Open>>,
    busy: Mutex<BTreeSet<TableId>>,
    root: Mutex<Vec<u8>>,
}

#[derive(Debug)]
struct Open {
    table: Arc<Table>,
    /// It is in `busy`.
    is_busy: AtomicBool,
}

impl Open {
    fn at_rest(table: Arc<Table>) -> Open {
        Open { table, is_busy: AtomicBool::new(false) }
    }
}

impl Tables {
    /// `root`: the encoded descriptor of the table of tables.
    pub(crate) fn new(
        limits: Limits,
        root: Vec<u8>,
        tables: impl IntoIterator<Item = Arc<Table>>,
    ) -> Tables {
        let open: BTreeMap<TableId, Open> =
            tables.into_iter().map(|table| (table.id(), Open::at_rest(table))).collect();
        let tables = Tables {
            limits,
            open: RwLock::new(open),
            busy: Mutex::default(),
            root: Mutex::new(root),
        };
        tables.open.read().values().for_each(|open| tables.note_busy(open));
        tables
    }

    /// The table, which is empty if nothing was ever put in it.
    pub(crate) fn get(&self, id: TableId) -> Arc<Table> {
        if let Some(open) = self.open.read().get(&id) {
            return open.table.clone();
        }
        let new = || Open::at_rest(Arc::new(Table::new(id, self.limits)));
        self.open.write().entry(id).or_insert_with(new).table.clone()
    }

    /// While the transaction of `txg` is being applied. Whether it is the first edit that its
    /// partition has to flush.
    pub(crate) fn apply(&self, txg: Txg, id: TableId, key: Key, edit: Edit) -> bool {
        if let Some(open) = self.open.read().get(&id) {
            let first = open.table.apply_first(txg, key, edit);
            self.note_busy(open);
            return first;
        }
        drop(self.get(id));
        self.apply(txg, id, key, edit)
    }

    pub(crate) fn insert(&self, table: Table) {
        let mut open = self.open.write();
        let id = table.id();
        let before = open.insert(id, Open::at_rest(Arc::new(table)));
        assert!(before.is_none_or(|before| before.table.is_settled()), "a table is made once");
        self.note_busy(&open[&id]);
    }

    pub(crate) fn remove(&self, id: TableId) {
        self.open.write().remove(&id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Table>> {
        self.open.read().values().map(|open| open.table.clone()).collect()
    }

    /// Those that have edits or lie over others.
    pub(crate) fn busy(&self) -> Vec<Arc<Table>> {
        let open = self.open.read();
        let mut tables = Vec::new();
        self.busy.lock().retain(|id| {
            let Some(open) = open.get(id) else { return false };
            // First this, then the look: an edit that the look misses sees it, and notes itself.
            open.is_busy.store(false, Ordering::SeqCst);
            let stays = !open.table.is_settled();
            if stays {
                open.is_busy.store(true, Ordering::SeqCst);
                tables.push(open.table.clone());
            }
            stays
        });
        tables
    }

    /// Asserts B1, in debug builds; to be called where no transaction is being applied.
    pub(crate) fn check(&self) {
        if cfg!(debug_assertions) {
            let open = self.open.read();
            let busy = self.busy.lock();
            for table in open.values().map(|open| &open.table) {
                let id = table.id();
                let at_rest = table.pin().is_none() && table.under().is_none();
                assert!(at_rest || busy.contains(&id), "B1: table {id} is forgotten");
            }
        }
    }

    fn note_busy(&self, open: &Open) {
        if !open.is_busy.swap(true, Ordering::SeqCst) {
            self.busy.lock().insert(open.table.id());
        }
    }

    /// As the next batch will say it.
    pub(crate) fn root_descriptor(&self) -> Vec<u8> {
        self.root.lock().clone()
    }

    /// Called while joined: the batch that closes over it brings the new root.
    pub(crate) fn set_root(&self, descriptor: &PartitionDescriptor) {
        *self.root.lock() = descriptor.encode();
    }
}

impl Pool {
    /// Every table that has ever had an item, in order, the table of tables first.
    pub fn tables(&self) -> Vec<Arc<Table>> {
        self.tables.all()
    }

    /// Reads and verifies nodes, for walks.
    pub fn node_source(&self) -> &dyn copyhold_table::NodeSource {
        &self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_for_work_sees_tables_with_edits_and_those_that_lie_over_others() {
        let table = |id| Arc::new(Table::new(TableId(id), Limits::default()));
        let tables = Tables::new(Limits::default(), Vec::new(), [table(20), table(21)]);
        let busy = |tables: &Tables| tables.busy().iter().map(|t| t.id().0).collect::<Vec<_>>();
        assert_eq!((busy(&tables), tables.all().len()), (vec![], 2));
        for id in [22, 21, 21] {
            tables.apply(Txg::FIRST, TableId(id), Key::MIN, Edit::Delete);
        }
        assert_eq!((busy(&tables), busy(&tables)), (vec![21, 22], vec![21, 22]));
        tables.insert(Table::over(&tables.get(TableId(21)), TableId(23)));
        assert_eq!(busy(&tables), [21, 22, 23]);
        tables.remove(TableId(22));
        assert_eq!(busy(&tables), [21, 23]);
    }
}
