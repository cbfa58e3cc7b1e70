//! The groups that use more of a class than their part of it.
//!
//! Problem.  A class that is full is to become smaller, and its objects are all alike: taken in any
//!           order, those of a tenant with few go for one with many.
//! Idea.     Each group has a part of the whole, as that of a class that is scarce. Only groups
//!           beyond their parts are to give some up.
//!
//! OVER-O1  An owner within its part is not named.
//! OVER-O2  All that is named together is at least the excess of the class over the whole.

use std::cmp::Reverse;

use crate::owner::{Memory, MemoryClass};
use crate::place::Slot;
use crate::scan::Arm;
use crate::scarce::parts;

impl Memory {
    /// Each owner with more than its part of `whole` bytes of a class, and the bytes beyond it: the
    /// one with the most for its part first. With [`Arm::Off`] there are no parts: all owners, with
    /// all that they have.
    pub fn over_parts(&self, class: MemoryClass, whole: u64) -> Vec<(Slot, u64)> {
        let whole = if self.arm() == Arm::Off { 0 } else { whole };
        let picture = self.picture_of(class);
        let parts = parts(&picture.groups, whole);
        let used = picture.groups.iter().map(|group| group.usage);
        let listed = picture.lists.iter().zip(used.zip(parts));
        let mut over: Vec<(Slot, u64, u64)> = listed
            .filter_map(|(slot, (used, part))| Some((*slot.as_ref()?, used, part)))
            .filter(|(_, used, part)| used > part)
            .collect();
        // The quotient in 64ths: more would not change the choice.
        let times = |used: u64, part: u64| u128::from(used) * 64 / u128::from(part.max(1));
        over.sort_by_key(|(slot, used, part)| (Reverse(times(*used, *part)), *slot));
        over.into_iter().map(|(slot, used, part)| (slot, used - part)).collect()
    }
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
