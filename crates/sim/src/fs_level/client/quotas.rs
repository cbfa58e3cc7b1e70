//! A client's operations on quotas: it turns them on and off, beside all other clients, and
//! promises limits, reserves and memberships to its subvolumes and groups.
//!
//! It chooses by dice of its own, so all else that it does stays what it was.

use copyhold_format::item::Limits;
use copyhold_fs::FsError;
use copyhold_types::BLOCK_BYTES;
use copyhold_volume::quota::{GroupId, Ledger, LimitKind, QuotaError, Rows};

use super::limits::MARGIN;
use super::subvols::SUBVOLS_MAX;
use super::{Client, Done};
use crate::dice::Dice;
use crate::fs_level::promises::{GROUPS, Holder, Promise, group};
use crate::fs_level::tree::{ObjectId, Place, Tree};

/// How a client is about quotas.
pub(crate) struct Manager {
    pub(crate) dice: Dice,
    /// It changes promises.
    pub(crate) promises: bool,
    /// It turns quotas on and off.
    pub(crate) turns: bool,
}

impl Client {
    /// Mostly nothing.
    pub(super) async fn manage_quotas(&mut self) -> Done {
        let is_on = self.world().usage.eras.is_on();
        if self.manager.turns && self.manager.dice.one_in(if is_on { 48 } else { 8 }) {
            self.turn_quotas().await?;
        }
        if self.manager.promises && self.manager.dice.one_in(8) {
            self.promise_anything().await?;
        }
        if self.manager.promises && self.manager.dice.one_in(16) {
            self.roll_back_what_was_promised().await?;
        }
        Ok(())
    }

    /// A subvolume gets a reserve, and is then rolled back to a relative: the new subvolume has the
    /// reserve, and pays for the remaining blocks of the old one.
    async fn roll_back_what_was_promised(&mut self) -> Done {
        let tree = self.tree();
        let (all, full) = (tree.subvols(), tree.subvols().len() >= SUBVOLS_MAX);
        let is_meant = |(place, id): &&(Place, ObjectId)| {
            tree.is_loose(place) && !tree.read_only.contains(id) && !tree.holds_any(*id)
        };
        let meant: Vec<_> = all.iter().filter(is_meant).cloned().collect();
        if meant.is_empty() {
            return Ok(());
        }
        let (place, old) = self.manager.dice.pick_ref(&meant).clone();
        if relatives(&tree, old).is_empty() && !full {
            self.snapshot(tree, old).await?;
        }
        let relatives = relatives(&self.tree(), old);
        if relatives.is_empty() {
            return Ok(());
        }
        let source = self.manager.dice.pick(&relatives);
        self.reserve(old).await?;
        self.roll_back_to(self.tree(), place, source, None).await
    }

    /// Turns quotas on or off, whatever others do meanwhile.
    async fn turn_quotas(&mut self) -> Done {
        if self.manager.dice.one_in(2) {
            // It is known then that what was written before does not count.
            let (moment, versions) = self.world().before_sync();
            let synced = self.fs.sync().await;
            if self.given("sync", synced)?.is_some() {
                self.world().after_sync(moment, &versions);
            }
        }
        let Some(on) = self.world().begin_turn() else { return Ok(()) };
        let turned = match on {
            true => self.fs.enable_quotas().await,
            false => self.fs.disable_quotas().await,
        };
        if self.given("quotas", turned)?.is_none() {
            panic!("R21: quotas cannot be turned on a full pool: {:?}", self.fs.pool().space());
        }
        let mut world = self.world();
        let ended = world.tick();
        world.usage.eras.end_turn(ended);
        Ok(())
    }

    async fn promise_anything(&mut self) -> Done {
        let tree = self.tree();
        let subvols: Vec<ObjectId> = tree.subvols().into_iter().map(|(_, id)| id).collect();
        if subvols.is_empty() {
            return Ok(());
        }
        let subvol = self.manager.dice.pick(&subvols);
        match self.manager.dice.below(8) {
            0..5 => self.promise_to(subvol).await,
            5 => self.limit_group().await,
            _ => {
                let member = self.a_group(1);
                self.change_members(Holder::Group(member)).await
            }
        }
    }

    /// A reserve, a limit or a membership of a subvolume.
    pub(super) async fn promise_to(&mut self, subvol: ObjectId) -> Done {
        match self.manager.dice.below(4) {
            0..2 => self.reserve(subvol).await,
            2 => {
                let inodes = self.manager.dice.pick(&[None, Some(1 << 20), Some(1 << 30)]);
                let promise =
                    |was: Promise| Promise { limits: Limits { inodes, ..was.limits }, ..was };
                let change = move |ledger: &Ledger, id| ledger.limit(id, LimitKind::Inodes, inodes);
                self.promise("limit", Holder::Subvol(subvol), promise, change).await
            }
            _ => self.change_members(Holder::Subvol(subvol)).await,
        }
    }

    async fn reserve(&mut self, subvol: ObjectId) -> Done {
        let holder = Holder::Subvol(subvol);
        let bytes = self.manager.dice.magnitude(8) * BLOCK_BYTES as u64;
        let most = self.promised(holder).limits.bytes().unwrap_or(u64::MAX);
        let reserve = bytes.min(most);
        let free = self.fs.pool().space().available() * BLOCK_BYTES as u64;
        let promise = |was: Promise| Promise { reserve, ..was };
        let change = move |ledger: &Ledger, id| ledger.reserve(id, reserve, free);
        self.promise("reserve", holder, promise, change).await
    }

    async fn limit_group(&mut self) -> Done {
        let level = 1 + self.manager.dice.below(2) as u16;
        let id = self.a_group(level);
        if !self.has_group(id) {
            return Ok(());
        }
        let referenced = self.manager.dice.pick(&[None, Some(MARGIN), Some(4 * MARGIN)]);
        let promise = |was: Promise| Promise { limits: Limits { referenced, ..was.limits }, ..was };
        let change = move |ledger: &Ledger, id| ledger.limit(id, LimitKind::Referenced, referenced);
        self.promise("limit", Holder::Group(id), promise, change).await
    }

    /// Makes it a member of a group of a level above, or takes it out; where there is no group yet,
    /// makes that.
    async fn change_members(&mut self, member: Holder) -> Done {
        let parent = match member {
            Holder::Subvol(_) => {
                let level = 1 + self.manager.dice.below(2) as u16;
                self.a_group(level)
            }
            Holder::Group(_) => self.a_group(2),
        };
        for missing in [Some(parent), as_group(member)].into_iter().flatten() {
            if !self.has_group(missing) {
                let make = |ledger: &Ledger, id| ledger.create(id);
                let holder = Holder::Group(missing);
                return self.promise("make group", holder, |was| was, make).await;
            }
        }
        let is_member = self.promised(member).parents.contains(&parent);
        if is_member && self.manager.dice.one_in(2) {
            return Ok(());
        }
        let promise = |mut was: Promise| {
            let _ =
                if is_member { was.parents.remove(&parent) } else { was.parents.insert(parent) };
            was
        };
        let name = if is_member { "leave group" } else { "join group" };
        let change = move |ledger: &Ledger, id| match is_member {
            true => ledger.remove(id, parent),
            false => ledger.assign(id, parent),
        };
        self.promise(name, member, promise, change).await
    }

    fn a_group(&mut self, level: u16) -> GroupId {
        group(self.id, level, self.manager.dice.below(GROUPS))
    }

    fn has_group(&self, id: GroupId) -> bool {
        let world = self.world();
        let generation = world.usage.eras.now().generation;
        world.logs[self.id].now().promises.has(generation, id)
    }

    /// The present promises to it.
    pub(super) fn promised(&self, holder: Holder) -> Promise {
        let world = self.world();
        let generation = world.usage.eras.now().generation;
        world.logs[self.id].now().promises.get(generation, holder)
    }

    /// One change of promises; nothing while quotas are off or being turned, so that it is known
    /// for which enabling it is.
    pub(super) async fn promise(
        &mut self,
        name: &'static str,
        holder: Holder,
        promise: impl FnOnce(Promise) -> Promise,
        change: impl FnOnce(&Ledger, GroupId) -> Result<Rows, QuotaError>,
    ) -> Done {
        let mut tree = self.tree();
        let id = {
            let mut world = self.world();
            if !world.usage.eras.is_steadily_on() {
                return Ok(());
            }
            world.usage.eras.promising += 1;
            let generation = world.usage.eras.now().generation;
            let was = tree.promises.get(generation, holder);
            tree.promises.set(generation, holder, promise(was));
            match holder {
                Holder::Group(id) => id,
                Holder::Subvol(subvol) => GroupId::of(world.nodes[&subvol].subvol),
            }
        };
        self.begin(name, tree, &[]);
        let done = self.fs.change_quotas(|ledger: &Ledger| change(ledger, id)).await;
        self.world().usage.eras.promising -= 1;
        let done = match done {
            // There is no room for a reserve.
            Err(FsError::Quota(QuotaError::NoRoom { .. })) => None,
            done => self.given(name, done)?,
        };
        self.end(done.is_some());
        Ok(())
    }
}

/// The subvolumes to which a subvolume can be rolled back.
fn relatives(tree: &Tree, subvol: ObjectId) -> Vec<ObjectId> {
    let family = tree.family_of(subvol);
    let all = tree.subvols().into_iter().map(|(_, id)| id);
    all.filter(|id| *id != subvol && tree.family_of(*id) == family).collect()
}

fn as_group(holder: Holder) -> Option<GroupId> {
    match holder {
        Holder::Group(id) => Some(id),
        Holder::Subvol(_) => None,
    }
}
