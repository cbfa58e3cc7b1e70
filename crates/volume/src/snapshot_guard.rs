//! Transactions of a subvolume's files, while its family does not change.
//!
//! The family decides the stamp of pointers, the ownership of pointers and the effect of a drop.
//! So it is held still from before the first pointer is made until the transaction is applied
//! (R4):
//!
//! ```text
//!   let still = volumes.snapshot_guard(&subvol)?;      nothing below may wait
//!   … make pointers of epoch still.epoch() …
//!   still.apply(credit, tx, hold)
//! ```

use std::sync::atomic::Ordering;

use copyhold_format::item::{Content, pending_key};
use copyhold_pool::{Cached, Credit, Pool, Transaction};
use copyhold_sync::RwLockReadGuard;
use copyhold_types::{EpochId, InodeNo, Pointer, Run, SubvolId, TableId, Txg};

use crate::error::{Result, VolumeError};
use crate::family::{Epoch, Family};
use crate::quota::{Amount, Hold, Ledger};
use crate::release::{EditTable, Evaluation, Freed, Lookup, Outcome, Release};
use crate::sabotage::{self, Sabotage};
use crate::segment::{window_of, windows};
use crate::stored::Stored;
use crate::volumes::{Subvol, Volumes, VolumesState};

/// A live subvolume whose family does not change. Others of the family may make transactions, too.
pub struct SnapshotGuard<'a> {
    volumes: &'a Volumes,
    subvol: &'a Subvol,
    tree: RwLockReadGuard<'a, Family>,
    leaf: Epoch,
    inode: Option<InodeChange>,
}

/// The change of the number of its subvolume's inodes by a transaction: it puts a new inode item,
/// or deletes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeChange {
    Born(InodeNo),
    Gone(InodeNo),
}

/// The charges of a transaction of files.
pub(crate) struct Births<'a> {
    pub(crate) subvol: SubvolId,
    /// Whose the allocations are.
    pub(crate) epoch: EpochId,
    pub(crate) inode: Option<InodeChange>,
    pub(crate) hold: Option<&'a mut Hold>,
}

impl Births<'_> {
    /// While the transaction is applied.
    fn charge(self, ledger: &Ledger, tx: &Transaction) {
        let Births { subvol, epoch, inode, mut hold } = self;
        let born: u64 = tx.allocated().map(Run::bytes).sum();
        if born != 0 {
            ledger.report_miscount(ledger.charge(epoch, Amount::data(born), hold.as_deref_mut()));
        }
        match inode {
            None => {}
            Some(InodeChange::Born(ino)) => {
                ledger.report_miscount(ledger.created(subvol, ino, hold.as_deref_mut()));
            }
            Some(InodeChange::Gone(ino)) => ledger.report_miscount(ledger.removed(subvol, ino)),
        }
        hold.into_iter().for_each(Hold::spend_metadata);
    }
}

impl Volumes {
    /// Holds the family of a subvolume still that is live and not read-only. Nothing may wait until
    /// the guard is dropped.
    pub fn snapshot_guard<'a>(&'a self, subvol: &'a Subvol) -> Result<SnapshotGuard<'a>> {
        let still = self.snapshot_guard_to_tidy(subvol)?;
        subvol.check_changeable()?;
        Ok(still)
    }

    /// As [`Self::snapshot_guard`], also of a subvolume that is read-only: to remove items that
    /// nothing in it leads to.
    pub fn snapshot_guard_to_tidy<'a>(&'a self, subvol: &'a Subvol) -> Result<SnapshotGuard<'a>> {
        let tree = subvol.family.read_tree();
        subvol.check_live()?;
        let leaf = *tree.leaf(subvol.id()).ok_or(VolumeError::NoSubvolume(subvol.id()))?;
        Ok(SnapshotGuard { volumes: self, subvol, tree, leaf, inode: None })
    }

    /// Applies a transaction of a subvolume's files that makes no pointers, or only pointers of the
    /// epoch that is current when it is applied.
    pub fn apply(
        &self,
        subvol: &Subvol,
        credit: Credit,
        tx: Transaction,
        hold: Option<&mut Hold>,
    ) -> Result<Txg> {
        self.snapshot_guard(subvol)?.apply(credit, tx, hold)
    }
}

impl SnapshotGuard<'_> {
    /// The epoch of new pointers, which is their origin too.
    pub fn epoch(&self) -> EpochId {
        self.leaf.current
    }

    /// Where the files are while this is held.
    pub fn files(&self) -> TableId {
        self.leaf.table
    }

    /// Whether this pointer is the only reference to its run, so that the run may be changed in
    /// place: never if it is shared by snapshot or reflink (R10). Unknown: a node had to be read.
    pub fn is_exclusive(&self, pointer: &Pointer) -> Result<Cached<bool>> {
        let look = self.volumes.stored();
        if self.volumes.ledger().breaks(Sabotage::AlwaysInPlace) {
            return Ok(Cached::Known(true));
        }
        if !self.leaf.owns(pointer.epoch) {
            return Ok(Cached::Known(false));
        }
        if look.nothing_is_shared() {
            return Ok(Cached::Known(true));
        }
        for part in windows(pointer.run) {
            let Cached::Known(shares) = look.shares(window_of(part.addr))? else {
                return Ok(Cached::Unknown);
            };
            let part = part.addr.block()..part.end();
            let touches = |run: Run| run.addr.block() < part.end && part.start < run.end();
            if shares.iter().any(|segment| touches(segment.run)) {
                return Ok(Cached::Known(false));
            }
        }
        Ok(Cached::Known(true))
    }

    /// Says that the transaction adds an inode, or takes one away.
    pub fn with_inode(self, change: InodeChange) -> Self {
        SnapshotGuard { inode: Some(change), ..self }
    }

    /// Joins the open txg and applies everything at once; never waits. Edits of the subvolume's
    /// files are led to the table where those are now. Allocations are charged to the current
    /// epoch, `hold` having been taken for it.
    pub fn apply(
        self,
        credit: Credit,
        mut tx: Transaction,
        hold: Option<&mut Hold>,
    ) -> Result<Txg> {
        let SnapshotGuard { volumes, subvol, tree, leaf, inode } = self;
        tx.readdress(|table| if table > Pool::PENDING { leaf.table } else { table });
        let releases: Vec<Release> = tx
            .take_released()
            .into_iter()
            .map(|pointer| Release { holder: leaf.id, pointer, content: Content::Data, count: 1 })
            .collect();
        let buries = releases.iter().any(|release| !leaf.owns(release.pointer.epoch));
        let _burial = buries.then(|| subvol.family.lock_burial());
        let look = match releases.is_empty() {
            true => volumes.stored(),
            false => volumes.stored_locked(),
        };
        let mut evaluation = Evaluation::new(&tree, &look);
        if !volumes.ledger().breaks(Sabotage::IgnoreCredit) {
            evaluation = evaluation.within_credit();
        }
        evaluation.blind = volumes.ledger().breaks(Sabotage::BlindBuries);
        releases.iter().try_for_each(|release| evaluation.release(*release))?;
        let births = Births { subvol: subvol.id(), epoch: leaf.current, inode, hold };
        volumes.apply_decided(credit, tx, evaluation.take(), Some(births))
    }
}

impl Volumes {
    pub(crate) fn stored(&self) -> Stored<'_> {
        let sharing = self.state.sharing.load(Ordering::Acquire);
        Stored { pool: &self.pool, sharing, _shares_lock: None, kept: None }
    }

    /// As [`Self::stored`], and locks the shares until it is dropped, so that a decision made with
    /// it stays true.
    pub(crate) fn stored_locked(&self) -> Stored<'_> {
        let look = self.stored();
        let lock = look.sharing.then(|| self.state.shares.lock());
        Stored { _shares_lock: lock, ..look }
    }

    /// Applies the outcome, with its locks held.
    pub(crate) fn apply_decided(
        &self,
        credit: Credit,
        mut tx: Transaction,
        outcome: Outcome,
        births: Option<Births<'_>>,
    ) -> Result<Txg> {
        let freed = self.state.decided(&self.pool, outcome, &mut tx);
        let ledger = &self.state.ledger;
        let txg = self.pool.apply_with(credit, tx, |_, tx| {
            births.into_iter().for_each(|births| births.charge(ledger, tx));
            freed.iter().for_each(|freed| refund(&self.state, freed));
        })?;
        Ok(txg)
    }
}

impl VolumesState {
    /// Adds the outcome to `tx`. Freed space is to be refunded when the transaction joins.
    pub(crate) fn decided(
        &self,
        pool: &Pool,
        outcome: Outcome,
        tx: &mut Transaction,
    ) -> Vec<Freed> {
        for (place, key, edit) in outcome.edits {
            let table = match place {
                EditTable::Deadlist(set) => set,
                EditTable::Shares => Pool::SHARES,
            };
            match self.ledger.breaks(Sabotage::SplitSegments) {
                true => sabotage::split(table, key, edit, tx),
                false => tx.edit(table, key, edit),
            }
        }
        for release in outcome.pending {
            let sequence = self.next_sequence(pool.open_txg());
            let key = pending_key(release.holder, sequence);
            tx.put(Pool::PENDING, key, &release.item().encode());
        }
        outcome.freed.iter().for_each(|freed| tx.free(freed.run));
        outcome.freed
    }
}

/// While a transaction is applied.
pub(crate) fn refund(state: &VolumesState, freed: &Freed) {
    let bytes = freed.run.bytes();
    let amount = match freed.content {
        Content::Data => Amount::data(bytes),
        Content::Node => Amount::metadata(bytes),
    };
    state.ledger.report_miscount(state.ledger.refund(freed.origin, amount));
}
