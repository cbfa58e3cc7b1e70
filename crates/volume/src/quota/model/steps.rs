//! The steps of a history. Each is given to the ledger and to the model; the model must have
//! expected each refusal of the ledger, and its code.

use std::collections::BTreeSet;

use copyhold_types::{EpochId, InodeNo, SubvolId, Timestamp};
use proptest::prelude::*;

use super::*;

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
        let before = self.loads();
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
            72..=74 => self.replace(a, b, c),
            _ => self.check_settled(),
        }
        self.note_excused(&before, matches!(what, 31..=34 | 43..=47 | 72..=74));
        self.check();
    }

    fn group(&self, at: u32) -> GroupId {
        let zero = self.plain.subs.keys().map(|id| GroupId::of(SubvolId(*id)));
        let groups: Vec<_> = zero.chain(self.plain.groups.iter().copied()).collect();
        pick(&groups, at).unwrap()
    }

    fn create(&mut self, a: u32, b: u32, c: u32) {
        let holder = pick(&self.plain.alive(), a).unwrap();
        let group = pick(&self.plain.groups.iter().copied().collect::<Vec<_>>(), b);
        let explicit = group.filter(|_| c.is_multiple_of(3));
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
        assert!(sum + 64 * KIB > exceeded.limit, "{exceeded}");
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
        // A subvolume begins with its root directory.
        let (inodes, next_inode, counted_from) = match origin {
            None => (BTreeSet::from([1]), 2, self.plain.from.map(|_| 1)),
            Some(_) => (of_origin.inodes, of_origin.next_inode, of_origin.counted_from),
        };
        let held = Sub { holder: Some(holder), ..Sub::default() };
        // They are reserved before they count.
        let counted = inodes.range(counted_from.unwrap_or(u64::MAX)..).count() as u64;
        let sub = Sub { origin, inodes, next_inode, ..held };
        self.plain.subs.insert(id, sub);
        if self.plain.from.is_some() {
            let parents = self.plain.members.iter().filter(|(child, _)| *child == zero(holder));
            let inherited: Vec<_> = match explicit {
                Some(group) => vec![group],
                None => parents.map(|(_, parent)| *parent).collect(),
            };
            self.plain.members.extend(inherited.into_iter().map(|parent| (zero(id), parent)));
        }
        let metadata = if origin.is_some() { 0 } else { Request::LEAF };
        let wanted = Request { metadata, inodes: counted, subvolumes: 1, ..Request::default() };
        let refusing = self.refusing(id, wanted, Tier::Write);
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
                let sub = self.plain.subs.get_mut(&id).unwrap();
                (sub.counted_from, sub.begun) = (counted_from, true);
                sub.shared = origin.is_some();
                if metadata > 0 && self.plain.from.is_some() {
                    self.owed.insert(id, metadata);
                }
                if let Some(origin) = origin {
                    self.plain.subs.get_mut(&origin).unwrap().shared = true;
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
        let tier = match c % 5 {
            0 if b.is_multiple_of(3) => Tier::Change,
            0 => Tier::Delete,
            1 | 2 => Tier::Data,
            _ => Tier::Write,
        };
        let path = if wanted.metadata > 0 { self.path(subvol) } else { 0 };
        let with_path = Request { metadata: wanted.metadata + path, ..wanted };
        let refusing = self.refusing(subvol, with_path, tier);
        let may_refuse = self.may_refuse(subvol, with_path, tier);
        let mut hold = match self.ledger.hold(SubvolId(subvol), wanted, tier) {
            Err(refused) => return self.expect_refused(refused, may_refuse),
            Ok(hold) => hold,
        };
        assert_eq!(refusing, BTreeSet::new());
        if path > 0 {
            self.plain.subs.get_mut(&subvol).unwrap().shared = false;
            *self.owed.entry(subvol).or_default() += path;
        }
        let amount = Amount { data: wanted.data / (1 + u64::from(b % 3)), metadata: 0 };
        self.ledger.charge(EpochId(origin), amount, Some(&mut hold)).unwrap();
        self.born(origin, amount);
        if c.is_multiple_of(3) && self.plain.from.is_some() {
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
        if a.is_multiple_of(3) && amount.data >= 8 * KIB {
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
        let heir = pick(&alive, b).filter(|_| b.is_multiple_of(3));
        let since = Timestamp { secs: b.into(), nanos: 5 };
        let heir_id = heir.map(SubvolId);
        let code = self.ledger.delete_subvolume(SubvolId(subvol), since, b"name", heir_id);
        let code = self.log(code);
        if code.is_empty() {
            self.ledger.forget_inodes(SubvolId(subvol));
        }
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

    /// A snapshot of any subvolume comes in the place of another one: a rollback.
    fn replace(&mut self, a: u32, b: u32, c: u32) {
        let alive = self.plain.alive();
        let holds_one =
            |id: u32| self.plain.subs.values().any(|sub| !sub.dead && sub.holder == Some(id));
        let leaves: Vec<_> =
            alive.iter().copied().filter(|id| *id != 1 && !holds_one(*id)).collect();
        let Some(old) = pick(&leaves, a) else { return };
        let others: Vec<_> = alive.iter().copied().filter(|id| *id != old).collect();
        let origin = pick(&others, b).unwrap();
        let id = *self.plain.subs.last_key_value().unwrap().0 + 1;
        let holder = self.plain.subs[&old].holder;
        let kept = pick(&alive, c / 2).filter(|kept| c.is_multiple_of(2) && *kept != old);
        let replaced = match kept {
            Some(holder) => Replaced::Kept { holder: SubvolId(holder) },
            None => Replaced::Deleted { since: Timestamp { secs: 7, nanos: 0 }, name: b"name" },
        };
        let new = Resident {
            subvol: SubvolId(id),
            holder: holder.map(SubvolId),
            origin: Some(SubvolId(origin)),
        };
        let refusing = self.refusing_replacement(old, origin, id, kept.is_some());
        match self.ledger.replace_subvolume(new, SubvolId(old), replaced) {
            Err(refused) => return self.expect_refused(refused, refusing),
            Ok(rows) => self.open.extend(rows),
        }
        assert_eq!(refusing, BTreeSet::new());
        let of = self.plain.subs[&origin].clone();
        let sub = Sub {
            holder,
            origin: Some(origin),
            inodes: of.inodes,
            next_inode: of.next_inode,
            counted_from: of.counted_from,
            begun: true,
            shared: true,
            ..Sub::default()
        };
        self.plain.subs.insert(id, sub);
        let is_on = self.plain.from.is_some();
        self.replaced = Some((zero(id), zero(old)));
        if is_on {
            let members = self.plain.members.iter().filter(|(child, _)| *child == zero(old));
            let members: Vec<_> = members.map(|(_, parent)| (zero(id), *parent)).collect();
            self.plain.members.extend(members);
            let limits = self.limits(zero(old));
            self.plain.limits.insert(zero(id), limits);
            if let Some(reserve) = self.plain.reserves.remove(&old) {
                self.plain.reserves.insert(id, reserve);
            }
        }
        match kept {
            Some(holder) => self.plain.subs.get_mut(&old).unwrap().holder = Some(holder),
            None => {
                self.ledger.forget_inodes(SubvolId(old));
                self.plain.subs.get_mut(&old).unwrap().dead = true;
                if is_on {
                    self.set_heir(old, id);
                }
            }
        }
        self.plain.subs.get_mut(&origin).unwrap().shared = true;
        self.new_epoch(origin);
        self.new_epoch(id);
    }

    /// The groups that must refuse what a rollback adds: inodes, or a subvolume with its inodes,
    /// which is a snapshot.
    fn refusing_replacement(
        &mut self,
        old: u32,
        origin: u32,
        new: u32,
        is_kept: bool,
    ) -> BTreeSet<GroupId> {
        let nothing = Request::default();
        let inodes = self.plain.counted_inodes(origin);
        if !is_kept {
            let inodes = inodes.saturating_sub(self.plain.counted_inodes(old));
            return self.refusing(old, Request { inodes, ..nothing }, Tier::Write);
        }
        let snapshot = self.refusing(origin, Request { snapshots: 1, ..nothing }, Tier::Write);
        if self.plain.from.is_none() || !snapshot.is_empty() {
            return snapshot;
        }
        let before = self.plain.clone();
        let sub = Sub { holder: self.plain.subs[&old].holder, ..Sub::default() };
        self.plain.subs.insert(new, sub);
        let members = before.members.iter().filter(|(child, _)| *child == zero(old));
        self.plain.members.extend(members.map(|(_, parent)| (zero(new), *parent)));
        self.plain.limits.insert(zero(new), self.limits(zero(old)));
        let wanted = Request { inodes, subvolumes: 1, ..nothing };
        let refusing = self.refusing(new, wanted, Tier::Write);
        self.plain = before;
        refusing
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
            "ENOENT" => assert!(!is_there || !heir_is_there || !self.plain.has_life(owner)),
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
        let parent =
            pick(&groups, b).filter(|_| !c.is_multiple_of(8)).unwrap_or_else(|| self.group(b));
        let mut child = self.group(a);
        let both = [child, parent].iter().all(|id| self.is_there(*id));
        if c.is_multiple_of(3) {
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
        let kinds = [
            LimitKind::Referenced,
            LimitKind::Exclusive,
            LimitKind::Inodes,
            LimitKind::Snapshots,
            LimitKind::Subvolumes,
        ];
        let kind = kinds[c as usize % 5];
        let unit = if c % 5 < 2 { 64 * KIB } else { 1 };
        let limit = (!b.is_multiple_of(4)).then(|| u64::from(b % 24) * unit);
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
                let before = limits.bytes();
                match kind {
                    LimitKind::Referenced => limits.referenced = limit,
                    LimitKind::Exclusive => limits.exclusive = limit,
                    LimitKind::Inodes => limits.inodes = limit,
                    LimitKind::Snapshots => limits.snapshots = limit,
                    LimitKind::Subvolumes => limits.subvolumes = limit,
                }
                if limits.bytes() != before {
                    // All that is over it now.
                    for of in &mut self.excused {
                        of.insert(id, i64::MAX / 2);
                    }
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
        if self.plain.from.is_some() && a.is_multiple_of(3) {
            let rows = self.ledger.disable();
            self.open.extend(rows);
            if a.is_multiple_of(2) {
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
                self.all_shared();
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
        self.excused = Default::default();
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
        let held = (!a.is_multiple_of(4)).then_some(&mut hold);
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
    (0..77u8, any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(what, a, b, c)| Step {
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
