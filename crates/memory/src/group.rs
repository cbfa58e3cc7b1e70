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
//!
//! The tree itself is `tree`.

use std::sync::atomic::Ordering::Relaxed;

use crate::owner::{Memory, MemoryClass, MemoryOwner};
use crate::picture::Picture;
use crate::place::{GroupLimits, Place, Slot};
use crate::protection::{GroupUse, Promise};
use crate::tree::Tree;

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
        self.has_new_limits();
    }

    /// Says which owner holds it; none: it is a child of the root.
    pub fn set_holder(&self, holder: Option<&MemoryOwner>) {
        let serial = holder.map_or(Place::TOP, MemoryOwner::serial);
        let slot = holder.map_or(Slot::SHARED, MemoryOwner::slot);
        self.move_sum(|| {
            holder.inspect(|holder| holder.place().has_held.store(true, Relaxed));
            self.place().slot.store(slot.0, Relaxed);
            let before = self.place().holder.swap(serial, Relaxed);
            self.moves_inside(before, serial);
        });
    }

    /// Its group in a picture, if that is a child of the root and never held another.
    pub(crate) fn group_if_alone(&self, usage: u64) -> Option<GroupUse> {
        let is_alone = self.is_held_by(None) && !self.place().has_held.load(Relaxed);
        let GroupLimits { promise, weight, .. } = self.limits();
        let claimed = Promise::default();
        is_alone.then_some(GroupUse { parent: Some(0), usage, promise, weight, claimed })
    }

    /// Whether this is the owner that holds it; none: the root.
    pub fn is_held_by(&self, holder: Option<&MemoryOwner>) -> bool {
        self.place().holder.load(Relaxed) == holder.map_or(Place::TOP, MemoryOwner::serial)
    }
}

impl Memory {
    /// All groups with some usage.
    pub fn picture(&self) -> Picture {
        picture_of_any(&Tree::of(self.users_of_any()))
    }

    #[cfg(test)]
    pub(crate) fn picture_of_everyone(&self) -> Picture {
        picture_of_any(&self.tree())
    }

    /// All groups with some usage of a class, which is the usage here.
    pub fn picture_of(&self, class: MemoryClass) -> Picture {
        picture_of(&Tree::of(self.users(class)), class)
    }

    #[cfg(test)]
    pub(crate) fn picture_of_all(&self, class: MemoryClass) -> Picture {
        picture_of(&self.tree(), class)
    }
}

pub(crate) fn picture_of_any(tree: &Tree) -> Picture {
    draw(tree, MemoryOwner::usage, MemoryOwner::note_peak)
}

fn picture_of(tree: &Tree, class: MemoryClass) -> Picture {
    draw(tree, |owner| owner.charged(class).max(0) as u64, |_, _| {})
}

/// `own`: the usage of an owner; `sees` each group that holds others, with all of them.
fn draw(
    tree: &Tree,
    own: impl Fn(&MemoryOwner) -> u64,
    sees: impl Fn(&MemoryOwner, u64),
) -> Picture {
    // One look at each owner: there may be many, and each is on cache lines of its own.
    let seen: Vec<(u64, GroupLimits)> =
        tree.owners.iter().map(|owner| (own(owner), owner.limits())).collect();
    let usage = tree.sums(seen.iter().map(|(own, _)| *own).collect(), |sum, more| *sum += more);
    let mut picture = Picture::with_room(usage.iter().filter(|usage| **usage > 0).count() + 1);
    let all = tree.tops().map(|top| usage[top]).sum();
    picture.push(GroupUse { usage: all, ..GroupUse::default() }, None, None);
    // MEMGROUP-T2.
    let children = tree.children(|at| usage[at] > 0);
    let tops = tree.tops().rev().filter(|top| usage[*top] > 0);
    let mut todo: Vec<(usize, usize)> = tops.map(|top| (top, 0)).collect();
    while let Some((at, parent)) = todo.pop() {
        let ((own, limits), slot) = (seen[at], Some(tree.slots[at]));
        let GroupLimits { promise, weight, .. } = limits;
        let (parent, claimed) = (Some(parent), Promise::default());
        let group = GroupUse { parent, usage: usage[at], promise, weight, claimed };
        let Some(children) = children.get(&at) else {
            picture.push(group, slot, slot);
            continue;
        };
        // That of a group alone is noted by its charges.
        sees(&tree.owners[at], usage[at]);
        let place = picture.push(group, None, slot);
        // MEMGROUP-T1.
        let GroupLimits { promise, weight, .. } = GroupLimits::default();
        let parent = Some(place);
        picture.push(GroupUse { parent, usage: own, promise, weight, claimed }, slot, None);
        todo.extend(children.iter().rev().map(|child| (*child, place)));
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryCharge;

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
        let Picture { groups, lists, .. } = memory.picture();
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
    fn the_part_below_a_group_has_all_that_it_holds_and_no_promise_of_its_own() {
        let memory = Memory::default();
        let of = [10, 20, 30, 40, 50].map(|bytes| with(&memory, bytes));
        let [first, top, inner, leaf, last] = of.each_ref().map(|(owner, _)| owner);
        inner.set_holder(Some(top));
        leaf.set_holder(Some(inner));
        let low = |low| GroupLimits { promise: Promise { min: 0, low }, ..GroupLimits::default() };
        [top, inner, leaf].iter().for_each(|owner| owner.set_limits(&low(25)));
        let picture = memory.picture();
        let below = picture.below(top.slot()).expect("it has some usage");
        assert_eq!((below.groups[0].usage, below.groups[0].parent), (90, None));
        let given = crate::protections(&below.groups);
        let of = |owner: &MemoryOwner| given[below.place(owner.slot()).unwrap()].low;
        assert_eq!([of(top), of(inner), of(leaf)], [0, 25, 25]);
        let mut lists: Vec<Slot> = below.lists.iter().flatten().copied().collect();
        lists.sort();
        assert_eq!(lists, [top, inner, leaf].map(MemoryOwner::slot));
        let single = picture.below(last.slot()).unwrap();
        assert_eq!((single.groups.len(), single.lists[0]), (1, Some(last.slot())));
        assert_eq!(picture.below(first.slot()).unwrap().groups[0].usage, 10);
        assert!(picture.below(Slot(99)).is_none());
    }

    #[test]
    fn a_circle_of_holders_ends() {
        let memory = Memory::default();
        let ((a, _a), (b, _b), (c, _c)) = (with(&memory, 1), with(&memory, 2), with(&memory, 4));
        a.set_holder(Some(&b));
        b.set_holder(Some(&a));
        c.set_holder(Some(&b));
        let picture = memory.picture();
        assert_eq!(picture.groups[0].usage, 7, "HELD-T1");
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
        let Picture { groups, lists, .. } = memory.picture();
        assert_eq!((groups[0].usage, lists.len()), (6, 3), "HELD-T1: the root and two lists");
    }
}
