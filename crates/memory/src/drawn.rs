//! A picture of all groups that walks share, and the part of it that one walk needs.
//!
//! Problem.  A walk needs the usage of groups, and most groups of a pool have nothing in the part
//!           of a cache where it walks. A look at all of them would cost the more the more idle
//!           groups there are.
//! Idea.     One picture serves many walks. A walk takes the groups with lists where it walks, and
//!           those above them, and reads the usage of these anew. The others count by what they
//!           claimed when the picture was drawn.
//!
//! DRAWN-P1  The usage of each list of a walk is that of now, and so is its part in the usage of
//!           all groups above. The usage of other groups is that of the picture. A counter is
//!           noticed when it has passed a step of 64 KiB; the picture ends when all steps passed
//!           since it was drawn have more than [`LOOK_BYTES`] for each of its groups.
//! DRAWN-P2  A picture ends when a limit or the rule of protections changes, a group with usage
//!           moves, or a walk has a list of an owner that is not in it (but DRAWN-P4).
//! DRAWN-P3  A walk below a group looks for its lists among those of the group, or among those
//!           where it walks, whichever are fewer.
//! DRAWN-P4  An owner that began to use memory after the picture was drawn is added to it, as it is
//!           when a walk first has a list of it; unless it is inside another group, or was ever one
//!           that holds others: then the picture ends. So no picture is drawn for each of the many
//!           tenants that are flushed or deleted one after the other.
//!
//! So a look at an owner is paid for by [`LOOK_BYTES`] that came or went, or by a change of limits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use crate::ledger::{STEP, Stamp};
use crate::picture::Picture;
use crate::place::Slot;
use crate::protection::{GroupUse, Promise, claim};

/// Bytes that come or go, for each look at a list or an owner.
pub(crate) const LOOK_BYTES: u64 = 4096;

/// The picture, and all that finds a part of it.
#[derive(Debug, Default)]
pub(crate) struct Drawn {
    picture: Picture,
    /// The place of each owner's list, and the serial number of the owner.
    places: HashMap<Slot, (usize, u64)>,
    /// The place behind all of a group.
    ends: Vec<usize>,
    /// The sum of what the children of a group claim.
    claimed: Vec<Promise>,
    /// The state of the ledger when it was drawn.
    stamp: Stamp,
    /// Groups that were looked at to draw it.
    looks: u64,
    /// Pictures that there were.
    count: u64,
}

/// The list of an owner as it is now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListUse {
    pub(crate) slot: Slot,
    /// The serial number of the owner.
    pub(crate) serial: u64,
    pub(crate) usage: u64,
    /// Its group, if that is a child of the root and holds no other.
    pub(crate) alone: Option<GroupUse>,
}

impl Drawn {
    /// `serials`: those of all owners, when the ledger had this stamp.
    pub(crate) fn new(picture: Picture, serials: &HashMap<Slot, u64>, stamp: Stamp) -> Drawn {
        let lists = picture.lists.iter().enumerate().filter_map(|(at, slot)| Some((at, (*slot)?)));
        let places = lists.filter_map(|(at, slot)| Some((slot, (at, *serials.get(&slot)?))));
        let places = places.collect();
        let mut claimed = vec![Promise::default(); picture.groups.len()];
        let mut ends: Vec<usize> = (1..=picture.groups.len()).collect();
        for (at, group) in picture.groups.iter().enumerate().rev() {
            if let Some(parent) = group.parent {
                claimed[parent].add(claim(group));
                ends[parent] = ends[parent].max(ends[at]);
            }
        }
        let looks = picture.groups.len() as u64;
        Drawn { picture, places, ends, claimed, stamp, looks, count: 0 }
    }

    /// Whether it lasts, with a ledger of this stamp (DRAWN-P1, DRAWN-P2).
    pub(crate) fn lasts(&self, now: Stamp) -> bool {
        let moved = now.steps.wrapping_sub(self.stamp.steps).saturating_mul(STEP as u64);
        now.changes == self.stamp.changes && moved <= LOOK_BYTES * self.looks
    }

    /// Whether it lasts, and shows these lists: also those of owners that it adds.
    pub(crate) fn serves(&mut self, now: Stamp, lists: &[ListUse]) -> bool {
        self.lasts(now) && lists.iter().all(|list| self.place(list).is_some() || self.add(list))
    }

    /// Adds the group of an owner that has begun since, if it can be one at the end (DRAWN-P4).
    fn add(&mut self, list: &ListUse) -> bool {
        let Some(group) = list.alone.filter(|_| !self.picture.groups.is_empty()) else {
            return false;
        };
        let at = self.picture.push(group, Some(list.slot), Some(list.slot));
        self.places.insert(list.slot, (at, list.serial));
        self.picture.groups[0].usage = self.picture.groups[0].usage.saturating_add(group.usage);
        self.claimed[0].add(claim(&group));
        self.claimed.push(Promise::default());
        self.ends[0] = at + 1;
        self.ends.push(at + 1);
        true
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn replace(&mut self, new: Drawn) {
        *self = Drawn { count: self.count + 1, ..new };
    }

    pub(crate) fn place(&self, list: &ListUse) -> Option<usize> {
        let (at, serial) = *self.places.get(&list.slot)?;
        (serial == list.serial).then_some(at)
    }

    /// The places of a group, and of all that it holds.
    pub(crate) fn places_below(&self, group: &ListUse) -> Range<usize> {
        let Some(list) = self.place(group) else { return 0..0 };
        let is_alone = self.picture.limited[list] == Some(group.slot);
        // MEMGROUP-T1.
        let at = if is_alone { Some(list) } else { self.picture.groups[list].parent };
        at.map_or(0..0, |at| at..self.ends[at])
    }

    /// The owners of the lists at these places.
    pub(crate) fn slots(&self, places: Range<usize>) -> impl Iterator<Item = Slot> {
        self.picture.lists[places].iter().flatten().copied()
    }

    /// Whether the list of an owner is at one of these places.
    pub(crate) fn is_at(&self, slot: Slot, places: &Range<usize>) -> bool {
        self.places.get(&slot).is_some_and(|(at, _)| places.contains(at))
    }

    /// The part with these lists.
    pub(crate) fn part(&self, of: &[ListUse]) -> Picture {
        let Picture { groups, lists, limited } = &self.picture;
        let find = |list: &ListUse| Some((self.place(list)?, list.usage));
        let usages: BTreeMap<usize, u64> = of.iter().filter_map(find).collect();
        let mut wanted = BTreeSet::from([0]);
        for list in usages.keys() {
            let mut at = Some(*list);
            while let Some(group) = at.filter(|group| wanted.insert(*group)) {
                at = groups[group].parent;
            }
        }
        let wanted: Vec<usize> = wanted.into_iter().filter(|at| *at < groups.len()).collect();
        let new_place = |old: usize| wanted.binary_search(&old).expect("those above are wanted");
        let mut part: Vec<GroupUse> = wanted.iter().map(|at| groups[*at]).collect();
        for (place, old) in wanted.iter().enumerate() {
            part[place].claimed = self.claimed[*old];
        }
        for (place, old) in wanted.iter().enumerate().rev() {
            if let Some(usage) = usages.get(old) {
                part[place].usage = *usage;
            }
            let Some(parent) = groups[*old].parent else { continue };
            let above = new_place(parent);
            part[place].parent = Some(above);
            part[above].claimed.take(claim(&groups[*old]));
            let (now, then) = (part[place].usage, groups[*old].usage);
            let usage = &mut part[above].usage;
            *usage = usage.saturating_add(now).saturating_sub(then);
        }
        let of = |all: &[Option<Slot>]| wanted.iter().map(|at| all[*at]).collect();
        Picture { groups: part, lists: of(lists), limited: of(limited) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{GroupLimits, Memory, MemoryCharge, MemoryClass, MemoryOwner, protections};

    fn promise(bytes: u64) -> GroupLimits {
        GroupLimits { promise: Promise { min: bytes / 2, low: bytes }, ..GroupLimits::default() }
    }

    #[derive(Clone, Debug)]
    struct Group {
        holder: Option<prop::sample::Index>,
        bytes: u64,
        low: u64,
        has_list: bool,
        more: i64,
        /// It has no usage when the picture is drawn.
        is_late: bool,
    }

    fn group() -> impl Strategy<Value = Group> {
        let bytes = || 0..1_000_000_u64;
        let holder = prop::option::of(any::<prop::sample::Index>());
        (holder, bytes(), bytes(), any::<bool>(), -1000..1000_i64, any::<bool>()).prop_map(
            |(holder, bytes, low, has_list, more, is_late)| Group {
                holder,
                bytes,
                low,
                has_list,
                more,
                is_late,
            },
        )
    }

    proptest! {
        /// A part gives each list the protection that the whole picture gives it, also when lists
        /// have changed since it was drawn.
        #[test]
        fn a_part_protects_as_the_whole_does(tree in prop::collection::vec(group(), 1..20)) {
            let memory = Memory::default();
            let owners: Vec<MemoryOwner> = tree.iter().map(|_| memory.add_owner()).collect();
            let mut charges: Vec<MemoryCharge> = Vec::new();
            for (at, group) in tree.iter().enumerate() {
                if let Some(holder) = group.holder.filter(|_| at > 0) {
                    owners[at].set_holder(Some(&owners[holder.index(at)]));
                }
                owners[at].set_limits(&promise(group.low));
                charges.push(owners[at].charge(MemoryClass::Node, 0));
                // Each has some usage, also when it has fewer bytes than it takes back.
                let bytes = if group.is_late { 0 } else { group.bytes as i64 + 2000 };
                charges[at].change(bytes);
            }
            let listed: Vec<usize> = (0..tree.len()).filter(|at| tree[*at].has_list).collect();
            let slots = |of: &[usize]| of.iter().map(|at| owners[*at].slot()).collect::<Vec<_>>();
            let early: Vec<usize> = listed.iter().copied().filter(|at| !tree[*at].is_late).collect();
            drop(memory.picture_with(&slots(&early)));
            for at in (0..tree.len()).filter(|at| tree[*at].is_late) {
                // Only owners with lists have begun since.
                let bytes = if tree[at].has_list { tree[at].bytes as i64 + 2000 } else { 0 };
                charges[at].change(bytes);
            }
            listed.iter().for_each(|at| charges[*at].change(tree[*at].more));
            let lists = slots(&listed);
            let (part, whole) = (memory.picture_with(&lists), memory.picture());
            let given = |of: &Picture| -> BTreeMap<Slot, (u64, Promise)> {
                let given = protections(&of.groups);
                let all = of.lists.iter().zip(&of.groups).zip(given);
                all.filter_map(|((list, group), given)| Some(((*list)?, (group.usage, given)))).collect()
            };
            let (part, whole) = (given(&part), given(&whole));
            prop_assert_eq!(part.len(), listed.len());
            for (list, given) in part {
                prop_assert_eq!(given, whole[&list], "DRAWN-P1");
            }
        }
    }

    /// Looks at owners, for so many walks of a busy group beside idle ones.
    fn looks(idle: usize) -> (usize, u64) {
        let memory = Memory::default();
        let idle: Vec<_> = (0..idle).map(|_| memory.add_owner()).collect();
        let _charges: Vec<_> = idle.iter().map(|of| of.charge(MemoryClass::Inode, 512)).collect();
        let busy = memory.add_owner();
        let charge = busy.charge(MemoryClass::Node, 16 << 20);
        let mut groups = 0;
        for _ in 0..10_000 {
            // As an insertion at the limit.
            charge.change(16 << 10);
            groups = memory.picture_with(&[busy.slot()]).groups.len();
            charge.change(-(16 << 10));
        }
        let pictures = memory.drawn().lock().count;
        (groups, pictures * (idle.len() as u64 + 1))
    }

    #[test]
    fn idle_groups_cost_a_walk_nothing() {
        let (few, many) = (looks(10), looks(10_000));
        assert_eq!((few.0, many.0), (2, 2), "the root and the list");
        // 160 MB came, and went again.
        let paid = 2 * 10_000 * (16 << 10) / LOOK_BYTES;
        assert!(few.1 <= paid && many.1 <= paid + 10_001, "{few:?}, {many:?} of {paid}: DRAWN-P1");
    }

    #[test]
    fn tenants_that_begin_one_after_the_other_draw_no_picture_each() {
        let memory = Memory::default();
        let mut tenants: Vec<MemoryOwner> = (0..1000).map(|_| memory.add_owner()).collect();
        tenants[0].set_limits(&promise(500));
        let mut charges = Vec::new();
        for tenant in &tenants {
            charges.push(tenant.charge(MemoryClass::Node, 1000));
            let part = memory.picture_with(&[tenant.slot(), tenants[0].slot()]);
            assert_eq!(part.groups[0].usage, 1000 * charges.len() as u64);
        }
        assert_eq!(memory.drawn().lock().count, 1, "DRAWN-P4");
        // Another one in the same slot.
        charges.pop();
        let slot = tenants.pop().expect("there are many").slot();
        let other = memory.add_owner();
        let _charge = other.charge(MemoryClass::Node, 1000);
        assert_eq!((other.slot(), memory.picture_with(&[slot]).groups.len()), (slot, 2));
        assert_eq!(memory.drawn().lock().count, 1, "DRAWN-P4");
    }

    #[test]
    fn a_picture_ends_with_the_limits_and_the_owners_that_it_shows() {
        let memory = Memory::default();
        let [one, two] = std::array::from_fn(|_| memory.add_owner());
        let _charges = [&one, &two].map(|owner| owner.charge(MemoryClass::Node, 1000));
        let low = |of: &MemoryOwner| {
            let part = memory.picture_with(&[of.slot()]);
            (part.groups[1].promise.low, memory.drawn().lock().count)
        };
        assert_eq!([low(&one), low(&two), low(&one)], [(0, 1); 3]);
        one.set_limits(&promise(7));
        assert_eq!([low(&one), low(&two)], [(7, 2), (0, 2)], "DRAWN-P2");
        let three = memory.add_owner();
        three.set_holder(Some(&two));
        let _charge = three.charge(MemoryClass::Node, 1000);
        assert_eq!([low(&three).1, low(&one).1], [3, 3], "DRAWN-P2");
        one.set_holder(Some(&two));
        assert_eq!(low(&one).1, 4, "DRAWN-P2");
    }
}
