//! Owners: subvolumes that pay, from their creation to their last byte.
//!
//! ```text
//!   living ──delete──▶ dead, pays: tombstone ──last byte──▶ stale ──last epoch ended──▶ swept
//!                        └──heir──▶ pays nothing, its rows are the heir's ──last row──▶ swept
//! ```
//!
//! A dead owner stays in its groups and inside its holder: the space still paid for in its name
//! was written under their limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use copyhold_format::item::{
    GroupId, GroupItem, InodesItem, TOMBSTONE_NAME_MAX, Tombstone, encode_heir, heir_key,
    inodes_key, member_key,
};
use copyhold_pool::Edit;
use copyhold_types::{InodeNo, Key, SubvolId, Timestamp};

use super::account::Account;
use super::error::QuotaError;
use super::groups::{Group, Groups, Heir, Owner};
use super::hold::Hold;
use super::request::{Request, Tier};
use super::{Ledger, PARENTS_MAX, Rows};
use crate::sabotage::Sabotage;

/// A living subvolume, as its record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    pub subvol: SubvolId,
    /// The subvolume that holds its directory entry; of the root none.
    pub holder: Option<SubvolId>,
    /// The subvolume that it is a snapshot of.
    pub origin: Option<SubvolId>,
}

/// Which groups a new subvolume joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inherit {
    /// Those of the subvolume that holds its directory entry.
    FromHolder,
    /// These, and no others: a privilege, for with it one leaves the groups of the holder.
    Groups(Vec<GroupId>),
}

impl Groups {
    fn inherited(
        &self,
        new: &Resident,
        inherit: &Inherit,
    ) -> Result<BTreeSet<GroupId>, QuotaError> {
        match inherit {
            Inherit::FromHolder => {
                let holder = new.holder.and_then(|holder| self.all.get(&GroupId::of(holder)));
                Ok(holder.map_or(BTreeSet::new(), |holder| holder.parents.clone()))
            }
            Inherit::Groups(list) => {
                for id in list {
                    if id.level() == 0 {
                        return Err(QuotaError::SubvolumeGroup(*id));
                    }
                    self.get(*id)?;
                }
                let groups: BTreeSet<_> = list.iter().copied().collect();
                if groups.len() > PARENTS_MAX {
                    return Err(QuotaError::TooMany(GroupId::of(new.subvol)));
                }
                Ok(groups)
            }
        }
    }

    /// Adds an owner that is in no group and inside of nothing, without logging anything.
    fn add_owner(&mut self, account: &Arc<Account>) {
        let owner = Owner::new(Arc::clone(account));
        let group = Group::new(Arc::clone(&account.node), Some(owner));
        self.all.insert(account.node.id, group);
    }

    /// Says whose directory holds, or held, the entry of an owner.
    pub(super) fn set_holder(&mut self, subvol: SubvolId, holder: Option<SubvolId>) {
        let holder = holder.filter(|holder| *holder != subvol);
        let Some(owner) = self.owner_mut(subvol) else { return };
        owner.holder = holder;
        if let Some(holder) = holder.and_then(|holder| self.owner_mut(holder)) {
            holder.held.insert(subvol);
        }
    }

    /// Puts living subvolumes in their places and counts them, and snapshots. The ways are set
    /// afterwards.
    pub(super) fn place_residents(&mut self, residents: &[Resident]) {
        for Resident { subvol, holder, origin } in residents {
            if let Some(owner) = self.owner(*subvol) {
                owner.account.begin_life();
            }
            self.set_holder(*subvol, *holder);
            if let Some(origin) = origin {
                self.count_snapshot(*subvol, *origin, false);
            }
        }
    }

    /// Takes an owner out again that has just been added.
    fn take_back(&mut self, subvol: SubvolId, parents: &BTreeSet<GroupId>) {
        let id = GroupId::of(subvol);
        for parent in parents {
            self.unlink(id, *parent);
        }
        let removed = self.all.remove(&id).and_then(|group| group.owner);
        if let Some(holder) = removed.and_then(|owner| owner.holder)
            && let Some(holder) = self.owner_mut(holder)
        {
            holder.held.remove(&subvol);
        }
    }

    /// The usage is known. Snapshots without a node of their own share all (ACCOUNT-A3).
    pub(super) fn share_residents(&self, residents: &[Resident]) {
        let snapshots = residents.iter().filter(|resident| resident.origin.is_some());
        let owners = snapshots.filter_map(|resident| self.owner(resident.subvol));
        let new = owners.filter(|owner| !owner.account.has_nodes());
        new.for_each(|owner| owner.account.share_all());
    }

    /// Counts one more living snapshot of `origin`, if that lives.
    pub(super) fn count_snapshot(&mut self, snapshot: SubvolId, origin: SubvolId, gated: bool) {
        let Some(account) = self.owner(origin).filter(|owner| !owner.account.is_dead()) else {
            return;
        };
        account.account.count_snapshot(gated);
        if let Some(owner) = self.owner_mut(snapshot) {
            owner.origin = Some(origin);
        }
    }
}

impl Ledger {
    pub(super) fn add_account(&self, groups: &mut Groups, subvol: SubvolId) -> Arc<Account> {
        let account = Arc::new(Account::new(subvol, Arc::clone(&self.promised)));
        self.accounts.insert(&account);
        groups.add_owner(&account);
        account
    }

    /// An owner in its place, which counts nothing yet and of which nothing is logged.
    pub(super) fn add_resident(
        &self,
        groups: &mut Groups,
        new: &Resident,
        parents: &BTreeSet<GroupId>,
    ) -> Arc<Account> {
        let account = self.add_account(groups, new.subvol);
        groups.set_holder(new.subvol, new.holder);
        parents.iter().for_each(|parent| groups.link(GroupId::of(new.subvol), *parent));
        account.set_above(groups.above(new.subvol));
        account
    }

    /// Undoes [`Self::add_resident`].
    pub(super) fn take_back(
        &self,
        groups: &mut Groups,
        account: &Account,
        parents: &BTreeSet<GroupId>,
    ) {
        account.set_above(vec![]);
        groups.take_back(account.subvol, parents);
        self.accounts.remove(account.subvol);
    }

    /// A subvolume or snapshot comes into being; its epoch begins after this. `hold` may have the
    /// snapshot's place under a limit of its origin. A snapshot has all the inodes of its origin, a
    /// subvolume its root directory, and groups with a limit on inodes may refuse it. Nothing
    /// happens while quotas are off.
    pub fn create_subvolume(
        &self,
        new: Resident,
        inherit: &Inherit,
        hold: Option<&mut Hold>,
    ) -> Result<Rows, QuotaError> {
        let Ok(mut groups) = self.on() else { return Ok(Rows::new()) };
        let id = GroupId::of(new.subvol);
        if groups.all.contains_key(&id) {
            return Err(QuotaError::Exists(id));
        }
        let parents = groups.inherited(&new, inherit)?;
        let account = self.add_resident(&mut groups, &new, &parents);
        let mut rows = Rows::new();
        if let Err(refused) = begin(&groups, &account, new.origin, &mut rows) {
            self.take_back(&mut groups, &account, &parents);
            return Err(refused);
        }
        if let Some(origin) = new.origin {
            let held = groups.owner(origin).map(|owner| Arc::clone(&owner.account));
            let gated = held.zip(hold).is_some_and(|(origin, hold)| hold.settle_snapshot(&origin));
            groups.count_snapshot(new.subvol, origin, gated);
        }
        for parent in parents {
            rows.push((member_key(id, parent), Edit::Put((&[]).into())));
        }
        Ok(rows)
    }

    /// A subvolume has been deleted: it is dead, though its extents are yet to be freed. `name` is
    /// the name that it had. With an heir, see [`Self::give_to_heir`]. Its inodes count until
    /// [`Self::forget_inodes`].
    pub fn delete_subvolume(
        &self,
        subvol: SubvolId,
        since: Timestamp,
        name: &[u8],
        heir: Option<SubvolId>,
    ) -> Result<Rows, QuotaError> {
        let Ok(mut groups) = self.on() else { return Ok(Rows::new()) };
        let group = groups.get(GroupId::of(subvol))?;
        let owner = group.owner.as_ref().ok_or(QuotaError::NoGroup(GroupId::of(subvol)))?;
        if owner.account.is_dead() {
            return Err(QuotaError::Deleted(subvol));
        }
        if let Some(heir) = heir {
            groups.check_heir(subvol, heir)?;
        }
        let mut rows = Rows::new();
        self.end_owner(&mut groups, subvol, since, name, heir, &mut rows)?;
        Ok(rows)
    }

    /// The owner is dead from now on. Checked.
    pub(super) fn end_owner(
        &self,
        groups: &mut Groups,
        subvol: SubvolId,
        since: Timestamp,
        name: &[u8],
        heir: Option<SubvolId>,
        rows: &mut Rows,
    ) -> Result<(), QuotaError> {
        let owner = groups.owner(subvol).ok_or(QuotaError::NoGroup(GroupId::of(subvol)))?;
        let (account, holder) = (Arc::clone(&owner.account), owner.holder);
        account.end_life();
        account.uncount_snapshots(account.snapshots());
        groups.forget_snapshot(subvol);
        groups.set_reserve(subvol, 0);
        let name = name[..name.len().min(TOMBSTONE_NAME_MAX)].into();
        let group = groups.get_mut(GroupId::of(subvol))?;
        let tombstone = Some(Tombstone { since, holder, name });
        group.item = GroupItem { limits: group.item.limits, reserve: 0, tombstone };
        group.log(rows);
        if let Some(heir) = heir.filter(|heir| !self.tells_later(subvol, *heir)) {
            rows.push(self.set_heir(groups, subvol, heir));
        }
        self.sweepable.lock().insert(subvol);
        Ok(())
    }

    /// From now on `heir` pays for all blocks of the dead `owner`, also while it is being freed:
    /// one record for any amount (R42). The heir must be alive. It may end above its limits; then
    /// its writes are refused.
    pub fn give_to_heir(&self, owner: SubvolId, heir: SubvolId) -> Result<Rows, QuotaError> {
        let mut groups = self.on()?;
        let dead = groups.owner(owner).ok_or(QuotaError::NoGroup(GroupId::of(owner)))?;
        if !dead.account.is_dead() {
            return Err(QuotaError::NotDeleted(owner));
        }
        // A sweep may be leading past it the owners that it held.
        if dead.is_ending() {
            return Err(QuotaError::NoGroup(GroupId::of(owner)));
        }
        groups.check_heir(owner, heir)?;
        Ok(vec![self.set_heir(&mut groups, owner, heir)])
    }

    /// Gives the charges of `owner`, its own and inherited ones, to `heir`. Checked.
    fn set_heir(&self, groups: &mut Groups, owner: SubvolId, heir: SubvolId) -> (Key, Edit) {
        let inherited = groups.owner(owner).map(|owner| owner.heir_of.clone());
        let moved = inherited.into_iter().flatten().chain([owner]);
        groups.leave_groups(owner);
        for subvol in moved {
            groups.redirect(subvol, heir);
            self.sweepable.lock().insert(subvol);
            // Owners that were deleted inside it count in the heir from now on.
            let is_lost = self.breaks(Sabotage::LoseTombstones);
            for inside in groups.accounts_inside(subvol).into_iter().filter(|_| !is_lost) {
                groups.set_way(inside.subvol);
            }
        }
        (heir_key(owner), Edit::Put((&encode_heir(heir)).into()))
    }
}

/// A subvolume begins with its root directory; a snapshot with the inodes of its origin, if those
/// are counted. Limits may refuse these, the first leaf, or one subvolume more.
pub(super) fn begin(
    groups: &Groups,
    account: &Arc<Account>,
    origin: Option<SubvolId>,
    rows: &mut Rows,
) -> Result<(), QuotaError> {
    let item = match origin {
        Some(origin) => groups.inodes_of(origin),
        None => Some(InodesItem { counted_from: InodeNo::ROOT, count: 1 }),
    };
    let inodes = item.map_or(0, |item| item.count);
    let metadata = if origin.is_some() { 0 } else { Request::LEAF };
    let wanted = Request { metadata, inodes, subvolumes: 1, ..Request::default() };
    let mut hold = account.hold(wanted, Tier::Write).map_err(QuotaError::Exceeded)?;
    hold.settle_subvolume();
    hold.spend_metadata();
    if origin.is_some() {
        account.share_all();
    }
    let Some(item) = item else { return Ok(()) };
    hold.settle_inodes(account, item.count);
    account.files.set(&item);
    rows.push((inodes_key(account.subvol), Edit::Put((&item.encode()).into())));
    Ok(())
}

impl Groups {
    /// The inodes of a subvolume, if they are counted.
    pub(super) fn inodes_of(&self, subvol: SubvolId) -> Option<InodesItem> {
        self.owner(subvol)?.account.files.item()
    }

    fn check_heir(&self, owner: SubvolId, heir: SubvolId) -> Result<(), QuotaError> {
        if owner == heir {
            return Err(QuotaError::OwnHeir(owner));
        }
        if self.owner(owner).is_some_and(|owner| owner.heir.is_some()) {
            return Err(QuotaError::HasHeir(owner));
        }
        let id = GroupId::of(heir);
        let living = self.owner(heir).ok_or(QuotaError::NoGroup(id))?;
        if living.account.is_dead() { Err(QuotaError::Deleted(heir)) } else { Ok(()) }
    }

    /// The owner is dead: its being a snapshot counts no more.
    fn forget_snapshot(&mut self, subvol: SubvolId) {
        let origin = self.owner_mut(subvol).and_then(|owner| owner.origin.take());
        if let Some(origin) = origin.and_then(|origin| self.owner(origin))
            && !origin.account.is_dead()
        {
            origin.account.uncount_snapshots(1);
        }
    }

    /// Groups do not have it as a member any more; their records are taken away by a sweep.
    fn leave_groups(&mut self, subvol: SubvolId) {
        let id = GroupId::of(subvol);
        for parent in self.all.get(&id).map_or(BTreeSet::new(), |group| group.parents.clone()) {
            if let Some(parent) = self.all.get_mut(&parent) {
                parent.members.remove(&id);
            }
        }
    }

    fn redirect(&mut self, subvol: SubvolId, last: SubvolId) {
        let Some(heir) = self.owner(last).map(|heir| Arc::clone(&heir.account)) else { return };
        let Some(owner) = self.owner_mut(subvol) else { return };
        let before = owner.heir.replace(Heir { written: last, last });
        if let (Some(before), Some(now)) = (before, &mut owner.heir) {
            now.written = before.written;
        }
        owner.account.set_heir(&heir);
        if let Some(heir) = self.owner_mut(last) {
            heir.heir_of.insert(subvol);
        }
        if let Some(before) = before.filter(|before| before.last != before.written)
            && let Some(passed) = self.owner_mut(before.last)
        {
            passed.heir_of.remove(&subvol);
        }
    }
}
