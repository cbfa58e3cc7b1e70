//! The running sums and limits of one group.
//!
//! COUNTER-N1  `data`, `metadata`, `reserved` and `unflushed` are those of the accounts below a
//!             group; of a subvolume its own.
//! COUNTER-N2  `load`, `inodes`, `snapshots` and `subvolumes` are the counters that limits look at.
//!             They are changed by one atomic step each, so no two holds can both fit into room for
//!             one. Of a subvolume they contain those of subvolumes inside it, and the records of
//!             these.
//! COUNTER-N3  `promised` of the ledger is the sum over all nodes of the part of the reserve that
//!             exceeds the load.
//! COUNTER-N4  `excused` is the part of the load over the limit that no hold has brought: the
//!             limit was set below the load, or the group has inherited. Holds never raise it, and
//!             it falls with the usage: so an overdraft does not feed itself, and an owner that is
//!             over its limit can still remove its files.
//!
//! A reader may see one counter before and another after a change; never a wrong sum once the
//! change is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use copyhold_format::item::{GroupId, Limits};

use super::error::{Exceeded, Resource};
use super::request::{Request, Tier};
use super::share::Share;

/// Changes of counters, or their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) data: i64,
    pub(super) metadata: i64,
    pub(super) reserved: i64,
    pub(super) unflushed: i64,
    pub(super) inodes: i64,
    pub(super) snapshots: i64,
    pub(super) subvolumes: i64,
}

impl Sums {
    fn load(&self) -> i64 {
        self.data + self.metadata + self.reserved + self.unflushed
    }

    pub(super) fn negated(&self) -> Sums {
        Sums {
            data: -self.data,
            metadata: -self.metadata,
            reserved: -self.reserved,
            unflushed: -self.unflushed,
            inodes: -self.inodes,
            snapshots: -self.snapshots,
            subvolumes: -self.subvolumes,
        }
    }
}

/// The counters of a node that limits look at.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: GroupId,
    data: AtomicI64,
    metadata: AtomicI64,
    reserved: AtomicI64,
    unflushed: AtomicI64,
    load: Gate,
    inodes: Gate,
    snapshots: Gate,
    /// Living subvolumes below it or inside it, without itself.
    subvolumes: Gate,
    /// Bytes (COUNTER-N4).
    excused: AtomicI64,
    reserve: AtomicI64,
    promised: Arc<AtomicI64>,
}

/// A counter with a limit.
#[derive(Debug)]
struct Gate {
    count: AtomicI64,
    limit: AtomicI64,
}

impl Gate {
    fn new() -> Gate {
        Gate { count: AtomicI64::new(0), limit: AtomicI64::new(i64::MAX) }
    }

    fn set_limit(&self, limit: Option<u64>) {
        let limit = limit.map_or(i64::MAX, |limit| limit.min(i64::MAX as u64) as i64);
        self.limit.store(limit, Relaxed);
    }

    fn limit(&self) -> i64 {
        self.limit.load(Relaxed)
    }

    fn count(&self) -> i64 {
        self.count.load(Relaxed)
    }

    /// Adds, and gives the count before; `Err` if that would pass the limit.
    fn take(&self, wanted: i64, slack: i64) -> Result<i64, i64> {
        let limit = self.limit().saturating_add(slack);
        let fits = |count: i64| {
            let after = count.checked_add(wanted)?;
            (after <= limit).then_some(after)
        };
        self.count.fetch_update(Relaxed, Relaxed, fits)
    }

    fn left(&self) -> Option<u64> {
        let limit = self.limit();
        (limit != i64::MAX).then(|| limit.saturating_sub(self.count()).max(0) as u64)
    }
}

fn add(counter: &AtomicI64, change: i64) -> i64 {
    if change == 0 { counter.load(Relaxed) } else { counter.fetch_add(change, Relaxed) }
}

fn positive(count: i64) -> u64 {
    count.max(0) as u64
}

impl Node {
    /// How much an estimate of metadata may be wrong by.
    const OVERDRAFT_ERROR: i64 = 64 << 10;

    pub(super) fn new(id: GroupId, promised: Arc<AtomicI64>) -> Node {
        Node {
            id,
            data: AtomicI64::new(0),
            metadata: AtomicI64::new(0),
            reserved: AtomicI64::new(0),
            unflushed: AtomicI64::new(0),
            load: Gate::new(),
            inodes: Gate::new(),
            snapshots: Gate::new(),
            subvolumes: Gate::new(),
            excused: AtomicI64::new(0),
            reserve: AtomicI64::new(0),
            promised,
        }
    }

    pub(super) fn set_limits(&self, limits: &Limits) {
        let before = self.load.limit();
        self.load.set_limit(limits.bytes());
        if self.load.limit() != before {
            self.excused.store(self.over(), Relaxed);
        }
        self.inodes.set_limit(limits.inodes);
        self.snapshots.set_limit(limits.snapshots);
        self.subvolumes.set_limit(limits.subvolumes);
    }

    /// Its own sums, or those of its members. Inodes and snapshots are those of the gates.
    pub(super) fn sums(&self) -> Sums {
        Sums {
            data: self.data.load(Relaxed),
            metadata: self.metadata.load(Relaxed),
            reserved: self.reserved.load(Relaxed),
            unflushed: self.unflushed.load(Relaxed),
            inodes: self.inodes.count(),
            snapshots: self.snapshots.count(),
            subvolumes: self.subvolumes.count(),
        }
    }

    pub(super) fn load(&self) -> i64 {
        self.load.count()
    }

    /// How far the load is over the limit: with promises, which become usage later.
    fn over(&self) -> i64 {
        self.load().saturating_sub(self.load.limit()).max(0)
    }

    /// Takes the place of `old`, whose limits it has and whose usage it has inherited: load that
    /// was not excused there is not excused here.
    pub(super) fn succeed(&self, old: &Node) {
        let excused = old.excused.load(Relaxed);
        self.excuse(|_, over| excused.min(over));
    }

    /// After loading, when nothing says how the usage came about: the part over the overdraft
    /// cannot be the owner's own work. Where there is some, a quarter of the limit's overdraft is
    /// left, for an owner over its limit must be able to remove files. A mount gives no more,
    /// however large the usage is, and to removals only.
    pub(super) fn excuse_loaded(&self) {
        let limit = self.load.limit();
        let over = self.over() - Tier::Delete.slack(limit, 0);
        let excused = match over > Self::OVERDRAFT_ERROR {
            true => Tier::excuse_for(over + Tier::overdraft(limit) / 4),
            false => over,
        };
        self.excused.store(excused.max(0), Relaxed);
    }

    /// Usage that an heir takes over. A node that counts both accounts has no more of it after than
    /// before, so it excuses nothing.
    pub(super) fn move_in(&self, change: &Sums, share: Share, counts_both: bool) {
        if counts_both { self.add(change, share) } else { self.add_moved(change, share) }
    }

    /// As [`Self::add`], of usage that comes from, or goes to, other accounts.
    pub(super) fn add_moved(&self, change: &Sums, share: Share) {
        let load = change.load() + share.records(change.subvolumes);
        if load < 0 {
            self.excuse(|excused, _| excused + load);
        }
        self.add(change, share);
        if load > 0 {
            self.excuse(|excused, over| (excused + load).min(over));
        }
    }

    /// Breaks COUNTER-N4.
    pub(super) fn excuse_all(&self) {
        self.excuse(|_, over| over);
    }

    fn excuse(&self, excused: impl Fn(i64, i64) -> i64) {
        let over = self.over();
        let change = |before: i64| Some(excused(before, over).max(0));
        self.excused.fetch_update(Relaxed, Relaxed, change).expect("never refuses");
    }

    /// Changes counters at any limits.
    pub(super) fn add(&self, change: &Sums, share: Share) {
        if share != Share::Inside {
            add(&self.data, change.data);
            add(&self.metadata, change.metadata);
            add(&self.reserved, change.reserved);
            add(&self.unflushed, change.unflushed);
        }
        self.add_to_gates(change, share);
    }

    /// Changes the counters that limits look at, and no others.
    pub(super) fn add_to_gates(&self, change: &Sums, share: Share) {
        self.move_load(change.load() + share.records(change.subvolumes));
        add(&self.inodes.count, change.inodes);
        add(&self.snapshots.count, change.snapshots);
        if share != Share::Own {
            add(&self.subvolumes.count, change.subvolumes);
        }
    }

    fn move_load(&self, change: i64) {
        if change != 0 {
            let before = self.load.count.fetch_add(change, Relaxed);
            self.keep_promise(before, before + change);
        }
        if change < 0 && self.excused.load(Relaxed) > 0 {
            self.excuse(|excused, over| excused.min(over));
        }
    }

    /// The load has moved. Every step says from where and to where, so the steps add up
    /// (COUNTER-N3).
    fn keep_promise(&self, before: i64, after: i64) {
        let reserve = self.reserve.load(Relaxed);
        if reserve != 0 {
            let change = (reserve - after).max(0) - (reserve - before).max(0);
            add(&self.promised, change);
        }
    }

    /// Takes the amounts of a hold if all of them fit.
    pub(super) fn take(&self, wanted: &Request, share: Share, tier: Tier) -> Result<(), Exceeded> {
        let wanted = &wanted.of(share);
        let bytes = wanted.bytes() as i64 + share.records(wanted.subvolumes.into());
        let (inodes, snapshots) = (wanted.inodes as i64, i64::from(wanted.snapshots));
        let subvolumes = i64::from(wanted.subvolumes);
        if bytes != 0 {
            let slack = tier.slack(self.load.limit(), self.excused.load(Relaxed));
            let taken = self.load.take(bytes, slack);
            let before = taken.map_err(|_| self.exceeded(Resource::Bytes, wanted))?;
            self.keep_promise(before, before + bytes);
        }
        if inodes != 0 && self.inodes.take(inodes, 0).is_err() {
            self.move_load(-bytes);
            return Err(self.exceeded(Resource::Inodes, wanted));
        }
        if snapshots != 0 && self.snapshots.take(snapshots, 0).is_err() {
            self.move_load(-bytes);
            add(&self.inodes.count, -inodes);
            return Err(self.exceeded(Resource::Snapshots, wanted));
        }
        if subvolumes != 0 && self.subvolumes.take(subvolumes, 0).is_err() {
            self.move_load(-bytes);
            add(&self.inodes.count, -inodes);
            add(&self.snapshots.count, -snapshots);
            return Err(self.exceeded(Resource::Subvolumes, wanted));
        }
        Ok(())
    }

    /// As [`Self::take`], taking nothing.
    pub(super) fn would_take(
        &self,
        wanted: &Request,
        share: Share,
        tier: Tier,
    ) -> Result<(), Exceeded> {
        let wanted = &wanted.of(share);
        let bytes = wanted.bytes() + share.records(wanted.subvolumes.into()) as u64;
        let fits = |gate: &Gate, wanted: u64, slack: i64| {
            let limit = gate.limit().saturating_add(slack);
            wanted == 0 || gate.count().saturating_add(wanted as i64) <= limit
        };
        let slack = tier.slack(self.load.limit(), self.excused.load(Relaxed));
        if !fits(&self.load, bytes, slack) {
            Err(self.exceeded(Resource::Bytes, wanted))
        } else if !fits(&self.inodes, wanted.inodes, 0) {
            Err(self.exceeded(Resource::Inodes, wanted))
        } else if !fits(&self.snapshots, wanted.snapshots.into(), 0) {
            Err(self.exceeded(Resource::Snapshots, wanted))
        } else if !fits(&self.subvolumes, wanted.subvolumes.into(), 0) {
            Err(self.exceeded(Resource::Subvolumes, wanted))
        } else {
            Ok(())
        }
    }

    /// Counts a reservation that its gate has let through.
    pub(super) fn note_reserved(&self, bytes: i64) {
        add(&self.reserved, bytes);
    }

    /// Takes the share of the estimate that was flushed, and says how much that is.
    pub(super) fn settle_unflushed(&self, merged: u64, left: u64) -> i64 {
        let share = |owed: i64| match (merged, left) {
            (_, 0) => owed,
            _ => (owed as i128 * merged as i128 / (merged as i128 + left as i128)) as i64,
        };
        let settle = |owed: i64| Some(owed - share(owed));
        let before = self.unflushed.fetch_update(Relaxed, Relaxed, settle).expect("never refuses");
        self.move_load(-share(before));
        share(before)
    }

    fn exceeded(&self, resource: Resource, request: &Request) -> Exceeded {
        let (gate, wanted) = match resource {
            Resource::Bytes => (&self.load, request.bytes()),
            Resource::Inodes => (&self.inodes, request.inodes),
            Resource::Snapshots => (&self.snapshots, request.snapshots.into()),
            Resource::Subvolumes => (&self.subvolumes, request.subvolumes.into()),
        };
        let mut exceeded = Exceeded {
            group: self.id,
            resource,
            wanted,
            used: positive(gate.count()),
            reserved: 0,
            unflushed: 0,
            limit: positive(gate.limit()),
        };
        if resource == Resource::Bytes {
            exceeded.reserved = positive(self.reserved.load(Relaxed));
            exceeded.unflushed = positive(self.unflushed.load(Relaxed));
            let beside = exceeded.reserved + exceeded.unflushed;
            exceeded.used = exceeded.used.saturating_sub(beside);
        }
        exceeded
    }

    /// Bytes and inodes that its limits leave; `None` without one.
    pub(super) fn left(&self) -> (Option<u64>, Option<u64>) {
        (self.load.left(), self.inodes.left())
    }

    /// Nothing may change the load meanwhile: the caller has locked out all that could.
    pub(super) fn set_reserve(&self, reserve: u64) {
        let before = self.promise();
        self.reserve.store(reserve as i64, Relaxed);
        add(&self.promised, self.promise() - before);
    }

    /// The part of its reserve that exceeds its load.
    pub(super) fn promise(&self) -> i64 {
        let reserve = self.reserve.load(Relaxed);
        if reserve == 0 { 0 } else { (reserve - self.load()).max(0) }
    }
}
