//! The open tables of a pool, and the root of them all.
//!
//! The table of tables has one partition, whose descriptor lies nowhere in a table: it is a field
//! of each batch and of the uberblock (rule R5).
//!
//! There are a few tables for each snapshot, and most of them are at rest: settled, with no edits.
//! A search for work skips those (`busy`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use copyhold_format::node::PartitionDescriptor;
use copyhold_memory::MemoryOwner;
use copyhold_sync::{Mutex, RwLock, of};
use copyhold_table::{Edit, Limits, NodeVisit, Table, Weight};
use copyhold_types::{Key, NodePtr, TableId, Txg};

use crate::busy::Busy;
use crate::loads::patiently;
use crate::{Pool, PoolError};

#[derive(Debug)]
pub(crate) struct Tables {
    limits: Limits,
    open: RwLock<BTreeMap<TableId, Open>, of::Tables>,
    busy: Mutex<Busy, of::BusyTables>,
    root: Mutex<Vec<u8>, of::TablesRoot>,
    /// The owner of tables without another.
    shared: MemoryOwner,
    /// How often a search for work looked at a table.
    looks: AtomicU64,
}

#[derive(Debug)]
struct Open {
    table: Arc<Table>,
    /// It is filed as one that has edits.
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
        shared: MemoryOwner,
        tables: impl IntoIterator<Item = Arc<Table>>,
    ) -> Tables {
        let open: BTreeMap<TableId, Open> =
            tables.into_iter().map(|table| (table.id(), Open::at_rest(table))).collect();
        let tables = Tables {
            limits,
            open: RwLock::new(open),
            busy: Mutex::default(),
            root: Mutex::new(root),
            shared,
            looks: AtomicU64::new(0),
        };
        for open in tables.open.read().values() {
            tables.own(&open.table);
            open.table.pin().into_iter().for_each(|pin| tables.note_edit(open, pin));
            tables.note_under(&open.table);
        }
        tables
    }

    /// The table, which is empty if nothing was ever put in it.
    pub(crate) fn get(&self, id: TableId) -> Arc<Table> {
        if let Some(open) = self.open.read().get(&id) {
            return open.table.clone();
        }
        let new = || {
            let table = Table::new(id, self.limits);
            self.own(&table);
            Open::at_rest(Arc::new(table))
        };
        self.open.write().entry(id).or_insert_with(new).table.clone()
    }

    /// The table, if it exists.
    pub(crate) fn find(&self, id: TableId) -> Option<Arc<Table>> {
        self.open.read().get(&id).map(|open| open.table.clone())
    }

    /// The greatest number of a table.
    pub(crate) fn newest(&self) -> Option<TableId> {
        self.open.read().last_key_value().map(|(id, _)| *id)
    }

    /// While the transaction of `txg` is being applied; returns the addition to the edits in
    /// memory.
    pub(crate) fn apply(&self, txg: Txg, id: TableId, key: Key, edit: Edit) -> Weight {
        if let Some(open) = self.open.read().get(&id) {
            let more = open.table.apply_weighed(txg, key, edit);
            self.note_edit(open, txg);
            return more;
        }
        drop(self.get(id));
        self.apply(txg, id, key, edit)
    }

    fn own(&self, table: &Table) {
        table.set_owner(&self.shared);
    }

    pub(crate) fn insert(&self, table: Table) {
        self.own(&table);
        let mut open = self.open.write();
        let id = table.id();
        let table = Arc::new(table);
        let before = open.insert(id, Open::at_rest(table.clone()));
        assert!(before.is_none_or(|before| before.table.is_settled()), "a table is made once");
        self.note_under(&table);
    }

    /// The table, which may have had edits.
    pub(crate) fn remove(&self, id: TableId) -> Option<Arc<Table>> {
        let mut open = self.open.write();
        let gone = open.remove(&id)?.table;
        let mut busy = self.busy.lock();
        busy.gone(id);
        gone.under().into_iter().for_each(|under| busy.lifted(id, under.id()));
        Some(gone)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Table>> {
        self.open.read().values().map(|open| open.table.clone()).collect()
    }

    /// Of all tables together.
    pub(crate) fn weight(&self) -> Weight {
        self.open.read().values().map(|open| open.table.weight()).sum()
    }

    /// Those that have edits; some may have had them a moment ago.
    pub(crate) fn with_edits(&self) -> Vec<Arc<Table>> {
        let open = self.open.read();
        let busy = self.busy.lock();
        let found = busy.with_edits().filter_map(|id| open.get(&id));
        let tables: Vec<Arc<Table>> = found.map(|open| open.table.clone()).collect();
        self.looks.fetch_add(tables.len() as u64, Ordering::Relaxed);
        tables
    }

    /// The oldest txg of an edit that is in memory only.
    pub(crate) fn oldest_pin(&self) -> Option<Txg> {
        let open = self.open.read();
        let mut busy = self.busy.lock();
        loop {
            let (txg, id) = busy.oldest()?;
            self.looks.fetch_add(1, Ordering::Relaxed);
            let pin = open.get(&id).and_then(|open| {
                // First this, then the look: an edit that the look misses sees it, and files it.
                open.is_busy.store(false, Ordering::SeqCst);
                let pin = open.table.pin();
                open.is_busy.store(pin.is_some(), Ordering::SeqCst);
                pin
            });
            if pin == Some(txg) {
                return pin;
            }
            busy.file(id, pin);
        }
    }

    // -- forked tables --------------------------------------------------------

    /// Whether others lie over this table.
    pub(crate) fn is_under(&self, id: TableId) -> bool {
        self.busy.lock().is_under(id)
    }

    /// Tables that others lie over.
    pub(crate) fn under(&self) -> BTreeSet<TableId> {
        self.busy.lock().under()
    }

    /// A flush of the table has ended.
    pub(crate) fn flushed(&self, id: TableId) {
        self.busy.lock().may_be_settled(id);
    }

    /// `child` has taken over the table under it.
    pub(crate) fn adopted(&self, child: TableId, under: TableId) {
        self.busy.lock().lifted(child, under);
    }

    /// Next of the tables that may be settled and have something over them.
    pub(crate) fn take_ripe(&self) -> Option<Arc<Table>> {
        loop {
            let id = self.busy.lock().take_ripe()?;
            self.looks.fetch_add(1, Ordering::Relaxed);
            if let Some(table) = self.find(id) {
                return Some(table);
            }
        }
    }

    /// At most `most` of the tables over a table.
    pub(crate) fn over(&self, id: TableId, most: usize) -> Vec<Arc<Table>> {
        let open = self.open.read();
        let busy = self.busy.lock();
        let over = busy.over(id).filter_map(|id| open.get(&id)).take(most);
        let over: Vec<Arc<Table>> = over.map(|open| open.table.clone()).collect();
        self.looks.fetch_add(over.len() as u64, Ordering::Relaxed);
        over
    }

    /// Notes a table that more than enough others lie under, to be looked at in the background.
    pub(crate) fn is_deep(&self, id: TableId) {
        self.busy.lock().is_deep(id);
    }

    pub(crate) fn take_deep(&self) -> Vec<Arc<Table>> {
        let ids = self.busy.lock().take_deep();
        ids.into_iter().filter_map(|id| self.find(id)).collect()
    }

    // -- invariants -----------------------------------------------------------

    /// Asserts BUSY-B1 and BUSY-B2, in debug builds; to be called where no transaction is being
    /// applied.
    pub(crate) fn check(&self) {
        if cfg!(debug_assertions) {
            let open = self.open.read();
            let busy = self.busy.lock();
            for table in open.values().map(|open| &open.table) {
                let id = table.id();
                let is_filed = |pin| busy.filed(id).is_some_and(|txg| txg <= pin);
                assert!(table.pin().is_none_or(is_filed), "BUSY-B1: table {id} is forgotten");
                if let Some(under) = table.under() {
                    assert!(busy.over(under.id()).any(|over| over == id), "BUSY-B2: table {id}");
                }
            }
        }
    }

    fn note_edit(&self, open: &Open, txg: Txg) {
        if !open.is_busy.swap(true, Ordering::SeqCst) {
            self.busy.lock().begin(open.table.id(), txg);
        }
    }

    fn note_under(&self, table: &Table) {
        if let Some(under) = table.under() {
            self.busy.lock().laid_over(table.id(), under.id());
        }
    }

    /// The descriptor, as in the next batch.
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

    /// How often a search for work looked at a table: a measure of the cost of commits and flushes
    /// beside their edits.
    pub fn table_looks(&self) -> u64 {
        self.tables.looks.load(Ordering::Relaxed)
    }

    /// Reads and verifies nodes, for walks.
    pub fn node_source(&self) -> &dyn copyhold_table::NodeSource {
        &self.nodes
    }

    /// As [`Self::node_source`], charged to the owner of a table.
    pub fn nodes_for<'a>(&'a self, table: &'a Table) -> impl copyhold_table::NodeSource + 'a {
        self.nodes.of(table)
    }

    /// All blocks of nodes, as pointers to one run each: of a fragmented node its list and its
    /// fragments.
    ///
    /// # Errors
    /// No copy of a list is readable, in several tries: the blocks of that node are unknown, so it
    /// must not be freed.
    pub async fn pieces_of(&self, nodes: &[NodePtr]) -> Result<Vec<NodePtr>, PoolError> {
        let mut pieces = Vec::with_capacity(nodes.len());
        for ptr in nodes {
            match ptr.fragmented {
                false => pieces.push(*ptr),
                true => pieces.extend(patiently(&self.rt, || self.nodes.pieces(*ptr)).await?),
            }
        }
        Ok(pieces)
    }

    /// The nodes, of those that are wanted, of the partition's base and layers.
    ///
    /// # Errors
    /// A wanted node that has others below it cannot be read.
    pub async fn nodes_of(
        &self,
        table: &Table,
        start: Key,
        is_wanted: impl Fn(&NodePtr) -> bool + Send + Sync,
    ) -> Result<Vec<NodePtr>, PoolError> {
        let (mut nodes, mut failed) = (Vec::new(), None);
        let mut visit = |visit: NodeVisit<'_>| {
            if visit.partition == start && is_wanted(&visit.ptr) {
                nodes.push(visit.ptr);
                failed = failed.take().or(visit.node.and_then(|node| node.err().cloned()));
            }
        };
        table.for_each_node(&self.nodes.of(table), false, &mut visit).await;
        failed.map_or(Ok(nodes), |error| Err(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Tables {
        let table = |id| Arc::new(Table::new(TableId(id), Limits::default()));
        let shared = copyhold_memory::Memory::default().shared().clone();
        Tables::new(Limits::default(), Vec::new(), shared, [table(20), table(21)])
    }

    #[test]
    fn what_looks_for_work_sees_tables_with_edits() {
        let tables = tables();
        let seen =
            |tables: &Tables| tables.with_edits().iter().map(|t| t.id().0).collect::<Vec<_>>();
        assert_eq!((seen(&tables), tables.all().len()), (vec![], 2));
        for id in [22, 21, 21] {
            tables.apply(Txg::FIRST, TableId(id), Key::MIN, Edit::Delete);
        }
        assert_eq!((seen(&tables), tables.oldest_pin()), (vec![21, 22], Some(Txg::FIRST)));
        tables.remove(TableId(22));
        assert_eq!((seen(&tables), tables.weight().edits), (vec![21], 1));
        tables.check();
    }

    #[test]
    fn a_table_with_a_settled_one_under_it_is_ripe_to_take_that_over() {
        let tables = tables();
        tables.apply(Txg::FIRST, TableId(21), Key::MIN, Edit::Delete);
        tables.insert(Table::over(&tables.get(TableId(21)), TableId(23)));
        assert_eq!(tables.under(), [TableId(21)].into());
        let under = tables.take_ripe().unwrap();
        let over =
            |most| tables.over(under.id(), most).iter().map(|of| of.id().0).collect::<Vec<_>>();
        assert_eq!((under.id(), over(9), over(0)), (TableId(21), vec![23], vec![]));
        assert!(tables.take_ripe().is_none());
        tables.flushed(TableId(21));
        assert!(tables.take_ripe().is_some());
        tables.remove(TableId(23));
        assert!(over(9).is_empty());
    }
}
