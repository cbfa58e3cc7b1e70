//! Random histories of everything, against the plainest model: a list of extents, a list of
//! relations, and a recount of all sums after each step. A crash loads the records as the last
//! closing left them, and goes back to the model of that moment.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::GroupItem;
use copyhold_pool::{Edit, Value};
use copyhold_types::{EpochId, InodeNo, Key, SubvolId, Txg};

use super::*;

mod steps;

const KIB: u64 = 1024;

#[derive(Clone, Debug, Default)]
struct Sub {
    dead: bool,
    /// It is among the living subvolumes.
    begun: bool,
    /// Without edits since it began as a snapshot, or since its last snapshot.
    shared: bool,
    holder: Option<u32>,
    origin: Option<u32>,
    epoch: u64,
    inodes: BTreeSet<u64>,
    next_inode: u64,
    counted_from: Option<u64>,
    heir: Option<u32>,
}

/// The durable state, without any sum.
#[derive(Clone, Debug, Default)]
struct Plain {
    from: Option<u64>,
    next_epoch: u64,
    subs: BTreeMap<u32, Sub>,
    /// Owner, and whether something may be charged.
    epochs: BTreeMap<u64, (u32, bool)>,
    extents: Vec<(u64, Amount)>,
    groups: BTreeSet<GroupId>,
    limits: BTreeMap<GroupId, Limits>,
    reserves: BTreeMap<u32, u64>,
    members: BTreeSet<(GroupId, GroupId)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Own {
    amount: Amount,
    reserved: u64,
    unflushed: u64,
    inodes: u64,
    snapshots: u64,
}

struct World {
    ledger: Ledger,
    plain: Plain,
    closed: Plain,
    disk: BTreeMap<Key, Value>,
    open: Rows,
    holds: Vec<(Hold, u32)>,
    owed: BTreeMap<u32, u64>,
    /// The least and the most that may be excused over the limit of each group: moves between two
    /// accounts that a group counts both are not told from others.
    excused: [BTreeMap<GroupId, i64>; 2],
    /// The subvolume that the present step has put in the place of another one.
    replaced: Option<(GroupId, GroupId)>,
    txg: Txg,
}

fn zero(subvol: u32) -> GroupId {
    GroupId::of(SubvolId(subvol))
}

impl Plain {
    fn payer(&self, subvol: u32) -> u32 {
        self.subs[&subvol].heir.map_or(subvol, |heir| self.payer(heir))
    }

    fn counts(&self, origin: u64) -> bool {
        self.from.is_some_and(|from| origin >= from)
    }

    fn alive(&self) -> Vec<u32> {
        self.subs.iter().filter(|(_, sub)| !sub.dead).map(|(id, _)| *id).collect()
    }

    /// Groups above, and holders above but the root.
    fn above(&self, subvol: u32) -> (BTreeSet<GroupId>, BTreeSet<u32>) {
        let mut groups = BTreeSet::new();
        let mut next = vec![zero(subvol)];
        while let Some(at) = next.pop() {
            let parents = self.members.iter().filter(|(child, _)| *child == at);
            next.extend(parents.map(|(_, parent)| *parent).filter(|parent| groups.insert(*parent)));
        }
        let mut holders = BTreeSet::new();
        let mut holder = self.subs[&subvol].holder;
        while let Some(at) = holder.map(|at| self.payer(at)).filter(|at| *at != 1) {
            holders.insert(at);
            holder = self.subs[&at].holder;
        }
        (groups, holders)
    }

    fn counted_inodes(&self, subvol: u32) -> u64 {
        let sub = &self.subs[&subvol];
        let from = sub.counted_from.filter(|_| !sub.dead).unwrap_or(u64::MAX);
        sub.inodes.range(from..).count() as u64
    }

    fn has_life(&self, subvol: u32) -> bool {
        let pays = |epoch: &u64| self.payer(self.epochs[epoch].0) == subvol;
        let live = self.epochs.iter().filter(|(_, (_, live))| *live).map(|(epoch, _)| epoch);
        let used = self.extents.iter().map(|(origin, _)| origin);
        live.chain(used).any(|epoch| self.counts(*epoch) && pays(epoch))
    }
}

impl World {
    fn new() -> World {
        let mut plain = Plain { next_epoch: 1, ..Plain::default() };
        plain.subs.insert(1, Sub { epoch: 1, next_inode: 1, begun: true, ..Sub::default() });
        plain.epochs.insert(1, (1, true));
        plain.next_epoch = 2;
        World {
            ledger: Ledger::default(),
            closed: plain.clone(),
            plain,
            disk: BTreeMap::new(),
            open: Rows::new(),
            holds: Vec::new(),
            owed: BTreeMap::new(),
            excused: Default::default(),
            replaced: None,
            txg: Txg::FIRST,
        }
    }

    fn log(&mut self, result: Result<Rows, QuotaError>) -> &'static str {
        match result {
            Ok(rows) => {
                self.open.extend(rows);
                ""
            }
            Err(refused) => {
                assert!(!refused.to_string().is_empty());
                refused.code()
            }
        }
    }

    fn close(&mut self) {
        let rows = self.ledger.closing(self.txg);
        let keys: BTreeSet<Key> = rows.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys.len(), rows.len(), "R24: each row once");
        self.txg = self.txg.next();
        for (key, edit) in self.open.drain(..).chain(rows) {
            match edit {
                Edit::Put(value) => drop(self.disk.insert(key, value)),
                Edit::Delete => drop(self.disk.remove(&key)),
            }
        }
        self.closed = self.plain.clone();
    }

    fn crash(&mut self) {
        self.plain = self.closed.clone();
        self.open.clear();
        self.owed.clear();
        self.holds.clear();
        let mut loader = Loader::new();
        for (key, value) in &self.disk {
            assert!(loader.row(*key, value).unwrap());
        }
        let live = self.plain.epochs.iter().filter(|(_, (_, live))| *live);
        let live = live.map(|(epoch, (owner, _))| (EpochId(*epoch), SubvolId(*owner)));
        let (ledger, strays) = loader.finish(self.residents(), live);
        assert_eq!(strays, vec![]);
        self.ledger = ledger;
        self.all_shared();
        self.excused = Default::default();
        for (id, over) in self.over() {
            let limit = self.limits(id).bytes().unwrap_or_default() as i64;
            let overdraft = (1 << 20) + limit / 64;
            let beyond = over - limit - overdraft;
            let excused = match beyond > 65536 {
                true => (beyond + overdraft / 4) * 64 / 65,
                false => beyond.max(0),
            };
            for of in &mut self.excused {
                of.insert(id, excused);
            }
        }
    }

    /// As far as the records say.
    fn all_shared(&mut self) {
        let (alive, own) = (self.plain.alive(), self.own());
        let origins: Vec<_> = alive.iter().filter_map(|id| self.plain.subs[id].origin).collect();
        for (id, sub) in &mut self.plain.subs {
            let is_new = sub.origin.is_some() && own[id].amount.metadata == 0;
            sub.shared = alive.contains(id) && (is_new || origins.contains(id));
        }
    }

    /// The nodes that edits of an owner copy, if it shares all.
    fn path(&self, subvol: u32) -> u64 {
        let is_shared = self.plain.subs[&subvol].shared && self.plain.from.is_some();
        if is_shared { Request::PATH } else { 0 }
    }

    /// The loads of all groups.
    fn loads(&self) -> BTreeMap<GroupId, i64> {
        let load = |(_, [load, ..]): (Own, [u64; 4])| load as i64;
        self.recount().into_iter().map(|(id, sums)| (id, load(sums))).collect()
    }

    /// How far each group is over its limit.
    fn over(&self) -> BTreeMap<GroupId, i64> {
        let over = |(id, load): (GroupId, i64)| {
            self.limits(id).bytes().map(|limit| (id, (load - limit as i64).max(0)))
        };
        self.loads().into_iter().filter_map(over).collect()
    }

    /// A step is over, which began with these sums. One that moves usage between accounts excuses
    /// it, and no other does.
    fn note_excused(&mut self, before: &BTreeMap<GroupId, i64>, moves: bool) {
        let after = self.loads();
        let replaced = self.replaced.take();
        for (id, over) in self.over() {
            if let Some((_, old)) = replaced.filter(|(new, _)| *new == id) {
                for of in &mut self.excused {
                    let excused = of.get(&old).copied().unwrap_or_default();
                    of.insert(id, excused.min(over));
                }
                continue;
            }
            let was = before.get(&id).copied().unwrap_or_default();
            let moved = if moves { after[&id] - was } else { 0 };
            let [least, most] = &mut self.excused;
            let change = |of: &mut BTreeMap<GroupId, i64>, moved: i64| {
                let excused = of.entry(id).or_default();
                *excused = (*excused + moved).min(over).max(0);
            };
            change(least, moved);
            change(most, moved.max(0));
        }
    }

    fn residents(&self) -> Vec<Resident> {
        let alive = self.plain.alive().into_iter();
        let resident = |id: u32| Resident {
            subvol: SubvolId(id),
            holder: self.plain.subs[&id].holder.map(SubvolId),
            origin: self.plain.subs[&id].origin.map(SubvolId),
        };
        alive.map(resident).collect()
    }

    fn new_epoch(&mut self, subvol: u32) -> u64 {
        let epoch = self.plain.next_epoch;
        self.plain.next_epoch += 1;
        self.plain.epochs.insert(epoch, (subvol, true));
        let counts = self.plain.counts(epoch);
        let sub = self.plain.subs.get_mut(&subvol).unwrap();
        sub.epoch = epoch;
        let next = InodeNo(sub.next_inode);
        if counts && sub.counted_from.is_none() {
            sub.counted_from = Some(next.0);
        }
        self.ledger.begin_epoch(EpochId(epoch), SubvolId(subvol), next).unwrap();
        epoch
    }

    /// R25: a subvolume that would write uncounted takes a new number first.
    fn current(&mut self, subvol: u32) -> u64 {
        let epoch = self.plain.subs[&subvol].epoch;
        let is_old = self.plain.from.is_some() && !self.plain.counts(epoch);
        if is_old { self.new_epoch(subvol) } else { epoch }
    }

    // -- the recount ---------------------------------------------------------

    /// The own usage of each owner.
    fn own(&self) -> BTreeMap<u32, Own> {
        let plain = &self.plain;
        let mut own: BTreeMap<u32, Own> =
            plain.subs.keys().map(|id| (*id, Own::default())).collect();
        for (origin, amount) in plain.extents.iter().filter(|(origin, _)| plain.counts(*origin)) {
            let at = own.get_mut(&plain.payer(plain.epochs[origin].0)).unwrap();
            at.amount.data += amount.data;
            at.amount.metadata += amount.metadata;
        }
        // Of an owner that has been swept nothing counts that was held for it.
        let is_there = |owner: u32| self.is_there(zero(plain.payer(owner)));
        for (hold, owner) in self.holds.iter().filter(|(_, owner)| is_there(*owner)) {
            let at = own.get_mut(&plain.payer(*owner)).unwrap();
            at.reserved += hold.left().data + hold.left().metadata;
            at.inodes += hold.left().inodes;
            at.snapshots += u64::from(hold.left().snapshots);
        }
        for (owner, bytes) in self.owed.iter().filter(|(owner, _)| is_there(**owner)) {
            own.get_mut(owner).unwrap().unflushed += bytes;
        }
        for (id, sub) in &plain.subs {
            own.get_mut(id).unwrap().inodes += plain.counted_inodes(*id);
            if let Some(origin) = sub.origin.filter(|_| !sub.dead)
                && !plain.subs[&origin].dead
            {
                own.get_mut(&origin).unwrap().snapshots += 1;
            }
        }
        own
    }

    /// Own sums of a group, and the counters of its limits: load, inodes, snapshots, subvolumes.
    fn recount(&self) -> BTreeMap<GroupId, (Own, [u64; 4])> {
        let mut sums: BTreeMap<GroupId, (Own, [u64; 4])> = BTreeMap::new();
        for (id, own) in self.own() {
            let load = own.amount.bytes() + own.reserved + own.unflushed;
            let (groups, holders) = self.plain.above(id);
            for group in groups.into_iter().chain([zero(id)]) {
                let (sum, _) = sums.entry(group).or_default();
                sum.amount.data += own.amount.data;
                sum.amount.metadata += own.amount.metadata;
                sum.reserved += own.reserved;
                sum.unflushed += own.unflushed;
            }
            let (groups, _) = self.plain.above(id);
            let sub = &self.plain.subs[&id];
            let lives = u64::from(sub.begun && !sub.dead);
            for holder in &holders {
                sums.entry(zero(*holder)).or_default().1[0] += lives * 4096;
            }
            for group in holders.iter().copied().map(zero).chain(groups.iter().copied()) {
                sums.entry(group).or_default().1[3] += lives;
            }
            let all = holders.into_iter().chain([id]).map(zero).chain(groups);
            for group in all {
                let (_, gates) = sums.entry(group).or_default();
                gates[0] += load;
                gates[1] += own.inodes;
                gates[2] += own.snapshots;
            }
        }
        sums
    }

    /// Whether a group can be named.
    fn is_there(&self, id: GroupId) -> bool {
        self.ledger.show_group(id).is_ok()
    }

    fn limits(&self, group: GroupId) -> Limits {
        self.plain.limits.get(&group).copied().unwrap_or_default()
    }

    /// The groups that must refuse.
    fn refusing(&self, subvol: u32, wanted: Request, tier: Tier) -> BTreeSet<GroupId> {
        self.refusing_with(&self.excused[1], subvol, wanted, tier)
    }

    /// The groups that may refuse.
    fn may_refuse(&self, subvol: u32, wanted: Request, tier: Tier) -> BTreeSet<GroupId> {
        self.refusing_with(&self.excused[0], subvol, wanted, tier)
    }

    fn refusing_with(
        &self,
        excused: &BTreeMap<GroupId, i64>,
        subvol: u32,
        wanted: Request,
        tier: Tier,
    ) -> BTreeSet<GroupId> {
        let sums = self.recount();
        let (groups, holders) = self.plain.above(subvol);
        let nodes = holders.clone().into_iter().chain([subvol]).map(zero).chain(groups);
        let refuses = |id: &GroupId| {
            let limits = self.limits(*id);
            let (_, gates) = sums.get(id).copied().unwrap_or_default();
            let [load, inodes, snapshots, subvolumes] = gates;
            let excused = excused.get(id).map_or(0, |bytes| *bytes as u64);
            let overdraft = |limit: u64| (1 << 20) + (limit + excused) / 64;
            let end = |limit: u64| match tier {
                Tier::Data => limit - (64 * KIB).min(limit / 64),
                Tier::Write => limit,
                Tier::Change => limit + excused + overdraft(limit) / 2,
                Tier::Delete => 2 * limit + excused + overdraft(limit),
            };
            let is_inside = id.subvol().is_some_and(|id| holders.contains(&id.0));
            let records = if is_inside { u64::from(wanted.subvolumes) * 4096 } else { 0 };
            let more = if *id == zero(subvol) { 0 } else { wanted.subvolumes.into() };
            let bytes = wanted.data + wanted.metadata + records;
            let over = |count: u64, wanted: u64, limit: Option<u64>| {
                wanted > 0 && limit.is_some_and(|limit| count + wanted > limit)
            };
            over(load, bytes, limits.bytes().map(end))
                || over(inodes, wanted.inodes, limits.inodes)
                || over(snapshots, wanted.snapshots.into(), limits.snapshots)
                || over(subvolumes, more, limits.subvolumes)
        };
        if self.plain.from.is_some() { nodes.filter(refuses).collect() } else { BTreeSet::new() }
    }

    fn check(&self) {
        let Ok(shown) = self.ledger.show() else {
            assert_eq!(self.plain.from, None);
            assert_eq!(self.ledger.usage(), BTreeMap::new());
            return;
        };
        let sums = self.recount();
        let shown: BTreeMap<_, _> = shown.into_iter().map(|group| (group.id, group)).collect();
        for id in self
            .plain
            .groups
            .iter()
            .chain(self.plain.alive().iter().map(|id| zero(*id)).collect::<Vec<_>>().iter())
        {
            assert!(shown.contains_key(id), "{id} is not shown");
        }
        for (id, group) in &shown {
            let (own, gates) = sums.get(id).copied().unwrap_or_default();
            let sub = id.subvol().map(|id| &self.plain.subs[&id.0]);
            let found = Own {
                amount: Amount { data: group.data, metadata: group.metadata },
                reserved: group.reserved,
                unflushed: group.unflushed,
                inodes: 0,
                snapshots: 0,
            };
            assert_eq!(found, Own { inodes: 0, snapshots: 0, ..own }, "QUOTA-Q2, QUOTA-Q3: {id}");
            assert_eq!(group.referenced, own.amount.bytes());
            assert!(sub.is_none_or(|sub| sub.heir.is_none()), "{id} has an heir");
            let state = match sub.is_some_and(|sub| sub.dead) {
                false => GroupState::Live,
                true if group.referenced == 0 => GroupState::Stale,
                true => GroupState::Tombstone,
            };
            assert_eq!(group.state, state, "{id}");
            assert_eq!(group.limits, self.limits(*id), "{id}");
            let parents = self.plain.members.iter().filter(|(child, _)| child == id);
            let parents: Vec<_> = parents.map(|(_, parent)| *parent).collect();
            assert_eq!(group.parents, parents, "{id}");
            if state == GroupState::Live {
                let counted = [group.inodes, group.snapshots, group.subvolumes];
                assert_eq!(counted, gates[1..], "{id}");
            }
        }
        for (id, (own, _)) in sums {
            let is_zero = own.amount == Amount::default();
            assert!(is_zero || shown.contains_key(&id), "{id} pays and is not shown");
        }
        self.check_room();
        self.check_rows();
    }

    fn check_room(&self) {
        let sums = self.recount();
        let load = |id: GroupId| sums.get(&id).map_or(0, |(_, gates)| gates[0]);
        let promise = |id: u32| {
            let reserve = self.plain.reserves.get(&id).copied().unwrap_or(0);
            reserve.saturating_sub(load(zero(id)))
        };
        let promised: u64 = self.plain.subs.keys().map(|id| promise(*id)).sum();
        for id in self.plain.alive() {
            assert_eq!(
                self.ledger.kept_for_others(SubvolId(id)),
                promised - promise(id),
                "COUNTER-N3"
            );
            let (groups, holders) = self.plain.above(id);
            let nodes = holders.into_iter().chain([id]).map(zero).chain(groups);
            let left =
                nodes.filter_map(|id| Some(self.limits(id).bytes()?.saturating_sub(load(id))));
            assert_eq!(self.ledger.available(SubvolId(id)), left.min());
        }
    }

    fn check_rows(&self) {
        let mut usage: BTreeMap<u64, Amount> = BTreeMap::new();
        for (origin, amount) in &self.plain.extents {
            if self.plain.counts(*origin) {
                let at = usage.entry(*origin).or_default();
                at.data += amount.data;
                at.metadata += amount.metadata;
            }
        }
        let found = self.ledger.usage().into_iter();
        let found: BTreeMap<_, _> = found
            .map(|(epoch, item)| {
                assert_eq!(item.owner.0, self.plain.epochs[&epoch.0].0);
                (epoch.0, Amount { data: item.data, metadata: item.metadata })
            })
            .collect();
        assert_eq!(found, usage);
    }

    /// When everything has settled, only the owners that must be there are there, and their
    /// records.
    fn check_settled(&mut self) {
        for _ in 0..1000 {
            self.close();
            let rows = self.ledger.sweep(3);
            if rows.is_empty() && !self.ledger.wants_sweep() {
                break;
            }
            self.open.extend(rows);
            self.check();
        }
        assert!(!self.ledger.wants_sweep());
        self.close();
        let shown = self.ledger.show().unwrap_or_default();
        for group in &shown {
            if let Some(subvol) = group.id.subvol() {
                let must = !self.plain.subs[&subvol.0].dead || self.plain.has_life(subvol.0);
                assert!(must, "{} should have gone", group.id);
            }
        }
        let mut loader = Loader::new();
        self.disk.iter().for_each(|(key, value)| assert!(loader.row(*key, value).unwrap()));
        if self.plain.from.is_none() {
            assert!(self.disk.len() <= 1, "{:?}", self.disk.keys());
        }
        let named = |key: &&Key| key.kind == copyhold_format::item::GROUP && key.object >> 48 == 0;
        for key in self.disk.keys().filter(named) {
            let item = GroupItem::parse(&self.disk[key]).unwrap();
            assert_ne!(item, GroupItem::default(), "a record that says nothing");
        }
    }
}
