//! A family: the tree of epochs of subvolumes that share anything by snapshot.
//!
//! ```text
//!            1 sealed              a snapshot of subvolume A seals its epoch 1 and begins 2, A's,
//!          ┌────┴─────┐            and 3, the snapshot B's; then one of B seals 3.
//!        2 A      3 sealed
//!              ┌──────┴─────┐      What an epoch wrote between its *first* epoch and its end,
//!            4 B          5 C      no epoch outside of its subtree holds.
//! ```
//!
//! When the subvolume of a leaf is gone, the leaf's sibling, its *heir*, takes their parent's
//! place: its first epoch, its parent, its deadlist. So however many snapshots came and went, a
//! family of n live subvolumes has 2n - 1 epochs.
//!
//! FAMILY-F1  A child's first epoch is behind its parent's current number.
//! FAMILY-F2  Every epoch but the root has a deadlist, and no two the same.
//! FAMILY-F3  A subvolume has exactly one leaf.
//! FAMILY-F4  The other epochs of a subvolume with a leaf, if any, are in a row right above it.
//!
//! RECOUNT-E3 (docs/tenants.md): a sealed epoch has exactly two children, a live one none.
//!
//! An epoch keeps its number for life, but may *stamp* a newer one (R25). A family is known by the
//! first epoch of its root, which no seal and no absorption changes.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::{EpochItem, EpochState};
use copyhold_types::{EpochId, SubvolId, TableId};

use crate::makers::MakersBelow;

/// Names a family for as long as it lives, and is its place in the order of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FamilyId(pub EpochId);

/// A stretch of a subvolume's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    pub id: EpochId,
    /// Whose it is, or was when it was sealed; pays for the space that it began.
    pub subvol: SubvolId,
    pub current: EpochId,
    pub first: EpochId,
    pub parent: Option<EpochId>,
    /// In order.
    pub children: Option<[EpochId; 2]>,
    /// The files.
    pub table: TableId,
    /// The blocks dropped by all epochs below it that are not its own.
    pub deadlist: Option<TableId>,
}

/// The parameters of one of the two epochs that a seal begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    pub id: EpochId,
    pub subvol: SubvolId,
    pub table: TableId,
    pub deadlist: TableId,
}

/// The result of an absorption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absorption {
    pub leaf: Epoch,
    pub parent: Epoch,
    pub heir: EpochId,
    /// The heir's deadlist: to be released once more, at its new place.
    pub inherited: TableId,
    /// The leaf's deadlist, no longer needed.
    pub left: TableId,
}

/// Records that are no family.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("epoch {epoch}: {why}")]
pub struct BadFamily {
    pub epoch: EpochId,
    pub why: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    epochs: BTreeMap<EpochId, Epoch>,
    leaves: BTreeMap<SubvolId, EpochId>,
    root: EpochId,
    makers: MakersBelow,
}

impl Epoch {
    /// Whether no epoch outside of this subtree holds pointers of that epoch.
    pub fn owns(&self, epoch: EpochId) -> bool {
        epoch >= self.first
    }

    pub fn is_live(&self) -> bool {
        self.children.is_none()
    }

    pub fn item(&self) -> EpochItem {
        EpochItem {
            subvol: self.subvol,
            state: if self.is_live() { EpochState::Live } else { EpochState::Sealed },
            current: self.current,
            first: self.first,
            parent: self.parent,
            table: self.table,
            deadlist: self.deadlist,
        }
    }

    /// Children are known when all records are.
    pub fn from_item(id: EpochId, item: &EpochItem) -> Epoch {
        let EpochItem { subvol, current, first, parent, table, deadlist, state: _ } = *item;
        Epoch { id, subvol, current, first, parent, children: None, table, deadlist }
    }
}

impl Family {
    /// A family of one.
    pub fn new(id: EpochId, subvol: SubvolId, table: TableId) -> Family {
        let item = EpochItem::root(subvol, table, id);
        let epochs = BTreeMap::from([(id, Epoch::from_item(id, &item))]);
        let (leaves, makers) = (BTreeMap::from([(subvol, id)]), MakersBelow::default());
        Family { epochs, leaves, root: id, makers }
    }

    /// The families that these records make up.
    pub fn restore(items: &BTreeMap<EpochId, EpochItem>) -> Result<Vec<Family>, BadFamily> {
        let mut epochs = BTreeMap::new();
        for (&id, item) in items {
            epochs.insert(id, Epoch::from_item(id, item));
        }
        let mut children: BTreeMap<EpochId, Vec<EpochId>> = BTreeMap::new();
        for epoch in epochs.values() {
            if let Some(parent) = epoch.parent {
                children.entry(parent).or_default().push(epoch.id);
            }
        }
        for (&parent, children) in &children {
            let bad = |why| BadFamily { epoch: parent, why };
            let epoch = epochs.get_mut(&parent).ok_or(bad("children name it, but it is gone"))?;
            let two = <[EpochId; 2]>::try_from(&children[..]);
            epoch.children = Some(two.map_err(|_| bad("it has not two children (RECOUNT-E3)"))?);
        }
        let mut families = Vec::new();
        while let Some(root) = epochs.values().find(|epoch| epoch.parent.is_none()).copied() {
            families.push(Family::take(root.id, &mut epochs)?);
        }
        match epochs.keys().next() {
            Some(&epoch) => Err(BadFamily { epoch, why: "it is below no root" }),
            None => families.into_iter().map(|family| family.verified(items)).collect(),
        }
    }

    /// Moves a root and all below it.
    fn take(root: EpochId, from: &mut BTreeMap<EpochId, Epoch>) -> Result<Family, BadFamily> {
        // Maps that are collected at once have full nodes.
        let (mut epochs, mut leaves) = (Vec::new(), BTreeMap::new());
        let mut todo = vec![root];
        while let Some(id) = todo.pop() {
            let epoch = from.remove(&id).expect("children were found among the epochs");
            epochs.push((id, epoch));
            match epoch.children {
                Some(children) => todo.extend(children),
                None if leaves.insert(epoch.subvol, id).is_some() => {
                    let why = "its subvolume has another one";
                    return Err(BadFamily { epoch: id, why });
                }
                None => {}
            }
        }
        let (epochs, leaves) = (epochs.into_iter().collect(), leaves.into_iter().collect());
        Ok(Family { epochs, leaves, root, makers: MakersBelow::default() })
    }

    fn verified(self, items: &BTreeMap<EpochId, EpochItem>) -> Result<Family, BadFamily> {
        for epoch in self.epochs.values() {
            if epoch.is_live() != (items[&epoch.id].state == EpochState::Live) {
                let why = "its state does not go with its children (RECOUNT-E3)";
                return Err(BadFamily { epoch: epoch.id, why });
            }
        }
        self.check().map(|()| self)
    }

    // -- looking ------------------------------------------------------------

    pub fn id(&self) -> FamilyId {
        FamilyId(self.epochs[&self.root].first)
    }

    /// Ascending: parents before their children.
    pub fn epochs(&self) -> impl DoubleEndedIterator<Item = &Epoch> {
        self.epochs.values()
    }

    /// Live subvolumes and those that are being deleted.
    pub fn subvols(&self) -> impl Iterator<Item = SubvolId> {
        self.leaves.keys().copied()
    }

    pub fn get(&self, epoch: EpochId) -> Option<&Epoch> {
        self.epochs.get(&epoch)
    }

    /// The live epoch of a subvolume.
    pub fn leaf(&self, subvol: SubvolId) -> Option<&Epoch> {
        self.leaves.get(&subvol).map(|id| &self.epochs[id])
    }

    /// The subvolumes with leaves at or below an epoch.
    pub fn below(&self, epoch: EpochId) -> Vec<SubvolId> {
        let (mut found, mut todo) = (Vec::new(), vec![epoch]);
        while let Some(at) = todo.pop().and_then(|at| self.epochs.get(&at)) {
            match &at.children {
                Some(children) => todo.extend(children),
                None => found.push(at.subvol),
            }
        }
        found
    }

    /// See `made_by`, which sets them.
    pub(crate) fn makers_below(&self) -> &MakersBelow {
        &self.makers
    }

    pub fn sibling(&self, epoch: EpochId) -> Option<&Epoch> {
        let parent = self.epochs.get(&self.epochs.get(&epoch)?.parent?)?;
        let [one, other] = parent.children.expect("RECOUNT-E3: a parent has children");
        Some(&self.epochs[if one == epoch { &other } else { &one }])
    }

    // -- changing -----------------------------------------------------------

    pub(crate) fn makers_below_mut(&mut self) -> &mut MakersBelow {
        &mut self.makers
    }

    /// Ends the subvolume's epoch and begins two below it.
    pub fn seal(&mut self, subvol: SubvolId, births: [Birth; 2]) {
        let sealed = self.leaves[&subvol];
        assert!(births[0].subvol == subvol, "the first of the two goes on");
        for Birth { id, subvol, table, deadlist } in births {
            let deadlist = Some(deadlist);
            let born = Epoch {
                parent: Some(sealed),
                deadlist,
                ..Epoch::from_item(id, &EpochItem::root(subvol, table, id))
            };
            assert!(id > self.epochs[&sealed].current, "FAMILY-F1: ids ascend");
            assert!(self.epochs.insert(id, born).is_none(), "epoch {id} is not new");
            self.leaves.insert(subvol, id);
        }
        let mut children = births.map(|birth| birth.id);
        children.sort();
        self.epochs.get_mut(&sealed).expect("a leaf").children = Some(children);
        debug_assert_eq!(self.check_these([sealed, children[0], children[1]]), Ok(()));
    }

    /// Takes a leaf out, which owns nothing any more, and lets its sibling take their parent's
    /// place. `None`, and nothing done, for the last of its family.
    pub fn absorb(&mut self, subvol: SubvolId) -> Option<Absorption> {
        let leaf = *self.leaf(subvol).expect("FAMILY-F3: a subvolume has a leaf");
        let parent = self.epochs[&leaf.parent?];
        let heir = self.sibling(leaf.id).expect("RECOUNT-E3").id;
        let heir_now = self.epochs.get_mut(&heir).expect("a sibling");
        let inherited = heir_now.deadlist.expect("FAMILY-F2: a sibling has a deadlist");
        heir_now.first = parent.first;
        heir_now.parent = parent.parent;
        heir_now.deadlist = parent.deadlist;
        match parent.parent {
            None => self.root = heir,
            Some(grand) => {
                let grand = self.epochs.get_mut(&grand).expect("a parent");
                let children = grand.children.as_mut().expect("RECOUNT-E3: a parent has children");
                *children.iter_mut().find(|id| **id == parent.id).expect("RECOUNT-E3") = heir;
                children.sort();
            }
        }
        for gone in [leaf.id, parent.id] {
            self.epochs.remove(&gone);
            self.makers.forget(gone);
        }
        self.leaves.remove(&subvol);
        debug_assert_eq!(self.check_these([heir].into_iter().chain(parent.parent)), Ok(()));
        let left = leaf.deadlist.expect("FAMILY-F2: a leaf with a parent has a deadlist");
        Some(Absorption { leaf, parent, heir, inherited, left })
    }

    /// Lets a live epoch stamp a newer number from now on (R25).
    pub fn renumber(&mut self, subvol: SubvolId, current: EpochId) {
        let leaf = self.epochs.get_mut(&self.leaves[&subvol]).expect("a leaf");
        assert!(current > leaf.current, "epoch numbers ascend");
        leaf.current = current;
    }

    /// RECOUNT-E3 and FAMILY-F1 to FAMILY-F3.
    pub fn check(&self) -> Result<(), BadFamily> {
        let mut sets = BTreeSet::new();
        for epoch in self.epochs.values() {
            self.check_epoch(epoch)?;
            if epoch.deadlist.is_some_and(|set| !sets.insert(set)) {
                let why = "its deadlist is shared (FAMILY-F2)";
                return Err(BadFamily { epoch: epoch.id, why });
            }
        }
        Ok(())
    }

    /// As [`Self::check`], of the epochs that a change concerns and without a look at others.
    fn check_these(&self, ids: impl IntoIterator<Item = EpochId>) -> Result<(), BadFamily> {
        let gone = |epoch| BadFamily { epoch, why: "it is gone" };
        for id in ids {
            let epoch = self.get(id).ok_or(gone(id))?;
            self.check_epoch(epoch)?;
            let mut children = epoch.children.into_iter().flatten();
            let continues = children.any(|child| self.epochs[&child].subvol == epoch.subvol);
            if !epoch.is_live() && self.leaves.contains_key(&epoch.subvol) && !continues {
                return Err(BadFamily { epoch: id, why: "its row has a gap (FAMILY-F4)" });
            }
        }
        Ok(())
    }

    fn check_epoch(&self, epoch: &Epoch) -> Result<(), BadFamily> {
        let bad = |why| Err(BadFamily { epoch: epoch.id, why });
        for child in epoch.children.into_iter().flatten() {
            match self.epochs.get(&child) {
                Some(child) if child.parent != Some(epoch.id) => {
                    return bad("a child names another parent (RECOUNT-E3)");
                }
                Some(child) if child.first <= epoch.current => {
                    return bad("a child begins before its end (FAMILY-F1)");
                }
                Some(_) => {}
                None => return bad("a child of it is gone (RECOUNT-E3)"),
            }
        }
        if epoch.first > epoch.id || epoch.id > epoch.current {
            return bad("its numbers are not in order (FAMILY-F1)");
        }
        if epoch.deadlist.is_some() != epoch.parent.is_some() {
            return bad("it has no deadlist, or one without a parent (FAMILY-F2)");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn births(numbers: [u64; 2], other: u32) -> [Birth; 2] {
        let birth = |n: u64, subvol| Birth {
            id: EpochId(n),
            subvol: SubvolId(subvol),
            table: TableId(100 + n),
            deadlist: TableId(200 + n),
        };
        [birth(numbers[0], 1), birth(numbers[1], other)]
    }

    fn items(family: &Family) -> BTreeMap<EpochId, EpochItem> {
        family.epochs().map(|epoch| (epoch.id, epoch.item())).collect()
    }

    fn three() -> Family {
        let mut family = Family::new(EpochId(1), SubvolId(1), TableId(100));
        family.seal(SubvolId(1), births([2, 3], 2));
        family.seal(SubvolId(1), births([4, 5], 3));
        family
    }

    #[test]
    fn a_family_comes_back_from_its_records() {
        assert_eq!(Family::restore(&items(&three())), Ok(vec![three()]));
    }

    #[test]
    fn an_heir_takes_its_parents_place() {
        let mut family = three();
        let id = family.id();
        let done = family.absorb(SubvolId(2)).unwrap();
        assert_eq!((done.heir, done.parent.id), (EpochId(2), EpochId(1)));
        assert_eq!((done.inherited, done.left), (TableId(202), TableId(203)));
        assert_eq!((family.id(), family.get(EpochId(2)).unwrap().first), (id, EpochId(1)));
        family.absorb(SubvolId(1)).unwrap();
        assert_eq!(family.absorb(SubvolId(3)), None);
        let last = family.leaf(SubvolId(3)).unwrap();
        assert!(last.owns(EpochId(1)) && last.parent.is_none() && last.deadlist.is_none());
    }

    #[test]
    fn records_that_are_no_family_are_refused() {
        let bad = |change: fn(&mut BTreeMap<EpochId, EpochItem>)| {
            let mut items = items(&three());
            change(&mut items);
            Family::restore(&items).is_err()
        };
        assert!(!bad(|_| ()));
        assert!(bad(|items| items.retain(|id, _| id.0 != 5)), "one child");
        assert!(bad(|items| items.retain(|id, _| id.0 != 1)), "no root");
        assert!(bad(|items| items.get_mut(&EpochId(5)).unwrap().deadlist = Some(TableId(204))));
        assert!(bad(|items| items.get_mut(&EpochId(3)).unwrap().state = EpochState::Sealed));
        assert!(bad(|items| items.get_mut(&EpochId(5)).unwrap().subvol = SubvolId(1)));
        assert!(bad(|items| items.get_mut(&EpochId(2)).unwrap().current = EpochId(4)));
        assert!(bad(|items| {
            // Two that name each other as parent.
            let mut one = items[&EpochId(4)];
            (one.parent, one.first, one.state) = (Some(EpochId(4)), EpochId(4), EpochState::Sealed);
            items.insert(EpochId(4), one);
        }));
    }
}
