//! Owners that move, and owners that another one replaces.
//!
//! A subvolume that is rolled back is a new owner with the groups, the limits and the reserve of
//! the old one, which leaves it all that it pays for, or goes on as an owner of its own.
//!
//! Limits refuse only what a rollback adds: inodes, if the snapshot has more than the old state,
//! and a subvolume, if the old state is kept. A rollback that adds nothing is a way out of a limit,
//! and never refused.

use std::sync::Arc;

use copyhold_format::item::{GroupItem, Limits, member_key};
use copyhold_pool::Edit;
use copyhold_types::{SubvolId, Timestamp};

use super::account::Account;
use super::error::QuotaError;
use super::groups::Groups;
use super::hold::Hold;
use super::node::{Node, Sums};
use super::owners::{Resident, begin};
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
    /// origin. Limits may refuse what this adds.
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

        let mut more = match replaced {
            Replaced::Deleted { .. } => groups.hold_more_inodes(old, new.origin)?,
            Replaced::Kept { .. } => groups.hold_snapshot(new.origin)?,
        };
        let mut rows = Rows::new();
        let account = self.add_resident(&mut groups, &new, &parents);
        account.node.set_limits(&limits);
        match replaced {
            Replaced::Deleted { .. } => {
                account.begin_life();
                account.share_all();
                groups.take_inodes(&account, new.origin, &mut rows);
            }
            Replaced::Kept { .. } => {
                if let Err(refused) = begin(&groups, &account, new.origin, &mut rows) {
                    self.take_back(&mut groups, &account, &parents);
                    return Err(refused);
                }
            }
        }
        let link = |parent: &GroupId| (member_key(id, *parent), Edit::Put((&[]).into()));
        rows.extend(parents.iter().map(link));
        if let Some(origin) = new.origin {
            let held = groups.owner(origin).map(|owner| Arc::clone(&owner.account));
            let gated = held.is_some_and(|origin| more.settle_snapshot(&origin));
            groups.count_snapshot(new.subvol, origin, gated);
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

    /// For the inodes that `origin` has beyond those of `old`, whose place it takes.
    fn hold_more_inodes(
        &self,
        old: SubvolId,
        origin: Option<SubvolId>,
    ) -> Result<Hold, QuotaError> {
        let count = |of: SubvolId| self.inodes_of(of).map_or(0, |item| item.count);
        let inodes = origin.map_or(0, count).saturating_sub(count(old));
        self.hold_of(old, Request { inodes, ..Request::default() })
    }

    /// For one more snapshot of `origin`.
    fn hold_snapshot(&self, origin: Option<SubvolId>) -> Result<Hold, QuotaError> {
        let one = Request { snapshots: 1, ..Request::default() };
        origin.map_or(Ok(Hold::nothing()), |origin| self.hold_of(origin, one))
    }

    fn hold_of(&self, subvol: SubvolId, wanted: Request) -> Result<Hold, QuotaError> {
        let living = self.owner(subvol).filter(|owner| !owner.account.is_dead());
        let hold = living.map(|owner| owner.account.hold(wanted, Tier::Write)).transpose();
        Ok(hold.map_err(QuotaError::Exceeded)?.unwrap_or_default())
    }

    /// As many inodes as `origin` has, at any limits.
    fn take_inodes(&self, account: &Account, origin: Option<SubvolId>, rows: &mut Rows) {
        let Some(item) = origin.and_then(|origin| self.inodes_of(origin)) else { return };
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
