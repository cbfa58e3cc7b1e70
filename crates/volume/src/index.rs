//! The subvolumes of a pool by id, and those inside each.
//!
//! Problem.  A deletion asks whether the subvolume holds another one, and a move how many levels
//!           are inside. With a walk over all subvolumes, each deletion is dearer the more there
//!           are.
//! Idea.     The pairs of holder and held in one ordered set. Subvolumes in the root subvolume,
//!           which is never deleted nor moved, are not in it: they are most, where there are many.
//!           Every walk is counted, so tests see one that comes back.
//!
//! INDEX-I1  `inside` has each living subvolume under the holder that its record names, unless
//!           that is the root subvolume. It changes together with the records, owners locked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use copyhold_types::SubvolId;

/// A subvolume, as far as the index is concerned.
pub(crate) trait Placed {
    fn id(&self) -> SubvolId;

    /// The subvolume that holds the directory of its entry.
    fn holder(&self) -> SubvolId;

    fn is_dying(&self) -> bool;
}

pub(crate) struct Subvols<S> {
    by_id: BTreeMap<SubvolId, Arc<S>>,
    inside: BTreeSet<(SubvolId, SubvolId)>,
    /// How often a walk looked at a subvolume or an epoch.
    looks: AtomicU64,
}

impl<S> Default for Subvols<S> {
    fn default() -> Subvols<S> {
        let (by_id, inside, looks) = (BTreeMap::new(), BTreeSet::new(), AtomicU64::new(0));
        Subvols { by_id, inside, looks }
    }
}

impl<S: Placed> Subvols<S> {
    pub(crate) fn of(all: Vec<Arc<S>>) -> Subvols<S> {
        let mut subvols = Subvols::default();
        for subvol in all.iter().filter(|subvol| !subvol.is_dying()) {
            subvols.enter(subvol.holder(), subvol.id());
        }
        subvols.by_id = all.into_iter().map(|subvol| (subvol.id(), subvol)).collect();
        subvols
    }

    pub(crate) fn get(&self, id: SubvolId) -> Option<&Arc<S>> {
        self.by_id.get(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The number of living subvolumes with a holder that is not the root.
    pub(crate) fn held(&self) -> usize {
        self.inside.len()
    }

    pub(crate) fn contains(&self, id: SubvolId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn insert(&mut self, subvol: Arc<S>) {
        if !subvol.is_dying() {
            self.enter(subvol.holder(), subvol.id());
        }
        self.by_id.insert(subvol.id(), subvol);
    }

    /// A living subvolume that was inside `before` is where its record says now.
    pub(crate) fn has_moved(&mut self, subvol: &S, before: SubvolId) {
        self.inside.remove(&(before, subvol.id()));
        self.enter(subvol.holder(), subvol.id());
    }

    /// A subvolume is being deleted.
    pub(crate) fn dies(&mut self, subvol: &S) {
        self.inside.remove(&(subvol.holder(), subvol.id()));
    }

    pub(crate) fn remove(&mut self, id: SubvolId) {
        self.by_id.remove(&id);
    }

    fn enter(&mut self, holder: SubvolId, held: SubvolId) {
        if holder != SubvolId::ROOT {
            self.inside.insert((holder, held));
        }
    }

    /// All by id, live and being deleted.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<S>> {
        self.behind(SubvolId(0))
    }

    /// Those with ids behind `after`.
    pub(crate) fn behind(&self, after: SubvolId) -> impl Iterator<Item = &Arc<S>> {
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        self.by_id.range(behind).map(|(_, subvol)| subvol).inspect(|_| self.looked_at(1))
    }

    /// The living subvolumes that `holder`, which is not the root, holds.
    pub(crate) fn held_by(&self, holder: SubvolId) -> impl Iterator<Item = SubvolId> {
        debug_assert_ne!(holder, SubvolId::ROOT, "INDEX-I1: it is not asked for");
        let held = self.inside.range((holder, SubvolId(0))..=(holder, SubvolId(u32::MAX)));
        held.map(|(_, held)| *held).inspect(|_| self.looked_at(1))
    }

    /// A living subvolume and all living ones inside it.
    pub(crate) fn with_inside(&self, top: SubvolId) -> Vec<SubvolId> {
        let mut found = vec![top];
        let mut at = 0;
        while let Some(holder) = found.get(at).copied() {
            found.extend(self.held_by(holder));
            at += 1;
        }
        found
    }

    /// A walk has looked at so many epochs.
    pub(crate) fn looked_at(&self, count: usize) {
        self.looks.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }
}
