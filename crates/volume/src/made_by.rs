//! Which content of a subvolume its own tenant made, when a pool is opened (OWNFROM-E1).
//!
//! Each epoch of a family has the number of the subvolume that lived in it, its *maker*. From its
//! leaf upwards, a subvolume's content is its tenant's as long as that made the epochs. The maker
//! of an epoch may be deleted: then the tenant owns it if no other one has subvolumes below it.
//!
//! Two passes over a family find this for all its leaves, however long the chain of snapshots is: a
//! parent has a smaller number than its children (FAMILY-F1).
//!
//! A snapshot within a tenant gets the epoch of its source without a look at the family.

use std::collections::BTreeMap;

use copyhold_memory::Slot;
use copyhold_types::{EpochId, SubvolId};

use crate::family::Family;
use crate::volumes::Map;

impl Map {
    /// Tells the owners of a family's subvolumes what their tenants made.
    pub(crate) fn tell_made_by_tenants(&self, family: &Family) {
        let tenant = |of| Some(self.subvols.get(&of)?.owner().tenant().slot());
        for (subvol, first) in own_from(family, tenant) {
            let subvol = self.subvols.get(&subvol);
            subvol.inspect(|subvol| subvol.owner().set_own_from(first));
        }
    }
}

/// For the subvolume of each leaf, the first epoch of all that its tenant made.
fn own_from(
    family: &Family,
    tenant: impl Fn(SubvolId) -> Option<Slot>,
) -> Vec<(SubvolId, EpochId)> {
    // Of each epoch: the only tenant below it, and the one that made it.
    let mut tenants: BTreeMap<EpochId, [Option<Slot>; 2]> = BTreeMap::new();
    for epoch in family.epochs().rev() {
        let maker = tenant(epoch.subvol);
        let only = match epoch.children {
            None => maker,
            Some([one, other]) => {
                let [one, other] = [one, other].map(|child| tenants[&child][0]);
                one.filter(|_| one == other)
            }
        };
        tenants.insert(epoch.id, [only, maker.or(only)]);
    }
    let made_by = |epoch: EpochId| tenants[&epoch][1];
    let mut firsts: BTreeMap<EpochId, EpochId> = BTreeMap::new();
    for epoch in family.epochs() {
        let maker = made_by(epoch.id);
        let parent = epoch.parent.filter(|parent| maker.is_some() && made_by(*parent) == maker);
        firsts.insert(epoch.id, parent.map_or(epoch.first, |parent| firsts[&parent]));
    }
    let leaves = family.epochs().filter(|epoch| epoch.is_live());
    leaves.map(|leaf| (leaf.subvol, firsts[&leaf.id])).collect()
}

#[cfg(test)]
mod tests {
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
        tenant: &dyn Fn(SubvolId) -> Option<Slot>,
    ) -> EpochId {
        let mut at = family.leaf(subvol).unwrap();
        while let Some(above) = at.parent.and_then(|parent| family.get(parent)) {
            let is_made_by_tenant = match tenant(above.subvol) {
                Some(maker) => Some(maker) == tenant(subvol),
                None => family.below(above.id).iter().all(|of| tenant(*of) == tenant(subvol)),
            };
            if !is_made_by_tenant {
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
            tenants in prop::collection::vec(0..3_u32, 41),
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
            // Subvolumes without a leaf are deleted.
            let tenant = |of: SubvolId| {
                family.leaf(of)?;
                Some(Slot(tenants[of.0 as usize - 1]))
            };
            for (subvol, first) in own_from(&family, tenant) {
                prop_assert_eq!(first, climb(&family, subvol, &tenant), "OWNFROM-E1 of {}", subvol);
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
            family.leaf(of).map(|_| Slot(7))
        });
        assert!(found.iter().all(|(_, first)| *first == EpochId(1)));
        assert_eq!(asked.get(), family.epochs().count());
    }
}
