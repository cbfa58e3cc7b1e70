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
//! Cost.     A *division* of the limit into parts takes about a microsecond for each owner that it
//!           looks at, and there may be tens of thousands, each with a few edits. So the next
//!           division is due when a 64th of the limit has come or gone, and [`LOOK_BYTES`] for each
//!           owner that the last one gave a part; a 16th of the limit is always enough.
//!
//! SCARCE-P1  While less than half of the limit is used, no group waits: so one that is alone, or
//!            beside others that use little, is not held to its part.
//! SCARCE-P2  Parts are within seven eighths of the limit. A group with less than its part
//!            waits only while the whole limit is used.
//! SCARCE-P3  A group is judged by its part of the last division, unless the next one is due: that
//!            comes first. A group that used nothing at the last division has no part, and may use
//!            the whole limit. When it has used a 64th of the limit, the next division is due as
//!            soon as a 64th has come or gone since the last one.
//! SCARCE-P4  With [`Arm::Off`] there are no parts: all groups wait at the limit alone.
//! SCARCE-P5  With many users, bytes that came or went pay for each division: [`LOOK_BYTES`] for
//!            each owner with a part, while these together are below a 16th of the limit. So
//!            owners without a part have at most that much together, of the eighth that is in no
//!            part.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_sync::{Mutex, of};

use crate::over::{OverTurns, parts};
use crate::owner::{Memory, MemoryClass, MemoryOwner};
use crate::place::Slot;
use crate::scan::Arm;

/// Bytes that come or go for each owner that a division looks at: those of a few edits, which take
/// longer than the look.
const LOOK_BYTES: u64 = 1024;

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
    /// Owners that have a part.
    shared_by: AtomicU64,
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
        self.parts.divide_when_due(memory, None);
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
        self.parts.divide_when_due(memory, Some(owner));
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
        let shared_by = AtomicU64::new(0);
        Parts { class, limit, moved, shared_by, divisions, divided: Mutex::default() }
    }

    /// So many bytes of the class came or went.
    pub fn note_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Relaxed);
    }

    /// Whether the owner uses all of its part now.
    pub fn is_used_up(&self, memory: &Memory, owner: &MemoryOwner) -> bool {
        self.divide_when_due(memory, Some(owner));
        memory.arm() != Arm::Off && self.was_used_up(owner)
    }

    /// Whether the owner uses all of the part that it had last.
    pub fn was_used_up(&self, owner: &MemoryOwner) -> bool {
        // With nothing of its own a group would wait for nothing.
        owner.charged(self.class).max(0) as u64 >= owner.part(self.class).max(1)
    }

    /// SCARCE-P3, for a group that is to be judged.
    fn divide_when_due(&self, memory: &Memory, judged: Option<&MemoryOwner>) {
        let limit = self.limit.load(Relaxed);
        let moved = self.moved.load(Relaxed);
        let is_due = moved >= limit / 64
            && (moved >= self.paid(limit) || judged.is_some_and(|owner| self.is_new(owner, limit)));
        if is_due && self.moved.swap(0, Relaxed) > 0 {
            self.divide(memory, limit);
        }
    }

    /// Bytes that pay for a division (SCARCE-P5).
    fn paid(&self, limit: u64) -> u64 {
        self.shared_by.load(Relaxed).saturating_mul(LOOK_BYTES).min(limit / 16)
    }

    /// Whether a group without a part uses much.
    fn is_new(&self, owner: &MemoryOwner, limit: u64) -> bool {
        let is_without = owner.part(self.class) == u64::MAX;
        is_without && owner.charged(self.class).max(0) as u64 >= limit / 64
    }

    fn divide(&self, memory: &Memory, limit: u64) {
        let picture = memory.picture_of(self.class);
        let parts = parts(&picture.groups, limit - limit / 8);
        let lists = picture.lists.iter().zip(parts);
        let mut by_slot: BTreeMap<Slot, u64> =
            lists.filter_map(|(slot, part)| Some(((*slot)?, part))).collect();
        self.shared_by.store(by_slot.len() as u64, Relaxed);
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

    /// So large that a step of a 64th pays for a division among a few.
    const LIMIT: u64 = 6400 << 10;

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
        scarce.add(&two, 100 << 10);
        // A quarter and three quarters of seven eighths.
        assert_eq!(room(), [Admission::OverPart, Admission::Free]);
        scarce.add(&two, (4099 << 10) + 1023);
        assert_eq!(room(), [Admission::OverPart, Admission::Full], "SCARCE-P2");
        scarce.forget(&one, 2000 << 10);
        assert_eq!(room(), [Admission::Free; 2]);
        scarce.add(&two, 1);
        assert_eq!(room(), [Admission::Free, Admission::OverPart]);
        scarce.forget(&two, 4200 << 10);
        scarce.forget(&one, LIMIT / 2 - 1 - (2000 << 10));
        assert_eq!(scarce.used(), 0);
    }

    #[test]
    fn a_group_that_begins_finds_room_beside_one_that_has_filled_the_rest() {
        const STEP: u64 = 10 << 10;
        let (memory, scarce) = (Memory::default(), scarce());
        let (rogue, other) = (memory.add_owner(), memory.add_owner());
        while scarce.admission(&memory, &rogue) == Admission::Free {
            scarce.add(&rogue, STEP);
        }
        assert_eq!(scarce.used(), LIMIT - LIMIT / 8);
        let mut had = 0;
        while scarce.admission(&memory, &other) == Admission::Free {
            scarce.add(&other, STEP);
            had += STEP;
        }
        assert_eq!(
            (had, scarce.admission(&memory, &other)),
            (LIMIT / 8, Admission::Full),
            "SCARCE-P2"
        );
        memory.set_arm(Arm::Off);
        scarce.forget(&other, STEP);
        let room = [&rogue, &other].map(|owner| scarce.admission(&memory, owner));
        assert_eq!(room, [Admission::Free; 2], "SCARCE-P4");
        scarce.forget(&rogue, LIMIT - LIMIT / 8);
        scarce.forget(&other, had - STEP);
    }

    /// A world of so many groups that use half of the limit together.
    fn with_users(users: usize) -> (Memory, Scarce, Vec<MemoryOwner>) {
        let (memory, scarce) = (Memory::default(), scarce());
        let owners: Vec<MemoryOwner> = (0..users).map(|_| memory.add_owner()).collect();
        owners.iter().for_each(|owner| scarce.add(owner, LIMIT / 2 / users as u64));
        (memory, scarce, owners)
    }

    /// Bytes that come and go, few of each group, for each owner that divisions look at.
    fn moved_per_look(users: usize) -> u64 {
        const ROUNDS: u64 = 40;
        let (memory, scarce, owners) = with_users(users);
        assert!(scarce.is_half_used());
        scarce.admission(&memory, &owners[0]);
        let before = memory.looks();
        for _ in 0..ROUNDS {
            for owner in &owners {
                scarce.forget(owner, 1 << 10);
                scarce.add(owner, 1 << 10);
                scarce.admission(&memory, owner);
            }
        }
        owners.iter().for_each(|owner| scarce.forget(owner, LIMIT / 2 / users as u64));
        ROUNDS * users as u64 * 2048 / (memory.looks() - before).max(1)
    }

    #[test]
    fn bytes_that_move_pay_for_looks_whatever_the_number_of_users() {
        let most = (LIMIT / 16 / LOOK_BYTES) as usize;
        assert!(moved_per_look(most) >= LOOK_BYTES, "SCARCE-P5");
        // A 16th of the limit is enough.
        assert!(moved_per_look(4 * most) >= LOOK_BYTES / 4, "SCARCE-P5");
    }

    #[test]
    fn a_group_that_begins_among_many_gets_a_part_when_it_uses_much() {
        let (memory, scarce, owners) = with_users((LIMIT >> 10) as usize / 2);
        scarce.admission(&memory, &owners[0]);
        let rogue = memory.add_owner();
        scarce.add(&rogue, LIMIT / 64 - 1);
        assert_eq!(scarce.admission(&memory, &rogue), Admission::Free);
        scarce.add(&rogue, 1);
        assert_eq!(scarce.admission(&memory, &rogue), Admission::OverPart, "SCARCE-P3");
        scarce.forget(&rogue, LIMIT / 64);
        owners.iter().for_each(|owner| scarce.forget(owner, 1 << 10));
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
            for (n, kib, comes) in steps {
                let bytes = kib << 10;
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
