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
//! parent has a smaller number than its children (FAMILY-F1). They are for a mount, a move and a
//! rollback.
//!
//! A deletion looks only at what it changes. The makers of epochs of deleted subvolumes are kept
//! (`makers`), so the climb from the leaf ends at the first epoch whose makers stay the same; then
//! the leaves are renewed for which a changed epoch was, or now is, on the way of MADEBY-M2.
//!
//! MADEBY-M4  An absorption changes no answer: no live subvolume is below the leaf that goes, so
//!            its parent and its sibling have the same makers (FAMILY-F4).

use std::sync::Arc;

use copyhold_types::{EpochId, SubvolId};
use smallvec::SmallVec;

use crate::family::{Epoch, Family};
use crate::makers::Makers;
use crate::volumes::{FamilyCell, Map, Subvol, Volumes};

/// Epochs and families that take no allocation.
const FEW: usize = 16;

/// The first epochs of the own content of subvolumes.
type Firsts = SmallVec<[(SubvolId, EpochId); FEW]>;

/// Families in the order of their locks.
pub(crate) type Families = SmallVec<[Arc<FamilyCell>; FEW]>;

impl Map {
    /// Gives the owners of a family's subvolumes the first epoch of their own content.
    pub(crate) fn set_own_content(&self, family: &mut Family) {
        self.subvols.looked_at(family.epochs().count());
        let firsts = own_from(family, |of| self.live_tenant(of));
        self.set_firsts(&firsts);
    }

    /// As [`Self::set_own_content`], when only `dead`, of this family, has been deleted.
    pub(crate) fn set_own_content_without(&self, family: &mut Family, dead: SubvolId) {
        let before = self.tenant_of(dead);
        let own = |of| self.subvols.get(of).map(|of| of.owner().own_from());
        let death = Death { dead, before, tenant: |of| self.live_tenant(of), own };
        let (firsts, looks) = death.renewed(family);
        self.subvols.looked_at(looks);
        self.set_firsts(&firsts);
    }

    /// The families of some subvolumes and of all that they hold. The caller has owners locked:
    /// so no subvolume leaves between a move and this.
    pub(crate) fn families_inside(&self, changed: &[&Subvol]) -> Families {
        let ids = changed.iter().flat_map(|top| self.subvols.with_inside(top.id()));
        let family = |id| Some(self.subvols.get(id)?.family.clone());
        let mut families: Families = ids.filter_map(family).collect();
        families.sort_by_key(|family| family.id);
        families.dedup_by(|one, other| Arc::ptr_eq(one, other));
        families
    }

    fn live_tenant(&self, of: SubvolId) -> Option<SubvolId> {
        let subvol = self.subvols.get(of).filter(|subvol| !subvol.is_dying());
        subvol.map(|subvol| self.tenant_of(subvol.id()))
    }

    fn set_firsts(&self, firsts: &Firsts) {
        for (subvol, first) in firsts {
            let live = self.subvols.get(*subvol).filter(|subvol| !subvol.is_dying());
            live.inspect(|subvol| subvol.owner().set_own_from(*first));
        }
    }
}

impl Volumes {
    /// The tenants of subvolumes in these families have changed (MADEBY-M3). The caller has no
    /// family locked.
    pub(crate) fn renew_own_content(&self, families: Families) {
        for family in families {
            // One at a time: the last one sees all changes.
            let mut tree = family.write_tree();
            self.state.map.read().set_own_content(&mut tree);
        }
    }
}

/// For the subvolume of each leaf, the first epoch of all that its tenant made. `tenant`: of a live
/// subvolume.
fn own_from(family: &mut Family, tenant: impl Fn(SubvolId) -> Option<SubvolId>) -> Firsts {
    let epochs: SmallVec<[Epoch; FEW]> = family.epochs().copied().collect();
    let place = |id: EpochId| {
        let place = epochs.binary_search_by_key(&id, |epoch| epoch.id);
        place.expect("FAMILY-F1: it is in the family")
    };
    let below = family.makers_below_mut();
    below.clear();
    let mut makers: SmallVec<[Makers; FEW]> = SmallVec::from_elem(Makers::None, epochs.len());
    // The maker of most epochs of a long chain is the same.
    let mut last: Option<(SubvolId, Option<SubvolId>)> = None;
    for (at, epoch) in epochs.iter().enumerate().rev() {
        let of = last.filter(|(maker, _)| *maker == epoch.subvol);
        let (_, maker) = *last.insert(of.unwrap_or_else(|| (epoch.subvol, tenant(epoch.subvol))));
        makers[at] = match (maker, epoch.children) {
            (Some(maker), _) => Makers::One(maker),
            (None, Some([one, other])) => {
                let all = makers[place(one)].with(makers[place(other)]);
                below.set(epoch.id, all);
                all
            }
            (None, None) => Makers::None,
        };
    }
    let mut firsts: SmallVec<[EpochId; FEW]> = SmallVec::with_capacity(epochs.len());
    for (at, epoch) in epochs.iter().enumerate() {
        let is_same = |parent: &usize| makers[at].is_one() && makers[*parent] == makers[at];
        let parent = epoch.parent.map(place).filter(is_same);
        firsts.push(parent.map_or(epoch.first, |parent| firsts[parent]));
    }
    let leaves = epochs.iter().zip(firsts).filter(|(epoch, _)| epoch.is_live());
    leaves.map(|(leaf, first)| (leaf.subvol, first)).collect()
}

/// A subvolume has been deleted.
struct Death<T, O> {
    dead: SubvolId,
    /// Its tenant until then.
    before: SubvolId,
    /// The tenant of a live subvolume.
    tenant: T,
    /// The first epoch of a live subvolume's own content, as it was.
    own: O,
}

/// An epoch above a leaf that has died.
struct Above {
    epoch: Epoch,
    was: Makers,
    is: Makers,
}

impl<T: Fn(SubvolId) -> Option<SubvolId>, O: Fn(SubvolId) -> Option<EpochId>> Death<T, O> {
    /// The first epochs that may have changed, and the number of epochs looked at.
    fn renewed(&self, family: &mut Family) -> (Firsts, usize) {
        let (mut firsts, mut looks) = (Firsts::new(), 0);
        let above = self.climb(family);
        looks += above.len();
        let family = &*family;
        let mut upper: Option<(Makers, EpochId)> = None;
        for (at, Above { epoch, was, is }) in above.iter().enumerate().rev() {
            if was == is {
                // Its answer is as it was, and those below it have other makers, or none.
                upper = None;
                continue;
            }
            let first = match upper {
                Some((makers, first)) if makers == *is && is.is_one() => first,
                Some(_) => epoch.first,
                None => self.first_of(family, epoch, *is, &mut looks),
            };
            upper = Some((*is, first));
            // One that has changed, too, is next.
            let next = at.checked_sub(1).map(|next| &above[next]);
            let next = next.filter(|next| next.was != next.is).map(|next| next.epoch.id);
            for child in epoch.children.into_iter().flatten().filter(|id| Some(*id) != next) {
                let makers = self.makers(family, child);
                let first = match makers {
                    makers if !makers.is_one() => continue,
                    makers if makers == *is => first,
                    makers if makers == *was => family.get(child).expect("RECOUNT-E3").first,
                    _ => continue,
                };
                self.spread(family, (child, makers), first, (&mut firsts, &mut looks));
            }
        }
        (firsts, looks)
    }

    /// The epochs of the dead subvolume, and those above them whose makers are others now: from
    /// its leaf upwards. Their kept makers are renewed.
    fn climb(&self, family: &mut Family) -> SmallVec<[Above; FEW]> {
        let mut above = SmallVec::new();
        let mut next = family.leaf(self.dead).copied();
        while let Some(epoch) = next {
            let is_own = epoch.subvol == self.dead;
            let was = match is_own {
                true => Makers::One(self.before),
                false => self.makers(family, epoch.id),
            };
            if !is_own && (self.tenant)(epoch.subvol).is_some() {
                break;
            }
            let of = |children: [EpochId; 2]| children.map(|child| self.makers(family, child));
            let is = match epoch.children.map(of) {
                Some([one, other]) => one.with(other),
                None => Makers::None,
            };
            if !is_own && was == is {
                break;
            }
            if !epoch.is_live() {
                family.makers_below_mut().set(epoch.id, is);
            }
            next = epoch.parent.and_then(|parent| family.get(parent)).copied();
            above.push(Above { epoch, was, is });
        }
        above
    }

    fn makers(&self, family: &Family, epoch: EpochId) -> Makers {
        let epoch = family.get(epoch).expect("RECOUNT-E3: it is in the family");
        match (self.tenant)(epoch.subvol) {
            Some(tenant) => Makers::One(tenant),
            None => family.makers_below().get(epoch.id),
        }
    }

    /// The first epoch of all that the makers of an epoch made, from it upwards.
    fn first_of(
        &self,
        family: &Family,
        epoch: &Epoch,
        makers: Makers,
        looks: &mut usize,
    ) -> EpochId {
        let mut at = *epoch;
        while makers.is_one()
            && let Some(parent) = at.parent.and_then(|parent| family.get(parent))
            && self.makers(family, parent.id) == makers
        {
            *looks += 1;
            // The way of a live subvolume leads through its epochs (FAMILY-F4).
            if (self.tenant)(parent.subvol).is_some()
                && let Some(first) = (self.own)(parent.subvol)
            {
                return first;
            }
            at = *parent;
        }
        at.first
    }

    /// Gives `first` to the leaves at and below `top` that are reached through its makers only.
    fn spread(
        &self,
        family: &Family,
        (top, makers): (EpochId, Makers),
        first: EpochId,
        (firsts, looks): (&mut Firsts, &mut usize),
    ) {
        let mut todo: SmallVec<[EpochId; FEW]> = SmallVec::from_slice(&[top]);
        while let Some(at) = todo.pop() {
            *looks += 1;
            if self.makers(family, at) != makers {
                continue;
            }
            let epoch = family.get(at).expect("RECOUNT-E3");
            match epoch.children {
                Some(children) => todo.extend(children),
                None => firsts.push((epoch.subvol, first)),
            }
        }
    }
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
            let left: BTreeSet<SubvolId> = family.subvols().collect();
            let tenant = |of: SubvolId| {
                left.get(&of)?;
                tenants[of.0 as usize - 1].map(SubvolId)
            };
            let found = own_from(&mut family, tenant);
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
                for (subvol, first) in own_from(&mut family, with_new) {
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

    /// A family with the answers of its live subvolumes, which are deleted one by one.
    struct Answers {
        family: Family,
        tenants: BTreeMap<SubvolId, SubvolId>,
        first: BTreeMap<SubvolId, EpochId>,
    }

    impl Answers {
        fn new(mut family: Family, tenant: impl Fn(SubvolId) -> Option<SubvolId>) -> Answers {
            let of = |subvol| Some((subvol, tenant(subvol)?));
            let tenants: BTreeMap<_, _> = family.subvols().filter_map(of).collect();
            let first = own_from(&mut family, |of| tenants.get(&of).copied());
            Answers { family, tenants, first: first.into_iter().collect() }
        }

        /// Returns how many epochs were looked at.
        fn delete(&mut self, dead: SubvolId) -> usize {
            let Answers { family, tenants, first } = self;
            let before = tenants.remove(&dead).expect("it lives");
            let (tenant, own) = (|of| tenants.get(&of).copied(), |of| first.get(&of).copied());
            let (renewed, looks) = Death { dead, before, tenant, own }.renewed(family);
            first.extend(renewed);
            looks
        }

        fn check(&self, what: &str) -> std::result::Result<(), TestCaseError> {
            let tenant = |of: SubvolId| self.tenants.get(&of).copied();
            for subvol in self.tenants.keys() {
                let wanted = climb(&self.family, *subvol, &tenant);
                prop_assert_eq!(self.first[subvol], wanted, "{} of {}", what, subvol);
            }
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn deletions_in_any_order_renew_the_answers_that_change(
            steps in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
            tenants in prop::collection::vec(100..103_u32, 31),
            deletions in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 31),
        ) {
            let mut family = Family::new(EpochId(1), SubvolId(1), TableId(1000));
            for (at, of) in steps.iter().enumerate() {
                let subvols: Vec<SubvolId> = family.subvols().collect();
                let of = subvols[of.index(subvols.len())];
                snapshot(&mut family, of, at as u32 + 2, at as u64 * 2 + 2);
            }
            let mut answers =
                Answers::new(family, |of| Some(SubvolId(tenants[of.0 as usize - 1])));
            let mut dying = Vec::new();
            for (of, ends) in deletions {
                let live: Vec<SubvolId> = answers.tenants.keys().copied().collect();
                if live.is_empty() {
                    break;
                }
                let dead = live[of.index(live.len())];
                answers.delete(dead);
                answers.check("MADEBY-M3")?;
                dying.push(dead);
                if ends {
                    answers.family.absorb(dying.swap_remove(of.index(dying.len())));
                    answers.check("MADEBY-M4")?;
                }
            }
        }
    }

    #[test]
    fn a_deletion_in_a_long_chain_of_snapshots_looks_at_few_epochs() {
        let mut family = Family::new(EpochId(1), SubvolId(1), TableId(1000));
        for at in 0..2000 {
            snapshot(&mut family, SubvolId(1), at + 2, u64::from(at) * 2 + 2);
        }
        let mut answers = Answers::new(family, |_| Some(SubvolId(7)));
        for dead in 100..200 {
            assert!(answers.delete(SubvolId(dead)) < 10, "while the source lives");
            answers.family.absorb(SubvolId(dead));
        }
        answers.delete(SubvolId(1));
        answers.family.absorb(SubvolId(1));
        for dead in 200..300 {
            assert!(answers.delete(SubvolId(dead)) < 10, "when the source is deleted");
            answers.family.absorb(SubvolId(dead));
        }
    }

    #[test]
    fn a_deletion_below_a_long_chain_of_dead_epochs_does_not_climb_it() {
        let mut family = Family::new(EpochId(1), SubvolId(1), TableId(1000));
        for at in 0..2000 {
            snapshot(&mut family, SubvolId(1), at + 2, u64::from(at) * 2 + 2);
        }
        // The last snapshot has one of its own.
        snapshot(&mut family, SubvolId(2001), 3000, 9000);
        let mut answers = Answers::new(family, |_| Some(SubvolId(7)));
        answers.delete(SubvolId(1));
        answers.family.absorb(SubvolId(1));
        assert!(answers.delete(SubvolId(2001)) < 10);
        assert_eq!(answers.first[&SubvolId(3000)], EpochId(1));
    }

    #[test]
    fn a_long_chain_of_snapshots_asks_for_each_epoch_once() {
        let mut family = Family::new(EpochId(1), SubvolId(1), TableId(1000));
        for at in 0..200 {
            snapshot(&mut family, SubvolId(1), at + 2, u64::from(at) * 2 + 2);
        }
        family.absorb(SubvolId(1));
        let asked = std::cell::Cell::new(0);
        let found = own_from(&mut family, |of| {
            asked.set(asked.get() + 1);
            (of != SubvolId(1)).then_some(SubvolId(7))
        });
        assert!(found.iter().all(|(_, first)| *first == EpochId(1)));
        assert!(asked.get() <= family.epochs().count());
    }
}
