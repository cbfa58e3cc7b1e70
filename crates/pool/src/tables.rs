//! The open tables of a pool, and the root of them all.
//!
//! The table of tables has one partition, whose descriptor lies nowhere in a table: it is a field
//! of each batch and of the uberblock (rule R5).

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_format::node::PartitionDescriptor;
use copyhold_table::{Limits, Table};
use copyhold_types::TableId;
use parking_lot::{Mutex, RwLock};

use crate::Pool;

#[derive(Debug)]
pub(crate) struct Tables {
    limits: Limits,
    open: RwLock<BTreeMap<TableId, Arc<Table>>>,
    root: Mutex<Vec<u8>>,
}

impl Tables {
    /// `root`: the encoded descriptor of the table of tables.
    pub(crate) fn new(
        limits: Limits,
        root: Vec<u8>,
        tables: impl IntoIterator<Item = Arc<Table>>,
    ) -> Tables {
        let open = tables.into_iter().map(|table| (table.id(), table)).collect();
        Tables { limits, open: RwLock::new(open), root: Mutex::new(root) }
    }

    /// The table, which is empty if nothing was ever put in it.
    pub(crate) fn get(&self, id: TableId) -> Arc<Table> {
        if let Some(table) = self.open.read().get(&id) {
            return table.clone();
        }
        let new = || Arc::new(Table::new(id, self.limits));
        self.open.write().entry(id).or_insert_with(new).clone()
    }

    pub(crate) fn insert(&self, table: Table) {
        let before = self.open.write().insert(table.id(), Arc::new(table));
        assert!(before.is_none_or(|before| before.is_settled()), "a table is made once");
    }

    pub(crate) fn remove(&self, id: TableId) {
        self.open.write().remove(&id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Table>> {
        self.open.read().values().cloned().collect()
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
