//! The tables of a pool by id: open ones, and tables at rest.
//!
//! Problem.  A pool has a table for each snapshot, and most are not used for a long time. Each one
//!           that is open takes memory; a scan of all of them for idle ones would take time.
//! Idea.     Open tables stand in a line. An addition, while more than enough are open, looks at
//!           the first few of the line until two rest: a table that was used since the last look,
//!           or may not rest (REST-R1), goes to the end of the line. So an opening costs the same
//!           with few tables and with many. Tables that may not rest can be more than enough by
//!           themselves; then about one in eight of the open ones may rest. A walk holds all
//!           tables, so none rests meanwhile: the flusher looks on behind it.
//!
//! OPENED-O1  Each open table is in the line once. Other entries of the line are of tables that
//!            are gone or at rest; a look drops them.
//! OPENED-O2  A table changes between open and at rest only while its map is locked exclusively; so
//!            a table that is found open under the shared lock stays open until that ends.
//! OPENED-O3  `resting_bytes` is the sum over the tables at rest.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use copyhold_memory::MemoryOwner;
use copyhold_table::{Limits, RestingTable, Table};
use copyhold_types::TableId;

/// Tables of the line that one addition looks at, at most.
const LOOKS: usize = 16;
/// Tables that rest at one addition, at most: more than one, so that those beyond enough become
/// fewer again when all of one addition's looks were in vain.
const RESTS: usize = 2;
/// The looks of the flusher, each time.
const TRIMMED: usize = 256;
/// A map that grows has nodes that are half to two thirds full, and one that is collected at once
/// has full ones.
const ENTRY_BYTES: usize = (size_of::<TableId>() + size_of::<Place>()) * 4 / 3;
/// With the counts of references, and one partition.
const OPEN_BYTES: usize = 2 * size_of::<usize>() + Table::BYTES + size_of::<TableId>();

/// Tables, those of them that are open, and the memory that all take beside edits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableFigures {
    pub tables: usize,
    pub open: usize,
    /// Without fixed parts of the pool. An open table counts as if it had one partition.
    pub bytes: u64,
}

/// Tells the entry of an open table from former entries of the same id.
type Ticket = u32;

#[derive(Debug)]
pub(crate) struct Opened {
    limits: Limits,
    places: BTreeMap<TableId, Place>,
    line: VecDeque<(TableId, Ticket)>,
    tickets: Ticket,
    open: usize,
    open_max: usize,
    resting_bytes: usize,
    /// REST-R1 is broken on purpose: edits of a table that rests are lost.
    pub(crate) forgets_edits: bool,
}

#[derive(Debug)]
pub(crate) enum Place {
    Open(OpenTable),
    Rest(Box<RestingTable>),
}

#[derive(Debug)]
pub(crate) struct OpenTable {
    pub(crate) table: Arc<Table>,
    /// It is filed as one that has edits.
    pub(crate) is_busy: AtomicBool,
    /// Since the last look.
    was_used: AtomicBool,
    ticket: Ticket,
}

impl OpenTable {
    fn new(table: Arc<Table>, ticket: Ticket) -> OpenTable {
        let (is_busy, was_used) = (AtomicBool::new(false), AtomicBool::new(false));
        OpenTable { table, is_busy, was_used, ticket }
    }

    /// The table, for a use of it.
    pub(crate) fn used(&self) -> &Arc<Table> {
        // Many threads use a table, and most of them only read the mark.
        if !self.was_used.load(Ordering::Relaxed) {
            self.was_used.store(true, Ordering::Relaxed);
        }
        &self.table
    }
}

impl Place {
    pub(crate) fn open(&self) -> Option<&OpenTable> {
        match self {
            Place::Open(open) => Some(open),
            Place::Rest(_) => None,
        }
    }

    /// The table under it.
    pub(crate) fn under(&self) -> Option<Arc<Table>> {
        match self {
            Place::Open(open) => open.table.under(),
            Place::Rest(resting) => resting.under().cloned(),
        }
    }

    /// Bytes of its edits in memory.
    pub(crate) fn unflushed_bytes(&self) -> usize {
        self.open().map_or(0, |open| open.table.unflushed_bytes())
    }

    /// `owner` pays from now on instead of `before`, if that one does. Whether it did.
    pub(crate) fn pass_on(&mut self, before: &MemoryOwner, owner: &MemoryOwner) -> bool {
        match self {
            Place::Open(open) if open.table.owner().as_ref() == Some(before) => {
                open.table.set_owner(owner);
                true
            }
            Place::Rest(resting) if resting.owner() == Some(before) => {
                resting.set_owner(owner);
                true
            }
            Place::Open(_) | Place::Rest(_) => false,
        }
    }

    /// Whether a flush could settle more of it in its bases.
    fn may_be_settled_more(&self) -> bool {
        match self {
            Place::Open(_) => true,
            Place::Rest(resting) => resting.has_layers(),
        }
    }
}

impl Opened {
    /// So many tables are enough.
    pub(crate) fn new(limits: Limits, open_max: usize) -> Opened {
        let (places, line, tickets) = (BTreeMap::new(), VecDeque::new(), 0);
        let (open, resting_bytes, forgets_edits) = (0, 0, false);
        Opened { limits, places, line, tickets, open, open_max, resting_bytes, forgets_edits }
    }

    pub(crate) fn get(&self, id: TableId) -> Option<&Place> {
        self.places.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: TableId) -> Option<&mut Place> {
        self.places.get_mut(&id)
    }

    pub(crate) fn newest(&self) -> Option<TableId> {
        self.places.last_key_value().map(|(id, _)| *id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = TableId> {
        self.places.keys().copied()
    }

    /// Tables that have edits or layers, perhaps.
    pub(crate) fn ids_to_settle(&self) -> impl Iterator<Item = TableId> {
        let places = self.places.iter();
        places.filter(|(_, place)| place.may_be_settled_more()).map(|(id, _)| *id)
    }

    pub(crate) fn open_ones(&self) -> impl Iterator<Item = &OpenTable> {
        self.places.values().filter_map(Place::open)
    }

    /// Adds a table that is not needed now; it rests at once, if it may.
    pub(crate) fn add_at_rest(&mut self, table: Arc<Table>) {
        let id = table.id();
        self.put_open(table);
        if self.rest(id) {
            self.line.pop_back();
        }
    }

    /// Adds a table. One of the same id is replaced, and returned.
    pub(crate) fn add(&mut self, table: Arc<Table>) -> Option<Arc<Table>> {
        let before = self.remove(table.id());
        self.put_open(table);
        self.look_at_line(LOOKS);
        before
    }

    /// The table, opened if it rests.
    pub(crate) fn open(&mut self, id: TableId) -> Option<Arc<Table>> {
        if let Some(open) = self.places.get(&id)?.open() {
            return Some(open.used().clone());
        }
        let table = self.remove(id)?;
        self.put_open(table.clone());
        self.look_at_line(LOOKS);
        Some(table)
    }

    /// The table, which is in no place any more.
    pub(crate) fn remove(&mut self, id: TableId) -> Option<Arc<Table>> {
        match self.places.remove(&id)? {
            Place::Open(open) => {
                self.open -= 1;
                Some(open.table)
            }
            Place::Rest(resting) => {
                self.resting_bytes -= resting.bytes();
                Some(Arc::new(resting.open(id, self.limits)))
            }
        }
    }

    fn put_open(&mut self, table: Arc<Table>) {
        let id = table.id();
        self.tickets = self.tickets.wrapping_add(1);
        self.line.push_back((id, self.tickets));
        self.open += 1;
        let open = Place::Open(OpenTable::new(table, self.tickets));
        let before = self.places.insert(id, open);
        debug_assert!(before.is_none(), "OPENED-O3: table {id} was removed");
    }

    /// Whether more than enough are open.
    pub(crate) fn is_over(&self) -> bool {
        self.open > self.open_max
    }

    /// Looks on: a walk may have left many open.
    pub(crate) fn trim(&mut self) {
        (0..TRIMMED).for_each(|_| self.look_at_line(1));
    }

    /// Looks at the first tables of the line until two rest, if more than enough are open, and
    /// drops entries of tables that are not open any more.
    fn look_at_line(&mut self, looks: usize) {
        let (mut left, mut rested) = (looks, 0);
        while left > 0
            && rested < RESTS
            && (self.is_over() || self.line.len() > 2 * self.open + LOOKS)
        {
            let Some((id, ticket)) = self.line.pop_front() else { return };
            let place = self.places.get(&id).and_then(Place::open);
            let Some(open) = place.filter(|open| open.ticket == ticket) else { continue };
            left -= 1;
            if self.is_over() && !open.was_used.swap(false, Ordering::Relaxed) && self.rest(id) {
                rested += 1;
            } else {
                self.line.push_back((id, ticket));
            }
        }
    }

    /// Puts an open table to rest. `false`: it may not rest.
    fn rest(&mut self, id: TableId) -> bool {
        let Some(place) = self.places.get_mut(&id) else { return false };
        let Place::Open(OpenTable { table, .. }) = place else { return false };
        let Some(table) = Arc::get_mut(table).filter(|table| table.limits() == self.limits) else {
            return false;
        };
        if self.forgets_edits && !table.is_being_flushed() {
            table.retire_again();
            table.reinstate();
        }
        let Some(resting) = table.rest() else { return false };
        self.open -= 1;
        self.resting_bytes += resting.bytes();
        *place = Place::Rest(Box::new(resting));
        true
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.line.len()
    }

    pub(crate) fn figures(&self) -> TableFigures {
        let (tables, open) = (self.places.len(), self.open);
        let bytes = tables * ENTRY_BYTES + open * OPEN_BYTES + self.resting_bytes;
        TableFigures { tables, open, bytes: bytes as u64 }
    }

    /// Asserts OPENED-O1 and OPENED-O3.
    pub(crate) fn check(&self) {
        let line: std::collections::BTreeSet<_> = self.line.iter().copied().collect();
        assert_eq!(line.len(), self.line.len(), "OPENED-O1");
        let (mut open, mut bytes) = (0, 0);
        for (id, place) in &self.places {
            match place {
                Place::Open(table) => {
                    assert!(line.contains(&(*id, table.ticket)), "OPENED-O1: table {id}");
                    open += 1;
                }
                Place::Rest(resting) => bytes += resting.bytes(),
            }
        }
        assert_eq!((self.open, self.resting_bytes), (open, bytes), "OPENED-O3");
    }
}
