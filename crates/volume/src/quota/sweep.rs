//! Sweeping: dead records are removed in the background, in bounded steps.
//!
//! A dead owner is swept when its last row has gone. Then, or when it has an heir, references to it
//! are led past it: owners that it held get its heir as their holder, or else its own holder, and
//! those whose record names it as heir get its own heir. A crash loses nothing: unswept owners are
//! found again when the ledger is loaded.

use copyhold_format::item::{
    GroupId, encode_heir, group_key, heir_key, inodes_key, member_key, usage_key,
};
use copyhold_pool::Edit;
use copyhold_types::SubvolId;

use super::groups::{Groups, Owner};
use super::{Ledger, QuotaError, Rows};

impl Owner {
    /// Dead, and nothing is left of it but its record.
    pub(super) fn is_over(&self) -> bool {
        self.is_ending() && self.held.is_empty()
    }

    /// Dead, and it pays for nothing, nor is it named as an heir. Until then it holds owners that
    /// were deleted inside it: if it gets an heir, they count there.
    pub(super) fn is_ending(&self) -> bool {
        self.account.is_dead() && !self.account.has_rows() && self.heir_of.is_empty()
    }
}

impl Ledger {
    /// Whether [`Self::sweep`] has something to look at. It is worth asking after each commit.
    pub fn wants_sweep(&self) -> bool {
        !self.sweepable.lock().is_empty() || !self.groups.lock().leftovers.is_empty()
    }

    /// Takes the next step: about `edits_max` edits, to be logged. Nothing while there is nothing
    /// that could go; an owner that cannot go yet comes back by itself.
    pub fn sweep(&self, edits_max: usize) -> Rows {
        let mut groups = self.groups.lock();
        let mut rows = Rows::new();
        while rows.len() < edits_max {
            let Some(key) = groups.leftovers.pop_first() else { break };
            rows.push((key, Edit::Delete));
        }
        while rows.len() < edits_max {
            let Some(subvol) = self.sweepable.lock().pop_first() else { break };
            self.sweep_owner(&mut groups, subvol, edits_max, &mut rows);
        }
        rows
    }

    /// The next steps of [`Self::sweep`] look at all dead owners.
    pub fn sweep_all(&self) -> Result<(), QuotaError> {
        let groups = self.on()?;
        let owners = groups.all.values().filter_map(|group| group.owner.as_ref());
        let dead = owners.filter(|owner| owner.account.is_dead());
        self.sweepable.lock().extend(dead.map(|owner| owner.account.subvol));
        Ok(())
    }

    fn sweep_owner(&self, groups: &mut Groups, subvol: SubvolId, max: usize, rows: &mut Rows) {
        let Some(owner) = groups.owner(subvol).filter(|owner| owner.account.is_dead()) else {
            return;
        };
        let heir = owner.heir;
        if heir.is_some_and(|heir| heir.written != heir.last) {
            let led_past = groups.write_last_heir(subvol, rows);
            self.sweepable.lock().extend(led_past);
        }
        if heir.is_some() {
            groups.drop_members(subvol, rows);
        }
        if heir.is_none() && !groups.owner(subvol).is_some_and(Owner::is_ending) {
            return;
        }
        groups.lead_held_past(subvol, max, rows);
        let Some(owner) = groups.owner(subvol) else { return };
        if owner.is_over() {
            self.bury(groups, subvol, rows);
        } else if !owner.held.is_empty() {
            self.sweepable.lock().insert(subvol);
        }
    }

    /// Removes an owner that is over, and its records.
    pub(super) fn bury(&self, groups: &mut Groups, subvol: SubvolId, rows: &mut Rows) {
        groups.drop_members(subvol, rows);
        let Some(group) = groups.all.remove(&GroupId::of(subvol)) else { return };
        if group.is_logged {
            rows.push((group_key(group.node.id), Edit::Delete));
        }
        self.accounts.remove(subvol);
        let Some(owner) = group.owner else { return };
        let mut sweepable = self.sweepable.lock();
        if let Some(heir) = owner.heir {
            rows.push((heir_key(subvol), Edit::Delete));
            for at in [heir.written, heir.last] {
                if let Some(heir) = groups.owner_mut(at) {
                    heir.heir_of.remove(&subvol);
                    sweepable.insert(at);
                }
            }
        } else {
            owner.account.set_above(vec![]);
        }
        if let Some(holder) = owner.holder {
            if let Some(holding) = groups.owner_mut(holder) {
                holding.held.remove(&subvol);
            }
            sweepable.insert(holder);
        }
    }

    /// Everything of which there may be a record, when quotas have been turned off.
    pub(super) fn forget_all(&self, groups: &mut Groups) {
        for subvol in groups.all.keys().filter_map(|id| id.subvol()) {
            groups.set_reserve(subvol, 0);
        }
        let mut keys = std::mem::take(&mut groups.leftovers);
        for (id, group) in std::mem::take(&mut groups.all) {
            keys.extend(group.is_logged.then(|| group_key(id)));
            keys.extend(group.parents.iter().map(|parent| member_key(id, *parent)));
            if let Some(owner) = group.owner.filter(|owner| owner.heir.is_some()) {
                keys.insert(heir_key(owner.account.subvol));
            }
        }
        keys.extend(self.rows.clear().into_iter().map(usage_key));
        keys.extend(self.accounts.clear().into_iter().map(inodes_key));
        groups.leftovers = keys;
        self.sweepable.lock().clear();
    }
}

impl Groups {
    /// The record names an heir that has one itself: it gets the last. Returns the heir that is no
    /// longer named.
    fn write_last_heir(&mut self, subvol: SubvolId, rows: &mut Rows) -> Option<SubvolId> {
        let heir = self.owner_mut(subvol)?.heir.as_mut()?;
        let led_past = std::mem::replace(&mut heir.written, heir.last);
        rows.push((heir_key(subvol), Edit::Put((&encode_heir(heir.last)).into())));
        self.owner_mut(led_past)?.heir_of.remove(&subvol);
        Some(led_past)
    }

    /// Ends all memberships of a dead owner.
    fn drop_members(&mut self, subvol: SubvolId, rows: &mut Rows) {
        let id = GroupId::of(subvol);
        let parents = self.all.get(&id).map(|group| group.parents.clone()).unwrap_or_default();
        rows.extend(parents.into_iter().map(|parent| self.unlink(id, parent)));
    }

    /// Owners whose entry the dead one held are inside its heir now, or inside its holder.
    fn lead_held_past(&mut self, subvol: SubvolId, max: usize, rows: &mut Rows) {
        while rows.len() < max {
            let Some(owner) = self.owner_mut(subvol) else { return };
            let holder = owner.heir.map_or(owner.holder, |heir| Some(heir.last));
            let Some(held) = owner.held.pop_first() else { return };
            // Nothing is inside itself, whatever damaged records say.
            let holder = holder.filter(|holder| *holder != held);
            if let Some(holder) = holder.and_then(|holder| self.owner_mut(holder)) {
                holder.held.insert(held);
            }
            let Some(group) = self.all.get_mut(&GroupId::of(held)) else { continue };
            if let Some(owner) = &mut group.owner {
                owner.holder = holder;
            }
            if let Some(tombstone) = &mut group.item.tombstone {
                tombstone.holder = holder;
                group.log(rows);
            }
            self.set_way(held);
        }
    }
}
