//! The promises to subvolumes and groups: limits, reserves, memberships.
//!
//! Each client has subvolumes and groups of its own, so it knows the order of its changes. Its
//! promises are a part of its tree: after a recovery they must be as they were after the same
//! number of steps as the rest of the tree.
//!
//! They are those of one enabling of quotas: turning them off loses them all. But a crash may undo
//! that, so those of an earlier one are kept until the next recovery.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::Limits;
use copyhold_types::SubvolId;
use copyhold_volume::quota::{GroupId, GroupUse};

use super::tree::ObjectId;
use super::usage::Shown;

/// Groups of this number and above are of clients, so many each; of each level.
const FIRST: u64 = 100;
pub(crate) const GROUPS: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    Subvol(ObjectId),
    Group(GroupId),
}

/// The promises of one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) limits: Limits,
    /// Bytes that it gets whatever others do.
    pub(crate) reserve: u64,
    /// Of which it is a member.
    pub(crate) parents: BTreeSet<GroupId>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Promises {
    /// By the number of the enabling. Of a subvolume to which nothing was promised there may be
    /// none.
    all: BTreeMap<u64, BTreeMap<Holder, Promise>>,
}

/// A group of a client.
pub(crate) fn group(client: usize, level: u16, nth: u64) -> GroupId {
    let id = FIRST + client as u64 * GROUPS + nth;
    GroupId::new(level, id).expect("a small number")
}

fn owner(group: GroupId) -> Option<usize> {
    let nth = group.id().checked_sub(FIRST).filter(|_| group.level() > 0)?;
    Some((nth / GROUPS) as usize)
}

impl Promises {
    fn find(&self, generation: u64, holder: Holder) -> Option<&Promise> {
        self.all.get(&generation)?.get(&holder)
    }

    pub(crate) fn get(&self, generation: u64, holder: Holder) -> Promise {
        self.find(generation, holder).cloned().unwrap_or_default()
    }

    /// Whether a group has been made.
    pub(crate) fn has(&self, generation: u64, group: GroupId) -> bool {
        self.find(generation, Holder::Group(group)).is_some()
    }

    pub(crate) fn set(&mut self, generation: u64, holder: Holder, promise: Promise) {
        self.all.entry(generation).or_default().insert(holder, promise);
    }

    /// The groups above, each once.
    pub(crate) fn above(&self, generation: u64, holder: Holder) -> BTreeSet<GroupId> {
        let mut above = self.get(generation, holder).parents;
        for group in above.clone() {
            above.extend(self.above(generation, Holder::Group(group)));
        }
        above
    }

    pub(crate) fn remove(&mut self, holder: Holder) {
        self.all.values_mut().for_each(|promises| drop(promises.remove(&holder)));
    }

    /// A new subvolume is in the groups of the one that holds its entry, and that is all.
    pub(crate) fn join(&mut self, new: ObjectId, holder: Option<ObjectId>) {
        for promises in self.all.values_mut() {
            let holder = holder.and_then(|holder| promises.get(&Holder::Subvol(holder)));
            let parents = holder.map(|holder| holder.parents.clone()).unwrap_or_default();
            promises.insert(Holder::Subvol(new), Promise { parents, ..Promise::default() });
        }
    }

    /// The replacement of `old` takes over all promises to it. If `old` still exists, it stays in
    /// its groups, with its limits.
    pub(crate) fn replace(&mut self, old: ObjectId, new: ObjectId) {
        for promises in self.all.values_mut() {
            let Some(promise) = promises.get_mut(&Holder::Subvol(old)) else { continue };
            let before = promise.clone();
            promise.reserve = 0;
            promises.insert(Holder::Subvol(new), before);
        }
    }

    /// Those of other enablings will not come back.
    pub(crate) fn retain(&mut self, shown: &Shown) {
        self.all.retain(|generation, _| shown.on && *generation == shown.generation);
    }

    /// The other settings of this client's subvolumes, whose numbers are known, and of its groups.
    pub(crate) fn difference(
        &self,
        client: usize,
        subvols: &BTreeMap<ObjectId, SubvolId>,
        shown: &Shown,
    ) -> Option<String> {
        if !shown.on {
            return None;
        }
        let generation = shown.generation;
        let is_mine = |id: &GroupId| owner(*id) == Some(client);
        let as_promised = |found: &GroupUse| Promise {
            limits: found.limits,
            reserve: found.reserve,
            parents: found.parents.iter().copied().filter(is_mine).collect(),
        };
        let groups = self.all.get(&generation).into_iter().flatten();
        let groups = groups.filter_map(|(holder, promise)| match holder {
            Holder::Group(id) => Some((*id, promise.clone())),
            Holder::Subvol(_) => None,
        });
        let subvols = subvols
            .iter()
            .map(|(object, id)| (GroupId::of(*id), self.get(generation, Holder::Subvol(*object))));
        let expected: BTreeMap<GroupId, Promise> = groups.chain(subvols).collect();
        for (id, promise) in &expected {
            let Some(found) = shown.group(*id) else { return Some(format!("no group {id}")) };
            let found = as_promised(found);
            if found != *promise {
                return Some(format!("group {id} has {found:?}, not {promise:?}"));
            }
        }
        let mine = shown.groups.iter().map(|group| group.id).filter(is_mine);
        let extra = mine.into_iter().find(|id| !expected.contains_key(id));
        extra.map(|id| format!("there should be no group {id}"))
    }
}
