//! Groups and their relations: the changes that an administrator makes.
//!
//! Nothing here is on the way of a write. A change is checked first, then made, then the ways of
//! the accounts below it are set anew, one by one: each of them is in its old place or in its new
//! one at any time, with all its sums.
//!
//! The refusals are those of btrfs in its simple mode, but for the exceptions in `docs/quotas.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use copyhold_format::item::{GroupId, GroupItem, Limits, group_key, member_key};
use copyhold_pool::Edit;
use copyhold_sync::MutexGuard;
use copyhold_types::{EpochId, Key, SubvolId};

use super::account::Account;
use super::error::QuotaError;
use super::node::Node;
use super::request::Request;
use super::{Ledger, PARENTS_MAX, Rows};

/// Everything that is known of groups, and of subvolumes as groups of level 0.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Quotas are on.
    pub(super) from: Option<EpochId>,
    pub(super) generation: u64,
    pub(super) all: BTreeMap<GroupId, Group>,
    /// Records of quotas that have been turned off.
    pub(super) leftovers: BTreeSet<Key>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) node: Arc<Node>,
    pub(super) item: GroupItem,
    /// There is a record of `item`.
    pub(super) is_logged: bool,
    pub(super) parents: BTreeSet<GroupId>,
    /// Without those that have an heir.
    pub(super) members: BTreeSet<GroupId>,
    /// At level 0.
    pub(super) owner: Option<Owner>,
}

#[derive(Debug)]
pub(super) struct Owner {
    pub(super) account: Arc<Account>,
    /// The subvolume that holds its directory entry, or held it.
    pub(super) holder: Option<SubvolId>,
    /// The subvolume that it is a snapshot of.
    pub(super) origin: Option<SubvolId>,
    /// Whose entries it holds.
    pub(super) held: BTreeSet<SubvolId>,
    pub(super) heir: Option<Heir>,
    /// The owners that name it as heir, in a record or in the end.
    pub(super) heir_of: BTreeSet<SubvolId>,
}

/// Heirs of heirs are followed at once; the record follows when it is swept (R42).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heir {
    pub(super) written: SubvolId,
    pub(super) last: SubvolId,
}

/// Which limit is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    Referenced,
    Exclusive,
    Inodes,
    Snapshots,
    Subvolumes,
}

impl LimitKind {
    fn set(self, limits: &mut Limits, limit: Option<u64>) {
        *match self {
            LimitKind::Referenced => &mut limits.referenced,
            LimitKind::Exclusive => &mut limits.exclusive,
            LimitKind::Inodes => &mut limits.inodes,
            LimitKind::Snapshots => &mut limits.snapshots,
            LimitKind::Subvolumes => &mut limits.subvolumes,
        } = limit;
    }
}

impl Owner {
    pub(super) fn new(account: Arc<Account>) -> Owner {
        Owner {
            account,
            holder: None,
            origin: None,
            held: BTreeSet::new(),
            heir: None,
            heir_of: BTreeSet::new(),
        }
    }
}

impl Group {
    pub(super) fn new(node: Arc<Node>, owner: Option<Owner>) -> Group {
        Group {
            node,
            item: GroupItem::default(),
            is_logged: false,
            parents: BTreeSet::new(),
            members: BTreeSet::new(),
            owner,
        }
    }

    /// Whether users see it: an owner with an heir has nothing left to show.
    pub(super) fn is_visible(&self) -> bool {
        self.owner.as_ref().is_none_or(|owner| owner.heir.is_none())
    }

    pub(super) fn used(&self) -> u64 {
        let sums = self.node.sums();
        (sums.data + sums.metadata).max(0) as u64
    }

    /// Brings the record up to date. There is none of a subvolume of which nothing is to be said.
    pub(super) fn log(&mut self, rows: &mut Rows) {
        let key = group_key(self.node.id);
        let says_something = self.owner.is_none() || self.item != GroupItem::default();
        if says_something {
            rows.push((key, Edit::Put(self.item.encode().into())));
        } else if self.is_logged {
            rows.push((key, Edit::Delete));
        }
        self.is_logged = says_something;
    }
}

impl Groups {
    pub(super) fn get(&self, id: GroupId) -> Result<&Group, QuotaError> {
        let group = self.all.get(&id).filter(|group| group.is_visible());
        group.ok_or(QuotaError::NoGroup(id))
    }

    pub(super) fn get_mut(&mut self, id: GroupId) -> Result<&mut Group, QuotaError> {
        let group = self.all.get_mut(&id).filter(|group| group.is_visible());
        group.ok_or(QuotaError::NoGroup(id))
    }

    pub(super) fn owner(&self, subvol: SubvolId) -> Option<&Owner> {
        self.all.get(&GroupId::of(subvol))?.owner.as_ref()
    }

    pub(super) fn owner_mut(&mut self, subvol: SubvolId) -> Option<&mut Owner> {
        self.all.get_mut(&GroupId::of(subvol))?.owner.as_mut()
    }

    /// Makes a relation, without logging it and without moving sums.
    pub(super) fn link(&mut self, child: GroupId, parent: GroupId) {
        if let Some(group) = self.all.get_mut(&parent) {
            group.members.insert(child);
        }
        if let Some(group) = self.all.get_mut(&child) {
            group.parents.insert(parent);
        }
    }

    /// Ends a relation; gives the edit that says so.
    pub(super) fn unlink(&mut self, child: GroupId, parent: GroupId) -> (Key, Edit) {
        if let Some(group) = self.all.get_mut(&parent) {
            group.members.remove(&child);
        }
        if let Some(group) = self.all.get_mut(&child) {
            group.parents.remove(&parent);
        }
        (member_key(child, parent), Edit::Delete)
    }
}

impl Ledger {
    /// The groups, if quotas are on.
    pub(super) fn on(&self) -> Result<MutexGuard<'_, Groups>, QuotaError> {
        let groups = self.groups.lock();
        if groups.from.is_some() { Ok(groups) } else { Err(QuotaError::Off) }
    }

    /// Makes a group of level 1 or above.
    pub fn create(&self, id: GroupId) -> Result<Rows, QuotaError> {
        let mut groups = self.on()?;
        if id.level() == 0 {
            return Err(QuotaError::SubvolumeGroup(id));
        }
        if groups.all.contains_key(&id) {
            return Err(QuotaError::Exists(id));
        }
        let node = Arc::new(Node::new(id, Arc::clone(&self.promised)));
        let mut group = Group::new(node, None);
        let mut rows = Rows::new();
        group.log(&mut rows);
        groups.all.insert(id, group);
        Ok(rows)
    }

    /// Removes a group without members. One of level 0 must be dead and pay for nothing.
    pub fn destroy(&self, id: GroupId) -> Result<Rows, QuotaError> {
        let mut groups = self.on()?;
        let group = groups.get(id)?;
        if let Some(owner) = &group.owner {
            if !owner.account.is_dead() {
                return Err(QuotaError::Living(id));
            }
            if group.used() > 0 {
                return Err(QuotaError::StillPays { group: id, bytes: group.used() });
            }
            if !owner.is_over() {
                return Err(QuotaError::BeingFreed(id));
            }
            let (subvol, mut rows) = (owner.account.subvol, Rows::new());
            self.bury(&mut groups, subvol, &mut rows);
            return Ok(rows);
        }
        if !group.members.is_empty() {
            return Err(QuotaError::HasMembers(id));
        }
        let mut rows = vec![(group_key(id), Edit::Delete)];
        let parents = group.parents.clone();
        rows.extend(parents.into_iter().map(|parent| groups.unlink(id, parent)));
        groups.all.remove(&id);
        Ok(rows)
    }

    /// Makes `child` a member of `parent`. O(subvolumes below `child`).
    pub fn assign(&self, child: GroupId, parent: GroupId) -> Result<Rows, QuotaError> {
        let mut groups = self.on()?;
        for end in [child, parent] {
            groups.get(end).map_err(|_| QuotaError::NoEnd(end))?;
        }
        if child.level() >= parent.level() {
            return Err(QuotaError::Level { child, parent });
        }
        if groups.get(child)?.parents.contains(&parent) {
            return Err(QuotaError::Member { child, parent });
        }
        if groups.get(child)?.parents.len() >= PARENTS_MAX {
            return Err(QuotaError::TooMany(child));
        }
        groups.link(child, parent);
        groups.set_ways_below(child);
        Ok(vec![(member_key(child, parent), Edit::Put((&[]).into()))])
    }

    /// Ends the membership of `child` in `parent`. O(subvolumes below `child`).
    pub fn remove(&self, child: GroupId, parent: GroupId) -> Result<Rows, QuotaError> {
        let mut groups = self.on()?;
        let is_member = groups.get(child).is_ok_and(|group| group.parents.contains(&parent));
        if !is_member {
            return Err(QuotaError::NoMember { child, parent });
        }
        let row = groups.unlink(child, parent);
        groups.set_ways_below(child);
        Ok(vec![row])
    }

    /// Sets or clears (`None`) a limit. It may be below the usage: then nothing more is given.
    pub fn limit(
        &self,
        id: GroupId,
        kind: LimitKind,
        limit: Option<u64>,
    ) -> Result<Rows, QuotaError> {
        let mut groups = self.on()?;
        let group = groups.get_mut(id)?;
        if let Some(limit) = limit.filter(|limit| *limit > Request::MAX) {
            return Err(QuotaError::Nonsense(limit));
        }
        let mut limits = group.item.limits;
        kind.set(&mut limits, limit);
        check_reserve(group.item.reserve, &limits)?;
        group.item.limits = limits;
        group.node.set_limits(&limits);
        let mut rows = Rows::new();
        group.log(&mut rows);
        Ok(rows)
    }

    /// Guarantees that a living subvolume gets `reserve` bytes (0: none). `free` is what the pool
    /// has available; reserves that exist are in it.
    pub fn reserve(&self, id: GroupId, reserve: u64, free: u64) -> Result<Rows, QuotaError> {
        let mut groups = self.on()?;
        let group = groups.get_mut(id)?;
        let Some(owner) = &group.owner else { return Err(QuotaError::ReserveOfGroup(id)) };
        let subvol = owner.account.subvol;
        if owner.account.is_dead() {
            return Err(QuotaError::Deleted(subvol));
        }
        if reserve > Request::MAX {
            return Err(QuotaError::Nonsense(reserve));
        }
        check_reserve(reserve, &group.item.limits)?;
        let more = (reserve as i64 - group.node.load()).max(0) as u64;
        let free = free.saturating_sub(self.kept_for_others(subvol));
        if reserve > group.item.reserve && more > free {
            return Err(QuotaError::NoRoom { reserve, free });
        }
        group.item.reserve = reserve;
        let mut rows = Rows::new();
        group.log(&mut rows);
        groups.set_reserve(subvol, reserve);
        Ok(rows)
    }
}

fn check_reserve(reserve: u64, limits: &Limits) -> Result<(), QuotaError> {
    match limits.bytes() {
        Some(limit) if reserve > limit => Err(QuotaError::ReserveAboveLimit { reserve, limit }),
        _ => Ok(()),
    }
}
