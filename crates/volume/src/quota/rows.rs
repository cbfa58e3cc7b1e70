//! Usage by origin epoch: the rows that are logged, and the dirty ones among them.
//!
//! A charge finds its row in one of 64 shards, by the epoch's number, and changes two atomics. The
//! first change since the last closing puts the row on the shard's list of dirty ones. Closing a
//! txg takes those lists while no transaction is joined, so what it reads are the sums of exactly
//! the txgs up to this one (R24, QUOTA-Q6).
//!
//! ROWS-W1  A row that is dirty is on the list of its shard, or was when the lists were taken: it
//!          may be on two of them.
//! ROWS-W2  A row that is neither zero nor of a live epoch is in its shard; one that is both is
//!          dirty, and goes when the txg closes (R26, QUOTA-Q7).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use copyhold_format::item::{UsageItem, usage_key};
use copyhold_pool::Edit;
use copyhold_sync::{Mutex, RwLock, of};
use copyhold_types::{EpochId, Key};

use super::account::Account;
use super::amount::Amount;
use super::error::Miscount;

const SHARDS: usize = 64;

/// The usage of one origin epoch.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) epoch: EpochId,
    /// Whom the row names; it may have an heir.
    pub(super) owner: Arc<Account>,
    data: AtomicU64,
    metadata: AtomicU64,
    /// Something may still be charged.
    live: AtomicBool,
    dirty: AtomicBool,
    /// It is, or is about to be, in the table.
    logged: AtomicBool,
}

#[derive(Debug, Default)]
struct Shard {
    rows: RwLock<BTreeMap<EpochId, Arc<Row>>, of::QuotaRows>,
    dirty: Mutex<Vec<Arc<Row>>, of::DirtyRows>,
}

#[derive(Debug)]
pub(super) struct EpochRows {
    shards: Vec<Shard>,
}

impl Row {
    pub(super) fn new(epoch: EpochId, owner: Arc<Account>, live: bool) -> Row {
        Row {
            epoch,
            owner,
            data: AtomicU64::new(0),
            metadata: AtomicU64::new(0),
            live: AtomicBool::new(live),
            dirty: AtomicBool::new(false),
            logged: AtomicBool::new(false),
        }
    }

    /// As its record has it.
    pub(super) fn loaded(epoch: EpochId, owner: Arc<Account>, live: bool, has: Amount) -> Row {
        let row = Row { logged: AtomicBool::new(true), ..Row::new(epoch, owner, live) };
        row.add(has);
        row
    }

    pub(super) fn amount(&self) -> Amount {
        Amount { data: self.data.load(Relaxed), metadata: self.metadata.load(Relaxed) }
    }

    pub(super) fn add(&self, amount: Amount) {
        if amount.data != 0 {
            self.data.fetch_add(amount.data, Relaxed);
        }
        if amount.metadata != 0 {
            self.metadata.fetch_add(amount.metadata, Relaxed);
        }
    }

    /// All of `amount` or nothing of it.
    pub(super) fn subtract(&self, amount: Amount) -> Result<(), Miscount> {
        let take = |counter: &AtomicU64, bytes: u64| {
            counter.fetch_update(Relaxed, Relaxed, |has| has.checked_sub(bytes)).is_ok()
        };
        if take(&self.data, amount.data) {
            if take(&self.metadata, amount.metadata) {
                return Ok(());
            }
            self.data.fetch_add(amount.data, Relaxed);
        }
        let Amount { data, metadata } = amount;
        Err(Miscount::Underflow { epoch: self.epoch, data, metadata })
    }

    pub(super) fn item(&self) -> UsageItem {
        self.item_of(self.amount())
    }

    fn item_of(&self, amount: Amount) -> UsageItem {
        let Amount { data, metadata } = amount;
        UsageItem { owner: self.owner.subvol, data, metadata }
    }

    fn is_over(&self) -> bool {
        self.amount() == Amount::default() && !self.live.load(Relaxed)
    }
}

impl EpochRows {
    pub(super) fn new() -> EpochRows {
        EpochRows { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    fn shard(&self, epoch: EpochId) -> &Shard {
        &self.shards[epoch.0 as usize % SHARDS]
    }

    /// Calls `act` with the row of `epoch`, if there is one.
    pub(super) fn with<T>(&self, epoch: EpochId, act: impl FnOnce(&Arc<Row>) -> T) -> Option<T> {
        self.shard(epoch).rows.read().get(&epoch).map(act)
    }

    pub(super) fn insert(&self, row: Row) {
        row.owner.rows.fetch_add(1, Relaxed);
        let epoch = row.epoch;
        let old = self.shard(epoch).rows.write().insert(epoch, Arc::new(row));
        assert!(old.is_none(), "epoch {epoch} begins once");
    }

    /// The row has changed, or may be deletable.
    pub(super) fn touch(&self, row: &Arc<Row>) {
        if !row.dirty.swap(true, Relaxed) {
            self.shard(row.epoch).dirty.lock().push(Arc::clone(row));
        }
    }

    /// Nothing will be charged to this epoch any more, only refunded.
    pub(super) fn end(&self, epoch: EpochId) {
        self.with(epoch, |row| {
            row.live.store(false, Relaxed);
            if row.is_over() {
                self.touch(row);
            }
        });
    }

    /// Takes the changes: their edits, and the accounts that have lost a row. No transaction is
    /// joined meanwhile.
    /// `keep`: those stay that are over (`Sabotage::KeepRows`).
    pub(super) fn close(&self, keep: bool) -> (Vec<(Key, Edit)>, Vec<Arc<Account>>) {
        let lists = self.shards.iter().map(|shard| std::mem::take(&mut *shard.dirty.lock()));
        let mut dirty: Vec<_> = lists.flatten().collect();
        dirty.sort_unstable_by_key(|row| row.epoch);
        let mut edits = Vec::with_capacity(dirty.len());
        let mut losers = Vec::new();
        for row in dirty {
            row.dirty.store(false, Relaxed);
            let amount = row.amount();
            let has_any = amount != Amount::default() || keep;
            let was_logged = row.logged.swap(has_any, Relaxed);
            if has_any {
                edits.push((
                    usage_key(row.epoch),
                    Edit::Put((&row.item_of(amount).encode()).into()),
                ));
            } else if was_logged {
                edits.push((usage_key(row.epoch), Edit::Delete));
            }
            if !has_any && self.remove_over(&row) {
                row.owner.rows.fetch_sub(1, Relaxed);
                losers.push(Arc::clone(&row.owner));
            }
        }
        (edits, losers)
    }

    /// Takes a row away that is over. Whether this did: a task that ends an epoch, or charges it,
    /// may do so at any moment, and a row that was touched twice is on the lists twice.
    fn remove_over(&self, row: &Arc<Row>) -> bool {
        let mut rows = self.shard(row.epoch).rows.write();
        let is_there = rows.get(&row.epoch).is_some_and(|found| Arc::ptr_eq(found, row));
        let goes = is_there && row.is_over();
        if goes {
            rows.remove(&row.epoch);
        }
        goes
    }

    /// All rows, in order of epochs.
    pub(super) fn all(&self) -> Vec<Arc<Row>> {
        let mut all: Vec<_> = Vec::new();
        for shard in &self.shards {
            all.extend(shard.rows.read().values().cloned());
        }
        all.sort_unstable_by_key(|row| row.epoch);
        all
    }

    /// Forgets everything; gives the epochs of which there may be records.
    pub(super) fn clear(&self) -> Vec<EpochId> {
        let mut epochs = Vec::new();
        for shard in &self.shards {
            epochs.extend(std::mem::take(&mut *shard.rows.write()).into_keys());
            shard.dirty.lock().clear();
        }
        epochs
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::SubvolId;

    use super::*;

    /// As when an epoch ends between the moment its row is no longer dirty and the one it is
    /// judged.
    #[test]
    fn a_row_that_is_touched_while_it_is_judged_goes_once() {
        let rows = EpochRows::new();
        let owner = Arc::new(Account::new(SubvolId(5), Arc::default()));
        let (over, other) = (EpochId(7), EpochId(8));
        rows.insert(Row::new(over, owner.clone(), false));
        rows.insert(Row::new(other, owner.clone(), true));
        for _ in 0..2 {
            rows.with(over, |row| {
                row.dirty.store(false, Relaxed);
                rows.touch(row);
            });
        }
        let (_, losers) = rows.close(false);
        assert_eq!(losers.len(), 1);
        assert_eq!(owner.rows.load(Relaxed), 1, "the other row is still there");
    }

    #[test]
    fn a_row_that_is_charged_again_after_it_was_judged_stays_and_is_logged_next() {
        let rows = EpochRows::new();
        let owner = Arc::new(Account::new(SubvolId(5), Arc::default()));
        rows.insert(Row::new(EpochId(7), owner.clone(), false));
        let row = rows.with(EpochId(7), Arc::clone).unwrap();
        row.add(Amount::data(4096));
        assert!(!rows.remove_over(&row));
        assert!(rows.with(EpochId(7), |_| ()).is_some());
    }

    /// Runs `end` on one thread and `close` on another, because the race is between two atomics and
    /// no seeded runtime switches there. Each row must be removed exactly once.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "no runtime stops a task between two atomics")]
    fn rows_that_end_while_a_txg_closes_go_once_each() {
        const BATCHES: u64 = 1000;
        const BATCH: u64 = 100;
        let rows = EpochRows::new();
        let owner = Arc::new(Account::new(SubvolId(5), Arc::default()));
        let removed = std::thread::scope(|scope| {
            let ends = scope.spawn(|| {
                for batch in 0..BATCHES {
                    let epochs = || (batch * BATCH..(batch + 1) * BATCH).map(EpochId);
                    epochs().for_each(|epoch| {
                        rows.insert(Row::new(epoch, owner.clone(), true));
                        rows.with(epoch, |row| rows.touch(row));
                    });
                    // `close` visits rows in ascending order: with ends in descending order, both
                    // threads meet at some row.
                    epochs().rev().for_each(|epoch| rows.end(epoch));
                }
            });
            let mut removed = 0;
            while !ends.is_finished() {
                removed += rows.close(false).1.len();
            }
            // A row that was removed twice would be on a list again after the first of these.
            removed + rows.close(false).1.len() + rows.close(false).1.len()
        });
        assert_eq!((removed as u64, owner.rows.load(Relaxed)), (BATCHES * BATCH, 0));
    }
}
