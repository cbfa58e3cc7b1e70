//! Owners that move, and owners that another one replaces.
//!
//! A subvolume that is rolled back is a new owner with the groups, the limits and the reserve of
//! the old one, which leaves it all that it pays for, or goes on as an owner of its own. Nothing
//! here is refused for want of room: an owner above a limit then can write nothing new.

use std::sync::Arc;

use copyhold_format::item::{GroupItem, Limits, member_key};
use copyhold_pool::Edit;
use copyhold_types::{SubvolId, Timestamp};

use super::account::Account;
use super::error::QuotaError;
use super::groups::Groups;
use super::node::{Node, Sums};
use super::owners::Resident;
use super::request::{Request, Tier};
use super::share::Share;
use super::{GroupId, Ledger, Rows};
use crate::sabotage::Sabotage;

/// The fate of an owner that another one replaces.
#[derive(Clone, Copy, Debug)]
pub enum Replaced<'a> {
    /// It is dead; the new one is its heir.
    Deleted { since: Timestamp, name: &'a [u8] },
    /// It lives on, inside this subvolume.
    Kept { holder: SubvolId },
}

impl Ledger {
    /// The entry of a subvolume is in a directory of `holder` from now on; all that is inside moves
    /// with it. Its groups stay the same. There is no record of this but the subvolume's own.
    pub fn move_subvolume(&self, subvol: SubvolId, holder: SubvolId) {
        if let Ok(mut groups) = self.on() {
            groups.move_owner(subvol, holder);
        }
    }

    /// Whether all that a subvolume holds fits under the limits that its move to `holder` brings
    /// it under.
    pub fn check_move(&self, subvol: SubvolId, holder: SubvolId) -> Result<(), QuotaError> {
        let Ok(groups) = self.on() else { return Ok(()) };
        let mut moved = Request::default();
        for account in groups.accounts_inside(subvol) {
            account.add_to(&mut moved);
        }
        let before = groups.above(subvol);
        let is_new = |node: &Node| !before.iter().any(|(other, _)| other.id == node.id);
        let inside = std::iter::once(holder).chain(groups.holders(holder));
        let nodes = inside.filter(|at| *at != SubvolId::ROOT).filter_map(|at| groups.owner(at));
        let mut nodes = nodes.map(|owner| &owner.account.node).filter(|node| is_new(node));
        nodes
            .try_for_each(|node| node.would_take(&moved, Share::Inside, Tier::Write))
            .map_err(QuotaError::Exceeded)
    }

    /// `new`, a snapshot of its origin, comes in the place of `old`. It has all the inodes of its
    /// origin.
    pub fn replace_subvolume(
        &self,
        new: Resident,
        old: SubvolId,
        replaced: Replaced<'_>,
    ) -> Result<Rows, QuotaError> {
        let Ok(mut groups) = self.on() else { return Ok(Rows::new()) };
        let id = GroupId::of(new.subvol);
        if groups.all.contains_key(&id) {
            return Err(QuotaError::Exists(id));
        }
        let group = groups.get(GroupId::of(old))?;
        if group.owner.as_ref().is_none_or(|owner| owner.account.is_dead()) {
            return Err(QuotaError::Deleted(old));
        }
        let (parents, limits) = (group.parents.clone(), group.item.limits);
        let old_node = Arc::clone(&group.node);
        let is_lost = self.breaks(Sabotage::LoseReserve);
        let reserve = if is_lost { 0 } else { group.item.reserve };

        let mut rows = Rows::new();
        let account = self.add_account(&mut groups, new.subvol);
        groups.set_holder(new.subvol, new.holder);
        for parent in parents {
            groups.link(id, parent);
            rows.push((member_key(id, parent), Edit::Put((&[]).into())));
        }
        account.set_above(groups.above(new.subvol));
        account.begin_life();
        if let Some(origin) = new.origin {
            groups.take_inodes(&account, origin, &mut rows);
            groups.count_snapshot(new.subvol, origin, false);
        }
        // One of the two has the reserve at any time, or none.
        groups.promise(old, limits, 0, &mut rows)?;
        match replaced {
            Replaced::Deleted { since, name } => {
                self.end_owner(&mut groups, old, since, name, Some(new.subvol), &mut rows)?;
            }
            Replaced::Kept { holder } => groups.move_owner(old, holder),
        }
        groups.promise(new.subvol, limits, reserve, &mut rows)?;
        account.node.succeed(&old_node);
        Ok(rows)
    }
}

impl Groups {
    fn move_owner(&mut self, subvol: SubvolId, holder: SubvolId) {
        let Some(owner) = self.owner(subvol) else { return };
        if let Some(before) = owner.holder.and_then(|before| self.owner_mut(before)) {
            before.held.remove(&subvol);
        }
        self.set_holder(subvol, Some(holder));
        for inside in self.accounts_inside(subvol) {
            self.set_way(inside.subvol);
        }
    }

    /// As many inodes as `origin` has, at any limits.
    fn take_inodes(&self, account: &Account, origin: SubvolId, rows: &mut Rows) {
        let Some(item) = self.owner(origin).and_then(|origin| origin.account.files.item()) else {
            return;
        };
        account.files.set(&item);
        account.pay(&Sums { inodes: item.count as i64, ..Sums::default() });
        rows.push((
            copyhold_format::item::inodes_key(account.subvol),
            Edit::Put((&item.encode()).into()),
        ));
    }

    /// Sets limits and reserve of a living owner.
    fn promise(
        &mut self,
        subvol: SubvolId,
        limits: Limits,
        reserve: u64,
        rows: &mut Rows,
    ) -> Result<(), QuotaError> {
        let group = self.get_mut(GroupId::of(subvol))?;
        let item = GroupItem { limits, reserve, ..group.item.clone() };
        if group.item != item {
            group.item = item;
            group.node.set_limits(&limits);
            group.log(rows);
            self.set_reserve(subvol, reserve);
        }
        Ok(())
    }
}
