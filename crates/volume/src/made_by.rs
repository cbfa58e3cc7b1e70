//! Which content of a subvolume its own tenant made (OWNFROM-E1).
//!
//! Problem.  Tenants change after content was made: subvolumes move, are deleted and rolled back,
//!           and other tenants take snapshots. A rule that follows these events gives another
//!           answer when the pool is opened again.
//! Idea.     One function of the records on disk, asked again after each event that changes its
//!           answer.
//!
//! MADEBY-M1  A live subvolume's tenant made the epochs that have its number. An epoch of a deleted
//!            subvolume is made by the tenant that made all that is below it; if there are several,
//!            by none.
//! MADEBY-M2  From its leaf upwards, content is a subvolume's own as long as its tenant made the
//!            epochs: from the first epoch of the last of them.
//! MADEBY-M3  After each change of a family's epochs or of a subvolume's tenant, each owner has the
//!            epoch that it would get at a mount. A snapshot changes no other's: its source
//!            continues as it was, so the new one has the source's epoch, or its own first one if
//!            another tenant has it.
//!
//! Two passes over a family find this for all its leaves, however long the chain of snapshots is: a
//! parent has a smaller number than its children (FAMILY-F1).

use std::sync::Arc;

use copyhold_types::{EpochId, SubvolId};
use smallvec::SmallVec;

use crate::family::{Epoch, Family};
use crate::volumes::{Map, Subvol, Volumes};

/// Epochs and families that take no allocation.
const FEW: usize = 16;

impl Map {
    /// Gives the owners of a family's subvolumes the first epoch of their own content.
    pub(crate) fn set_own_content(&self, family: &Family) {
        let live = |of: SubvolId| self.subvols.get(&of).filter(|subvol| !subvol.is_dying());
        let tenant = |of| live(of).map(|subvol| self.tenant_of(subvol.id()));
        for (subvol, first) in own_from(family, tenant) {
            live(subvol).inspect(|subvol| subvol.owner().set_own_from(first));
        }
    }
}

impl Volumes {
    /// The tenants of some subvolumes, and of all that they hold, have changed, or they are deleted
    /// (MADEBY-M3). The caller has no family locked.
    pub(crate) fn renew_own_content(&self, changed: &[&Subvol]) {
        let mut families: SmallVec<[_; FEW]> = {
            let map = self.state.map.read();
            let is_one = |of: SubvolId| changed.iter().any(|subvol| subvol.id() == of);
            let is_changed = |of: SubvolId| map.holders_of(of).any(is_one);
            let subvols = map.subvols.values().filter(|subvol| is_changed(subvol.id()));
            subvols.map(|subvol| subvol.family.clone()).collect()
        };
        families.sort_by_key(|family| family.id);
        families.dedup_by(|one, other| Arc::ptr_eq(one, other));
        for family in families {
            // One at a time: the last one sees all changes.
            let tree = family.write_tree();
            self.state.map.read().set_own_content(&tree);
        }
    }
}

/// The tenants that made an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Makers {
    /// No live subvolume is below.
    None,
    One(SubvolId),
    Several,
}

impl Makers {
    fn with(self, other: Makers) -> Makers {
        match (self, other) {
            (Makers::None, one) | (one, Makers::None) => one,
            (one, other) if one == other => one,
            _ => Makers::Several,
        }
    }
}

/// For the subvolume of each leaf, the first epoch of all that its tenant made. `tenant`: of a live
/// subvolume.
fn own_from(
    family: &Family,
    tenant: impl Fn(SubvolId) -> Option<SubvolId>,
) -> SmallVec<[(SubvolId, EpochId); FEW]> {
    let epochs: SmallVec<[&Epoch; FEW]> = family.epochs().collect();
    let place = |id: EpochId| {
        let place = epochs.binary_search_by_key(&id, |epoch| epoch.id);
        place.expect("FAMILY-F1: it is in the family")
    };
    let mut makers: SmallVec<[Makers; FEW]> = SmallVec::from_elem(Makers::None, epochs.len());
    // The maker of most epochs of a long chain is the same.
    let mut last: Option<(SubvolId, Option<SubvolId>)> = None;
    for (at, epoch) in epochs.iter().enumerate().rev() {
        let of = last.filter(|(maker, _)| *maker == epoch.subvol);
        let (_, maker) = *last.insert(of.unwrap_or_else(|| (epoch.subvol, tenant(epoch.subvol))));
        makers[at] = match (maker, epoch.children) {
            (Some(maker), _) => Makers::One(maker),
            (None, Some([one, other])) => makers[place(one)].with(makers[place(other)]),
            (None, None) => Makers::None,
        };
    }
    let mut firsts: SmallVec<[EpochId; FEW]> = SmallVec::with_capacity(epochs.len());
    for (at, epoch) in epochs.iter().enumerate() {
        let is_same =
            |parent: &usize| matches!(makers[at], Makers::One(_)) && makers[*parent] == makers[at];
        let parent = epoch.parent.map(place).filter(is_same);
        firsts.push(parent.map_or(epoch.first, |parent| firsts[parent]));
    }
    let leaves = epochs.iter().zip(firsts).filter(|(epoch, _)| epoch.is_live());
    leaves.map(|(leaf, first)| (leaf.subvol, first)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use copyhold_types::TableId;
    use proptest::prelude::*;

    use super::*;
    use crate::family::Birth;

    fn snapshot(family: &mut Family, of: SubvolId, made: u32, id: u64) {
        let birth = |id: u64, subvol| Birth {
            id: EpochId(id),
            subvol,
            table: TableId(1000 + id),
            deadlist: TableId(2_000_000 + id),
        };
        family.seal(of, [birth(id, of), birth(id + 1, SubvolId(made))]);
    }

    /// The rule as it is said: from the leaf upwards.
    fn climb(
        family: &Family,
        subvol: SubvolId,
        tenant: &dyn Fn(SubvolId) -> Option<SubvolId>,
    ) -> EpochId {
        /// The first live makers on the ways down.
        fn makers(
            family: &Family,
            at: EpochId,
            tenant: &dyn Fn(SubvolId) -> Option<SubvolId>,
        ) -> BTreeSet<SubvolId> {
            let epoch = family.get(at).unwrap();
            match tenant(epoch.subvol) {
                Some(maker) => BTreeSet::from([maker]),
                None => {
                    let children = epoch.children.into_iter().flatten();
                    children.flat_map(|child| makers(family, child, tenant)).collect()
                }
            }
        }
        let mut at = family.leaf(subvol).unwrap();
        while let Some(above) = at.parent.and_then(|parent| family.get(parent)) {
            let own = BTreeSet::from_iter(tenant(subvol));
            if own.is_empty() || makers(family, above.id, tenant) != own {
                break;
            }
            at = above;
        }
        at.first
    }

    proptest! {
        #[test]
        fn two_passes_find_for_all_leaves_the_epochs_that_a_climb_finds(
            steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..40),
            tenants in prop::collection::vec(prop::option::weighted(0.8, 100..103_u32), 41),
        ) {
            let mut family = Family::new(EpochId(1), SubvolId(1), TableId(1000));
            for (at, (of, deletes)) in steps.iter().enumerate() {
                let subvols: Vec<SubvolId> = family.subvols().collect();
                let of = subvols[of.index(subvols.len())];
                if *deletes {
                    family.absorb(of);
                } else {
                    snapshot(&mut family, of, at as u32 + 2, at as u64 * 2 + 2);
                }
            }
            // Subvolumes without a leaf are deleted, those without a tenant are being deleted.
            let tenant = |of: SubvolId| {
                family.leaf(of)?;
                tenants[of.0 as usize - 1].map(SubvolId)
            };
            let found = own_from(&family, tenant);
            for (subvol, first) in found.iter().copied() {
                prop_assert_eq!(first, climb(&family, subvol, &tenant), "MADEBY-M2 of {}", subvol);
            }
            // A snapshot, by a tenant of its own or another, changes no other answer.
            let before: BTreeMap<SubvolId, EpochId> = found.into_iter().collect();
            let source = before.keys().copied().find(|of| tenant(*of).is_some());
            for of in source.into_iter().flat_map(|source| [tenant(source).unwrap(), SubvolId(99)]) {
                let (source, mut family) = (source.unwrap(), family.clone());
                snapshot(&mut family, source, 500, 1000);
                let with_new = |it: SubvolId| if it.0 == 500 { Some(of) } else { tenant(it) };
                for (subvol, first) in own_from(&family, with_new) {
                    let own = || family.leaf(subvol).unwrap().first;
                    let is_same = Some(of) == tenant(source);
                    let wanted = match before.get(&subvol) {
                        Some(before) => *before,
                        None if is_same => before[&source],
                        None => own(),
                    };
                    prop_assert_eq!(first, wanted, "MADEBY-M3 of {}", subvol);
                }
            }
        }
    }

    #[test]
    fn a_long_chain_of_snapshots_asks_for_each_epoch_once() {
        let mut family = Family::new(EpochId(1), SubvolId(1), TableId(1000));
        for at in 0..200 {
            snapshot(&mut family, SubvolId(1), at + 2, u64::from(at) * 2 + 2);
        }
        family.absorb(SubvolId(1));
        let asked = std::cell::Cell::new(0);
        let found = own_from(&family, |of| {
            asked.set(asked.get() + 1);
            family.leaf(of).map(|_| SubvolId(7))
        });
        assert!(found.iter().all(|(_, first)| *first == EpochId(1)));
        assert!(asked.get() <= family.epochs().count());
    }
}
