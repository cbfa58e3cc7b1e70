//! The ledger: the part of quotas on the way of a write.
//!
//! ```text
//!   hold   = ledger.hold(subvolume, wanted, tier)     before anything is accepted
//!   ledger.charge(origin, amount, Some(&mut hold))    while the transaction is applied
//!   hold.spend_metadata()                             and its edits are unflushed now
//!   ledger.charge(origin, nodes, None), ledger.flushed(subvolume, …)      a flush
//!   rows   = ledger.closing(txg)                      while no transaction is joined
//! ```
//!
//! While quotas are off, each of these looks at one number and is done. Else a charge takes two
//! locks, shared: a shard of rows, and the owner's way up; and changes counters of the owner and of
//! each distinct node above.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use copyhold_format::item::inodes_key;
use copyhold_pool::Edit;
use copyhold_sync::{Mutex, RwLock, of};
use copyhold_types::{EpochId, InodeNo, SubvolId, Txg};

use super::account::Account;
use super::amount::Amount;
use super::error::{Miscount, QuotaError};
use super::groups::Groups;
use super::hold::Hold;
use super::node::Sums;
use super::request::{Request, Tier};
use super::rows::{EpochRows, Row};
use super::{GroupId, Rows};
use crate::sabotage::Sabotage;

/// The usage of a subvolume, and the room below its limits and those above it; `None` without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub bytes: u64,
    pub bytes_left: Option<u64>,
    /// With those of subvolumes inside it.
    pub inodes: u64,
    pub inodes_left: Option<u64>,
}

/// The quotas of one pool.
#[derive(Debug)]
pub struct Ledger {
    /// Origins from this one on are counted; [`Self::OFF`] while quotas are off.
    pub(super) counted_from: AtomicU64,
    pub(super) rows: EpochRows,
    pub(super) accounts: Accounts,
    /// The part that is not on the way of a write: relations, records, dead owners.
    pub(super) groups: Mutex<Groups, of::QuotaGroups>,
    /// Bytes promised by reserves and not yet taken (COUNTER-N3).
    pub(super) promised: Arc<AtomicI64>,
    /// Dead owners that a sweep should look at.
    pub(super) sweepable: Mutex<BTreeSet<SubvolId>, of::Sweepable>,
    /// Sums that were found wrong.
    miscounts: AtomicU64,
    /// How often a list looked at a group.
    looks: AtomicU64,
    #[cfg(feature = "sabotage")]
    pub(crate) broken: crate::sabotage::Broken,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            counted_from: AtomicU64::new(Ledger::OFF),
            rows: EpochRows::new(),
            accounts: Accounts::new(),
            groups: Mutex::default(),
            promised: Arc::default(),
            sweepable: Mutex::default(),
            miscounts: AtomicU64::default(),
            looks: AtomicU64::default(),
            #[cfg(feature = "sabotage")]
            broken: Default::default(),
        }
    }
}

impl Ledger {
    pub(super) const OFF: u64 = u64::MAX;

    /// Whether space with this origin is counted (R25). A subvolume whose current epoch is not
    /// takes a new number before it writes.
    pub fn counts(&self, origin: EpochId) -> bool {
        origin.0 >= self.counted_from.load(Relaxed)
    }

    /// A wrong sum is logged and stops no writes: a check recounts it.
    pub(crate) fn report_miscount(&self, counted: Result<(), Miscount>) {
        if let Err(miscount) = counted {
            self.miscounts.fetch_add(1, Relaxed);
            tracing::error!("{miscount}");
        }
    }

    /// How many sums were found wrong since the pool was opened: none, unless it is damaged.
    pub fn miscounts(&self) -> u64 {
        self.miscounts.load(Relaxed)
    }

    pub(super) fn looked_at_group(&self) {
        self.looks.fetch_add(1, Relaxed);
    }

    /// How often lists of groups looked at a group.
    pub fn looks(&self) -> u64 {
        self.looks.load(Relaxed)
    }

    pub fn is_on(&self) -> bool {
        self.counted_from.load(Relaxed) != Self::OFF
    }

    /// `subvol` writes with this epoch from now on; the number has not been used before.
    /// `next_inode` is a number that none of its inodes has reached: where the count of inodes
    /// begins, unless it has begun.
    pub fn begin_epoch(
        &self,
        epoch: EpochId,
        subvol: SubvolId,
        next_inode: InodeNo,
    ) -> Result<(), Miscount> {
        if !self.counts(epoch) {
            return Ok(());
        }
        let account = self.accounts.get(subvol).ok_or(Miscount::UnknownSubvolume(subvol))?;
        if account.files.begin(next_inode) {
            self.accounts.touch(&account);
        }
        self.rows.insert(Row::new(epoch, account, true));
        Ok(())
    }

    /// Whether some owner pays, or has paid, for this epoch's space.
    pub(crate) fn knows(&self, epoch: EpochId) -> bool {
        self.rows.with(epoch, |_| ()).is_some()
    }

    /// Nothing will be charged to `epoch` any more: it is sealed and its tables are flushed and
    /// handed over, or its subvolume is deleted. Refunds continue.
    pub fn end_epoch(&self, epoch: EpochId) {
        self.rows.end(epoch);
    }

    /// Charges new space or an inode. It uses up the part of `hold` for it. While a transaction is
    /// applied.
    pub fn charge(
        &self,
        origin: EpochId,
        amount: Amount,
        hold: Option<&mut Hold>,
    ) -> Result<(), Miscount> {
        if !self.counts(origin) {
            return Ok(());
        }
        let charged = self.rows.with(origin, |row| {
            row.add(amount);
            self.rows.touch(row);
            let settled = hold.map_or(0, |hold| hold.settle(&row.owner, amount));
            row.owner.pay(&Sums { reserved: -(settled as i64), ..amount.sums() });
        });
        charged.ok_or(Miscount::UnknownEpoch(origin)).or_else(|bug| self.unless_off(origin, bug))
    }

    /// Something died: nothing refers to it any more. While a transaction is applied.
    pub fn refund(&self, origin: EpochId, amount: Amount) -> Result<(), Miscount> {
        if !self.counts(origin) {
            return Ok(());
        }
        let refunded = self.rows.with(origin, |row| {
            row.subtract(amount)?;
            self.rows.touch(row);
            row.owner.pay(&amount.sums().negated());
            Ok(())
        });
        let refunded = refunded.unwrap_or(Err(Miscount::UnknownEpoch(origin)));
        refunded.or_else(|bug| self.unless_off(origin, bug))
    }

    /// Quotas that are being turned off take the rows away first.
    fn unless_off(&self, origin: EpochId, bug: Miscount) -> Result<(), Miscount> {
        if self.counts(origin) { Err(bug) } else { Ok(()) }
    }

    /// Reserves for an operation of `subvol`, against its limits and all above it, all or
    /// nothing (R23). Before it returns EDQUOT to its own caller, the caller waits for space that
    /// is being freed, and asks once more (R22).
    pub fn hold(&self, subvol: SubvolId, wanted: Request, tier: Tier) -> Result<Hold, QuotaError> {
        let is_free = wanted == Request::default() || self.breaks(Sabotage::IgnoreLimits);
        if !self.is_on() || is_free {
            return Ok(Hold::nothing());
        }
        if !wanted.is_sane() {
            return Err(QuotaError::Nonsense(wanted.data.max(wanted.metadata)));
        }
        let account = self.accounts.get(subvol);
        let account = account.ok_or(QuotaError::NoGroup(GroupId::of(subvol)))?;
        if account.is_dead() {
            return Err(QuotaError::Deleted(subvol));
        }
        if self.breaks(Sabotage::FeedOverdraft) {
            account.excuse_all();
        }
        account.hold(wanted, tier).map_err(QuotaError::Exceeded)
    }

    /// A flush of a table of `subvol` has written `merged` bytes of its edits; `left` bytes are
    /// still unflushed.
    pub fn flushed(&self, subvol: SubvolId, merged: u64, left: u64) {
        if self.is_on()
            && let Some(account) = self.accounts.get(subvol)
        {
            account.settle_flushed(merged, left);
        }
    }

    /// `subvol` has unflushed edits without a hold: those that recovery found.
    pub fn owes(&self, subvol: SubvolId, bytes: u64) {
        if let Some(account) = self.accounts.get(subvol) {
            let unflushed = bytes.min(Request::MAX) as i64;
            account.pay(&Sums { unflushed, ..Sums::default() });
        }
    }

    /// Bytes that the limits of `subvol` and of all above it leave; `None` without any. It looks at
    /// each of them once.
    pub fn available(&self, subvol: SubvolId) -> Option<u64> {
        self.accounts.get(subvol)?.available().0
    }

    /// Whether the space of a subvolume, living or deleted, counts in this group.
    pub fn pays_into(&self, subvol: SubvolId, group: GroupId) -> bool {
        self.accounts.get(subvol).is_some_and(|account| account.pays_into(group))
    }

    /// As [`Self::available`], of inodes.
    pub fn available_inodes(&self, subvol: SubvolId) -> Option<u64> {
        self.accounts.get(subvol)?.available().1
    }

    /// The usage and the room of `subvol`, from the nodes on its way up and nothing else; `None`
    /// while quotas are off.
    pub fn room(&self, subvol: SubvolId) -> Option<Room> {
        let account = self.accounts.get(subvol)?;
        let (bytes_left, inodes_left) = account.available();
        let sums = account.node.sums();
        let positive = |count: i64| count.max(0) as u64;
        Some(Room {
            bytes: positive(sums.data + sums.metadata),
            bytes_left,
            inodes: positive(sums.inodes),
            inodes_left,
        })
    }

    /// Bytes of the pool that are kept for reserves of others: `subvol` may take what is available
    /// beyond them.
    pub fn kept_for_others(&self, subvol: SubvolId) -> u64 {
        let promised = self.promised.load(Relaxed);
        if promised == 0 {
            return 0;
        }
        let own = self.accounts.get(subvol).map_or(0, |account| account.node.promise());
        (promised - own).max(0) as u64
    }

    /// An inode of `subvol` is born. While a transaction is applied.
    pub fn created(
        &self,
        subvol: SubvolId,
        ino: InodeNo,
        hold: Option<&mut Hold>,
    ) -> Result<(), Miscount> {
        self.with_files(subvol, ino, |account| {
            account.files.add();
            let held = hold.map_or(0, |hold| hold.settle_inodes(account, 1));
            if held == 0 {
                account.pay(&Sums { inodes: 1, ..Sums::default() });
            }
            Ok(())
        })
    }

    /// An inode of `subvol` is gone. While a transaction is applied.
    pub fn removed(&self, subvol: SubvolId, ino: InodeNo) -> Result<(), Miscount> {
        self.with_files(subvol, ino, |account| {
            if !account.files.remove() {
                return Err(Miscount::Inodes(subvol));
            }
            account.pay(&Sums { inodes: -1, ..Sums::default() });
            Ok(())
        })
    }

    /// `subvol` is deleted, and its inodes count no more. While a transaction is applied.
    pub fn forget_inodes(&self, subvol: SubvolId) {
        if let Some(account) = self.accounts.get(subvol).filter(|_| self.is_on()) {
            account.forget_inodes();
            self.accounts.touch(&account);
        }
    }

    fn with_files(
        &self,
        subvol: SubvolId,
        ino: InodeNo,
        act: impl FnOnce(&Arc<Account>) -> Result<(), Miscount>,
    ) -> Result<(), Miscount> {
        if !self.is_on() {
            return Ok(());
        }
        let account = self.accounts.get(subvol).ok_or(Miscount::UnknownSubvolume(subvol));
        let account = match account {
            Ok(account) => account,
            Err(_) if !self.is_on() => return Ok(()),
            Err(bug) => return Err(bug),
        };
        if account.is_dead() || !account.files.counts(ino) {
            return Ok(());
        }
        act(&account)?;
        self.accounts.touch(&account);
        Ok(())
    }

    /// The changes up to the end of `txg`, as absolute values, each row once (R24). Called while
    /// no transaction is joined; the edits go into the records of `txg`.
    pub fn closing(&self, txg: Txg) -> Rows {
        let (mut edits, losers) = self.rows.close(self.breaks(Sabotage::KeepRows));
        let dead = losers.iter().filter(|account| account.is_dead() && !account.has_rows());
        self.sweepable.lock().extend(dead.map(|account| account.subvol));
        edits.extend(self.accounts.close());
        if !edits.is_empty() {
            tracing::trace!(%txg, rows = edits.len(), "usage is logged");
        }
        edits
    }
}

const SHARDS: usize = 64;

/// Accounts by subvolume, in shards, and which of them have another number of inodes.
#[derive(Debug)]
pub(super) struct Accounts {
    shards: Vec<Shard>,
}

#[derive(Debug, Default)]
struct Shard {
    accounts: RwLock<BTreeMap<SubvolId, Arc<Account>>, of::Accounts>,
    dirty: Mutex<Vec<Arc<Account>>, of::DirtyAccounts>,
}

impl Accounts {
    fn new() -> Accounts {
        Accounts { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    fn shard(&self, subvol: SubvolId) -> &Shard {
        &self.shards[subvol.0 as usize % SHARDS]
    }

    pub(super) fn get(&self, subvol: SubvolId) -> Option<Arc<Account>> {
        self.shard(subvol).accounts.read().get(&subvol).cloned()
    }

    pub(super) fn insert(&self, account: &Arc<Account>) {
        let shard = self.shard(account.subvol);
        shard.accounts.write().insert(account.subvol, Arc::clone(account));
    }

    pub(super) fn remove(&self, subvol: SubvolId) {
        self.shard(subvol).accounts.write().remove(&subvol);
    }

    fn touch(&self, account: &Arc<Account>) {
        if !account.files.dirty.swap(true, Relaxed) {
            self.shard(account.subvol).dirty.lock().push(Arc::clone(account));
        }
    }

    /// Counts of inodes that have changed, as edits.
    fn close(&self) -> Rows {
        let lists = self.shards.iter().map(|shard| std::mem::take(&mut *shard.dirty.lock()));
        let mut dirty: Vec<_> = lists.flatten().collect();
        dirty.sort_unstable_by_key(|account| account.subvol);
        let mut edits = Rows::with_capacity(dirty.len());
        for account in dirty {
            account.files.dirty.store(false, Relaxed);
            let edit = match account.files.item() {
                Some(item) => Edit::Put((&item.encode()).into()),
                None => Edit::Delete,
            };
            edits.push((inodes_key(account.subvol), edit));
        }
        edits
    }

    /// Forgets everything; gives whose counts of inodes there may be records of.
    pub(super) fn clear(&self) -> Vec<SubvolId> {
        let mut subvols = Vec::new();
        for shard in &self.shards {
            subvols.extend(std::mem::take(&mut *shard.accounts.write()).into_keys());
            shard.dirty.lock().clear();
        }
        subvols
    }
}
