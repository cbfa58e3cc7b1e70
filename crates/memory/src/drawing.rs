//! Walks find their part of the picture that they share ([`Drawn`]), or draw a new one.

use crate::drawn::{Drawn, ListUse};
use crate::group::picture_of_any;
use crate::owner::{Memory, MemoryOwner};
use crate::picture::Picture;
use crate::place::Slot;
use crate::tree::Tree;
use crate::walk::OwnerLists;

impl ListUse {
    fn of(owner: &MemoryOwner) -> ListUse {
        let (slot, serial, usage) = (owner.slot(), owner.serial(), owner.usage());
        ListUse { slot, serial, usage, alone: owner.group_if_alone(usage) }
    }
}

impl Memory {
    /// The groups with lists of these owners, and all above them, with claims of the others from a
    /// picture that walks share.
    pub(crate) fn picture_with(&self, lists: &[Slot]) -> Picture {
        let lists = self.uses(lists);
        self.with_drawn(&lists, |drawn| drawn.part(&lists))
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
        let known = [of, Some(group)].into_iter().flatten().filter(with_list).map(ListUse::of);
        self.with_drawn(&known.collect::<Vec<_>>(), |drawn| {
            let (below, looks) = lists_below(drawn, &root, lists);
            let part = drawn.part(&self.uses(&below));
            (part.below(group.slot()).unwrap_or_default(), looks)
        })
    }

    /// Whether a walk over these lists needs no new picture.
    pub fn shows(&self, lists: &[Slot]) -> bool {
        let lists = self.uses(lists);
        self.drawn().lock().serves(self.ledger().stamp(), &lists)
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

    fn with_drawn<T>(&self, lists: &[ListUse], then: impl FnOnce(&Drawn) -> T) -> T {
        let mut drawn = self.drawn().lock();
        if drawn.serves(self.ledger().stamp(), lists) {
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
        let users = Tree::of(self.users_of_any());
        let serials = users.owners.iter().map(|of| (of.slot(), of.serial())).collect();
        Drawn::new(picture_of_any(&users), &serials, stamp)
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
