//! The tables of a pool, and the root of them all.
//!
//! The table of tables has one partition, whose descriptor lies nowhere in a table: it is a field
//! of each batch and of the uberblock (rule R5).
//!
//! There is a table for each snapshot at least, and most of them have no edits. A search for work
//! skips those (`busy`), and those that are not used take little memory (`opened`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use copyhold_format::node::PartitionDescriptor;
use copyhold_memory::MemoryOwner;
use copyhold_sync::{Mutex, RwLock, of};
use copyhold_table::{Edit, Limits, NodeVisit, Table, Weight};
use copyhold_types::{Key, NodePtr, TableId, Txg};

use crate::busy::Busy;
use crate::loads::patiently;
use crate::opened::{OpenTable, Opened, Place, TableFigures};
use crate::{Pool, PoolError};

#[derive(Debug)]
pub(crate) struct Tables {
    limits: Limits,
    opened: RwLock<Opened, of::Tables>,
    busy: Mutex<Busy, of::BusyTables>,
    root: Mutex<Vec<u8>, of::TablesRoot>,
    /// The owner of tables without another.
    shared: MemoryOwner,
    /// How often a search for work looked at a table.
    looks: AtomicU64,
}

impl Tables {
    /// `root`: the encoded descriptor of the table of tables. All tables rest that may.
    pub(crate) fn new(
        mut opened: Opened,
        limits: Limits,
        root: Vec<u8>,
        shared: MemoryOwner,
        tables: impl IntoIterator<Item = Arc<Table>>,
    ) -> Tables {
        let mut busy = Busy::default();
        for table in tables {
            let (id, pin) = (table.id(), table.pin());
            table.set_owner(&shared);
            pin.into_iter().for_each(|pin| busy.begin(id, pin));
            table.under().into_iter().for_each(|under| busy.laid_over(id, under.id()));
            opened.add_at_rest(table);
            let open = opened.get(id).and_then(Place::open);
            open.into_iter().for_each(|open| open.is_busy.store(pin.is_some(), Ordering::SeqCst));
        }
        Tables {
            limits,
            opened: RwLock::new(opened),
            busy: Mutex::new(busy),
            root: Mutex::new(root),
            shared,
            looks: AtomicU64::new(0),
        }
    }

    /// The table, which is empty if nothing was ever put in it.
    pub(crate) fn get(&self, id: TableId) -> Arc<Table> {
        if let Some(open) = self.opened.read().get(id).and_then(Place::open) {
            return open.used().clone();
        }
        let mut opened = self.opened.write();
        if let Some(table) = opened.open(id) {
            return table;
        }
        let table = Arc::new(Table::new(id, self.limits));
        table.set_owner(&self.shared);
        opened.add(table.clone());
        table
    }

    /// The table, if it exists.
    pub(crate) fn find(&self, id: TableId) -> Option<Arc<Table>> {
        {
            let opened = self.opened.read();
            if let Some(open) = opened.get(id)?.open() {
                return Some(open.used().clone());
            }
        }
        self.opened.write().open(id)
    }

    fn find_all(&self, ids: impl IntoIterator<Item = TableId>) -> Vec<Arc<Table>> {
        ids.into_iter().filter_map(|id| self.find(id)).collect()
    }

    /// The greatest number of a table.
    pub(crate) fn newest(&self) -> Option<TableId> {
        self.opened.read().newest()
    }

    /// While the transaction of `txg` is being applied; returns the addition to the edits in
    /// memory.
    pub(crate) fn apply(&self, txg: Txg, id: TableId, key: Key, edit: Edit) -> Weight {
        if let Some(open) = self.opened.read().get(id).and_then(Place::open) {
            let more = open.used().apply_weighed(txg, key, edit);
            self.note_edit(open, txg);
            return more;
        }
        // It does not rest as long as this refers to it.
        let _opened = self.get(id);
        self.apply(txg, id, key, edit)
    }

    pub(crate) fn insert(&self, table: Table) {
        table.set_owner(&self.shared);
        let mut opened = self.opened.write();
        let table = Arc::new(table);
        let before = opened.add(table.clone());
        assert!(before.is_none_or(|before| before.is_settled()), "a table is made once");
        self.note_under(&table);
    }

    /// The table, which may have had edits.
    pub(crate) fn remove(&self, id: TableId) -> Option<Arc<Table>> {
        let mut opened = self.opened.write();
        let gone = opened.remove(id)?;
        let mut busy = self.busy.lock();
        busy.gone(id);
        gone.under().into_iter().for_each(|under| busy.lifted(id, under.id()));
        Some(gone)
    }

    /// All of them, opened.
    pub(crate) fn all(&self) -> Vec<Arc<Table>> {
        let ids: Vec<TableId> = self.opened.read().ids().collect();
        self.find_all(ids)
    }

    /// Those that may have edits or layers.
    pub(crate) fn to_settle(&self) -> Vec<Arc<Table>> {
        let ids: Vec<TableId> = self.opened.read().ids_to_settle().collect();
        self.find_all(ids)
    }

    /// Of all tables together.
    pub(crate) fn weight(&self) -> Weight {
        self.opened.read().open_ones().map(|open| open.table.weight()).sum()
    }

    /// Lets tables rest that are open beyond enough.
    pub(crate) fn trim(&self) {
        if self.opened.read().is_over() {
            self.opened.write().trim();
        }
    }

    pub(crate) fn figures(&self) -> TableFigures {
        self.opened.read().figures()
    }

    /// Bytes of the table's edits in memory, and the table under it.
    pub(crate) fn unflushed(&self, id: TableId) -> (usize, Option<Arc<Table>>) {
        let opened = self.opened.read();
        opened.get(id).map_or((0, None), |place| (place.unflushed_bytes(), place.under()))
    }

    /// Makes `owner` the owner of a table, and of the tables under it, up to the first that has
    /// another owner than the shared one.
    pub(crate) fn pass_on(&self, id: TableId, owner: &MemoryOwner) {
        let mut opened = self.opened.write();
        let mut next = Some(id);
        while let Some(place) = next.and_then(|id| opened.get_mut(id)) {
            let is_new = place.pass_on(&self.shared, owner);
            next = place.under().filter(|_| is_new).map(|under| under.id());
        }
    }

    /// Those that have edits; some may have had them a moment ago.
    pub(crate) fn with_edits(&self) -> Vec<Arc<Table>> {
        let opened = self.opened.read();
        let busy = self.busy.lock();
        let found = busy.with_edits().filter_map(|id| opened.get(id)?.open());
        let tables: Vec<Arc<Table>> = found.map(|open| open.table.clone()).collect();
        self.looks.fetch_add(tables.len() as u64, Ordering::Relaxed);
        tables
    }

    /// The oldest txg of an edit that is in memory only.
    pub(crate) fn oldest_pin(&self) -> Option<Txg> {
        let opened = self.opened.read();
        let mut busy = self.busy.lock();
        loop {
            let (txg, id) = busy.oldest()?;
            self.looks.fetch_add(1, Ordering::Relaxed);
            let pin = opened.get(id).and_then(Place::open).and_then(|open| {
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
        let ids: Vec<TableId> = self.busy.lock().over(id).take(most).collect();
        let over = self.find_all(ids);
        self.looks.fetch_add(over.len() as u64, Ordering::Relaxed);
        over
    }

    /// Notes a table that more than enough others lie under, to be looked at in the background.
    pub(crate) fn is_deep(&self, id: TableId) {
        self.busy.lock().is_deep(id);
    }

    pub(crate) fn take_deep(&self) -> Vec<Arc<Table>> {
        let ids = self.busy.lock().take_deep();
        self.find_all(ids)
    }

    // -- invariants -----------------------------------------------------------

    /// Asserts BUSY-B1 and BUSY-B2, and the invariants of `opened`, in debug builds; to be called
    /// where no transaction is being applied.
    pub(crate) fn check(&self) {
        if cfg!(debug_assertions) {
            let opened = self.opened.read();
            opened.check();
            let busy = self.busy.lock();
            for id in opened.ids() {
                let place = opened.get(id).expect("it is one of them");
                let pin = place.open().and_then(|open| open.table.pin());
                let is_filed = |pin| busy.filed(id).is_some_and(|txg| txg <= pin);
                assert!(pin.is_none_or(is_filed), "BUSY-B1: table {id} is forgotten");
                if let Some(under) = place.under() {
                    assert!(busy.over(under.id()).any(|over| over == id), "BUSY-B2: table {id}");
                }
            }
        }
    }

    fn note_edit(&self, open: &OpenTable, txg: Txg) {
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

/// A table that has ever had an item; no other one is looked at.
pub fn find_table(pool: &Pool, id: TableId) -> Option<Arc<Table>> {
    pool.tables.find(id)
}

/// How many tables there are, how many of them are open, and the memory that they take beside
/// their edits. The cost does not depend on their number.
pub fn table_figures(pool: &Pool) -> TableFigures {
    pool.tables.figures()
}

/// Bytes of the edits of a table that are in memory only, and the table under it. A table at rest
/// is not opened.
pub fn unflushed(pool: &Pool, table: TableId) -> (usize, Option<Arc<Table>>) {
    pool.tables.unflushed(table)
}

/// Makes `owner` the owner of a table's memory, if it is the shared one's, and so on with the
/// tables under it. Tables at rest are not opened.
pub fn own_table(pool: &Pool, table: TableId, owner: &MemoryOwner) {
    pool.tables.pass_on(table, owner);
}

impl Pool {
    /// Every table that has ever had an item, in order, the table of tables first; for walks over
    /// all, since all of them are opened.
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
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { leaf_bytes: 4096, partition_leaves: 4, read_ahead: 1 };

    /// With tables 20 and 21.
    fn opening(open_max: usize) -> Tables {
        let table = |id| Arc::new(Table::new(TableId(id), LIMITS));
        let shared = copyhold_memory::Memory::default().shared().clone();
        let opened = Opened::new(LIMITS, open_max);
        Tables::new(opened, LIMITS, Vec::new(), shared, [table(20), table(21)])
    }

    #[test]
    fn what_looks_for_work_sees_tables_with_edits() {
        let tables = opening(9);
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
        let tables = opening(9);
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

    #[test]
    fn tables_that_are_not_used_rest_and_one_that_is_used_often_stays_open() {
        let tables = opening(8);
        assert_eq!(tables.figures().open, 0, "no table is open before its first use");
        let is_open = |id| {
            let opened = tables.opened.read();
            opened.get(TableId(id)).is_some_and(|place| place.open().is_some())
        };
        for id in 100..1000 {
            drop((tables.get(TableId(id)), tables.get(TableId(21))));
            assert!(is_open(21), "it is used all the time");
        }
        let TableFigures { tables: all, open, .. } = tables.figures();
        assert_eq!((all, is_open(100)), (902, false));
        assert!(open <= 8 + 1, "{open} are open");
        assert!(tables.figures().bytes < 902 * 90, "{:?}", tables.figures());
        tables.check();
    }

    /// OPENED-O1: tables that may not rest leave the others places by those that rest.
    #[test]
    fn tables_that_may_not_rest_keep_few_others_open() {
        let tables = opening(8);
        for id in 100..200 {
            tables.apply(Txg::FIRST, TableId(id), Key::MIN, Edit::Delete);
        }
        for id in 1000..6000 {
            drop((tables.get(TableId(id)), tables.get(TableId(id))));
        }
        let open = tables.figures().open;
        assert!((100..140).contains(&open), "{open} are open");
        tables.check();
    }

    #[test]
    fn tables_rest_again_behind_a_walk_over_all() {
        let tables = opening(8);
        (100..1100).for_each(|id| drop(tables.get(TableId(id))));
        drop(tables.all());
        assert_eq!(tables.figures().open, 1002);
        (0..10).for_each(|_| tables.trim());
        assert_eq!(tables.figures().open, 8);
        tables.check();
    }

    #[test]
    fn tables_that_come_and_go_leave_nothing_and_let_no_other_one_rest() {
        let tables = opening(200);
        (0..100).for_each(|id| drop(tables.get(TableId(1000 + id))));
        for id in 2000..9000 {
            tables.insert(Table::new(TableId(id), LIMITS));
            tables.remove(TableId(id));
        }
        assert_eq!((tables.figures().open, tables.figures().tables), (100, 102));
        assert!(tables.opened.read().entries() < 300);
        tables.check();
    }

    #[test]
    fn edits_that_recovery_brought_back_are_found_though_all_else_rests() {
        let tables = opening(0);
        tables.apply(Txg::FIRST, TableId(20), Key::MIN, Edit::Delete);
        let found = [20, 21].map(|id| tables.remove(TableId(id)).unwrap());
        let (opened, shared) = (Opened::new(LIMITS, 0), tables.shared.clone());
        let again = Tables::new(opened, LIMITS, Vec::new(), shared, found);
        again.check();
        assert_eq!(again.oldest_pin(), Some(Txg::FIRST));
        assert_eq!((again.figures().open, again.weight().edits), (1, 1));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Apply(u64, u64),
        Get(u64),
        /// The edits of a table leave memory, as by a flush.
        Settle(u64),
        /// A table is made over another one.
        Fork(u64),
        /// The tables over a settled one take it over.
        HandOver,
        Remove(u64),
        /// A reader uses a table for a while.
        Read(u64),
        EndRead(usize),
        Own(u64),
        Commit,
    }

    fn ops() -> impl Strategy<Value = Op> {
        let id = || 20..32_u64;
        prop_oneof![
            6 => (id(), 0..50_u64).prop_map(|(id, key)| Op::Apply(id, key)),
            6 => id().prop_map(Op::Get),
            4 => id().prop_map(Op::Settle),
            2 => id().prop_map(Op::Fork),
            2 => Just(Op::HandOver),
            1 => id().prop_map(Op::Remove),
            1 => id().prop_map(Op::Read),
            2 => any::<usize>().prop_map(Op::EndRead),
            1 => id().prop_map(Op::Own),
            3 => Just(Op::Commit),
        ]
    }

    /// Tables, and the changes of them that other parts of a pool make.
    struct World {
        tables: Tables,
        owner: MemoryOwner,
        readers: Vec<Arc<Table>>,
        txg: Txg,
        next: u64,
    }

    impl World {
        fn new(open_max: usize) -> World {
            let owner = copyhold_memory::Memory::default().add_owner();
            let (tables, readers) = (opening(open_max), Vec::new());
            World { tables, owner, readers, txg: Txg::FIRST, next: 40 }
        }

        /// A table may be forked, or take edits, as long as no other lies over it.
        fn top(&self, id: u64) -> Option<TableId> {
            Some(TableId(id)).filter(|id| !self.tables.is_under(*id))
        }

        fn run(&mut self, op: &Op) -> Option<()> {
            match *op {
                Op::Apply(id, key) => {
                    let key = Key { offset: key, ..Key::MIN };
                    self.tables.apply(self.txg, self.top(id)?, key, Edit::put(&[1]));
                }
                Op::Get(id) => drop(self.tables.get(TableId(id))),
                Op::Settle(id) => {
                    let table = self.tables.find(TableId(id))?;
                    let before = table.weight();
                    let left = table.retire_again();
                    table.reinstate();
                    assert_eq!(before.edits, left.edits);
                    self.tables.flushed(table.id());
                }
                Op::Fork(id) => {
                    let parent = self.tables.find(self.top(id)?)?;
                    for make in [Table::over, Table::snapshot] {
                        self.tables.insert(make(&parent, TableId(self.next)));
                        self.next += 1;
                    }
                    if parent.fork_point().id() != parent.id() {
                        self.tables.remove(parent.id());
                    }
                }
                Op::HandOver => {
                    let under = self.tables.take_ripe()?;
                    if !under.stand_still() {
                        return None;
                    }
                    for child in self.tables.over(under.id(), usize::MAX) {
                        drop(child.adopt());
                        self.tables.adopted(child.id(), under.id());
                    }
                    self.tables.remove(under.id());
                }
                Op::Remove(id) => drop(self.tables.remove(self.top(id)?)),
                Op::Read(id) => self.readers.push(self.tables.find(TableId(id))?),
                Op::EndRead(at) if !self.readers.is_empty() => {
                    drop(self.readers.swap_remove(at % self.readers.len()));
                }
                Op::EndRead(_) => {}
                Op::Own(id) => self.tables.pass_on(TableId(id), &self.owner),
                Op::Commit => self.txg = self.txg.next(),
            }
            None
        }

        /// Edits, pins and forks of all tables; no table is opened for it.
        fn summary(&self) -> String {
            self.tables.check();
            let tables = &self.tables;
            let busy: Vec<u64> = tables
                .with_edits()
                .iter()
                .filter(|table| table.pin().is_some())
                .map(|table| table.id().0)
                .collect();
            let all = (tables.newest(), tables.weight(), tables.oldest_pin(), tables.under());
            format!("{busy:?} {all:?}")
        }

        fn view(&self, id: TableId) -> String {
            let unflushed = self.tables.unflushed(id);
            let unflushed = (unflushed.0, unflushed.1.map(|under| under.id()));
            let table = self.tables.find(id);
            let table = table.map(|table| {
                let is_owned = table.owner().as_ref() == Some(&self.owner);
                (table.stats(), table.descriptors(), is_owned)
            });
            format!("{unflushed:?} {table:?}")
        }
    }

    proptest! {
        #[test]
        fn tables_are_the_same_whether_they_rest_or_not(
            ops in prop::collection::vec(ops(), 1..120),
            open_max in 0..4_usize,
        ) {
            let (mut resting, mut open) = (World::new(open_max), World::new(usize::MAX));
            for op in &ops {
                resting.run(op);
                open.run(op);
                prop_assert_eq!(resting.summary(), open.summary(), "after {:?}", op);
            }
            for id in 0..open.next {
                let id = TableId(id);
                prop_assert_eq!(resting.view(id), open.view(id), "table {}", id);
            }
        }
    }
}
