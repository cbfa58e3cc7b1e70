//! Room for an object of a group at its `max` or `high`, in a part of a cache.
//!
//! Problem.  Each object of such a group comes at the limit. A walk over all lists for each of them
//!           costs all tenants of the cache, and one that cannot give enough evicts for nothing.
//! Idea.     The walk has only lists of the group, and of what it holds. It frees a batch, so that
//!           the next objects need none; and after a walk in vain there is a pause.
//!
//! ATLIMIT-A1  A walk looks at lists of the group, found as DRAWN-P3 says. It frees a batch of
//!             them, or there is a pause (BRAKE-B1, BRAKE-B2).
//! ATLIMIT-A2  For an object that may be refused, the lists give nothing, or all the bytes above
//!             `max`. Objects in use lose their mark then, and are evicted at a later look.

use std::collections::BTreeMap;

use crate::brake::{Brake, batch};
use crate::limit::{Limit, OverLimit};
use crate::owner::{Memory, MemoryOwner};
use crate::place::Slot;
use crate::walk::{Cause, OwnerLists};

/// Objects with a mark, in either ring, are evicted at the third look; one more is for parts of
/// objects.
const LOOKS: u64 = 4;

/// The pauses of a part of a cache, by group: those whose last walk was in vain.
#[derive(Debug, Default)]
pub struct AtLimit(BTreeMap<Slot, Brake>);

/// The room that an object needs.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub bytes: u64,
    /// Bytes to free in any case: the part is full.
    pub at_least: u64,
    /// Whether the object comes in any case.
    pub is_forced: bool,
}

impl AtLimit {
    /// Whether an object walks, and needs a new picture for that.
    pub fn needs_picture(&self, memory: &Memory, owner: &MemoryOwner, bytes: u64) -> bool {
        let walks = |at: &OverLimit| !self.holds(memory, at.group.slot(), bytes);
        let at = owner.over_any_limit(bytes).filter(walks);
        at.is_some_and(|_| !memory.shows(&[]))
    }

    /// Makes room below the limits of an owner. Whether there is room below `max`; above `high` the
    /// lists give what they can.
    pub fn make_room(
        &mut self,
        memory: &Memory,
        lists: &mut dyn OwnerLists,
        owner: &MemoryOwner,
        need: Need,
    ) -> bool {
        let Some(OverLimit { group, limit, over }) = owner.over_any_limit(need.bytes) else {
            return true;
        };
        group.count(limit.event());
        let is_bound = limit == Limit::Max;
        if self.holds(memory, group.slot(), need.bytes) {
            self.0.get_mut(&group.slot()).expect("it holds").count(need.bytes);
            return !is_bound;
        }
        let mut walk = memory.walk_below(&group, Some(owner), lists, Cause::Request);
        let (bytes, lists) = walk.size();
        let wanted = over.max(need.at_least).max(batch(bytes, lists));
        let mut freed = 0;
        if need.is_forced || !is_bound {
            freed += walk.run(wanted, memory.arm());
        } else if walk.within_reach() >= over {
            freed += walk.run(wanted, memory.arm());
            while freed < over && walk.seen < LOOKS * bytes {
                let before = walk.seen;
                freed += walk.run(over - freed, memory.arm());
                if walk.seen == before {
                    break;
                }
            }
        }
        let is_enough = freed >= over;
        match is_enough {
            true => _ = self.0.remove(&group.slot()),
            false => _ = self.0.insert(group.slot(), Brake::new(memory, bytes, walk.looks)),
        }
        is_enough || !is_bound
    }

    fn holds(&self, memory: &Memory, group: Slot, bytes: u64) -> bool {
        self.0.get(&group).is_some_and(|brake| brake.holds(memory, bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::{Carry, GroupLimits, Look, MemoryCharge, MemoryClass, Promise};

    const OBJECT: u64 = 4096;

    /// Lists of objects that have a mark or none; each look is counted.
    #[derive(Default)]
    struct Part {
        lists: BTreeMap<Slot, (VecDeque<(bool, MemoryCharge)>, Carry)>,
        looks: Cell<u64>,
    }

    impl Part {
        fn put(&mut self, owner: &MemoryOwner, has_mark: bool) {
            let charge = owner.charge(MemoryClass::Node, OBJECT as i64);
            self.lists.entry(owner.slot()).or_default().0.push_back((has_mark, charge));
        }

        fn insert(&mut self, memory: &Memory, at_limit: &mut AtLimit, owner: &MemoryOwner) -> bool {
            let need = Need { bytes: OBJECT, at_least: 0, is_forced: false };
            let fits = at_limit.make_room(memory, self, owner, need);
            if fits {
                self.put(owner, false);
            }
            fits
        }

        fn look(&self, lists: usize) {
            self.looks.set(self.looks.get() + lists as u64);
        }

        fn bytes(&self) -> u64 {
            self.lists.values().map(|(list, _)| list.len() as u64 * OBJECT).sum()
        }
    }

    impl OwnerLists for Part {
        fn owners(&self) -> Vec<Slot> {
            self.look(self.lists.len());
            self.lists.keys().copied().collect()
        }

        fn count(&self) -> usize {
            self.lists.len()
        }

        fn size(&self, owner: Slot) -> u64 {
            self.look(1);
            self.lists.get(&owner).map_or(0, |(list, _)| list.len() as u64 * OBJECT)
        }

        fn carry(&mut self, owner: Slot) -> &mut Carry {
            &mut self.lists.get_mut(&owner).expect("it has a size").1
        }

        fn shrink(&mut self, owner: Slot, look: Look) -> (u64, u64) {
            let (mut seen, mut freed) = (0, 0);
            while let Some((list, _)) = self.lists.get_mut(&owner) {
                if list.is_empty() || !look.goes_on(seen, freed, OBJECT) {
                    break;
                }
                self.looks.set(self.looks.get() + 1);
                seen += OBJECT;
                match list.pop_front().expect("it is not empty") {
                    (true, charge) => list.push_back((false, charge)),
                    (false, _) => freed += OBJECT,
                }
                if list.is_empty() {
                    self.lists.remove(&owner);
                }
            }
            (seen, freed)
        }
    }

    fn max(max: u64) -> GroupLimits {
        GroupLimits { max, ..GroupLimits::default() }
    }

    /// Where the idle groups are.
    #[derive(Clone, Copy, Debug)]
    enum Idle {
        Beside { with_lists: bool },
        Inside { with_lists: bool },
    }

    /// Looks at lists, and at owners for pictures, for each insertion of a group at its limit.
    fn looks(count: usize, idle: Idle, is_protected: bool) -> (u64, u64) {
        let (memory, mut part) = (Memory::default(), Part::default());
        let (top, group) = (memory.add_owner(), memory.add_owner());
        group.set_holder(Some(&top));
        let others: Vec<MemoryOwner> = (0..count).map(|_| memory.add_owner()).collect();
        let mut charges = Vec::new();
        for other in &others {
            let with_lists = match idle {
                Idle::Beside { with_lists } => with_lists,
                Idle::Inside { with_lists } => {
                    other.set_holder(Some(&top));
                    with_lists
                }
            };
            match with_lists {
                true => part.put(other, false),
                false => charges.push(other.charge(MemoryClass::Inode, OBJECT as i64)),
            }
        }
        if is_protected {
            let promise = Promise { min: u64::MAX, low: 0 };
            group.set_limits(&GroupLimits { promise, ..max(u64::MAX) });
        }
        (0..256).for_each(|_| part.put(&group, false));
        top.set_limits(&max(top.usage() + group.usage() + count as u64 * OBJECT));
        let (mut at_limit, many) = (AtLimit::default(), 2000);
        part.looks.set(0);
        let pictures = memory.drawn().lock().count();
        (0..many).for_each(|_| _ = part.insert(&memory, &mut at_limit, &group));
        let drawn = (memory.drawn().lock().count() - pictures) * memory.owners().len() as u64;
        (part.looks.get() / many, drawn / many)
    }

    #[test]
    fn an_insertion_at_a_limit_costs_the_same_beside_many_idle_groups() {
        let all = [
            Idle::Beside { with_lists: true },
            Idle::Beside { with_lists: false },
            Idle::Inside { with_lists: true },
            Idle::Inside { with_lists: false },
        ];
        for idle in all {
            for is_protected in [false, true] {
                let [few, many] = [10, 10_000].map(|count| looks(count, idle, is_protected));
                // A batch is a sixteenth, and each list is looked at a few times for it.
                let most = 100;
                let is_cheap = |(lists, owners): (u64, u64)| lists <= most && owners <= most;
                assert!(is_cheap(few) && is_cheap(many), "{idle:?}: {few:?}, {many:?}: ATLIMIT-A1");
            }
        }
    }

    /// Other classes have all that the group may have.
    #[test]
    fn nothing_goes_for_an_object_that_is_refused() {
        let (memory, mut part) = (Memory::default(), Part::default());
        let (owner, mut at_limit) = (memory.add_owner(), AtLimit::default());
        (0..10).for_each(|_| part.put(&owner, false));
        owner.set_limits(&max(20 * OBJECT));
        let dirty = owner.charge(MemoryClass::Dirty, 1 << 20);
        assert!(!part.insert(&memory, &mut at_limit, &owner));
        assert_eq!(part.bytes(), 10 * OBJECT, "ATLIMIT-A2");
        drop(dirty);
        (0..40).for_each(|_| _ = part.insert(&memory, &mut at_limit, &owner));
        assert!(part.bytes() >= 15 * OBJECT, "the pause ends");
    }

    #[test]
    fn objects_in_use_go_for_an_object_of_their_group() {
        let (memory, mut part) = (Memory::default(), Part::default());
        let owner = memory.add_owner();
        (0..32).for_each(|_| part.put(&owner, true));
        owner.set_limits(&max(32 * OBJECT));
        assert!(part.insert(&memory, &mut AtLimit::default(), &owner), "ATLIMIT-A2");
        assert!(part.bytes() <= 32 * OBJECT);
    }

    proptest! {
        /// An object is refused, and nothing goes; or there is room below the limit.
        #[test]
        fn an_object_is_kept_below_the_limit_or_nothing_goes(
            lists in prop::collection::vec((0..40_u64, 0..40_u64, any::<bool>()), 1..8),
            dirty in 0..400_000_i64,
            bound in 0..400_000_u64,
        ) {
            let (memory, mut part) = (Memory::default(), Part::default());
            let top = memory.add_owner();
            let owners: Vec<_> = lists.iter().map(|_| memory.add_owner()).collect();
            for (owner, (plain, used, is_protected)) in owners.iter().zip(&lists) {
                owner.set_holder(Some(&top));
                let promise = Promise { min: if *is_protected { 60_000 } else { 0 }, low: 0 };
                owner.set_limits(&GroupLimits { promise, ..GroupLimits::default() });
                (0..*plain).for_each(|_| part.put(owner, false));
                (0..*used).for_each(|_| part.put(owner, true));
            }
            let _dirty = owners[0].charge(MemoryClass::Dirty, dirty);
            top.set_limits(&max(bound));
            let usage = || owners.iter().map(MemoryOwner::usage).sum::<u64>();
            // So the ledger has the usage of now.
            owners.iter().for_each(|owner| _ = owner.over_any_limit(u64::MAX >> 1));
            let before = usage();
            match part.insert(&memory, &mut AtLimit::default(), &owners[0]) {
                true => prop_assert!(usage() <= bound, "{} of {}", usage(), bound),
                false => prop_assert_eq!(usage(), before, "ATLIMIT-A2"),
            }
        }
    }
}
