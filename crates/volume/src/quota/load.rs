//! Loads the ledger from its records.
//!
//! The caller reads the system table once and hands over every record of quotas, the living
//! subvolumes and the epochs that may still be charged. Reservations are memory only and begin at
//! nothing. A senseless record is a [`Stray`]: it is left out, reported, and the rest is loaded;
//! each was refused when it could have been made, so a stray is damage, never a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use copyhold_format::FormatError;
use copyhold_format::item::{
    GROUP, GroupId, GroupItem, HEIR, INODES, InodesItem, MEMBER, QUOTA, QuotaItem, Tombstone,
    USAGE, UsageItem, parse_heir,
};
use copyhold_types::{EpochId, Key, SubvolId};

use super::amount::Amount;
use super::groups::{Group, Groups, Heir};
use super::node::{Node, Sums};
use super::request::Request;
use super::rows::Row;
use super::{Ledger, Resident};

/// A record that fits nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stray {
    #[error("the owner of epoch {epoch}, subvolume {owner}, does not exist")]
    Payer { epoch: EpochId, owner: SubvolId },
    #[error("the owner of epoch {epoch} is subvolume {owner}, but its usage item names {said}")]
    OtherPayer { epoch: EpochId, said: SubvolId, owner: SubvolId },
    #[error("epoch {0} has more usage than any pool could have")]
    Usage(EpochId),
    #[error("epoch {0} has usage, but is older than quotas")]
    OldEpoch(EpochId),
    #[error("quota group {0} is recorded as a living subvolume, which does not exist")]
    Subvolume(GroupId),
    #[error("quota group {0} is a tombstone of a living subvolume")]
    Undead(GroupId),
    #[error("subvolume {subvol} was deleted inside subvolume {holder}, which does not exist")]
    Holder { subvol: SubvolId, holder: SubvolId },
    #[error("quota group {child} cannot be a member of {parent}")]
    Member { child: GroupId, parent: GroupId },
    #[error("the heir of subvolume {owner}, {heir}, does not exist or leads back to it")]
    Heir { owner: SubvolId, heir: SubvolId },
    #[error("inodes of subvolume {0}, which does not exist, are counted")]
    Inodes(SubvolId),
}

/// Collects records, in any order.
#[derive(Clone, Debug, Default)]
pub struct Loader {
    keys: BTreeSet<Key>,
    status: QuotaItem,
    usage: BTreeMap<EpochId, UsageItem>,
    groups: BTreeMap<GroupId, GroupItem>,
    members: BTreeSet<(GroupId, GroupId)>,
    heirs: BTreeMap<SubvolId, SubvolId>,
    inodes: BTreeMap<SubvolId, InodesItem>,
}

impl Loader {
    pub fn new() -> Loader {
        Loader::default()
    }

    /// Takes one item of the system table. False if it is none of quotas.
    pub fn row(&mut self, key: Key, value: &[u8]) -> Result<bool, FormatError> {
        match key.kind {
            QUOTA | USAGE | GROUP | HEIR | INODES if key.offset != 0 => {
                let (what, field, value) = ("key of quotas", "offset", key.offset);
                return Err(FormatError::Field { what, field, value });
            }
            QUOTA => {
                self.status = QuotaItem::parse(value)?;
                return Ok(true);
            }
            USAGE => {
                self.usage.insert(EpochId(key.object), UsageItem::parse(value)?);
            }
            GROUP => {
                self.groups.insert(GroupId::parse(key.object)?, GroupItem::parse(value)?);
            }
            MEMBER => {
                self.members.insert((GroupId::parse(key.object)?, GroupId::parse(key.offset)?));
            }
            HEIR => {
                self.heirs.insert(subvol(key)?, parse_heir(value)?);
            }
            INODES => {
                self.inodes.insert(subvol(key)?, InodesItem::parse(value)?);
            }
            _ => return Ok(false),
        }
        self.keys.insert(key);
        Ok(true)
    }

    /// Whether quotas were on.
    pub fn is_on(&self) -> bool {
        self.status.counted_from.is_some()
    }

    /// The ledger, and the strays that do not belong in it. `residents` are all living subvolumes,
    /// not those being deleted; `epochs` all numbers that may still be charged, with their payers.
    pub fn finish(
        self,
        residents: impl IntoIterator<Item = Resident>,
        epochs: impl IntoIterator<Item = (EpochId, SubvolId)>,
    ) -> (Ledger, Vec<Stray>) {
        let ledger = Ledger::default();
        let mut strays = Vec::new();
        let mut groups = Groups { generation: self.status.generation, ..Groups::default() };
        let Some(from) = self.status.counted_from else {
            groups.leftovers = self.keys;
            *ledger.groups.lock() = groups;
            return (ledger, strays);
        };
        groups.from = Some(from);
        ledger.counted_from.store(from.0, Relaxed);
        let residents: Vec<_> = residents.into_iter().collect();
        self.load_groups(&ledger, &mut groups, &residents, &mut strays);
        self.load_heirs(&ledger, &mut groups, &mut strays);
        self.load_holders(&mut groups, &mut strays);
        groups.place_residents(&residents);
        self.load_members(&mut groups, &mut strays);
        self.load_inodes(&mut groups, &mut strays);
        set_all_ways(&groups);
        self.load_usage(&ledger, &mut groups, epochs, &mut strays);
        groups.share_residents(&residents);
        groups.all.values().for_each(|group| group.node.excuse_loaded());
        for group in groups.all.values() {
            if let Some(owner) = group.owner.as_ref().filter(|owner| owner.account.is_dead()) {
                ledger.sweepable.lock().insert(owner.account.subvol);
            }
        }
        *ledger.groups.lock() = groups;
        (ledger, strays)
    }

    fn load_groups(
        &self,
        ledger: &Ledger,
        groups: &mut Groups,
        residents: &[Resident],
        strays: &mut Vec<Stray>,
    ) {
        for resident in residents {
            ledger.add_account(groups, resident.subvol);
        }
        for (id, item) in &self.groups {
            let is_new = !groups.all.contains_key(id);
            let mut item = item.clone();
            match (id.subvol(), &item.tombstone) {
                (None, None) => {
                    let node = Arc::new(Node::new(*id, Arc::clone(&ledger.promised)));
                    groups.all.insert(*id, Group::new(node, None));
                }
                (Some(subvol), Some(_)) if is_new => ledger.add_dead(groups, subvol),
                (Some(_), None) if !is_new => {}
                (Some(subvol), None) => {
                    strays.push(Stray::Subvolume(*id));
                    ledger.add_dead(groups, subvol);
                    item.tombstone = Some(Tombstone::default());
                }
                (_, Some(_)) => {
                    strays.push(Stray::Undead(*id));
                    item.tombstone = None;
                }
            }
            let Some(group) = groups.all.get_mut(id) else { continue };
            group.node.set_limits(&item.limits);
            group.is_logged = true;
            if id.level() == 0 && item.tombstone.is_none() {
                group.node.set_reserve(item.reserve);
            } else {
                item.reserve = 0;
            }
            group.item = item;
        }
    }

    /// Follows heirs of heirs; an owner whose chain has no end has no heir.
    fn load_heirs(&self, ledger: &Ledger, groups: &mut Groups, strays: &mut Vec<Stray>) {
        let mut found = Vec::new();
        for (owner, written) in &self.heirs {
            let mut seen = BTreeSet::from([*owner]);
            let mut last = *written;
            while seen.insert(last) && self.heirs.contains_key(&last) {
                last = self.heirs[&last];
            }
            let leads_back = self.heirs.contains_key(&last);
            let is_alive = groups.owner(*owner).is_some_and(|owner| !owner.account.is_dead());
            if leads_back || is_alive || groups.owner(last).is_none() {
                strays.push(Stray::Heir { owner: *owner, heir: *written });
            } else {
                found.push((*owner, Heir { written: *written, last }));
            }
        }
        for (owner, _) in &found {
            if groups.owner(*owner).is_none() {
                ledger.add_dead(groups, *owner);
            }
        }
        for (owner, heir) in found {
            groups.load_heir(owner, heir);
        }
    }

    fn load_holders(&self, groups: &mut Groups, strays: &mut Vec<Stray>) {
        for (id, item) in &self.groups {
            let (Some(subvol), Some(tombstone)) = (id.subvol(), &item.tombstone) else { continue };
            let holder = tombstone.holder;
            if let Some(holder) = holder.filter(|holder| groups.owner(*holder).is_none()) {
                strays.push(Stray::Holder { subvol, holder });
            }
            groups.set_holder(subvol, holder);
        }
    }

    fn load_members(&self, groups: &mut Groups, strays: &mut Vec<Stray>) {
        for (child, parent) in &self.members {
            let has_heir = groups.all.get(child).is_some_and(|child| !child.is_visible());
            let both = [child, parent].iter().all(|end| groups.all.contains_key(end));
            if has_heir {
                // Only its record is left, for a sweep.
                groups.all.get_mut(child).expect("is there").parents.insert(*parent);
            } else if both && child.level() < parent.level() {
                groups.link(*child, *parent);
            } else {
                strays.push(Stray::Member { child: *child, parent: *parent });
            }
        }
    }

    fn load_inodes(&self, groups: &mut Groups, strays: &mut Vec<Stray>) {
        for (subvol, item) in &self.inodes {
            match groups.owner(*subvol).filter(|owner| !owner.account.is_dead()) {
                None => strays.push(Stray::Inodes(*subvol)),
                Some(owner) => {
                    owner.account.files.set(item);
                    let inodes = item.count as i64;
                    owner.account.pay(&Sums { inodes, ..Sums::default() });
                }
            }
        }
    }

    fn load_usage(
        &self,
        ledger: &Ledger,
        groups: &mut Groups,
        epochs: impl IntoIterator<Item = (EpochId, SubvolId)>,
        strays: &mut Vec<Stray>,
    ) {
        let mut live: BTreeMap<_, _> = epochs.into_iter().collect();
        live.retain(|epoch, _| ledger.counts(*epoch));
        let mut total = 0u64;
        for (epoch, item) in &self.usage {
            let more = total.saturating_add(item.data).saturating_add(item.metadata);
            if more > Request::MAX {
                strays.push(Stray::Usage(*epoch));
                continue;
            }
            total = more;
            if !ledger.counts(*epoch) {
                strays.push(Stray::OldEpoch(*epoch));
                continue;
            }
            if groups.owner(item.owner).is_none() {
                strays.push(Stray::Payer { epoch: *epoch, owner: item.owner });
                ledger.add_dead(groups, item.owner);
            }
            let owner = live.remove(epoch);
            let is_live = owner.is_some();
            if let Some(owner) = owner.filter(|owner| *owner != item.owner) {
                strays.push(Stray::OtherPayer { epoch: *epoch, said: item.owner, owner });
            }
            let amount = Amount { data: item.data, metadata: item.metadata };
            ledger.load_row(groups, *epoch, item.owner, is_live, Some(amount));
        }
        for (epoch, owner) in live {
            if groups.owner(owner).is_none() {
                strays.push(Stray::Payer { epoch, owner });
                ledger.add_dead(groups, owner);
            }
            ledger.load_row(groups, epoch, owner, true, None);
        }
    }
}

fn subvol(key: Key) -> Result<SubvolId, FormatError> {
    let (what, field, value) = ("key of quotas", "subvolume", key.object);
    GroupId::parse(value)?.subvol().ok_or(FormatError::Field { what, field, value })
}

fn set_all_ways(groups: &Groups) {
    for subvol in groups.all.keys().filter_map(|id| id.subvol()) {
        groups.set_way(subvol);
    }
}

impl Groups {
    fn load_heir(&mut self, subvol: SubvolId, heir: Heir) {
        for at in [heir.written, heir.last] {
            if let Some(owner) = self.owner_mut(at) {
                owner.heir_of.insert(subvol);
            }
        }
        let Some(last) = self.owner(heir.last).map(|last| Arc::clone(&last.account)) else {
            return;
        };
        let Some(owner) = self.owner_mut(subvol) else { return };
        owner.heir = Some(heir);
        owner.account.set_heir(&last);
    }
}

impl Ledger {
    fn add_dead(&self, groups: &mut Groups, subvol: SubvolId) {
        self.add_account(groups, subvol).set_dead();
    }

    /// The row of an epoch that is live or has a record.
    fn load_row(
        &self,
        groups: &Groups,
        epoch: EpochId,
        owner: SubvolId,
        is_live: bool,
        record: Option<Amount>,
    ) {
        let Some(owner) = groups.owner(owner) else { return };
        let account = Arc::clone(&owner.account);
        let Some(amount) = record else {
            return self.rows.insert(Row::new(epoch, account, is_live));
        };
        account.pay(&amount.sums());
        self.rows.insert(Row::loaded(epoch, account, is_live, amount));
        if !is_live {
            self.rows.end(epoch);
        }
    }
}
