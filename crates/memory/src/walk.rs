//! A walk of reclaim over lists by owner: the picture of the groups, and the counts of the work.
//!
//! WALK-N1  Each byte that a list looks at is counted to the owner of the list, and each that it
//!          frees ([`Stat::Scan`], [`Stat::Steal`]); each pass below `low`, too ([`Event::Low`]).

use std::borrow::Cow;

use crate::events::{Event, Stat};
use crate::owner::{Memory, MemoryOwner};
use crate::picture::Picture;
use crate::place::Slot;
use crate::protection::GroupUse;
use crate::reclaim::{Lists, reclaim, within_reach};
use crate::scan::{Arm, Carry, Look};

/// The lists of objects of one kind, by owner.
pub trait OwnerLists {
    /// The owners with lists.
    fn owners(&self) -> Vec<Slot>;

    /// How many these are.
    fn count(&self) -> usize;

    /// Bytes in the list of an owner; zero if there is none.
    fn size(&self, owner: Slot) -> u64;

    /// The remainder of a list's scans; asked only of one that has a size.
    fn carry(&mut self, owner: Slot) -> &mut Carry;

    /// Looks at the next objects of a list. Returns the bytes that it looked at, and those of them
    /// that are free now.
    fn shrink(&mut self, owner: Slot, look: Look) -> (u64, u64);
}

/// The reason for a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A request needs the room ([`Stat::ScanDirect`]).
    Request,
    /// An operator orders it, or the bound is smaller now.
    Order,
}

impl Memory {
    /// Frees `need` bytes of the lists of all groups, as far as protections leave; how many it did.
    pub fn reclaim(&self, lists: &mut dyn OwnerLists, need: u64, cause: Cause) -> u64 {
        let picture = self.picture_with(&lists.owners());
        let looks = lists.count();
        Walk { memory: self, picture, lists, cause, looks, seen: 0 }.run(need, self.arm())
    }

    /// Frees `need` bytes of the lists of all groups, however they are protected.
    pub fn reclaim_anyway(&self, lists: &mut dyn OwnerLists, need: u64) -> u64 {
        let cause = Cause::Order;
        let picture = self.picture_with(&lists.owners());
        let looks = lists.count();
        Walk { memory: self, picture, lists, cause, looks, seen: 0 }.run(need, Arm::Off)
    }

    /// Frees `need` bytes of the lists of a group and of all that it holds: its own promise does
    /// not count, those of the groups that it holds do.
    pub fn reclaim_below(
        &self,
        group: &MemoryOwner,
        lists: &mut dyn OwnerLists,
        need: u64,
        cause: Cause,
    ) -> u64 {
        self.walk_below(group, None, lists, cause).run(need, self.arm())
    }

    /// A walk over the lists of a group and of all that it holds; `of`: an owner inside that has
    /// one.
    pub(crate) fn walk_below<'a>(
        &'a self,
        group: &MemoryOwner,
        of: Option<&MemoryOwner>,
        lists: &'a mut dyn OwnerLists,
        cause: Cause,
    ) -> Walk<'a> {
        let (picture, looks) = self.picture_below(group, of, lists);
        Walk { memory: self, picture, lists, cause, looks, seen: 0 }
    }
}

/// A walk, and the part of a picture that it needs.
pub(crate) struct Walk<'a> {
    memory: &'a Memory,
    picture: Picture,
    lists: &'a mut dyn OwnerLists,
    cause: Cause,
    /// Lists that were looked at, to find those of the walk.
    pub(crate) looks: usize,
    /// Bytes that were looked at.
    pub(crate) seen: u64,
}

impl Walk<'_> {
    pub(crate) fn run(&mut self, need: u64, arm: Arm) -> u64 {
        let done = reclaim(self, need, arm);
        for list in done.below_low {
            let owner = self.picture.lists[list].and_then(|slot| self.memory.owner(slot));
            owner.inspect(|owner| owner.count(Event::Low));
        }
        done.freed
    }

    /// Bytes of its lists, and how many lists these are.
    pub(crate) fn size(&self) -> (u64, usize) {
        let sizes = self.picture.lists.iter().flatten().map(|slot| self.lists.size(*slot));
        sizes.filter(|size| *size > 0).fold((0, 0), |(sum, lists), size| (sum + size, lists + 1))
    }

    /// The bytes that it can free, if none of them is in use.
    pub(crate) fn within_reach(&self) -> u64 {
        within_reach(self, self.memory.arm())
    }
}

impl Lists for Walk<'_> {
    fn groups(&self) -> Cow<'_, [GroupUse]> {
        Cow::Borrowed(&self.picture.groups)
    }

    fn size(&self, group: usize) -> u64 {
        self.picture.lists[group].map_or(0, |owner| self.lists.size(owner))
    }

    fn carry(&mut self, group: usize) -> &mut Carry {
        self.lists.carry(self.picture.lists[group].expect("a list has an owner"))
    }

    fn shrink(&mut self, group: usize, look: Look) -> (u64, u64) {
        let Some(slot) = self.picture.lists[group] else { return (0, 0) };
        // Its objects may be the last that keep it.
        let owner = self.memory.owner(slot);
        let (seen, freed) = self.lists.shrink(slot, look);
        self.seen += seen;
        if let Some(owner) = owner {
            owner.add_stat(Stat::Scan, seen);
            owner.add_stat(Stat::Steal, freed);
            owner.add_stat(Stat::ScanDirect, if self.cause == Cause::Request { seen } else { 0 });
        }
        let mut at = Some(group);
        while let Some(of) = at {
            let of = &mut self.picture.groups[of];
            of.usage = of.usage.saturating_sub(freed);
            at = of.parent;
        }
        (seen, freed)
    }
}
