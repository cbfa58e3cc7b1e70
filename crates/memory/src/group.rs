//! Groups: owners in a tree, with limits.
//!
//! Problem.  A subvolume holds others, and is itself held; a limit of it is for all of them, as the
//!           limits of quotas are.
//! Idea.     An owner knows its holder. A walk of reclaim takes a picture of the tree below its
//!           root: the usage of each group with all that it holds, from the counters as they are.
//!           Nothing is summed up before, so a charge costs no more in a deep tree.
//!
//! MEMGROUP-T1  A group has a list of its own objects. Where it holds others, that list is a child
//!              of the group beside them, without a promise of its own: the holder's promise goes
//!              to all of them by use.
//! MEMGROUP-T2  A group without usage is no part of a picture.
//! MEMGROUP-T3  Holders form no circle: a group that would close one is taken for a child of the
//!              root. So is a group whose holder is gone, though another has its slot now.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use crate::owner::{Memory, MemoryOwner, Slot};
use crate::place::{GroupLimits, Place};
use crate::protection::{GroupUse, Promise};

impl MemoryOwner {
    pub fn limits(&self) -> GroupLimits {
        let Place { min, low, high, max, weight, .. } = self.place();
        GroupLimits {
            promise: Promise { min: min.load(Relaxed), low: low.load(Relaxed) },
            high: high.load(Relaxed),
            max: max.load(Relaxed),
            weight: weight.load(Relaxed),
        }
    }

    pub fn set_limits(&self, limits: &GroupLimits) {
        let place = self.place();
        place.min.store(limits.promise.min, Relaxed);
        place.low.store(limits.promise.low, Relaxed);
        place.high.store(limits.high, Relaxed);
        place.max.store(limits.max, Relaxed);
        place.weight.store(limits.weight, Relaxed);
    }

    /// Says which owner holds it; none: it is a child of the root.
    pub fn set_holder(&self, holder: Option<&MemoryOwner>) {
        let serial = holder.map_or(Place::TOP, MemoryOwner::serial);
        self.place().holder.store(serial, Relaxed);
    }

    /// Whether this is the owner that holds it; none: the root.
    pub fn is_held_by(&self, holder: Option<&MemoryOwner>) -> bool {
        self.place().holder.load(Relaxed) == holder.map_or(Place::TOP, MemoryOwner::serial)
    }
}

/// The groups of one walk.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// The root first, parents before their children.
    pub groups: Vec<GroupUse>,
    /// The owner of each group's list; none for groups that hold others.
    pub lists: Vec<Option<Slot>>,
}

/// A group while its picture is taken.
struct Seen {
    slot: Slot,
    holder: Option<usize>,
    own: u64,
    limits: GroupLimits,
    /// With all that it holds.
    usage: u64,
    children: Vec<usize>,
}

impl Memory {
    /// All groups with some usage; `of`: the usage of an owner.
    pub fn picture(&self, of: impl Fn(&MemoryOwner) -> u64) -> Picture {
        let owners = self.owners();
        let places: HashMap<u64, usize> =
            owners.iter().enumerate().map(|(at, owner)| (owner.serial(), at)).collect();
        let mut seen: Vec<Seen> = Vec::with_capacity(owners.len());
        for owner in &owners {
            let own = of(owner);
            seen.push(Seen {
                slot: owner.slot(),
                holder: places.get(&owner.place().holder.load(Relaxed)).copied(),
                own,
                limits: owner.limits(),
                usage: own,
                children: Vec::new(),
            });
        }
        let tops = plant(&mut seen);
        let mut picture = Picture::default();
        let usage = tops.iter().map(|top| seen[*top].usage).sum();
        picture.groups.push(GroupUse { usage, ..GroupUse::default() });
        picture.lists.push(None);
        let mut todo: Vec<(usize, usize)> = tops.into_iter().rev().map(|top| (top, 0)).collect();
        while let Some((at, parent)) = todo.pop() {
            let group = &seen[at];
            if group.usage == 0 {
                continue;
            }
            let place = picture.groups.len();
            let GroupLimits { promise, weight, .. } = group.limits;
            let (parent, usage) = (Some(parent), group.usage);
            picture.groups.push(GroupUse { parent, usage, promise, weight });
            if group.children.is_empty() {
                picture.lists.push(Some(group.slot));
                continue;
            }
            picture.lists.push(None);
            // MEMGROUP-T1.
            let GroupLimits { promise, weight, .. } = GroupLimits::default();
            let (parent, usage) = (Some(place), group.own);
            picture.groups.push(GroupUse { parent, usage, promise, weight });
            picture.lists.push(Some(group.slot));
            todo.extend(group.children.iter().rev().map(|child| (*child, place)));
        }
        picture
    }
}

/// Sums usages up, from the leaves. Returns the children of the root.
fn plant(seen: &mut [Seen]) -> Vec<usize> {
    let depth = |mut at: usize| {
        let mut depth = 0;
        while let Some(holder) = seen[at].holder {
            (at, depth) = (holder, depth + 1);
            if depth > seen.len() {
                return None;
            }
        }
        Some(depth)
    };
    let depths: Vec<Option<usize>> = (0..seen.len()).map(depth).collect();
    let mut deepest: Vec<usize> = (0..seen.len()).collect();
    deepest.sort_by_key(|at| std::cmp::Reverse(depths[*at]));
    let mut tops = Vec::new();
    for at in deepest {
        // MEMGROUP-T3.
        match seen[at].holder.filter(|_| depths[at].is_some()) {
            Some(holder) => {
                let usage = seen[at].usage;
                seen[holder].usage += usage;
                if usage > 0 {
                    seen[holder].children.push(at);
                }
            }
            None => tops.push(at),
        }
    }
    tops.sort_unstable();
    tops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryCharge, MemoryClass};

    fn total(owner: &MemoryOwner) -> u64 {
        MemoryClass::ALL.iter().map(|class| owner.charged(*class).max(0) as u64).sum()
    }

    fn with(memory: &Memory, bytes: i64) -> (MemoryOwner, MemoryCharge) {
        let owner = memory.add_owner();
        let charge = owner.charge(MemoryClass::Node, bytes);
        (owner, charge)
    }

    #[test]
    fn a_holder_counts_all_that_it_holds() {
        let memory = Memory::default();
        let ((a, _a), (b, _b), (c, _c)) = (with(&memory, 10), with(&memory, 20), with(&memory, 30));
        let (idle, _idle) = with(&memory, 0);
        b.set_holder(Some(&a));
        c.set_holder(Some(&b));
        idle.set_holder(Some(&c));
        let low = |low| GroupLimits { promise: Promise { min: 0, low }, ..GroupLimits::default() };
        a.set_limits(&low(40));
        let Picture { groups, lists } = memory.picture(total);
        let of = |slot: &MemoryOwner| {
            lists.iter().position(|list| *list == Some(slot.slot())).expect("it has a list")
        };
        assert_eq!(groups[0].usage, 60);
        let (own, inner) = (groups[of(&a)], groups[of(&c)]);
        assert_eq!((own.usage, own.promise.low), (10, 0), "MEMGROUP-T1");
        let a = groups[own.parent.unwrap()];
        assert_eq!((a.usage, a.promise.low, a.parent), (60, 40, Some(0)));
        let b = groups[inner.parent.unwrap()];
        assert_eq!((inner.usage, b.usage), (30, 50));
        assert!(!lists.contains(&Some(idle.slot())), "MEMGROUP-T2");
        assert!(groups.iter().enumerate().all(|(at, of)| of.parent.is_none_or(|p| p < at)));
    }

    #[test]
    fn a_circle_of_holders_ends() {
        let memory = Memory::default();
        let ((a, _a), (b, _b), (c, _c)) = (with(&memory, 1), with(&memory, 2), with(&memory, 4));
        a.set_holder(Some(&b));
        b.set_holder(Some(&a));
        c.set_holder(Some(&b));
        let picture = memory.picture(total);
        assert_eq!(picture.groups[0].usage, 7, "MEMGROUP-T3");
        assert_eq!(picture.lists.iter().flatten().count(), 3);
    }

    #[test]
    fn another_owner_in_the_slot_of_a_holder_holds_nothing() {
        let memory = Memory::default();
        let ((a, _a), (b, _b)) = (with(&memory, 1), with(&memory, 2));
        b.set_holder(Some(&a));
        let slot = a.slot();
        drop((a, _a));
        let (other, _other) = with(&memory, 4);
        assert_eq!(other.slot(), slot);
        let Picture { groups, lists } = memory.picture(total);
        assert_eq!((groups[0].usage, lists.len()), (6, 3), "MEMGROUP-T3: the root and two lists");
    }
}
