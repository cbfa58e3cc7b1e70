//! The end of a subvolume: at once for users, in steps for its space.
//!
//! ```text
//!   delete:  one record: no entry any more, the subvolume is dying; no transaction of its files,
//!            no snapshot and no reflink from then on
//!   settle   its table and the tables under it are flushed; the tree does not change from here
//!   walk     its own pointers are released (`walk`), the cursor in the record
//!   absorb   its sibling takes its parent's place, when nothing is pending for the two
//!   rebury   the sibling's drops are released once more, by the sibling in its new place
//!   forget   tables and records are deleted
//! ```
//!
//! DELETE-D1  One deletion at a time in a family; the others wait at *settle*, and are begun by id
//!            (R17).
//! DELETE-D2  Each step is bounded transactions, and the record says which step comes next: after a
//!            crash it is taken again from there (R18, R28).
//!
//! Nothing here is needed to open a pool.

use copyhold_format::item::{Step, SubvolItem, SubvolState, epoch_key, subvol_key};
use copyhold_memory::GroupLimits;
use copyhold_pool::{Cached, Credit, IdSpace, KeptNodes, Pool, Tier, Transaction};
use copyhold_types::{EpochId, Key, SubvolId, TableId, Timestamp, Txg};

use crate::birth::put_epoch;
use crate::error::{Result, VolumeError};
use crate::family::Absorption;
use crate::limits;
use crate::pending::RELEASES_PER_STEP;
use crate::release::Release;
use crate::sabotage::Sabotage;
use crate::stored::dead_segment;
use crate::trees::Trees;
use crate::volumes::{Map, Subvol, Volumes};

/// Edits and bytes of a step that changes records only.
const RECORD_EDITS: usize = 8;
const RECORD_BYTES: usize = 1024;
/// Rows of owners that one transaction sweeps.
const ROWS_PER_STEP: usize = 64;
/// Bytes of a row of an owner or a group, with its key.
const ROW_BYTES: usize = 100;

/// The payer for the space that a deleted subvolume leaves.
#[derive(Clone, Copy, Debug)]
pub struct Leaving<'a> {
    pub since: Timestamp,
    /// The name that it had.
    pub name: &'a [u8],
    pub heir: Option<SubvolId>,
}

/// Whether its tree does not change any more.
pub(crate) fn is_retired(step: Step) -> bool {
    !matches!(step, Step::Settle)
}

/// The epoch in whose place a deletion continues, once its own is absorbed.
pub(crate) fn heir_of(step: Step) -> Option<EpochId> {
    match step {
        Step::Rebury { heir, .. } => Some(heir),
        _ => None,
    }
}

impl Volumes {
    /// Deletes a subvolume: when this returns, it is invisible. `tx` has the edits of the
    /// directory that held its entry.
    ///
    /// # Errors
    /// It is the root, or holds other subvolumes.
    pub fn delete(
        &self,
        subvol: &Subvol,
        leaving: &Leaving<'_>,
        credit: Credit,
        mut tx: Transaction,
    ) -> Result<Txg> {
        if subvol.id() == SubvolId::ROOT {
            return Err(VolumeError::Root(subvol.id()));
        }
        let holder = self.holder(subvol.item().place)?;
        let mut trees = Trees::lock(&[subvol], &[&*holder]);
        subvol.check_live()?;
        holder.check_changeable()?;
        let _owners = self.state.owners.lock();
        if let Some(held) = self.held_by(subvol.id()) {
            return Err(VolumeError::Holds(subvol.id(), held));
        }
        trees.lead(&mut tx, [&*holder; 2], None)?;
        let Leaving { since, name, heir } = *leaving;
        let rows = self.state.ledger.delete_subvolume(subvol.id(), since, name, heir)?;
        self.put_rows(rows, &mut tx);
        let item = SubvolItem { state: SubvolState::Dying(Step::Settle), ..subvol.item() };
        tx.put(Pool::SYSTEM, subvol_key(subvol.id()), &item.encode()[..]);
        limits::forget(&mut tx, subvol.id(), subvol.owner());
        let forget = || self.state.ledger.forget_inodes(subvol.id());
        let txg = self.pool.apply_with(credit, tx, |_, _| forget())?;
        self.set_step(subvol, item);
        subvol.owner().set_limits(&GroupLimits::default());
        // MADEBY-M3.
        self.state.map.read().set_own_content_without(trees.changed(subvol), subvol.id());
        Ok(txg)
    }

    /// The record of one that is being deleted is this from now on.
    pub(crate) fn set_step(&self, subvol: &Subvol, item: SubvolItem) {
        subvol.set_item(item);
        let SubvolState::Dying(step) = item.state else { unreachable!("it is being deleted") };
        let mut map = self.state.map.write();
        map.subvols.dies(subvol);
        map.dying.file(subvol.id(), subvol.family.id, step);
    }

    /// A living subvolume that it holds.
    pub(crate) fn held_by(&self, holder: SubvolId) -> Option<SubvolId> {
        self.state.map.read().subvols.held_by(holder).next()
    }

    /// Subvolumes whose space is still being freed.
    pub fn dying(&self) -> Vec<SubvolId> {
        self.state.map.read().dying.all()
    }

    /// A subvolume whose deletion is stopped by damage until the next retry.
    pub fn unfreeable(&self) -> Option<SubvolId> {
        self.state.map.read().dying.stopped()
    }

    /// Whether anything could be done.
    pub(crate) async fn deletion_step(&self, subvol: &Subvol) -> Result<bool> {
        let SubvolState::Dying(step) = subvol.item().state else { return Ok(false) };
        match step {
            Step::Settle => {
                if !self.ledger().breaks(Sabotage::WalkUnsettled) {
                    self.pool.retire(subvol.files()).await?;
                }
                self.go_on(subvol, Step::Walk(Key::MIN), Transaction::new()).await?;
            }
            Step::Walk(from) => self.walk_step(subvol, from).await?,
            Step::Absorb => return self.absorb_step(subvol).await,
            Step::Rebury { heir, inherited, left } => {
                self.rebury_step(subvol, heir, [inherited, left]).await?;
            }
            Step::Forget { sets } => self.forget_step(subvol, sets).await?,
        }
        Ok(true)
    }

    /// Credit for a step that changes records only.
    async fn small_credit(&self) -> Result<Credit> {
        Ok(self.pool.admit(Tier::FinishSubvolume, RECORD_EDITS, RECORD_BYTES).await?)
    }

    async fn go_on(&self, subvol: &Subvol, step: Step, mut tx: Transaction) -> Result<()> {
        let credit = self.small_credit().await?;
        let item = put_step(subvol, step, &mut tx);
        self.pool.apply(credit, tx)?;
        self.set_step(subvol, item);
        Ok(())
    }

    /// `false`: something is pending for the leaf or its parent.
    async fn absorb_step(&self, subvol: &Subvol) -> Result<bool> {
        let kept = KeptNodes::default();
        loop {
            let credit = self.small_credit().await?;
            match self.absorb(subvol, credit, &kept)? {
                Ok(done) => return Ok(done),
                Err(unknown) => self.fetch_pending(unknown, &kept).await?,
            }
        }
    }

    /// `Err`: pending releases of this epoch have to be read first.
    fn absorb(
        &self,
        subvol: &Subvol,
        credit: Credit,
        kept: &KeptNodes,
    ) -> Result<std::result::Result<bool, EpochId>> {
        let mut tree = subvol.family.write_tree();
        let leaf = *tree.leaf(subvol.id()).ok_or(VolumeError::NoSubvolume(subvol.id()))?;
        for holder in [Some(leaf.id), leaf.parent].into_iter().flatten() {
            match self.has_pending(holder, kept) {
                Cached::Known(false) => {}
                Cached::Known(true) if self.state.aside.lock().has(holder) => {
                    return Err(VolumeError::Aside(holder));
                }
                Cached::Known(true) => return Ok(Ok(false)),
                Cached::Unknown => return Ok(Err(holder)),
            }
        }
        let mut tx = Transaction::new();
        tx.delete(Pool::SYSTEM, epoch_key(leaf.id));
        let done = tree.absorb(subvol.id());
        let mut heirs = None;
        let step = match &done {
            None => Step::Forget { sets: None },
            Some(Absorption { parent, heir, inherited, left, .. }) => {
                tx.delete(Pool::SYSTEM, epoch_key(parent.id));
                put_epoch(&mut tx, &tree, *heir);
                let heir = tree.get(*heir).expect("it has just absorbed");
                if heir.is_live() {
                    let live = self.subvol(heir.subvol);
                    let live = live.ok_or(VolumeError::NoSubvolume(heir.subvol))?;
                    let item = SubvolItem { first: heir.first, ..live.item() };
                    tx.put(Pool::SYSTEM, subvol_key(live.id()), &item.encode()[..]);
                    heirs = Some((live, item));
                }
                Step::Rebury { heir: heir.id, inherited: *inherited, left: *left }
            }
        };
        let item = put_step(subvol, step, &mut tx);
        self.pool.apply(credit, tx)?;
        if let Some((live, item)) = heirs {
            live.set_item(item);
        }
        self.set_step(subvol, item);
        if let Some(done) = &done {
            self.state.aside.lock().forget(done.heir);
        }
        let mut map = self.state.map.write();
        for gone in [Some(leaf), done.map(|done| done.parent)].into_iter().flatten() {
            map.forget_epoch(gone.id, gone.table);
            self.state.ledger.end_epoch(gone.current);
        }
        Ok(Ok(true))
    }

    async fn rebury_step(
        &self,
        subvol: &Subvol,
        heir: EpochId,
        [inherited, left]: [TableId; 2],
    ) -> Result<()> {
        let most = RELEASES_PER_STEP;
        let items = self.pool.range(inherited, Key::MIN, Key::MAX, most).await?;
        if items.is_empty() {
            let step = Step::Forget { sets: Some([inherited, left]) };
            return self.go_on(subvol, step, Transaction::new()).await;
        }
        let (mut tx, mut releases) = (Transaction::new(), Vec::new());
        for (key, value) in items {
            let segment = dead_segment(inherited, key, &value)?;
            releases.push(Release::of_dead(heir, EpochId(key.object), &segment));
            tx.delete(inherited, key);
        }
        self.release_step(&subvol.family, &releases, tx).await
    }

    async fn forget_step(&self, subvol: &Subvol, sets: Option<[TableId; 2]>) -> Result<()> {
        if let Some(heir) = self.ledger().late_heir(subvol.id()) {
            let credit = self.small_credit().await?;
            // Either may be gone by now.
            drop(self.change_quotas(credit, |ledger| ledger.give_to_heir(subvol.id(), heir)));
        }
        for set in sets.into_iter().flatten() {
            self.pool.drop_table(set).await?;
        }
        // A row of each partition goes, too.
        let rows = self.pool.table(subvol.files()).stats().len();
        let (edits, bytes) = (RECORD_EDITS + rows, RECORD_BYTES + rows * Key::BYTES);
        let credit = self.pool.admit(Tier::FinishSubvolume, edits, bytes).await?;
        let mut tx = Transaction::new();
        tx.forget(subvol.files());
        tx.delete(Pool::SYSTEM, subvol_key(subvol.id()));
        tx.delete(Pool::SYSTEM, IdSpace::Inode(subvol.id()).key());
        self.pool.apply(credit, tx)?;
        let mut map = self.state.map.write();
        map.dying.end(subvol.id());
        map.subvols.remove(subvol.id());
        Ok(())
    }

    /// Rows of owners that are dead and pay for nothing any more (R26).
    pub(crate) async fn sweep_step(&self) -> Result<bool> {
        if !self.state.ledger.wants_sweep() {
            return Ok(false);
        }
        let (edits, bytes) = (ROWS_PER_STEP, ROWS_PER_STEP * ROW_BYTES);
        let credit = self.pool.admit(Tier::FinishSubvolume, edits, bytes).await?;
        let _owners = self.state.owners.lock();
        let rows = self.state.ledger.sweep(ROWS_PER_STEP / 2);
        let any = !rows.is_empty();
        if any {
            let mut tx = Transaction::new();
            self.put_rows(rows, &mut tx);
            self.pool.apply(credit, tx)?;
        }
        Ok(any)
    }
}

impl Map {
    fn forget_epoch(&mut self, epoch: EpochId, table: TableId) {
        self.epochs.remove(&epoch);
        self.tables.remove(&table);
    }
}

pub(crate) fn put_step(subvol: &Subvol, step: Step, tx: &mut Transaction) -> SubvolItem {
    let item = SubvolItem { state: SubvolState::Dying(step), ..subvol.item() };
    tx.put(Pool::SYSTEM, subvol_key(subvol.id()), &item.encode()[..]);
    item
}
