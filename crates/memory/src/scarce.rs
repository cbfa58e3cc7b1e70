//! A class of memory that is shared out when it is scarce.
//!
//! Problem.  All writers wait when the limit of dirty data is used up, also by another tenant: one
//!           that writes fast makes all others wait for the device.
//! Idea.     Each group has a *part* of the limit, by weight among the groups that use some of the
//!           class now, at each level of the tree. Beyond its part a group waits, for its own
//!           memory to come back; below it, it goes on. An eighth of the limit is in no part: room
//!           for a group that begins when the others have theirs.
//! In core.  A part for each owner, computed anew when some of the class has come or gone, with a
//!           look at the owners that use some of it (`users`).
//!
//! SCARCE-P1  While less than half of the limit is used, no group waits: so one that is alone, or
//!            beside others that use little, is not held to its part.
//! SCARCE-P2  Parts are within seven eighths of the limit. A group with less than its part
//!            waits only while the whole limit is used.
//! SCARCE-P4  With [`Arm::Off`] there are no parts: all groups wait at the limit alone.
//! SCARCE-P3  Parts are those of a moment less than a 64th of the limit ago, in bytes that came or
//!            went. A group that used nothing then has no part, and the whole limit is its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_sync::{Mutex, of};

use crate::over::{OverTurns, parts};
use crate::owner::{Memory, MemoryClass, MemoryOwner};
use crate::place::Slot;
use crate::scan::Arm;

/// A class with a limit for all owners.
#[derive(Debug)]
pub struct Scarce {
    parts: Parts,
    used: AtomicU64,
    over: OverTurns,
}

/// The parts of the limit of a class.
#[derive(Debug)]
pub struct Parts {
    class: MemoryClass,
    limit: AtomicU64,
    /// Bytes that came or went since the parts were computed.
    moved: AtomicU64,
    /// How often they were computed.
    divisions: AtomicU64,
    /// The owners that have a part.
    divided: Mutex<Vec<Slot>, of::MemoryDivided>,
}

/// Whether a group may use more of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Free,
    /// The group has its part: it waits for its own memory.
    OverPart,
    /// The limit of all is used up.
    Full,
}

impl Scarce {
    pub fn new(class: MemoryClass, limit: u64) -> Scarce {
        let (parts, used) = (Parts::new(class, limit), AtomicU64::new(0));
        Scarce { parts, used, over: OverTurns::default() }
    }

    pub fn limit(&self) -> u64 {
        self.parts.limit.load(Relaxed)
    }

    pub fn set_limit(&self, limit: u64) {
        self.parts.limit.store(limit, Relaxed);
        // The parts are those of another limit.
        self.parts.moved.store(u64::MAX / 2, Relaxed);
    }

    /// Whether the owner uses all of the part that it had last.
    pub fn has_used_up_part(&self, owner: &MemoryOwner) -> bool {
        self.parts.was_used_up(owner)
    }

    /// The owner that uses most beyond its part, for its part, as of the last division of parts;
    /// none: all are within their parts (OVER-O3).
    pub fn most_over(&self, memory: &Memory) -> Option<MemoryOwner> {
        self.parts.divide_when_due(memory);
        let (limit, division) = (self.limit(), self.parts.divisions.load(Relaxed));
        self.over.next(memory, self.parts.class, limit - limit / 8, division)
    }

    /// Another owner is next, until each was.
    pub fn pass_over(&self, owner: &MemoryOwner) {
        self.over.pass(owner);
    }

    /// The owners above their parts are of no interest now. They may end.
    pub fn end_turns(&self) {
        self.over.end();
    }

    /// Bytes in use, of all owners.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub fn is_half_used(&self) -> bool {
        self.used() >= self.limit() / 2
    }

    pub fn add(&self, owner: &MemoryOwner, bytes: u64) {
        owner.add(self.parts.class, bytes as i64);
        self.used.fetch_add(bytes, Relaxed);
        self.parts.note_moved(bytes);
    }

    pub fn forget(&self, owner: &MemoryOwner, bytes: u64) {
        owner.add(self.parts.class, -(bytes as i64));
        self.used.fetch_sub(bytes, Relaxed);
        self.parts.note_moved(bytes);
    }

    /// The share of its part that the owner uses; `None` while less than half of the limit is used,
    /// and if there are no parts.
    pub fn fill(&self, memory: &Memory, owner: &MemoryOwner) -> Option<f64> {
        if !self.is_half_used() || memory.arm() == Arm::Off {
            return None;
        }
        self.parts.divide_when_due(memory);
        self.last_fill(owner)
    }

    /// As [`Self::fill`], of the part that it had last.
    pub fn last_fill(&self, owner: &MemoryOwner) -> Option<f64> {
        let used = owner.charged(self.parts.class).max(0) as f64;
        let part = owner.part(self.parts.class).max(1) as f64;
        self.is_half_used().then_some(used / part)
    }

    /// Whether the owner may use more.
    pub fn admission(&self, memory: &Memory, owner: &MemoryOwner) -> Admission {
        if !self.is_half_used() {
            Admission::Free
        } else if self.parts.is_used_up(memory, owner) {
            Admission::OverPart
        } else if self.used() >= self.limit() {
            Admission::Full
        } else {
            Admission::Free
        }
    }
}

impl Parts {
    pub fn new(class: MemoryClass, limit: u64) -> Parts {
        let limit = AtomicU64::new(limit);
        let (moved, divisions) = (AtomicU64::new(u64::MAX / 2), AtomicU64::new(0));
        Parts { class, limit, moved, divisions, divided: Mutex::new(Vec::new()) }
    }

    /// So many bytes of the class came or went.
    pub fn note_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Relaxed);
    }

    /// Whether the owner uses all of its part now.
    pub fn is_used_up(&self, memory: &Memory, owner: &MemoryOwner) -> bool {
        self.divide_when_due(memory);
        memory.arm() != Arm::Off && self.was_used_up(owner)
    }

    /// Whether the owner uses all of the part that it had last.
    pub fn was_used_up(&self, owner: &MemoryOwner) -> bool {
        // With nothing of its own a group would wait for nothing.
        owner.charged(self.class).max(0) as u64 >= owner.part(self.class).max(1)
    }

    /// SCARCE-P3.
    fn divide_when_due(&self, memory: &Memory) {
        let limit = self.limit.load(Relaxed);
        if self.moved.load(Relaxed) < limit / 64 || self.moved.swap(0, Relaxed) == 0 {
            return;
        }
        let picture = memory.picture_of(self.class);
        let parts = parts(&picture.groups, limit - limit / 8);
        let lists = picture.lists.iter().zip(parts);
        let mut by_slot: BTreeMap<Slot, u64> =
            lists.filter_map(|(slot, part)| Some(((*slot)?, part))).collect();
        let mut divided = self.divided.lock();
        let slots: Vec<Slot> = by_slot.keys().copied().collect();
        for slot in std::mem::replace(&mut *divided, slots) {
            by_slot.entry(slot).or_insert(u64::MAX);
        }
        let slots: Vec<Slot> = by_slot.keys().copied().collect();
        let owners = memory.owners_at(&slots);
        for owner in &owners {
            owner.set_part(self.class, by_slot[&owner.slot()]);
        }
        drop(divided);
        self.divisions.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::GroupLimits;
    use crate::protection::GroupUse;

    const LIMIT: u64 = 6400;

    fn scarce() -> Scarce {
        Scarce::new(MemoryClass::Dirty, LIMIT)
    }

    #[test]
    fn no_group_waits_while_half_is_free_and_above_only_those_with_their_parts() {
        let (memory, scarce) = (Memory::default(), scarce());
        let (one, two) = (memory.add_owner(), memory.add_owner());
        two.set_limits(&GroupLimits { weight: 300, ..GroupLimits::default() });
        let room = || [&one, &two].map(|owner| scarce.admission(&memory, owner));
        scarce.add(&one, LIMIT / 2 - 1);
        assert_eq!(room(), [Admission::Free; 2], "SCARCE-P1");
        scarce.add(&two, 100);
        // A quarter and three quarters of seven eighths.
        assert_eq!(room(), [Admission::OverPart, Admission::Free]);
        scarce.add(&two, 4099);
        assert_eq!(room(), [Admission::OverPart, Admission::Full], "SCARCE-P2");
        scarce.forget(&one, 2000);
        assert_eq!(room(), [Admission::Free; 2]);
        scarce.add(&two, 1);
        assert_eq!(room(), [Admission::Free, Admission::OverPart]);
        scarce.forget(&two, 4200);
        scarce.forget(&one, LIMIT / 2 - 2001);
        assert_eq!(scarce.used(), 0);
    }

    #[test]
    fn a_group_that_begins_finds_room_beside_one_that_has_filled_the_rest() {
        let (memory, scarce) = (Memory::default(), scarce());
        let (rogue, other) = (memory.add_owner(), memory.add_owner());
        while scarce.admission(&memory, &rogue) == Admission::Free {
            scarce.add(&rogue, 10);
        }
        assert_eq!(scarce.used(), LIMIT - LIMIT / 8);
        let mut had = 0;
        while scarce.admission(&memory, &other) == Admission::Free {
            scarce.add(&other, 10);
            had += 10;
        }
        assert_eq!(
            (had, scarce.admission(&memory, &other)),
            (LIMIT / 8, Admission::Full),
            "SCARCE-P2"
        );
        memory.set_arm(Arm::Off);
        scarce.forget(&other, 10);
        let room = [&rogue, &other].map(|owner| scarce.admission(&memory, owner));
        assert_eq!(room, [Admission::Free; 2], "SCARCE-P4");
        scarce.forget(&rogue, LIMIT - LIMIT / 8);
        scarce.forget(&other, had - 10);
    }

    proptest! {
        /// SCARCE-P1 and SCARCE-P2 against sums: owners beside each other, each step of which is
        /// so large that parts are computed anew.
        #[test]
        fn a_group_waits_exactly_when_a_plain_model_says_so(
            steps in prop::collection::vec((0..4_usize, 100..800_u64, any::<bool>()), 1..60),
            weights in prop::array::uniform4(1..400_u32),
        ) {
            let (memory, scarce) = (Memory::default(), scarce());
            let owners = weights.map(|weight| {
                let owner = memory.add_owner();
                owner.set_limits(&GroupLimits { weight, ..GroupLimits::default() });
                owner
            });
            let mut uses = [0; 4];
            for (n, bytes, comes) in steps {
                let bytes = if comes { bytes } else { bytes.min(uses[n]) };
                if comes {
                    scarce.add(&owners[n], bytes);
                    uses[n] += bytes;
                } else {
                    scarce.forget(&owners[n], bytes);
                    uses[n] -= bytes;
                }
                let used: u64 = uses.iter().sum();
                // A smaller step leaves the parts of the step before.
                if used < LIMIT / 2 || bytes < LIMIT / 64 {
                    continue;
                }
                let users = (0..4).filter(|of| uses[*of] > 0);
                let all: u64 = users.map(|of| u64::from(weights[of])).sum();
                for (of, owner) in owners.iter().enumerate() {
                    let part = (LIMIT - LIMIT / 8) * u64::from(weights[of]) / all;
                    let wanted = match uses[of] {
                        mine if mine > 0 && mine >= part => Admission::OverPart,
                        _ if used >= LIMIT => Admission::Full,
                        _ => Admission::Free,
                    };
                    prop_assert_eq!(scarce.admission(&memory, owner), wanted, "{:?}", uses);
                }
            }
            (0..4).for_each(|of| scarce.forget(&owners[of], uses[of]));
        }

        /// SCARCE-P2, at each level.
        #[test]
        fn the_parts_of_children_are_within_that_of_their_parent(
            weights in prop::collection::vec((any::<prop::sample::Index>(), 0..2000_u32), 0..30),
            whole in 0..u64::MAX,
        ) {
            let mut groups = vec![GroupUse::default()];
            for (parent, weight) in weights {
                let parent = Some(parent.index(groups.len()));
                groups.push(GroupUse { parent, weight, ..GroupUse::default() });
            }
            let parts = parts(&groups, whole);
            for (at, part) in parts.iter().enumerate() {
                let children: Vec<usize> =
                    (0..groups.len()).filter(|child| groups[*child].parent == Some(at)).collect();
                let sum: u64 = children.iter().map(|child| parts[*child]).sum();
                prop_assert!(sum <= *part);
                // Rounded down, each.
                prop_assert!(children.is_empty() || sum + children.len() as u64 >= *part);
            }
        }
    }
}
