//! Ways: from an account to each distinct node above it.
//!
//! On the way are the groups that it is below, however many memberships lead there, and the
//! subvolumes that hold its directory entry: space inside a subvolume cannot escape its limit. In
//! the place of one that has an heir is the heir: a tombstone inside a subvolume counts in the one
//! that this is rolled back to. The root subvolume is not among them, since everything is
//! inside it: its limit is for its own files.

use std::collections::BTreeSet;
use std::sync::Arc;

use copyhold_format::item::GroupId;
use copyhold_types::SubvolId;

use super::account::{Above, Account};
use super::groups::Groups;
use super::share::Share;

impl Groups {
    /// The nodes above a subvolume, nearest holder first, then groups in order.
    pub(super) fn above(&self, subvol: SubvolId) -> Above {
        let mut above = Above::new();
        for at in self.holders(subvol) {
            let Some(group) = self.all.get(&GroupId::of(at)) else { break };
            above.push((Arc::clone(&group.node), Share::Inside));
        }
        for id in self.groups_above(GroupId::of(subvol)) {
            above.push((Arc::clone(&self.all[&id].node), Share::Member));
        }
        above
    }

    /// The subvolumes that a subvolume counts in, nearest first.
    pub(super) fn holders(&self, subvol: SubvolId) -> Vec<SubvolId> {
        let mut holders = Vec::new();
        let mut holder = self.holder(subvol);
        // Nothing is inside itself, whatever damaged records say.
        while let Some(at) = holder.filter(|at| *at != SubvolId::ROOT && *at != subvol) {
            if holders.contains(&at) {
                break;
            }
            holders.push(at);
            holder = self.holder(at);
        }
        holders
    }

    /// The subvolume that a subvolume counts in: its holder, or the last heir of that.
    pub(super) fn holder(&self, subvol: SubvolId) -> Option<SubvolId> {
        let holder = self.owner(subvol)?.holder?;
        let heir = self.owner(holder).and_then(|holder| holder.heir);
        Some(heir.map_or(holder, |heir| heir.last))
    }

    fn groups_above(&self, id: GroupId) -> BTreeSet<GroupId> {
        let mut above = BTreeSet::new();
        let mut next = vec![id];
        while let Some(group) = next.pop().and_then(|id| self.all.get(&id)) {
            let parents = group.parents.iter().filter(|parent| self.all.contains_key(parent));
            next.extend(parents.filter(|parent| above.insert(**parent)));
        }
        above
    }

    /// The accounts below a group, each once, in order.
    pub(super) fn accounts_below(&self, id: GroupId) -> Vec<Arc<Account>> {
        let mut below = BTreeSet::from([id]);
        let mut next = vec![id];
        while let Some(group) = next.pop().and_then(|id| self.all.get(&id)) {
            next.extend(group.members.iter().filter(|member| below.insert(**member)));
        }
        let owners = below.iter().filter_map(|id| self.all[id].owner.as_ref());
        let owners = owners.filter(|owner| owner.heir.is_none());
        owners.map(|owner| Arc::clone(&owner.account)).collect()
    }

    /// The account of a subvolume and of all that are held inside it, or inside a subvolume whose
    /// heir it is.
    pub(super) fn accounts_inside(&self, subvol: SubvolId) -> Vec<Arc<Account>> {
        let mut inside = BTreeSet::from([subvol]);
        let mut next = vec![subvol];
        while let Some(at) = next.pop() {
            let Some(owner) = self.owner(at) else { continue };
            let is_heir = |of: &&SubvolId| {
                let heir = self.owner(**of).and_then(|of| of.heir);
                heir.is_some_and(|heir| heir.last == at)
            };
            let below = owner.held.iter().chain(owner.heir_of.iter().filter(is_heir));
            next.extend(below.filter(|below| inside.insert(**below)));
        }
        let owners = inside.iter().filter_map(|subvol| self.owner(*subvol));
        owners.map(|owner| Arc::clone(&owner.account)).collect()
    }

    /// The nodes above a subvolume have changed.
    pub(super) fn set_way(&self, subvol: SubvolId) {
        if let Some(owner) = self.owner(subvol).filter(|owner| owner.heir.is_none()) {
            owner.account.set_above(self.above(subvol));
        }
    }

    /// Relations above `id` have changed.
    pub(super) fn set_ways_below(&self, id: GroupId) {
        for account in self.accounts_below(id) {
            account.set_above(self.above(account.subvol));
        }
    }

    /// Sets a reserve, with everything locked out that could change the subvolume's load.
    pub(super) fn set_reserve(&self, subvol: SubvolId, reserve: u64) {
        let Some(group) = self.all.get(&GroupId::of(subvol)) else { return };
        let inside = self.accounts_inside(subvol);
        let _still: Vec<_> = inside.iter().map(|account| account.still()).collect();
        group.node.set_reserve(reserve);
    }
}
