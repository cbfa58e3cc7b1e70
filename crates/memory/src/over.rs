//! The groups that use more of a class than their part of it.
//!
//! Problem.  A class that is full is to become smaller, and its objects are all alike: taken in any
//!           order, those of a tenant with few go for one with many.
//! Idea.     Each group has a part of the whole, as that of a class that is scarce. Only groups
//!           beyond their parts are to give some up.
//!
//! OVER-O1  An owner within its part is not named.
//! OVER-O2  All that is named together is at least the excess of the class over the whole.
//! OVER-O3  [`OverTurns`] looks at all owners only when parts were divided anew, or when each
//!          owner that it named has come down to its part or was passed over: then the excess of
//!          the last look is gone, or no owner has more to give.

use std::cmp::Reverse;

use copyhold_sync::{Mutex, of};

use crate::owner::{Memory, MemoryClass, MemoryOwner};
use crate::place::Slot;
use crate::protection::GroupUse;
use crate::scan::Arm;

/// An owner with more of a class than its part.
#[derive(Clone, Copy)]
struct Over {
    slot: Slot,
    used: u64,
    part: u64,
}

/// The owners above their parts, one after the other, as of the last look at all.
#[derive(Debug, Default)]
pub(crate) struct OverTurns(Mutex<Turns, of::MemoryOver>);

#[derive(Debug, Default)]
struct Turns {
    /// With their parts; the first is the last.
    owners: Vec<(MemoryOwner, u64)>,
    /// The division of parts of which these are.
    division: Option<u64>,
}

impl OverTurns {
    /// The owner with most for its part, of those that are still above their parts. `division`
    /// counts the divisions of `whole` bytes into parts.
    pub(crate) fn next(
        &self,
        memory: &Memory,
        class: MemoryClass,
        whole: u64,
        division: u64,
    ) -> Option<MemoryOwner> {
        let mut turns = self.0.lock();
        let is_new = turns.division.replace(division) != Some(division);
        let had_any = !turns.owners.is_empty();
        let found = if is_new { None } else { turns.first(class) };
        if found.is_some() || !(is_new || had_any) {
            return found;
        }
        drop(turns);
        let over = memory.over(class, whole);
        let owners = over.iter().rev().filter_map(|of| Some((memory.owner(of.slot)?, of.part)));
        let owners: Vec<(MemoryOwner, u64)> = owners.collect();
        let mut turns = self.0.lock();
        let gone = std::mem::replace(&mut turns.owners, owners);
        let found = turns.first(class);
        drop(turns);
        // An owner may end with this.
        drop(gone);
        found
    }

    /// The turn of this owner is over.
    pub(crate) fn pass(&self, owner: &MemoryOwner) {
        let mut turns = self.0.lock();
        let passed = turns.owners.pop_if(|(last, _)| last.slot() == owner.slot());
        if turns.owners.is_empty() {
            turns.division = None;
        }
        drop(turns);
        drop(passed);
    }

    /// All turns are over.
    pub(crate) fn end(&self) {
        let turns = std::mem::take(&mut *self.0.lock());
        drop(turns);
    }
}

impl Turns {
    fn first(&mut self, class: MemoryClass) -> Option<MemoryOwner> {
        while let Some((owner, part)) = self.owners.last() {
            if owner.charged(class).max(0) as u64 > *part {
                return Some(owner.clone());
            }
            self.owners.pop();
        }
        None
    }
}

impl Memory {
    /// Each owner with more than its part of `whole` bytes of a class, and the bytes beyond it: the
    /// one with the most for its part first. With [`Arm::Off`] there are no parts: all owners, with
    /// all that they have.
    pub fn over_parts(&self, class: MemoryClass, whole: u64) -> Vec<(Slot, u64)> {
        self.over(class, whole).iter().map(|of| (of.slot, of.used - of.part)).collect()
    }

    fn over(&self, class: MemoryClass, whole: u64) -> Vec<Over> {
        let whole = if self.arm() == Arm::Off { 0 } else { whole };
        let picture = self.picture_of(class);
        let parts = parts(&picture.groups, whole);
        let used = picture.groups.iter().map(|group| group.usage);
        let listed = picture.lists.iter().zip(used.zip(parts));
        let mut over: Vec<Over> = listed
            .filter_map(|(slot, (used, part))| Some(Over { slot: *slot.as_ref()?, used, part }))
            .filter(|of| of.used > of.part)
            .collect();
        // The quotient in 64ths: more would not change the choice.
        let times = |used: u64, part: u64| u128::from(used) * 64 / u128::from(part.max(1));
        over.sort_by_key(|of| (Reverse(times(of.used, of.part)), of.slot));
        over
    }
}

/// The part of each group: that of its parent, by weight among the children.
pub(crate) fn parts(groups: &[GroupUse], whole: u64) -> Vec<u64> {
    let weight = |group: &GroupUse| u64::from(group.weight.max(1));
    let mut weights = vec![0; groups.len()];
    for group in groups {
        if let Some(parent) = group.parent {
            weights[parent] += weight(group);
        }
    }
    let mut parts: Vec<u64> = Vec::with_capacity(groups.len());
    for group in groups {
        parts.push(group.parent.map_or(whole, |parent| {
            let part = u128::from(parts[parent]) * u128::from(weight(group));
            (part / u128::from(weights[parent])) as u64
        }));
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::GroupLimits;

    const CLASS: MemoryClass = MemoryClass::Lookup;

    #[test]
    fn the_group_that_is_most_over_its_part_is_the_first() {
        let memory = Memory::default();
        let owners = [memory.add_owner(), memory.add_owner(), memory.add_owner()];
        owners[0].set_limits(&GroupLimits { weight: 300, ..GroupLimits::default() });
        let charges: Vec<_> =
            owners.iter().zip([700, 300, 50]).map(|(one, n)| one.charge(CLASS, n)).collect();
        let slots = owners.clone().map(|owner| owner.slot());
        // Parts of 300, 100 and 100.
        let over = memory.over_parts(CLASS, 500);
        assert_eq!(over, [(slots[1], 200), (slots[0], 400)], "OVER-O1");
        memory.set_arm(Arm::Off);
        let all = memory.over_parts(CLASS, 500);
        assert_eq!(all, [(slots[0], 700), (slots[1], 300), (slots[2], 50)]);
        drop(charges);
    }

    #[test]
    fn turns_look_at_all_owners_again_when_parts_are_new_or_the_named_ones_are_within_them() {
        let memory = Memory::default();
        let owners = [memory.add_owner(), memory.add_owner(), memory.add_owner()];
        let bytes = [600, 500, 100];
        let mut charges: Vec<_> =
            owners.iter().zip(bytes).map(|(one, n)| Some(one.charge(CLASS, n))).collect();
        let turns = OverTurns::default();
        let next = |division| {
            let owner = turns.next(&memory, CLASS, 900, division);
            owner.map(|owner| owners.iter().position(|of| *of == owner).expect("one of them"))
        };
        // Parts of 300 each.
        assert_eq!(next(1), Some(0));
        charges[0] = None;
        assert_eq!(next(1), Some(1), "OVER-O1");
        charges[1] = None;
        charges[2] = Some(owners[2].charge(CLASS, 901));
        assert_eq!(next(1), Some(2), "OVER-O3: those that were named are within their parts");
        charges[0] = Some(owners[0].charge(CLASS, 2000));
        assert_eq!(next(1), Some(2), "OVER-O3");
        assert_eq!(next(2), Some(0), "OVER-O3: the parts are new");
        charges[0] = None;
        charges[2] = None;
        assert_eq!([next(2), next(2)], [None, None]);
    }

    proptest! {
        #[test]
        fn the_excess_is_named_and_no_owner_within_its_part(
            owners in prop::collection::vec((any::<prop::sample::Index>(), 1..500_u32, 0..1000_i64), 1..20),
            whole in 0..5000_u64,
        ) {
            let memory = Memory::default();
            let mut made = Vec::new();
            for (holder, weight, bytes) in owners {
                let owner = memory.add_owner();
                owner.set_limits(&GroupLimits { weight, ..GroupLimits::default() });
                if holder.index(2) == 1 && !made.is_empty() {
                    let (above, _) = &made[holder.index(made.len())];
                    owner.set_holder(Some(above));
                }
                let charge = owner.charge(CLASS, bytes);
                made.push((owner, charge));
            }
            let over = memory.over_parts(CLASS, whole);
            let used = memory.charged(CLASS) as u64;
            let named: u64 = over.iter().map(|(_, bytes)| bytes).sum();
            prop_assert!(named >= used.saturating_sub(whole), "OVER-O2");
            for (slot, bytes) in over {
                let owner = memory.owner(slot).expect("it is there");
                prop_assert!(0 < bytes && bytes <= owner.charged(CLASS) as u64, "OVER-O1");
            }
            made.into_iter().for_each(|(owner, charge)| drop((charge, owner)));
        }
    }
}
