//! Walks find their part of the picture that they share ([`Drawn`]), or draw a new one.

use crate::drawn::{Drawn, ListUse};
use crate::owner::{Memory, MemoryOwner};
use crate::picture::Picture;
use crate::place::Slot;
use crate::walk::OwnerLists;

impl ListUse {
    fn of(owner: &MemoryOwner) -> ListUse {
        ListUse { slot: owner.slot(), serial: owner.serial(), usage: owner.usage() }
    }
}

impl Memory {
    /// The groups with lists of these owners, and all above them, with claims of the others from a
    /// picture that walks share.
    pub(crate) fn picture_with(&self, lists: &[Slot]) -> Picture {
        let lists = self.uses(lists);
        let serves = |drawn: &Drawn| lists.iter().all(|list| drawn.place(list).is_some());
        self.with_drawn(serves, |drawn| drawn.part(&lists))
    }

    /// A group and all that it holds, as far as they have lists here; and how many lists were
    /// looked at. It has no promise. `of`: an owner inside that may have a list.
    pub(crate) fn picture_below(
        &self,
        group: &MemoryOwner,
        of: Option<&MemoryOwner>,
        lists: &dyn OwnerLists,
    ) -> (Picture, usize) {
        let root = ListUse::of(group);
        let with_list = |owner: &&MemoryOwner| lists.size(owner.slot()) > 0;
        let known = [of, Some(group)].map(|owner| owner.filter(with_list).map(ListUse::of));
        let serves = |drawn: &Drawn| known.iter().flatten().all(|list| drawn.place(list).is_some());
        self.with_drawn(serves, |drawn| {
            let (below, looks) = lists_below(drawn, &root, lists);
            let part = drawn.part(&self.uses(&below));
            (part.below(group.slot()).unwrap_or_default(), looks)
        })
    }

    /// Whether a walk over these lists needs no new picture.
    pub fn shows(&self, lists: &[Slot]) -> bool {
        let lists = self.uses(lists);
        let drawn = self.drawn().lock();
        let is_there = |list: &ListUse| drawn.place(list).is_some();
        drawn.lasts(self.ledger().stamp()) && lists.iter().all(is_there)
    }

    fn draw_anew(&self) {
        let new = self.new_drawn();
        self.drawn().lock().replace(new);
    }

    /// Takes the lock of a part of a cache, after a new picture if the part `needs` one: to draw it
    /// takes as long as there are owners.
    pub fn lock_with_picture<G>(
        &self,
        lock: impl Fn() -> G,
        needs_picture: impl FnOnce(&G) -> bool,
    ) -> G {
        let part = lock();
        if !needs_picture(&part) {
            return part;
        }
        drop(part);
        self.draw_anew();
        lock()
    }

    fn uses(&self, lists: &[Slot]) -> Vec<ListUse> {
        lists.iter().filter_map(|slot| Some(ListUse::of(&self.owner(*slot)?))).collect()
    }

    fn with_drawn<T>(&self, serves: impl Fn(&Drawn) -> bool, then: impl FnOnce(&Drawn) -> T) -> T {
        let drawn = self.drawn().lock();
        if drawn.lasts(self.ledger().stamp()) && serves(&drawn) {
            return then(&drawn);
        }
        drop(drawn);
        let new = self.new_drawn();
        let mut drawn = self.drawn().lock();
        drawn.replace(new);
        then(&drawn)
    }

    fn new_drawn(&self) -> Drawn {
        let stamp = self.ledger().stamp();
        let serials = self.owners().iter().map(|of| (of.slot(), of.serial())).collect();
        Drawn::new(self.picture(), &serials, stamp)
    }
}

/// The owners of these lists that are in a group, and how many were looked at (DRAWN-P3).
fn lists_below(drawn: &Drawn, group: &ListUse, lists: &dyn OwnerLists) -> (Vec<Slot>, usize) {
    let below = drawn.places_below(group);
    if below.len() <= lists.count() {
        let looks = below.len();
        return (drawn.slots(below).filter(|slot| lists.size(*slot) > 0).collect(), looks);
    }
    let is_below = |slot: &Slot| drawn.is_at(*slot, &below);
    (lists.owners().into_iter().filter(is_below).collect(), lists.count())
}
