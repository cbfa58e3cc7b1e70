//! A transaction: edits to any tables, allocations and frees, applied as one.

use copyhold_format::log::{Record, RecordWriter};
use copyhold_memory::MemoryOwner;
use copyhold_space::{Carried, Claim, Reservation};
use copyhold_table::{Edit, Value};
use copyhold_types::{Bufs, EpochId, Key, Nanos, Pointer, Run, TableId};
use smallvec::SmallVec;

use crate::admission::growth_of;
use crate::log_room::LogRoom;

/// Collected without joining anything; handed to `Pool::apply`. Dropping it drops its claims, and
/// with them their space (rule R19).
#[derive(Debug, Default)]
pub struct Transaction {
    pub(crate) edits: Vec<(TableId, Key, Edit)>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) released: Vec<Pointer>,
    pub(crate) attached: Vec<(Run, Bufs)>,
    pub(crate) forks: Vec<(TableId, [TableId; 2])>,
    pub(crate) forgotten: Vec<TableId>,
    /// Tables, their owners, and the epoch from which on their nodes are unshared.
    pub(crate) owned: SmallVec<[(TableId, MemoryOwner); 1]>,
    /// Edits of space that are applied already and are logged once more.
    pub(crate) carried: Vec<Carried>,
    /// [`Self::introduce_unverifiable`].
    pub(crate) introduces_unverifiable: bool,
}

impl Transaction {
    /// Most edits that one transaction should hold; larger work goes in steps (rule R28).
    pub const MAX_EDITS: usize = 1024;

    pub fn new() -> Transaction {
        Transaction::default()
    }

    pub fn put(&mut self, table: TableId, key: Key, value: impl Into<Value>) {
        self.edits.push((table, key, Edit::Put(value.into())));
    }

    pub fn edit(&mut self, table: TableId, key: Key, edit: Edit) {
        self.edits.push((table, key, edit));
    }

    /// Edits of the table `name` are of `table`: for callers that learn late which table it is.
    pub fn bind(&mut self, name: TableId, table: TableId) {
        for (of, _, _) in self.edits.iter_mut().filter(|(of, _, _)| *of == name) {
            *of = table;
        }
    }

    /// `owner` pays from now on for the memory of `table`: for its edits, and for its own nodes.
    /// Nothing of this is logged.
    pub fn set_owner(&mut self, table: TableId, owner: &MemoryOwner) {
        self.owned.push((table, owner.clone()));
    }

    pub fn delete(&mut self, table: TableId, key: Key) {
        self.edits.push((table, key, Edit::Delete));
    }

    /// Leads every edit to another table, or leaves it where it is.
    pub fn readdress(&mut self, to: impl Fn(TableId) -> TableId) {
        self.edits.iter_mut().for_each(|(table, _, _)| *table = to(*table));
    }

    /// Whether tables are forked or dropped: such transactions are applied one at a time.
    pub(crate) fn changes_lineage(&self) -> bool {
        !self.forks.is_empty() || !self.forgotten.is_empty()
    }

    /// Logs the allocation of the run behind a pointer in this transaction.
    pub fn allocate(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// Drops a reference. Its consequence is decided when the transaction is applied (rule R4): by
    /// the layer above, which takes these out, or else the run is free.
    pub fn release(&mut self, pointer: Pointer) {
        self.released.push(pointer);
    }

    /// Frees a run.
    pub fn free(&mut self, run: Run) {
        self.release(Pointer { run, epoch: EpochId::POOL, origin: EpochId::POOL });
    }

    /// The pointers released so far, for the caller to decide on.
    pub fn take_released(&mut self) -> Vec<Pointer> {
        std::mem::take(&mut self.released)
    }

    /// Runs whose allocation this transaction logs.
    pub fn allocated(&self) -> impl Iterator<Item = Run> + '_ {
        self.claims.iter().map(Claim::run)
    }

    /// Data of a claimed run that the commit writes beside its batch (P12). From the moment of the
    /// transaction `Pool::read` returns it.
    pub fn attach(&mut self, run: Run, data: Bufs) {
        self.attached.push((run, data));
    }

    /// Recovery cannot verify some of the data behind its pointers: its items have no checksums. It
    /// is durable before the batch (R8).
    pub fn introduce_unverifiable(&mut self) {
        self.introduces_unverifiable = true;
    }

    /// Edits so far, of tables and of space, except those that are logged again: no flush makes
    /// these fewer, so they count for no limit of the log's edits.
    pub fn len(&self) -> usize {
        let lineage = 3 * self.forks.len() + self.forgotten.len();
        self.edits.len() + self.claims.len() + self.released.len() + lineage
    }

    /// Bytes by which its edits may make tables grow on disk, as admission counts them.
    pub(crate) fn growth(&self) -> u64 {
        let value = |edit: &Edit| if let Edit::Put(value) = edit { value.len() } else { 0 };
        let bytes = self.edits.iter().map(|(_, _, edit)| Key::BYTES + value(edit)).sum();
        growth_of(self.edits.len(), bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.carried.iter().all(Carried::is_empty)
    }

    /// The records of this transaction, in an order that replays to the same state: a run is
    /// allocated before anything can free it. Without `allocations` those are already logged.
    pub(crate) fn records(&self, allocations: bool) -> Vec<u8> {
        let mut records = RecordWriter::with_capacity(self.len() * 32);
        for claim in self.claims.iter().filter(|_| allocations) {
            records.push(Record::Alloc(claim.run()));
        }
        for (table, key, edit) in &self.edits {
            let (table, key) = (*table, *key);
            records.push(match edit {
                Edit::Put(value) => Record::Put { table, key, value },
                Edit::Delete => Record::Delete { table, key },
            });
        }
        for pointer in &self.released {
            records.push(Record::Free(pointer.run));
        }
        for Carried { allocated, freed, .. } in &self.carried {
            allocated.iter().for_each(|run| records.push(Record::Alloc(*run)));
            freed.iter().for_each(|run| records.push(Record::Free(*run)));
        }
        records.finish()
    }
}

/// Log and metadata space for one transaction: `Pool::admit` returns it and `Pool::apply` takes
/// it. Dropping it unused releases all of it.
#[must_use]
#[derive(Debug)]
pub struct Credit {
    /// Bytes by which flushing these edits may make the tables grow, and the space for it.
    pub(crate) bytes: u64,
    pub(crate) growth: Option<Reservation>,
    /// Room for its records in the log.
    pub(crate) room: LogRoom,
    /// The time spent waiting for it.
    pub(crate) waited: Nanos,
    /// Its place in the log, if it is assigned before joining (`Sabotage::JoinFirst`).
    pub(crate) ticket: Option<u64>,
}
