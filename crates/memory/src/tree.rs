//! The tree of owners at one moment: which of them holds which.
//!
//! HELD-T1  Holders form no circle: a group that would close one is taken for a child of the root.
//!          So is a group whose holder is gone, though another has its slot now.

use std::collections::HashMap;

use crate::owner::{Memory, MemoryOwner};
use crate::place::Slot;

/// All owners, by place in a list.
pub(crate) struct Tree {
    /// By slot.
    pub(crate) owners: Vec<MemoryOwner>,
    pub(crate) slots: Vec<Slot>,
    /// The place of the holder of each; none for the children of the root.
    holders: Vec<Option<usize>>,
    /// All places, each before the one of its holder.
    upwards: Vec<usize>,
}

impl Memory {
    pub(crate) fn tree(&self) -> Tree {
        Tree::of(self.owners())
    }
}

impl Tree {
    /// Of owners by slot, with all that hold one of them.
    pub(crate) fn of(owners: Vec<MemoryOwner>) -> Tree {
        let slots: Vec<Slot> = owners.iter().map(MemoryOwner::slot).collect();
        // Slots are ascending, so that of a holder leads to its place.
        let holder = |owner: &MemoryOwner| {
            let (slot, serial) = owner.place().holder()?;
            let at = slots.binary_search(&Slot(slot)).ok()?;
            (owners[at].serial() == serial).then_some(at)
        };
        let holders = owners.iter().map(holder).collect();
        Tree::new(owners, slots, holders)
    }

    fn new(owners: Vec<MemoryOwner>, slots: Vec<Slot>, mut holders: Vec<Option<usize>>) -> Tree {
        let depth = |at: usize| {
            let up = std::iter::successors(Some(at), |at| holders[*at]);
            up.take(holders.len() + 1).count()
        };
        let depths: Vec<usize> = (0..holders.len()).map(depth).collect();
        let mut upwards: Vec<usize> = (0..holders.len()).collect();
        upwards.sort_by_key(|at| std::cmp::Reverse(depths[*at]));
        // A way of more steps than there are groups is a circle.
        let in_circle = |at: &usize| depths[*at] > depths.len();
        upwards.iter().filter(|at| in_circle(at)).for_each(|at| holders[*at] = None);
        Tree { owners, slots, holders, upwards }
    }

    /// The children of the root, by slot.
    pub(crate) fn tops(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.holders.len()).filter(|at| self.holders[*at].is_none())
    }

    /// The children, by slot, of each group that has some which are counted.
    pub(crate) fn children(
        &self,
        is_counted: impl Fn(usize) -> bool,
    ) -> HashMap<usize, Vec<usize>> {
        let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
        let held =
            self.holders.iter().enumerate().filter_map(|(at, holder)| Some((at, (*holder)?)));
        for (at, holder) in held.filter(|(at, _)| is_counted(*at)) {
            children.entry(holder).or_default().push(at);
        }
        children
    }

    /// The promises inside of each group: those of its children, or of what is inside of them.
    pub(crate) fn inside(&self, own: &[u64]) -> Vec<u64> {
        let mut inside = vec![0_u64; own.len()];
        for at in &self.upwards {
            if let Some(holder) = self.holders[*at] {
                inside[holder] = inside[holder].saturating_add(own[*at].max(inside[*at]));
            }
        }
        inside
    }

    /// Adds to the value of each group those of all groups that it holds.
    pub(crate) fn sums<T: Clone>(&self, mut of: Vec<T>, add: impl Fn(&mut T, &T)) -> Vec<T> {
        for at in &self.upwards {
            if let Some(holder) = self.holders[*at] {
                let more = of[*at].clone();
                add(&mut of[holder], &more);
            }
        }
        of
    }
}
