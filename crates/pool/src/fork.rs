//! Forked tables: their records, their settling and handover, and their end.
//!
//! A fork is an item of the table of tables for each child, [`Lineage::Over`]: for any size of the
//! forked table. Children lie over the forked table in memory (`table::fork`); when it is settled,
//! it is *handed over*: the children's own descriptors are written and their items deleted, and
//! the forked table goes: its descriptors are deleted, its nodes stay, since they are the
//! children's now. Thousands of children are handed the table one group after the other (R28).
//!
//! Look-ups search every table under one that is not settled (P13). So from two on the flusher
//! settles the lowest, in one round for all such stacks, and a fork waits only when forks come
//! much faster than that (R29).
//!
//! FORK-G1  A fork determines the table to lie over, and makes the children, in one step with
//!          handing over (`Forks::order`): neither sees half of the other, nor of the record of a
//!          flush: edits of a table's descriptors come before the record that the table is gone.
//! FORK-G2  A table that is removed leaves a [`Lineage::Gone`] behind until the log has no record
//!          of it: replay must not bring it back.
//! FORK-G3  While a part of the children has a table, it is sealed: replay brings no edit of it
//!          back, so it is not flushed again, over nodes that these children have. A table without
//!          edits that lies under others is retired from the recovery on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use copyhold_format::node::{Lineage, PartitionDescriptor};
use copyhold_log::UBERBLOCKS_KEPT;
use copyhold_sync::{Mutex, of};
use copyhold_table::{Edit, LAYERS_HANDED, PartitionStats, Table};
use copyhold_types::{Key, TableId, Txg};

use crate::tenancy::free_node;
use crate::units::{Aim, UNITS_PER_ROUND, Unit};
use crate::{Pool, PoolError, Sabotage, Transaction};

/// Unflushed tables that may lie over each other before a fork has to wait (R29); a look-up
/// searches each of them (P13).
pub const FORK_DEPTH_MAX: usize = 8;
/// As many may lie under a table while nothing presses; where more do, the flusher settles them.
const FORK_DEPTH_KEPT: usize = 1;
/// Items of tables that went, deleted by one transaction.
const GONE_PER_STEP: usize = 64;
/// Bytes of a row of lineage, or of a key and the addition of sealing to a descriptor.
const ROW_BYTES: usize = 40;
/// Before settling looks again, when another flush has the table.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(crate) struct Forks {
    /// Held while a fork, a handover or a flush's record is applied (FORK-G1).
    pub(crate) order: Mutex<(), of::ForkOrder>,
    pub(crate) gone: Mutex<Vec<Gone>, of::ForkGone>,
}

impl Forks {
    /// Most rows that [`Pool::forget_gone`] takes away.
    pub(crate) fn gone_most(&self) -> usize {
        self.gone.lock().len().min(GONE_PER_STEP)
    }
}

/// The result of handing a table over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is not settled, or nothing lies over it.
    Nothing,
    /// To a part of its children, in this txg.
    Some(Txg),
    /// To the last of them.
    Last,
}

/// A table that went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    table: TableId,
    since: Txg,
    /// The uberblock in which the log first began behind it.
    passed: Option<u64>,
}

impl Gone {
    pub(crate) fn new(table: TableId, since: Txg) -> Gone {
        Gone { table, since, passed: None }
    }
}

impl Transaction {
    /// Makes two tables with the content of `from`: the first continues it, the second is a
    /// snapshot. `from` takes no edits any more, also none in this transaction. Edits of the
    /// children may be in it.
    pub fn fork(&mut self, from: TableId, children: [TableId; 2]) {
        self.forks.push((from, children));
    }

    /// `table` is gone. The caller frees its nodes. It takes no edits any more.
    pub fn forget(&mut self, table: TableId) {
        self.forgotten.push(table);
    }
}

impl Pool {
    /// How many unflushed tables lie under `table`; a fork of it adds one if it has edits.
    pub fn fork_depth(&self, table: TableId) -> usize {
        self.table(table).depth()
    }

    /// The edits that log the forks and the forgotten tables.
    pub(crate) fn log_lineage(&self, txg: Txg, tx: &mut Transaction) {
        for (from, children) in tx.forks.clone() {
            let under = self.table(from).fork_point();
            for child in children {
                tx.put(Pool::TABLES, Lineage::key(child), &Lineage::Over(under.id()).encode()[..]);
            }
            if under.id() != from {
                tx.delete(Pool::TABLES, Lineage::key(from));
            }
        }
        for table in tx.forgotten.clone() {
            self.log_gone(txg, &self.table(table), tx);
        }
    }

    fn log_gone(&self, txg: Txg, table: &Table, tx: &mut Transaction) {
        for told in table.gone() {
            tx.edit(Pool::TABLES, told.key(), told.edit());
        }
        let gone = Lineage::Gone(txg).encode();
        tx.put(Pool::TABLES, Lineage::key(table.id()), &gone[..]);
        self.forks.gone.lock().push(Gone::new(table.id(), txg));
    }

    /// Makes the children, before any edit of them is applied.
    pub(crate) fn make_forks(&self, txg: Txg, tx: &Transaction) {
        for (from, children) in &tx.forks {
            let parent = self.table(*from);
            let [next, snapshot] = *children;
            for table in [Table::over(&parent, next), Table::snapshot(&parent, snapshot)] {
                let (child, is_deep) = (table.id(), table.depth() > FORK_DEPTH_KEPT);
                self.tables.insert(table);
                if is_deep {
                    self.tables.is_deep(child);
                    self.flusher.kick();
                }
            }
            if parent.fork_point().id() != *from {
                self.tables.remove(*from);
            }
        }
        for table in &tx.forgotten {
            self.drop_edits(txg, &self.table(*table));
            self.tables.remove(*table);
        }
    }

    /// Leaves few layers in a table that is about to be forked: its snapshots have all of them, and
    /// each would rewrite some to make room for its own (LAYERS-L3). There are so many only in a
    /// snapshot of a snapshot, and after damage.
    pub async fn compact(self: &Arc<Self>, table: TableId) -> Result<(), PoolError> {
        let table = self.table(table);
        if table.layers_most() < LAYERS_HANDED || table.under().is_some() {
            return Ok(());
        }
        let many = table.stats().into_iter().filter(|stats| stats.layers >= LAYERS_HANDED);
        let unit = |stats: PartitionStats| Unit::Partition(table.id(), stats.start);
        let units: Vec<Unit> = many.map(unit).collect();
        for units in units.chunks(UNITS_PER_ROUND) {
            self.flush_units(units.to_vec(), Aim::Compact).await?;
        }
        Ok(())
    }

    /// Flushes the edits of one table, as far as it has bases of its own or lies over a table that
    /// has.
    pub async fn flush_edits_of(self: &Arc<Self>, table: TableId) -> Result<(), PoolError> {
        let table = self.table(table);
        self.settle_under(&table).await?;
        self.flush_only([&table]).await.map(drop)
    }

    /// Hands settled tables over to the tables over them. Returns whether there was any.
    pub(crate) async fn hand_over(self: &Arc<Self>) -> Result<bool, PoolError> {
        let mut any = false;
        while let Some(under) = self.tables.take_ripe() {
            let step = self.hand_over_from(&under);
            let step = step.inspect_err(|_| self.tables.flushed(under.id()))?;
            any |= step != Step::Nothing;
            if let Step::Some(txg) = step {
                // Ripe again, if this is cancelled. A txg has one step.
                self.tables.flushed(under.id());
                self.commit(txg).await?;
                if self.is_full() && self.flush_round(Aim::Trim).await?.flushed == 0 {
                    break;
                }
            }
        }
        Ok(any)
    }

    /// Flushes the lowest of tables that lie over each other where those are too many. Whether
    /// there was any to flush.
    pub(crate) async fn settle_deep(self: &Arc<Self>) -> Result<bool, PoolError> {
        let mut deep = self.tables.take_deep();
        deep.retain(|table| table.depth() > FORK_DEPTH_KEPT);
        deep.iter().for_each(|table| self.tables.is_deep(table.id()));
        let lowest: BTreeMap<TableId, Arc<Table>> =
            deep.iter().filter_map(lowest_under).map(|table| (table.id(), table)).collect();
        if lowest.is_empty() || !self.flush_only(lowest.values()).await? {
            return Ok(false);
        }
        self.hand_over().await?;
        // There may be more of them by now.
        self.flusher.kick();
        Ok(true)
    }

    /// Hands a table over to as many of its children as one transaction may log (FORK-G3).
    fn hand_over_from(self: &Arc<Self>, under: &Arc<Table>) -> Result<Step, PoolError> {
        let _order = self.forks.order.lock();
        let has_children = !self.tables.over(under.id(), 1).is_empty();
        // A round on another thread may want to merge its layers at this very moment. If there is
        // no log space for the record, the table stays retired until there is.
        if !has_children || !under.stand_still() {
            return Ok(Step::Nothing);
        }
        let rows: Vec<usize> =
            under.descriptors().iter().map(|(_, of)| of.encode().len()).collect();
        let parts = rows.len();
        let step = (self.limits.handover_edits / (parts + 1)).max(1);
        // A table may have a child for each snapshot: those of later steps are not looked at.
        let mut children = self.tables.over(under.id(), step.saturating_add(1));
        let is_last = children.len() <= step;
        children.truncate(step);
        let edits = (children.len() + 1) * (parts + 1);
        let bytes = (children.len() + 1) * rows.iter().sum::<usize>() + edits * ROW_BYTES;
        let credit = self.internal_credit(edits, bytes, 0)?;
        let txg = self.apply_with(credit, Transaction::new(), |txg, tx| {
            if !is_last && !self.sabotaged(Sabotage::HandOverUnsealed) {
                let tells = under.seal(txg);
                tells.iter().for_each(|told| tx.edit(Pool::TABLES, told.key(), told.edit()));
            }
            for child in &children {
                let (tells, more) = child.adopt();
                self.edited(more);
                tells.iter().for_each(|told| tx.edit(Pool::TABLES, told.key(), told.edit()));
                tx.edit(Pool::TABLES, Lineage::key(child.id()), Edit::Delete);
                self.tables.adopted(child.id(), under.id());
            }
            if is_last && !self.sabotaged(Sabotage::KeepSealed) {
                self.log_gone(txg, under, tx);
                self.tables.remove(under.id());
            }
        })?;
        Ok(if is_last { Step::Last } else { Step::Some(txg) })
    }

    /// Flushes `table` and the tables under it, until all edits are in bases of its own and in
    /// layers. It must take no edits meanwhile, or this may not end.
    pub async fn settle(self: &Arc<Self>, table: TableId) -> Result<(), PoolError> {
        let top = self.table(table);
        while !top.is_settled() {
            self.settle_under(&top).await?;
            self.flush_table(&top).await?;
        }
        Ok(())
    }

    /// Readies a table for the release of its nodes: it has no edits, lies over nothing, and is
    /// not flushed from then on. Its layers stay unchanged.
    pub async fn retire(self: &Arc<Self>, table: TableId) -> Result<(), PoolError> {
        let table = self.table(table);
        loop {
            if table.is_settled() {
                table.retire();
                // A merge may have begun just before.
                if table.is_settled() {
                    self.records_applied();
                    return Ok(());
                }
            }
            self.settle_under(&table).await?;
            self.flush_table(&table).await?;
        }
    }

    /// A table was retired before a crash.
    pub fn retire_again(&self, table: TableId) {
        self.settled(self.table(table).retire_again());
    }

    /// Flushes the tables under `table` and hands them over, so that it has bases of its own.
    pub async fn settle_under(self: &Arc<Self>, table: &Arc<Table>) -> Result<(), PoolError> {
        while self.settle_lowest_under(table).await? {}
        Ok(())
    }

    /// Flushes the lowest of the tables that lie under `table`, and hands it over. Whether there
    /// was one.
    pub async fn settle_lowest_under(
        self: &Arc<Self>,
        table: &Arc<Table>,
    ) -> Result<bool, PoolError> {
        let Some(lowest) = lowest_under(table) else { return Ok(false) };
        self.flush_table(&lowest).await?;
        if !self.hand_over().await? && table.under().is_some() {
            // Others do it, or there is no room in the log yet.
            self.check_writable()?;
            self.rt.sleep(PAUSE).await;
        }
        Ok(true)
    }

    /// Flushes the partitions of one table, or waits for another task that does.
    async fn flush_table(self: &Arc<Self>, table: &Arc<Table>) -> Result<(), PoolError> {
        if table.is_settled() {
            return Ok(());
        }
        if !self.flush_only([table]).await? {
            self.check_writable()?;
            self.rt.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Drops a table of the pool's own with all its nodes, in bounded steps. It takes no edits
    /// any more; those that are not flushed go with it, for it would be in vain to flush them.
    ///
    /// # Errors
    /// A node of the table cannot be read. The flusher then flushes the table's edits, which would
    /// pin the log otherwise, and a later call may drop the table.
    pub async fn drop_table(self: &Arc<Self>, id: TableId) -> Result<(), PoolError> {
        let table = self.table(id);
        table.retire();
        let dropped = self.drop_retired(&table).await;
        if dropped.is_err() {
            table.reinstate();
        }
        dropped
    }

    async fn drop_retired(self: &Arc<Self>, table: &Arc<Table>) -> Result<(), PoolError> {
        while table.is_being_flushed() {
            self.check_writable()?;
            self.rt.sleep(PAUSE).await;
        }
        self.records_applied();
        for (partition, descriptor) in table.descriptors() {
            self.drop_partition(table, partition, descriptor).await?;
        }
        // A row of each partition goes, too.
        let rows = table.stats().len();
        let credit = self.internal_credit(2 + rows, 128 + rows * Key::BYTES, 0)?;
        let mut tx = Transaction::new();
        tx.forget(table.id());
        self.apply(credit, tx)?;
        Ok(())
    }

    /// Of flushes whose bases count by now. Never waits for long.
    fn records_applied(&self) {
        drop(self.forks.order.lock());
    }

    /// Frees the nodes of a partition, then logs that it is empty: after a crash in between, the
    /// nodes that are still named are freed again.
    async fn drop_partition(
        self: &Arc<Self>,
        table: &Arc<Table>,
        partition: u64,
        descriptor: PartitionDescriptor,
    ) -> Result<(), PoolError> {
        let start = descriptor.start;
        let _pin = self.pin();
        let nodes = self.nodes_of(table, start, |_| true).await?;
        let nodes = self.pieces_of(&nodes).await?;
        let credit = self.internal_credit(1, 64, nodes.len() * 2)?;
        let mut tx = Transaction::new();
        nodes.iter().for_each(|ptr| free_node(&mut tx, ptr));
        let empty = PartitionDescriptor {
            complete_to: descriptor.complete_to,
            ..PartitionDescriptor::empty(start)
        };
        let key = PartitionDescriptor::key(table.id(), partition);
        tx.put(Pool::TABLES, key, &empty.encode()[..]);
        self.apply_with(credit, tx, |_, _| table.empty_partition(start))?;
        Ok(())
    }

    /// Edits go with a table that `txg` forgets. Should that be lost they count again: until it is
    /// durable, the log keeps them.
    fn drop_edits(&self, txg: Txg, table: &Table) {
        if let Some(pin) = table.pin() {
            self.flusher.pin_until(txg, pin);
        }
        self.settled(table.weight());
        self.admission.settled(|| self.unflushed());
    }

    /// Items of tables that the log has nothing of any more are deleted with a flush's record.
    pub(crate) fn forget_gone(&self, tx: &mut Transaction) {
        let (before_head, uberblock) = self.journal.head();
        let mut left = GONE_PER_STEP;
        self.forks.gone.lock().retain_mut(|gone| {
            if gone.since.get() <= before_head {
                gone.passed.get_or_insert(uberblock);
            }
            let passed =
                gone.passed.is_some_and(|since| uberblock >= since + UBERBLOCKS_KEPT as u64);
            let forget = passed && left > 0;
            if forget {
                left -= 1;
                tx.delete(Pool::TABLES, Lineage::key(gone.table));
            }
            !forget
        });
    }
}

/// The table to flush first, if one lies under `table`.
fn lowest_under(table: &Arc<Table>) -> Option<Arc<Table>> {
    let mut lowest = table.under()?;
    while let Some(lower) = lowest.under() {
        lowest = lower;
    }
    Some(lowest)
}
