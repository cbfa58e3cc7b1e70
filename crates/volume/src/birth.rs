//! Subvolumes come into being: empty, or as a snapshot.
//!
//! Numbers are obtained first, since that may wait (R9); the rest is one transaction, for any size
//! of the source and any number of its snapshots:
//!
//! ```text
//!   ids = volumes.numbers(Some(&source))        settles the oldest of too many layers (R29)
//!   credit for LIFE_EDITS, LIFE_BYTES and the edits of the directory
//!   volumes.snapshot(&source, &ids, &new, credit, tx)
//! ```
//!
//! The caller's transaction has the edits of the directory that holds the new entry, and of a new
//! subvolume the items of its root directory, in the table `ids.table()`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use copyhold_format::item::{
    HashKey, ParentDirectory, SubvolFlags, SubvolItem, SubvolState, epoch_key, subvol_key,
};
use copyhold_pool::{Credit, FORK_DEPTH_MAX, IdSpace, Pool, Transaction};
use copyhold_types::{EpochId, InodeNo, SubvolId, TableId, Timestamp, Txg};

use crate::error::{Result, VolumeError};
use crate::family::{Birth, Family};
use crate::quota::{Hold, Inherit, Resident};
use crate::sabotage::Sabotage;
use crate::trees::Trees;
use crate::volumes::{Subvol, Volumes};

/// Numbers for a new subvolume; those of a snapshot's source, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub subvol: SubvolId,
    /// The new subvolume's, and its source's next ones.
    epochs: [EpochId; 2],
    tables: [TableId; 2],
    deadlists: [TableId; 2],
}

impl Numbers {
    /// Where the new subvolume's files will be.
    pub fn table(&self) -> TableId {
        self.tables[0]
    }

    /// The epoch of a new subvolume's first pointers.
    pub fn epoch(&self) -> EpochId {
        self.epochs[0]
    }
}

/// The properties of a new subvolume.
#[derive(Clone, Debug)]
pub struct NewSubvol {
    /// Whose directory the entry is in; edits of that subvolume are in the transaction.
    pub place: ParentDirectory,
    pub read_only: bool,
    /// Of its names; a snapshot has its source's.
    pub hash_key: HashKey,
    pub created: Timestamp,
    pub identity: [u8; 16],
    pub inherit: Inherit,
}

impl Volumes {
    /// Obtains numbers for a new subvolume, or for a snapshot of `source`; for that, fewer
    /// unflushed tables are made to lie over each other, if those are too many.
    pub async fn numbers(&self, source: Option<&Subvol>) -> Result<Numbers> {
        if let Some(source) = source {
            let any_depth = self.ledger().breaks(Sabotage::DeepForks);
            while !any_depth && self.pool.fork_depth(source.files()) >= FORK_DEPTH_MAX {
                source.check_live()?;
                self.pool.settle_lowest_under(&self.pool.table(source.files())).await?;
            }
        }
        let pool = &self.pool;
        let subvol = SubvolId(pool.next_id(IdSpace::Subvol).await? as u32);
        if self.state.map.read().subvols.contains(subvol) {
            return Err(VolumeError::Mark(format!("subvolume {subvol}")));
        }
        let mut tables = [TableId(0); 4];
        for table in &mut tables {
            *table = pool.new_table().await?;
        }
        let mut epochs = [EpochId(0); 2];
        for epoch in &mut epochs {
            *epoch = self.new_epoch().await?;
        }
        let [table, other, deadlist, others] = tables;
        Ok(Numbers { subvol, epochs, tables: [table, other], deadlists: [deadlist, others] })
    }

    /// A number that no epoch has; pointers with one of two epochs of the same number would be
    /// charged to one and freed by the other.
    async fn new_epoch(&self) -> Result<EpochId> {
        let epoch = EpochId(self.pool.next_id(IdSpace::Epoch).await?);
        let is_there = self.state.map.read().epochs.contains_key(&epoch);
        match is_there || self.ledger().knows(epoch) {
            true => Err(VolumeError::Mark(format!("epoch {epoch}"))),
            false => Ok(epoch),
        }
    }

    /// Makes an empty subvolume; `tx` has its root directory.
    pub fn create(
        &self,
        numbers: &Numbers,
        new: &NewSubvol,
        credit: Credit,
        mut tx: Transaction,
    ) -> Result<(Arc<Subvol>, Txg)> {
        let holder = self.holder(new.place)?;
        let trees = Trees::lock(&[], &[&*holder]);
        holder.check_changeable()?;
        trees.lead(&mut tx, [&*holder; 2], Some(numbers.table()))?;
        let _owners = self.state.owners.lock();
        self.state.map.read().check_nesting(holder.id(), None)?;
        let (id, epoch) = (numbers.subvol, numbers.epoch());
        let NewSubvol { place, hash_key, created, identity, .. } = *new;
        let item = SubvolItem {
            flags: flags(new),
            ..SubvolItem::new(numbers.table(), epoch, place, hash_key, created, identity)
        };
        let family = Family::new(epoch, id, numbers.table());
        tx.put(Pool::SYSTEM, subvol_key(id), &item.encode()[..]);
        put_epoch(&mut tx, &family, epoch);
        let resident = Resident { subvol: id, holder: Some(holder.id()), origin: None };
        self.put_rows(self.state.ledger.create_subvolume(resident, &new.inherit, None)?, &mut tx);
        let owner = self.pool.memory().add_owner();
        owner.set_own_from(epoch);
        tx.set_owner(numbers.table(), &owner);
        // A flush asks whose the table is as soon as it has edits.
        let home = self.state.map.write().add_family(family);
        let begin = || self.begin_epoch(epoch, id, InodeNo::ROOT);
        let txg = self.pool.apply_with(credit, tx, |_, _| begin())?;
        let subvol = Subvol::new(id, home, item, owner);
        subvol.set_last_txg(txg);
        self.state.map.write().add(&subvol);
        Ok((subvol, txg))
    }

    /// Seals the present state of `source`, from which `source` and a new subvolume continue. Edits
    /// that the caller has not written yet belong to the time after. `next_inode` is a number that
    /// none of the source's inodes has reached, if no number was taken since the pool was opened.
    pub fn snapshot(
        &self,
        source: &Subvol,
        numbers: &Numbers,
        new: &NewSubvol,
        next_inode: InodeNo,
        (credit, hold): (Credit, Option<&mut Hold>),
        mut tx: Transaction,
    ) -> Result<(Arc<Subvol>, Txg)> {
        let holder = self.holder(new.place)?;
        let mut trees = Trees::lock(&[source], &[&*holder]);
        source.check_live()?;
        holder.check_changeable()?;
        self.check_sealable(&trees, source, numbers)?;
        let _owners = self.state.owners.lock();
        self.state.map.read().check_nesting(holder.id(), None)?;
        let (subvol, origin) = (numbers.subvol, Some(source.id()));
        let resident = Resident { subvol, holder: Some(holder.id()), origin };
        let rows = self.state.ledger.create_subvolume(resident, &new.inherit, hold)?;
        self.put_rows(rows, &mut tx);
        let holders = [&*holder; 2];
        self.branch(&mut trees, source, holders, numbers, new, next_inode, None, credit, tx)
    }

    /// Whether [`Self::branch`] can continue.
    pub(crate) fn check_sealable(
        &self,
        trees: &Trees<'_>,
        source: &Subvol,
        numbers: &Numbers,
    ) -> Result<()> {
        let sealed = trees.leaf(source)?;
        match numbers.epochs.iter().any(|epoch| *epoch <= sealed.current) {
            true => Err(VolumeError::Overtaken(source.id())),
            false => Ok(()),
        }
    }

    /// Seals `source` and applies everything. Edits of the holders' files come behind the seal, as
    /// the source itself may hold the entry. All refusals came before; owners are locked. A
    /// subvolume that `dies` in the same transaction has no inodes any more.
    #[allow(clippy::too_many_arguments)] // each is a different thing
    pub(crate) fn branch(
        &self,
        trees: &mut Trees<'_>,
        source: &Subvol,
        holders: [&Subvol; 2],
        numbers: &Numbers,
        new: &NewSubvol,
        next_inode: InodeNo,
        dies: Option<SubvolId>,
        credit: Credit,
        mut tx: Transaction,
    ) -> Result<(Arc<Subvol>, Txg)> {
        let sealed = trees.leaf(source)?;
        let births = births(source.id(), numbers);
        let next_inode = self.next_inode(source.id(), next_inode);
        trees.changed(source).seal(source.id(), births);
        trees.lead(&mut tx, holders, Some(numbers.table()))?;
        let tree = trees.of(source);
        tx.fork(sealed.table, births.map(|birth| birth.table));
        for epoch in [sealed.id, births[0].id, births[1].id] {
            put_epoch(&mut tx, tree, epoch);
        }
        let items = items(source, new, births);
        let owners = [source.owner().clone(), self.pool.memory().add_owner()];
        owners[1].set_own_from(births[1].id);
        for (birth, owner) in births.iter().zip(&owners) {
            tx.set_owner(birth.table, owner);
        }
        for (birth, item) in births.iter().zip(&items) {
            tx.put(Pool::SYSTEM, subvol_key(birth.subvol), &item.encode()[..]);
        }
        let ledger = &self.state.ledger;
        let begin = |birth: &Birth| self.begin_epoch(birth.id, birth.subvol, next_inode);
        let cell = &source.family;
        // A flush asks whose a table is as soon as it has edits.
        self.state.map.write().add_births(cell, births);
        source.begin_move();
        let applied = self.pool.apply_with(credit, tx, |_, _| {
            births.iter().for_each(begin);
            dies.into_iter().for_each(|dead| ledger.forget_inodes(dead));
        });
        source.set_moved(items[0]);
        let txg = applied?;
        let [made_by, owner] = owners;
        let subvol = Subvol::new(numbers.subvol, cell.clone(), items[1], owner);
        subvol.set_last_txg(txg);
        self.state.map.write().add(&subvol);
        // MADEBY-M3.
        if subvol.owner().tenant() == made_by.tenant() {
            subvol.owner().set_own_from(made_by.own_from());
        }
        Ok((subvol, txg))
    }

    /// A subvolume stamps this number from now on. Owners are locked, and the transaction that
    /// says so is being applied: so no txg has the count of inodes, which begins here, without it.
    pub(crate) fn begin_epoch(&self, epoch: EpochId, subvol: SubvolId, next_inode: InodeNo) {
        self.state.newest.fetch_max(epoch.0, Ordering::AcqRel);
        let ledger = &self.state.ledger;
        ledger.report_miscount(ledger.begin_epoch(epoch, subvol, next_inode));
    }

    /// Where the inodes of a subvolume that counts from now on begin: behind the numbers given
    /// out, also to calls that wait for its family now. `otherwise`: no number was taken since the
    /// pool was opened, and no inode has reached this one.
    fn next_inode(&self, subvol: SubvolId, otherwise: InodeNo) -> InodeNo {
        self.pool.next_id_in_hand(IdSpace::Inode(subvol)).map_or(otherwise, InodeNo)
    }

    pub(crate) fn holder(
        &self,
        ParentDirectory { subvol: holder, .. }: ParentDirectory,
    ) -> Result<Arc<Subvol>> {
        self.subvol(holder).ok_or(VolumeError::NoSubvolume(holder))
    }

    pub(crate) fn put_rows(&self, rows: crate::quota::Rows, tx: &mut Transaction) {
        rows.into_iter().for_each(|(key, edit)| tx.edit(Pool::SYSTEM, key, edit));
    }

    /// Whether the subvolume stamps an epoch that quotas, enabled since, do not count (R25).
    pub fn is_outdated(&self, subvol: &Subvol) -> bool {
        let ledger = &self.state.ledger;
        let tree = subvol.family.read_tree();
        let keeps = ledger.breaks(Sabotage::KeepEpoch);
        !keeps
            && ledger.is_on()
            && tree.leaf(subvol.id()).is_some_and(|leaf| !ledger.counts(leaf.current))
    }

    /// Lets the subvolume stamp a new epoch from now on, sharing as before.
    ///
    /// # Errors
    /// It is being deleted: it writes nothing any more, so nothing is missing.
    pub async fn renew(&self, subvol: &Subvol, credit: Credit) -> Result<()> {
        let current = self.new_epoch().await?;
        // Taking a number here would leave a mark behind of one that is deleted meanwhile.
        let mark = InodeNo(self.pool.stored_id_mark(IdSpace::Inode(subvol.id())).await?);
        let mut tree = subvol.family.write_tree();
        subvol.check_live()?;
        let leaf = *tree.leaf(subvol.id()).ok_or(VolumeError::NoSubvolume(subvol.id()))?;
        if leaf.current > current || self.state.ledger.counts(leaf.current) {
            return Ok(());
        }
        let _owners = self.state.owners.lock();
        let mut tx = Transaction::new();
        tree.renumber(subvol.id(), current);
        put_epoch(&mut tx, &tree, leaf.id);
        let next_inode = self.next_inode(subvol.id(), mark);
        self.pool.apply_with(credit, tx, |_, _| {
            self.begin_epoch(current, subvol.id(), next_inode);
        })?;
        Ok(())
    }
}

fn flags(new: &NewSubvol) -> SubvolFlags {
    SubvolFlags(if new.read_only { SubvolFlags::READ_ONLY } else { 0 })
}

/// The source continues in the first.
fn births(source: SubvolId, numbers: &Numbers) -> [Birth; 2] {
    let birth = |n: usize, subvol| Birth {
        id: numbers.epochs[n],
        subvol,
        table: numbers.tables[n],
        deadlist: numbers.deadlists[n],
    };
    [birth(1, source), birth(0, numbers.subvol)]
}

/// The records of source and snapshot.
fn items(source: &Subvol, new: &NewSubvol, births: [Birth; 2]) -> [SubvolItem; 2] {
    let item = source.item();
    let moved = |birth: Birth| SubvolItem {
        table: birth.table,
        epoch: birth.id,
        first: birth.id,
        state: SubvolState::Live,
        ..item
    };
    let snapshot = SubvolItem {
        flags: flags(new),
        created: new.created,
        identity: new.identity,
        place: new.place,
        origin: Some(source.id()),
        ..moved(births[1])
    };
    [moved(births[0]), snapshot]
}

pub(crate) fn put_epoch(tx: &mut Transaction, tree: &Family, epoch: EpochId) {
    let epoch = tree.get(epoch).expect("an epoch whose record is written");
    tx.put(Pool::SYSTEM, epoch_key(epoch.id), &epoch.item().encode()[..]);
}
