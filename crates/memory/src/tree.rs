//! The tree of owners at one moment: which of them holds which.
//!
//! HELD-T1  Holders form no circle: a group that would close one is taken for a child of the root.
//!          So is a group whose holder is gone, though another has its slot now.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use crate::owner::{Memory, MemoryOwner};

/// All owners, by place in a list.
pub(crate) struct Tree {
    /// By slot.
    pub(crate) owners: Vec<MemoryOwner>,
    /// The place of the holder of each; none for the children of the root.
    holders: Vec<Option<usize>>,
    /// All places, each before the one of its holder.
    upwards: Vec<usize>,
}

impl Memory {
    pub(crate) fn tree(&self) -> Tree {
        let owners = self.owners();
        let places: HashMap<u64, usize> =
            owners.iter().enumerate().map(|(at, owner)| (owner.serial(), at)).collect();
        let holder = |owner: &MemoryOwner| owner.place().holder.load(Relaxed);
        let holders: Vec<Option<usize>> =
            owners.iter().map(|owner| places.get(&holder(owner)).copied()).collect();
        Tree::new(owners, holders)
    }
}

impl Tree {
    fn new(owners: Vec<MemoryOwner>, mut holders: Vec<Option<usize>>) -> Tree {
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
        Tree { owners, holders, upwards }
    }

    /// The children of the root, by slot.
    pub(crate) fn tops(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.holders.len()).filter(|at| self.holders[*at].is_none())
    }

    /// The children of each group, by slot, as far as they are counted.
    pub(crate) fn children(&self, is_counted: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
        let mut children = vec![Vec::new(); self.owners.len()];
        for at in (0..self.owners.len()).filter(|at| is_counted(*at)) {
            if let Some(holder) = self.holders[at] {
                children[holder].push(at);
            }
        }
        children
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
