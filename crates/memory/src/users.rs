//! The owners that use some memory, found without a look at all.
//!
//! Problem.  Of a hundred thousand subvolumes a few have objects in memory. To share a class out,
//!           or to choose objects to evict, only those few matter; a look at all takes longer than
//!           the work that it is for.
//! Idea.     An owner whose charge rises from nothing enters a list of the class, if that is one
//!           that is divided, and the list of all classes. A reader of a list takes out the owners
//!           whose charge is nothing again.
//!
//! USERS-U1  An owner with some of a class is on its list, or is being entered by the thread that
//!           charges it; so is one with some of any class on the list of all.
//! USERS-U2  An owner is on a list once, a slot more than once only if it had several owners. A
//!           list is at most twice as long as the most owners that there were at once.
//!
//! A charge that begins at nothing costs a fence and a load; and a reference to the lists and a
//! lock for each on which the owner is not.

use crate::owner::{Memory, MemoryClass, MemoryOwner, OF_ANY_CLASS};

impl Memory {
    /// At least the owners that have some of a class, and all that hold one of these; by slot.
    pub(crate) fn users(&self, class: MemoryClass) -> Vec<MemoryOwner> {
        match class.has_list() {
            true => self.on_list(class as usize, |owner| owner.charged(class) > 0),
            false => self.users_of_any(),
        }
    }

    /// At least the owners with some usage, and all that hold one of these; by slot.
    pub(crate) fn users_of_any(&self) -> Vec<MemoryOwner> {
        self.on_list(OF_ANY_CLASS, |owner| owner.usage() > 0)
    }

    fn on_list(&self, list: usize, is_user: impl Fn(&MemoryOwner) -> bool) -> Vec<MemoryOwner> {
        let (mut found, gone) = self.lists().read(list, |slots| {
            let owners = self.owners_at(slots).into_iter();
            let (owners, gone): (Vec<_>, Vec<_>) =
                owners.partition(|of| stays(of, list, || is_user(of)));
            (owners.iter().map(MemoryOwner::slot).collect(), (owners, gone))
        });
        // An owner may end with this, and the list is not locked.
        drop(gone);
        let above: Vec<MemoryOwner> = found.iter().flat_map(MemoryOwner::above).collect();
        found.extend(above);
        found.sort_by_key(MemoryOwner::slot);
        found.dedup();
        self.lists().looked_at(found.len());
        found
    }

    /// How often owners were looked at, to draw a picture of those with memory, to divide a class
    /// or to add up figures: each time counts as many as there were.
    pub fn looks(&self) -> u64 {
        self.lists().looks()
    }
}

/// Whether an owner stays on the list. A later owner in the slot of one that has ended enters the
/// list by itself.
fn stays(owner: &MemoryOwner, list: usize, is_user: impl Fn() -> bool) -> bool {
    let listed = owner.listed();
    listed.is_on(list) && (is_user() || listed.leave(list, is_user))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::over::parts;

    const CLASS: MemoryClass = MemoryClass::Edit;

    #[test]
    fn idle_owners_are_not_looked_at() {
        let memory = Memory::default();
        let owners: Vec<MemoryOwner> = (0..1000).map(|_| memory.add_owner()).collect();
        owners[10].set_holder(Some(&owners[20]));
        let charges: Vec<_> = [10, 30].map(|at| owners[at].charge(CLASS, 1)).into();
        let slots = |of: &[usize]| of.iter().map(|at| owners[*at].slot()).collect::<Vec<_>>();
        let users = || memory.users(CLASS).iter().map(MemoryOwner::slot).collect::<Vec<_>>();
        assert_eq!(users(), slots(&[10, 20, 30]), "USERS-U1");
        let node = owners[40].charge(MemoryClass::Node, 1);
        assert_eq!(memory.users_of_any().len(), 4, "USERS-U1");
        drop(node);
        drop(charges);
        assert_eq!((users(), memory.users_of_any().len()), (Vec::new(), 0), "USERS-U2");
        let _again = owners[10].charge(CLASS, 1);
        assert_eq!(users(), slots(&[10, 20]));
    }

    #[test]
    fn a_list_does_not_grow_with_charges_that_end() {
        let memory = Memory::default();
        let listed = || memory.lists().len(CLASS as usize);
        for _ in 0..1000 {
            let owner = memory.add_owner();
            (0..10).for_each(|_| drop(owner.charge(CLASS, 1)));
            assert!(listed() <= 66, "USERS-U2");
        }
        memory.users(CLASS);
        assert_eq!(listed(), 0);
    }

    proptest! {
        /// USERS-U1: parts are the same as those of a picture of all owners.
        #[test]
        fn parts_are_those_of_a_look_at_all(
            steps in prop::collection::vec((0..12_usize, 0..12_usize, 0..4_u8), 1..80),
        ) {
            let memory = Memory::default();
            let mut owners: Vec<MemoryOwner> = (0..12).map(|_| memory.add_owner()).collect();
            let mut charges: Vec<Vec<crate::MemoryCharge>> = (0..12).map(|_| Vec::new()).collect();
            for (at, other, step) in steps {
                match step {
                    0 => charges[at].push(owners[at].charge(CLASS, 1 + other as i64)),
                    1 => drop(charges[at].pop()),
                    2 => owners[at].set_holder((at != other).then_some(&owners[other])),
                    // A later owner has its slot.
                    _ => {
                        charges[at].clear();
                        owners[at] = memory.add_owner();
                    }
                }
                let some = memory.picture_of(CLASS);
                let all = memory.picture_of_all(CLASS);
                prop_assert_eq!(&some.lists, &all.lists);
                prop_assert_eq!(parts(&some.groups, 7000), parts(&all.groups, 7000));
                let (some, all) = (memory.picture(), memory.picture_of_everyone());
                prop_assert_eq!((some.lists, some.groups), (all.lists, all.groups));
            }
        }
    }
}
