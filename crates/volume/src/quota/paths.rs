//! Ways: from an account to each distinct node above it.
//!
//! On the way are the groups that it is below, however many memberships lead there, and the
//! subvolumes that hold its directory entry: space inside a subvolume cannot escape its limit. The
//! root subvolume is not among them, since everything is inside it: its limit is for its own
//! files.

use std::collections::BTreeSet;
use std::sync::Arc;

use copyhold_format::item::GroupId;
use copyhold_types::SubvolId;

use super::account::{Above, Account};
use super::groups::Groups;
use super::node::Share;

impl Groups {
    /// The nodes above a subvolume, nearest holder first, then groups in order.
    pub(super) fn above(&self, subvol: SubvolId) -> Above {
        let mut above = Above::new();
        let mut seen = BTreeSet::from([subvol]);
        let mut holder = self.owner(subvol).and_then(|owner| owner.holder);
        while let Some(at) = holder.filter(|at| *at != SubvolId::ROOT && seen.insert(*at)) {
            let Some(group) = self.all.get(&GroupId::of(at)) else { break };
            above.push((Arc::clone(&group.node), Share::Inside));
            holder = group.owner.as_ref().and_then(|owner| owner.holder);
        }
        for id in self.groups_above(GroupId::of(subvol)) {
            above.push((Arc::clone(&self.all[&id].node), Share::Member));
        }
        above
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

    /// The account of a subvolume and of all that are held inside it.
    pub(super) fn accounts_inside(&self, subvol: SubvolId) -> Vec<Arc<Account>> {
        let mut inside = BTreeSet::from([subvol]);
        let mut next = vec![subvol];
        while let Some(owner) = next.pop().and_then(|subvol| self.owner(subvol)) {
            next.extend(owner.held.iter().filter(|held| inside.insert(**held)));
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
