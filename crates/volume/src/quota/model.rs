//! Random histories of everything, against the plainest model: a list of extents, a list of
//! relations, and a recount of all sums after each step. A crash loads the records as the last
//! closing left them, and goes back to the model of that moment.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::GroupItem;
use copyhold_pool::{Edit, Value};
use copyhold_types::{EpochId, InodeNo, Key, SubvolId, Timestamp, Txg};
use proptest::prelude::*;

use super::*;

const KIB: u64 = 1024;

#[derive(Clone, Debug, Default)]
struct Sub {
    dead: bool,
    holder: Option<u32>,
    origin: Option<u32>,
    epoch: u64,
    inodes: BTreeSet<u64>,
    next_inode: u64,
    counted_from: Option<u64>,
    heir: Option<u32>,
}

/// What is durable, without any sum.
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
        while let Some(at) = holder.filter(|at| *at != 1) {
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
        plain.subs.insert(1, Sub { epoch: 1, next_inode: 1, ..Sub::default() });
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

    /// R25: who would write uncounted takes a new number first.
    fn current(&mut self, subvol: u32) -> u64 {
        let epoch = self.plain.subs[&subvol].epoch;
        let is_old = self.plain.from.is_some() && !self.plain.counts(epoch);
        if is_old { self.new_epoch(subvol) } else { epoch }
    }

    // -- the recount ---------------------------------------------------------

    /// What each owner has of its own.
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
            at.snapshots += hold.left().snapshots;
        }
        for (owner, bytes) in self.owed.iter().filter(|(owner, _)| is_there(**owner)) {
            own.get_mut(owner).unwrap().unflushed += bytes;
        }
        for (id, sub) in &plain.subs {
            own.get_mut(id).unwrap().inodes += plain.counted_inodes(*id);
            if let Some(origin) = sub.origin.filter(|_| !sub.dead)
                && self.is_there(zero(origin))
            {
                own.get_mut(&origin).unwrap().snapshots += 1;
            }
        }
        own
    }

    /// Own sums of a group, and what its limits look at: load, inodes, snapshots.
    fn recount(&self) -> BTreeMap<GroupId, (Own, [u64; 3])> {
        let mut sums: BTreeMap<GroupId, (Own, [u64; 3])> = BTreeMap::new();
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

    fn limits(&self, group: GroupId) -> Limits {
        self.plain.limits.get(&group).copied().unwrap_or_default()
    }

    /// The groups that must refuse.
    fn refusing(&self, subvol: u32, wanted: Request, tier: Tier) -> BTreeSet<GroupId> {
        let sums = self.recount();
        let (groups, holders) = self.plain.above(subvol);
        let nodes = holders.into_iter().chain([subvol]).map(zero).chain(groups);
        let refuses = |id: &GroupId| {
            let limits = self.limits(*id);
            let [load, inodes, snapshots] = sums.get(id).map_or([0; 3], |(_, gates)| *gates);
            let slack = |limit: u64| match tier {
                Tier::Write => 0,
                Tier::Tidy => (1 << 20) + limit / 64,
            };
            let bytes = wanted.data + wanted.metadata;
            let over = |count: u64, wanted: u64, limit: Option<u64>| {
                wanted > 0 && limit.is_some_and(|limit| count + wanted > limit)
            };
            over(load, bytes, limits.bytes().map(|limit| limit + slack(limit)))
                || over(inodes, wanted.inodes, limits.inodes)
                || over(snapshots, wanted.snapshots, limits.snapshots)
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
            assert_eq!(found, Own { inodes: 0, snapshots: 0, ..own }, "Q2, Q3: {id}");
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
                assert_eq!([group.inodes, group.snapshots], gates[1..], "{id}");
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
            assert_eq!(self.ledger.kept_for_others(SubvolId(id)), promised - promise(id), "N3");
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

    /// When everything has settled, only who must be there is there, and the records too.
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

// -- steps --------------------------------------------------------------------

#[derive(Clone, Copy, Debug)]
struct Step {
    what: u8,
    a: u32,
    b: u32,
    c: u32,
}

fn pick<T: Copy>(from: &[T], at: u32) -> Option<T> {
    (!from.is_empty()).then(|| from[at as usize % from.len()])
}

impl World {
    fn run(&mut self, step: Step) {
        let Step { what, a, b, c } = step;
        match what {
            0..=3 => self.create(a, b, c),
            4..=6 => self.snapshot(a, b),
            7..=19 => self.write(a, b, c),
            20..=27 => self.free(a),
            28..=30 => self.flush(a, b, c),
            31..=33 => self.delete(a, b),
            34 => self.give(a, b),
            35..=38 => self.end_epoch(a),
            39..=41 => self.create_group(a),
            42 => self.destroy(a),
            43..=47 => self.relate(a, b, c),
            48..=51 => self.limit(a, b, c),
            52 => self.reserve(a, b),
            53..=57 => self.close(),
            58 => self.crash(),
            59..=61 => {
                let rows = self.ledger.sweep(1 + a as usize % 5);
                self.open.extend(rows);
            }
            62 => self.toggle(a),
            63..=65 => drop(self.holds.pop()),
            66..=69 => self.create_inode(a),
            70..=71 => self.remove_inode(a, b),
            _ => self.check_settled(),
        }
        self.check();
    }

    fn group(&self, at: u32) -> GroupId {
        let zero = self.plain.subs.keys().map(|id| GroupId::of(SubvolId(*id)));
        let groups: Vec<_> = zero.chain(self.plain.groups.iter().copied()).collect();
        pick(&groups, at).unwrap()
    }

    /// Whether a level 0 group, or a group, is there to be named.
    fn is_there(&self, id: GroupId) -> bool {
        self.ledger.show_group(id).is_ok()
    }

    fn create(&mut self, a: u32, b: u32, c: u32) {
        let holder = pick(&self.plain.alive(), a).unwrap();
        let group = pick(&self.plain.groups.iter().copied().collect::<Vec<_>>(), b);
        let explicit = group.filter(|_| c % 3 == 0);
        self.add(holder, None, explicit);
    }

    fn snapshot(&mut self, a: u32, b: u32) {
        let holder = pick(&self.plain.alive(), a).unwrap();
        let origin = pick(&self.plain.alive(), b).unwrap();
        let refusing =
            self.refusing(origin, Request { snapshots: 1, ..Request::default() }, Tier::Write);
        let wanted = Request { snapshots: 1, ..Request::default() };
        match self.ledger.hold(SubvolId(origin), wanted, Tier::Write) {
            Err(refused) => self.expect_refused(refused, refusing),
            Ok(hold) => {
                assert!(refusing.is_empty());
                self.holds.push((hold, origin));
                self.add(holder, Some(origin), None);
            }
        }
    }

    fn expect_refused(&self, refused: QuotaError, by: BTreeSet<GroupId>) {
        let QuotaError::Exceeded(exceeded) = refused else { panic!("{refused}") };
        assert!(by.contains(&exceeded.group), "{exceeded} is not of {by:?}");
        let sum = exceeded.used + exceeded.reserved + exceeded.unflushed + exceeded.wanted;
        assert!(sum > exceeded.limit, "{exceeded}");
    }

    fn add(&mut self, holder: u32, origin: Option<u32>, explicit: Option<GroupId>) {
        let id = *self.plain.subs.last_key_value().unwrap().0 + 1;
        let new = Resident {
            subvol: SubvolId(id),
            holder: Some(SubvolId(holder)),
            origin: origin.map(SubvolId),
        };
        let inherit = explicit.map_or(Inherit::FromHolder, |group| Inherit::Groups(vec![group]));
        let before = self.plain.clone();
        let of_origin = origin.map(|origin| self.plain.subs[&origin].clone()).unwrap_or_default();
        let sub = Sub {
            holder: Some(holder),
            origin,
            inodes: of_origin.inodes,
            next_inode: of_origin.next_inode.max(1),
            ..Sub::default()
        };
        self.plain.subs.insert(id, sub);
        if self.plain.from.is_some() {
            let parents = self.plain.members.iter().filter(|(child, _)| *child == zero(holder));
            let inherited: Vec<_> = match explicit {
                Some(group) => vec![group],
                None => parents.map(|(_, parent)| *parent).collect(),
            };
            self.plain.members.extend(inherited.into_iter().map(|parent| (zero(id), parent)));
        }
        let counted = origin.map_or(0, |origin| self.plain.counted_inodes(origin));
        let refusing =
            self.refusing(id, Request { inodes: counted, ..Request::default() }, Tier::Write);
        let mut hold = origin.and_then(|_| self.holds.pop());
        let hold_of = hold.as_mut().map(|(hold, _)| hold);
        match self.ledger.create_subvolume(new, &inherit, hold_of) {
            Err(refused) => {
                self.plain = before;
                self.expect_refused(refused, refusing);
            }
            Ok(rows) => {
                assert!(refusing.is_empty());
                self.open.extend(rows);
                self.plain.subs.get_mut(&id).unwrap().counted_from = of_origin.counted_from;
                if let Some(origin) = origin {
                    self.new_epoch(origin);
                }
                self.new_epoch(id);
            }
        }
    }

    fn write(&mut self, a: u32, b: u32, c: u32) {
        let subvol = pick(&self.plain.alive(), a).unwrap();
        let origin = self.current(subvol);
        let wanted = Request {
            data: u64::from(b % 64) * 4 * KIB,
            metadata: u64::from(c % 16) * 4 * KIB,
            ..Request::default()
        };
        let tier = if c % 5 == 0 { Tier::Tidy } else { Tier::Write };
        let refusing = self.refusing(subvol, wanted, tier);
        let mut hold = match self.ledger.hold(SubvolId(subvol), wanted, tier) {
            Err(refused) => return self.expect_refused(refused, refusing),
            Ok(hold) => hold,
        };
        assert_eq!(refusing, BTreeSet::new());
        let amount = Amount { data: wanted.data / (1 + u64::from(b % 3)), metadata: 0 };
        self.ledger.charge(EpochId(origin), amount, Some(&mut hold)).unwrap();
        self.born(origin, amount);
        if c % 3 == 0 && self.plain.from.is_some() {
            *self.owed.entry(subvol).or_default() += hold.left().metadata;
            hold.spend_metadata();
        }
        if c % 7 < 3 {
            let part = hold.split(Request { data: wanted.data / 3, ..wanted });
            self.holds.push((part, subvol));
        }
        if c % 7 == 1 {
            self.holds.push((hold, subvol));
        }
    }

    fn born(&mut self, origin: u64, amount: Amount) {
        if amount != Amount::default() {
            self.plain.extents.push((origin, amount));
        }
    }

    fn free(&mut self, a: u32) {
        if self.plain.extents.is_empty() {
            return;
        }
        let at = a as usize % self.plain.extents.len();
        let (origin, mut amount) = self.plain.extents.swap_remove(at);
        if a % 3 == 0 && amount.data >= 8 * KIB {
            // Only a part of it dies: no bookends.
            self.plain.extents.push((origin, Amount::data(amount.data - 4 * KIB)));
            amount = Amount { data: 4 * KIB, ..amount };
        }
        self.ledger.refund(EpochId(origin), amount).unwrap();
    }

    fn flush(&mut self, a: u32, b: u32, c: u32) {
        let live: Vec<_> = self.plain.epochs.iter().filter(|(_, (_, live))| *live).collect();
        let live: Vec<_> = live.iter().map(|(epoch, (owner, _))| (**epoch, *owner)).collect();
        let Some((epoch, owner)) = pick(&live, a) else { return };
        let nodes = Amount::metadata(u64::from(b % 8) * 8 * KIB);
        self.ledger.charge(EpochId(epoch), nodes, None).unwrap();
        self.born(epoch, nodes);
        let (merged, left) = (u64::from(b % 1000), u64::from(c % 3) * 500);
        self.ledger.flushed(SubvolId(owner), merged, left);
        if self.plain.subs[&owner].heir.is_none()
            && let Some(owed) = self.owed.get_mut(&owner)
        {
            *owed -= if left == 0 { *owed } else { *owed * merged / (merged + left) };
        }
    }

    fn delete(&mut self, a: u32, b: u32) {
        let holds_one =
            |id: u32| self.plain.subs.values().any(|sub| !sub.dead && sub.holder == Some(id));
        let alive = self.plain.alive();
        let leaves: Vec<_> =
            alive.iter().copied().filter(|id| *id != 1 && !holds_one(*id)).collect();
        let Some(subvol) = pick(&leaves, a) else { return };
        let heir = pick(&alive, b).filter(|_| b % 3 == 0);
        let since = Timestamp { secs: b.into(), nanos: 5 };
        let heir_id = heir.map(SubvolId);
        let code = self.ledger.delete_subvolume(SubvolId(subvol), since, b"name", heir_id);
        let code = self.log(code);
        let is_on = self.plain.from.is_some();
        if is_on && heir == Some(subvol) {
            return assert_eq!(code, "EINVAL");
        }
        assert_eq!(code, "");
        self.plain.subs.get_mut(&subvol).unwrap().dead = true;
        self.plain.reserves.remove(&subvol);
        if let Some(heir) = heir.filter(|_| is_on) {
            self.set_heir(subvol, heir);
        }
    }

    fn set_heir(&mut self, owner: u32, heir: u32) {
        self.plain.subs.get_mut(&owner).unwrap().heir = Some(heir);
        self.plain.members.retain(|(child, _)| *child != zero(owner));
        self.plain.limits.remove(&zero(owner));
        self.owed.remove(&owner);
    }

    fn give(&mut self, a: u32, b: u32) {
        let all: Vec<_> = self.plain.subs.keys().copied().collect();
        let (owner, heir) = (pick(&all, a).unwrap(), pick(&all, b).unwrap());
        let (is_there, heir_is_there) = (self.is_there(zero(owner)), self.is_there(zero(heir)));
        let code = self.ledger.give_to_heir(SubvolId(owner), SubvolId(heir));
        let code = self.log(code);
        let (dead, of_heir) = (&self.plain.subs[&owner], &self.plain.subs[&heir]);
        match code {
            "ENOTCONN" => assert!(self.plain.from.is_none()),
            "ENOENT" => assert!(!is_there || !heir_is_there),
            "EEXIST" => assert!(dead.heir.is_some()),
            "EINVAL" => assert!(owner == heir || !dead.dead),
            "ESTALE" => assert!(of_heir.dead),
            _ => {
                assert!(dead.dead && !of_heir.dead && dead.heir.is_none());
                self.set_heir(owner, heir);
            }
        }
    }

    fn end_epoch(&mut self, a: u32) {
        let is_current = |epoch: u64, owner: u32| {
            let sub = &self.plain.subs[&owner];
            !sub.dead && sub.epoch == epoch
        };
        let live = self.plain.epochs.iter().filter(|(_, (_, live))| *live);
        let past: Vec<_> = live
            .filter(|(epoch, (owner, _))| !is_current(**epoch, *owner))
            .map(|(epoch, _)| *epoch)
            .collect();
        let Some(epoch) = pick(&past, a) else { return };
        self.ledger.end_epoch(EpochId(epoch));
        self.plain.epochs.get_mut(&epoch).unwrap().1 = false;
    }

    fn create_group(&mut self, a: u32) {
        let id = GroupId::new((a % 4) as u16, u64::from(a / 4 % 3 + 1)).unwrap();
        let expected = match self.plain.from {
            None => "ENOTCONN",
            Some(_) if id.level() == 0 => "EINVAL",
            Some(_) if self.plain.groups.contains(&id) => "EEXIST",
            Some(_) => "",
        };
        let code = self.ledger.create(id);
        assert_eq!(self.log(code), expected);
        if expected.is_empty() {
            self.plain.groups.insert(id);
        }
    }

    fn destroy(&mut self, a: u32) {
        let id = self.group(a);
        let before = self.ledger.show_group(id);
        let code = self.ledger.destroy(id);
        let code = self.log(code);
        match (&before, id.level()) {
            _ if self.plain.from.is_none() => assert_eq!(code, "ENOTCONN"),
            (Err(_), _) => assert_eq!(code, "ENOENT"),
            (Ok(group), 0) if group.state != GroupState::Stale => assert_eq!(code, "EBUSY"),
            (Ok(_), 0) => assert!(code.is_empty() || code == "EBUSY"),
            (Ok(group), _) if !group.members.is_empty() => assert_eq!(code, "EBUSY"),
            (Ok(_), _) => assert_eq!(code, ""),
        }
        if code.is_empty() {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: GroupId) {
        self.plain.groups.remove(&id);
        self.plain.limits.remove(&id);
        self.plain.members.retain(|(child, parent)| *child != id && *parent != id);
    }

    fn relate(&mut self, a: u32, b: u32, c: u32) {
        let groups: Vec<_> = self.plain.groups.iter().copied().collect();
        let parent = pick(&groups, b).filter(|_| c % 8 != 0).unwrap_or_else(|| self.group(b));
        let mut child = self.group(a);
        let both = [child, parent].iter().all(|id| self.is_there(*id));
        if c % 3 == 0 {
            if let Some((one, _)) = pick(&self.plain.members.iter().copied().collect::<Vec<_>>(), a)
            {
                child = one;
            }
            let is_member = self.plain.members.contains(&(child, parent)) && self.is_there(child);
            let code = self.ledger.remove(child, parent);
            let expected = match self.plain.from {
                None => "ENOTCONN",
                Some(_) if !is_member => "ENOENT",
                Some(_) => "",
            };
            assert_eq!(self.log(code), expected);
            if expected.is_empty() {
                self.plain.members.remove(&(child, parent));
            }
        } else {
            let expected = match self.plain.from {
                None => "ENOTCONN",
                Some(_) if !both || child.level() >= parent.level() => "EINVAL",
                Some(_) if self.plain.members.contains(&(child, parent)) => "EEXIST",
                Some(_) => "",
            };
            let code = self.ledger.assign(child, parent);
            assert_eq!(self.log(code), expected);
            if expected.is_empty() {
                self.plain.members.insert((child, parent));
            }
        }
    }

    fn limit(&mut self, a: u32, b: u32, c: u32) {
        let id = self.group(a);
        let kinds =
            [LimitKind::Referenced, LimitKind::Exclusive, LimitKind::Inodes, LimitKind::Snapshots];
        let kind = kinds[c as usize % 4];
        let unit = if c % 4 < 2 { 64 * KIB } else { 1 };
        let limit = (b % 4 != 0).then(|| u64::from(b % 24) * unit);
        let code = self.ledger.limit(id, kind, limit);
        let is_there = self.is_there(id);
        match self.log(code) {
            "ENOTCONN" => assert!(self.plain.from.is_none()),
            "ENOENT" => assert!(!is_there),
            "EINVAL" => {
                let reserve = id.subvol().and_then(|id| self.plain.reserves.get(&id.0));
                assert!(reserve.is_some_and(|reserve| limit.is_some_and(|limit| limit < *reserve)));
            }
            code => {
                assert_eq!(code, "");
                let limits = self.plain.limits.entry(id).or_default();
                match kind {
                    LimitKind::Referenced => limits.referenced = limit,
                    LimitKind::Exclusive => limits.exclusive = limit,
                    LimitKind::Inodes => limits.inodes = limit,
                    LimitKind::Snapshots => limits.snapshots = limit,
                }
            }
        }
    }

    fn reserve(&mut self, a: u32, b: u32) {
        let subvol = pick(&self.plain.alive(), a).unwrap();
        let reserve = u64::from(b % 8) * 64 * KIB;
        let limit = self.limits(zero(subvol)).bytes();
        let code = self.ledger.reserve(zero(subvol), reserve, u64::MAX / 2);
        let expected = match self.plain.from {
            None => "ENOTCONN",
            Some(_) if limit.is_some_and(|limit| reserve > limit) => "EINVAL",
            Some(_) => "",
        };
        assert_eq!(self.log(code), expected);
        if expected.is_empty() {
            self.plain.reserves.insert(subvol, reserve);
        }
    }

    fn toggle(&mut self, a: u32) {
        if self.plain.from.is_some() && a % 3 == 0 {
            let rows = self.ledger.disable();
            self.open.extend(rows);
            if a % 2 == 0 {
                self.close_before_disabled();
            }
            self.ledger.disabled();
            self.turn_off();
            return;
        }
        let from = self.plain.next_epoch;
        let is_clearing = self.ledger.status().leftovers > 0;
        let code = self.ledger.enable(EpochId(from), self.residents());
        let code = self.log(code);
        match self.plain.from {
            Some(_) => assert_eq!(code, ""),
            None if is_clearing => assert_eq!(code, "EBUSY"),
            None => {
                assert_eq!(code, "");
                self.plain.from = Some(from);
            }
        }
    }

    /// The record that quotas are off is durable before they are.
    fn close_before_disabled(&mut self) {
        let on = self.plain.clone();
        self.turn_off();
        self.close();
        self.plain = on;
    }

    fn turn_off(&mut self) {
        let plain = &mut self.plain;
        plain.from = None;
        plain.groups.clear();
        plain.limits.clear();
        plain.reserves.clear();
        plain.members.clear();
        for sub in plain.subs.values_mut() {
            sub.counted_from = None;
            sub.heir = None;
        }
        self.owed.clear();
        self.holds.clear();
    }

    fn create_inode(&mut self, a: u32) {
        let subvol = pick(&self.plain.alive(), a).unwrap();
        self.current(subvol);
        let wanted = Request { inodes: 1, ..Request::default() };
        let refusing = self.refusing(subvol, wanted, Tier::Write);
        let mut hold = match self.ledger.hold(SubvolId(subvol), wanted, Tier::Write) {
            Err(refused) => return self.expect_refused(refused, refusing),
            Ok(hold) => hold,
        };
        assert!(refusing.is_empty());
        let sub = self.plain.subs.get_mut(&subvol).unwrap();
        let ino = sub.next_inode;
        sub.next_inode += 1;
        sub.inodes.insert(ino);
        let held = (a % 4 != 0).then_some(&mut hold);
        self.ledger.created(SubvolId(subvol), InodeNo(ino), held).unwrap();
    }

    fn remove_inode(&mut self, a: u32, b: u32) {
        let subvol = pick(&self.plain.alive(), a).unwrap();
        let inodes: Vec<_> = self.plain.subs[&subvol].inodes.iter().copied().collect();
        let Some(ino) = pick(&inodes, b) else { return };
        self.plain.subs.get_mut(&subvol).unwrap().inodes.remove(&ino);
        self.ledger.removed(SubvolId(subvol), InodeNo(ino)).unwrap();
    }
}

fn step() -> impl Strategy<Value = Step> {
    (0..74u8, any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(what, a, b, c)| Step {
        what,
        a,
        b,
        c,
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_sum_is_what_a_recount_of_extents_and_relations_finds(
        steps in prop::collection::vec(step(), 1..250),
    ) {
        let mut world = World::new();
        let on = world.ledger.enable(EpochId(2), world.residents());
        prop_assert_eq!(world.log(on), "");
        world.plain.from = Some(2);
        steps.into_iter().for_each(|step| world.run(step));
        world.check_settled();
        world.crash();
        world.check();
        world.check_settled();
    }
}
