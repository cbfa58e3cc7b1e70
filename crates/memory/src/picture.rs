//! The groups of one walk, as it finds them.

use crate::place::Slot;
use crate::protection::GroupUse;

/// The groups of one walk.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// The root first, parents before their children, and all of a group before the next one.
    pub groups: Vec<GroupUse>,
    /// The owner of each group's list; none for groups that hold others.
    pub lists: Vec<Option<Slot>>,
    /// The owner with the limits of each group; none for the root, and for the list of a holder.
    pub(crate) limited: Vec<Option<Slot>>,
}

impl Picture {
    pub(crate) fn with_room(groups: usize) -> Picture {
        let lists = || Vec::with_capacity(groups);
        Picture { groups: Vec::with_capacity(groups), lists: lists(), limited: lists() }
    }

    pub(crate) fn push(
        &mut self,
        group: GroupUse,
        list: Option<Slot>,
        limited: Option<Slot>,
    ) -> usize {
        self.groups.push(group);
        self.lists.push(list);
        self.limited.push(limited);
        self.groups.len() - 1
    }

    /// The place of the group with the limits of this owner, if it has some usage.
    pub(crate) fn place(&self, of: Slot) -> Option<usize> {
        self.limited.iter().position(|slot| *slot == Some(of))
    }

    /// The part at and below a group, which is the root of it: so its own promise does not count,
    /// and those of the groups that it holds do. None if it has no usage.
    pub fn below(&self, of: Slot) -> Option<Picture> {
        let root = self.place(of)?;
        let is_outside = |group: &GroupUse| group.parent < Some(root);
        let behind = self.groups[root + 1..].iter().position(is_outside);
        let all = root..behind.map_or(self.groups.len(), |n| root + 1 + n);
        let mut groups = self.groups[all.clone()].to_vec();
        groups[0].parent = None;
        groups[1..].iter_mut().for_each(|group| group.parent = group.parent.map(|at| at - root));
        let [lists, limited] = [&self.lists, &self.limited].map(|of| of[all.clone()].to_vec());
        Some(Picture { groups, lists, limited })
    }
}
