//! Subvolumes come into being: empty, or as a snapshot.
//!
//! Numbers are obtained first, since that may wait (R9); the rest is one transaction, whatever the
//! size of what is snapshotted and the number of its snapshots:
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
    HashKey, Place, SubvolFlags, SubvolItem, SubvolState, epoch_key, subvol_key,
};
use copyhold_pool::{Credit, FORK_DEPTH_MAX, IdSpace, Pool, Transaction};
use copyhold_types::{EpochId, InodeNo, SubvolId, TableId, Timestamp, Txg};
use parking_lot::RwLockReadGuard;

use crate::error::{Result, VolumeError};
use crate::family::{Birth, Epoch, Family};
use crate::quota::{Hold, Inherit, Resident};
use crate::steady::told;
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

    /// What a new subvolume's pointers carry from the beginning.
    pub fn epoch(&self) -> EpochId {
        self.epochs[0]
    }
}

/// What is said of a new subvolume.
#[derive(Clone, Debug)]
pub struct NewSubvol {
    /// Whose directory the entry is in; edits of that subvolume are in the transaction.
    pub place: Place,
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
            while self.pool.fork_depth(source.files()) >= FORK_DEPTH_MAX {
                source.check_live()?;
                self.pool.settle_under(&self.pool.table(source.files())).await?;
            }
        }
        let pool = &self.pool;
        let subvol = SubvolId(pool.next_id(IdSpace::Subvol).await? as u32);
        let mut tables = [TableId(0); 4];
        for table in &mut tables {
            *table = pool.new_table().await?;
        }
        let mut epochs = [EpochId(0); 2];
        for epoch in &mut epochs {
            *epoch = EpochId(pool.next_id(IdSpace::Epoch).await?);
        }
        let [table, other, deadlist, others] = tables;
        Ok(Numbers { subvol, epochs, tables: [table, other], deadlists: [deadlist, others] })
    }

    /// Makes an empty subvolume; `tx` has its root directory.
    pub fn create(
        &self,
        numbers: &Numbers,
        new: &NewSubvol,
        credit: Credit,
        mut tx: Transaction,
    ) -> Result<(Arc<Subvol>, Txg)> {
        let holder = self.holder(new)?;
        let tree = holder.family.tree.read();
        holder.check_live()?;
        lead_to(&mut tx, numbers, tree.leaf(holder.id()));
        let _owners = self.state.owners.lock();
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
        self.begin_epoch(epoch, id, InodeNo::ROOT);
        // A flush asks whose the table is as soon as it has edits.
        let home = self.state.map.write().add_family(family);
        let txg = self.pool.apply(credit, tx)?;
        let subvol = Subvol::new(id, home, item);
        self.state.map.write().subvols.insert(id, subvol.clone());
        Ok((subvol, txg))
    }

    /// Seals what `source` is now, and lets it and a new subvolume go on from there. What the
    /// caller has not written yet belongs to the time after. `next_inode` is a number that none of
    /// the source's inodes has reached.
    pub fn snapshot(
        &self,
        source: &Subvol,
        numbers: &Numbers,
        new: &NewSubvol,
        next_inode: InodeNo,
        (credit, hold): (Credit, Option<&mut Hold>),
        mut tx: Transaction,
    ) -> Result<(Arc<Subvol>, Txg)> {
        let holder = self.holder(new)?;
        let cell = source.family.clone();
        // The locks of two families are taken in the order of their ids.
        let others = |before| {
            let is_other = holder.family.id != cell.id && before == (holder.family.id < cell.id);
            is_other.then(|| holder.family.tree.read())
        };
        let first: Option<RwLockReadGuard<'_, Family>> = others(true);
        let mut tree = cell.tree.write();
        let second = others(false);
        source.check_live()?;
        holder.check_live()?;
        let sealed = *tree.leaf(source.id()).ok_or(VolumeError::NoSubvolume(source.id()))?;
        if numbers.epochs.iter().any(|epoch| *epoch <= sealed.current) {
            return Err(VolumeError::Overtaken(source.id()));
        }
        let _owners = self.state.owners.lock();
        let (subvol, origin) = (numbers.subvol, Some(source.id()));
        let resident = Resident { subvol, holder: Some(holder.id()), origin };
        let rows = self.state.ledger.create_subvolume(resident, &new.inherit, hold)?;
        self.put_rows(rows, &mut tx);

        let births = births(source.id(), numbers);
        tree.seal(source.id(), births);
        tx.fork(sealed.table, births.map(|birth| birth.table));
        let held_by = match first.as_ref().or(second.as_ref()) {
            Some(other) => other.leaf(holder.id()),
            None => tree.leaf(holder.id()),
        };
        lead_to(&mut tx, numbers, held_by);
        for epoch in [sealed.id, births[0].id, births[1].id] {
            put_epoch(&mut tx, &tree, epoch);
        }
        let items = items(source, new, births);
        for (birth, item) in births.iter().zip(&items) {
            tx.put(Pool::SYSTEM, subvol_key(birth.subvol), &item.encode()[..]);
            self.begin_epoch(birth.id, birth.subvol, next_inode);
        }
        // A flush asks whose a table is as soon as it has edits.
        self.state.map.write().add_births(&cell, births);
        source.begin_move();
        let applied = self.pool.apply(credit, tx);
        source.set_moved(items[0]);
        let txg = applied?;
        let subvol = Subvol::new(subvol, cell.clone(), items[1]);
        self.state.map.write().subvols.insert(subvol.id(), subvol.clone());
        Ok((subvol, txg))
    }

    /// Somebody stamps this number from now on. Owners are locked.
    pub(crate) fn begin_epoch(&self, epoch: EpochId, subvol: SubvolId, next_inode: InodeNo) {
        self.state.newest.fetch_max(epoch.0, Ordering::AcqRel);
        told(self.state.ledger.begin_epoch(epoch, subvol, next_inode));
    }

    fn holder(&self, new: &NewSubvol) -> Result<Arc<Subvol>> {
        let holder = new.place.subvol;
        self.subvol(holder).ok_or(VolumeError::NoSubvolume(holder))
    }

    pub(crate) fn put_rows(&self, rows: crate::quota::Rows, tx: &mut Transaction) {
        rows.into_iter().for_each(|(key, edit)| tx.edit(Pool::SYSTEM, key, edit));
    }

    /// Whether the subvolume stamps an epoch that quotas, enabled since, do not count (R25).
    pub fn is_outdated(&self, subvol: &Subvol) -> bool {
        let ledger = &self.state.ledger;
        let tree = subvol.family.tree.read();
        ledger.is_on() && tree.leaf(subvol.id()).is_some_and(|leaf| !ledger.counts(leaf.current))
    }

    /// Lets the subvolume stamp a new epoch from now on, sharing as before.
    pub async fn renew(&self, subvol: &Subvol, credit: Credit) -> Result<()> {
        let current = EpochId(self.pool.next_id(IdSpace::Epoch).await?);
        let next_inode = InodeNo(self.pool.next_id(IdSpace::Inode(subvol.id())).await?);
        let mut tree = subvol.family.tree.write();
        subvol.check_live()?;
        let leaf = *tree.leaf(subvol.id()).ok_or(VolumeError::NoSubvolume(subvol.id()))?;
        if leaf.current > current || self.state.ledger.counts(leaf.current) {
            return Ok(());
        }
        let _owners = self.state.owners.lock();
        let mut tx = Transaction::new();
        tree.renumber(subvol.id(), current);
        put_epoch(&mut tx, &tree, leaf.id);
        self.begin_epoch(current, subvol.id(), next_inode);
        self.pool.apply(credit, tx)?;
        Ok(())
    }
}

fn flags(new: &NewSubvol) -> SubvolFlags {
    SubvolFlags(if new.read_only { SubvolFlags::READ_ONLY } else { 0 })
}

/// The source goes on in the first.
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

/// Edits of files are the new subvolume's own, or else its holder's.
fn lead_to(tx: &mut Transaction, numbers: &Numbers, holder: Option<&Epoch>) {
    let Some(holder) = holder else { return };
    let is_files = |table| table > Pool::PENDING && table != numbers.table();
    tx.readdress(|table| if is_files(table) { holder.table } else { table });
}

pub(crate) fn put_epoch(tx: &mut Transaction, tree: &Family, epoch: EpochId) {
    let epoch = tree.get(epoch).expect("an epoch whose record is written");
    tx.put(Pool::SYSTEM, epoch_key(epoch.id), &epoch.item().encode()[..]);
}
