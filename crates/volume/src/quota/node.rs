//! The running sums and limits of one group.
//!
//! COUNTER-N1  `data`, `metadata`, `reserved` and `unflushed` are those of the accounts below a
//!             group; of a subvolume its own.
//! COUNTER-N2  `load`, `inodes` and `snapshots` are the counters that limits look at. They are
//!             changed by one atomic step each, so no two holds can both fit into room for one. Of
//!             a subvolume they contain those of subvolumes inside it.
//! COUNTER-N3  `promised` of the ledger is the sum over all nodes of the part of the reserve that
//!             exceeds the load.
//!
//! A reader may see one counter before and another after a change; never a wrong sum once the
//! change is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use copyhold_format::item::{GroupId, Limits};

use super::error::{Exceeded, Resource};
use super::request::{Request, Tier};

/// Changes of counters, or their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) data: i64,
    pub(super) metadata: i64,
    pub(super) reserved: i64,
    pub(super) unflushed: i64,
    pub(super) inodes: i64,
    pub(super) snapshots: i64,
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
        }
    }
}

/// How an account's sums enter those of a node above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Share {
    /// It is below this group.
    Member,
    /// It is held inside this subvolume: only the counters of limits.
    Inside,
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
            reserve: AtomicI64::new(0),
            promised,
        }
    }

    pub(super) fn set_limits(&self, limits: &Limits) {
        self.load.set_limit(limits.bytes());
        self.inodes.set_limit(limits.inodes);
        self.snapshots.set_limit(limits.snapshots);
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
        }
    }

    pub(super) fn load(&self) -> i64 {
        self.load.count()
    }

    /// The usage, without promises and estimates.
    fn settled(&self) -> i64 {
        self.load() - self.reserved.load(Relaxed) - self.unflushed.load(Relaxed)
    }

    /// Changes counters at any limits.
    pub(super) fn add(&self, change: &Sums, share: Share) {
        if share == Share::Member {
            add(&self.data, change.data);
            add(&self.metadata, change.metadata);
            add(&self.reserved, change.reserved);
            add(&self.unflushed, change.unflushed);
        }
        self.move_load(change.load());
        add(&self.inodes.count, change.inodes);
        add(&self.snapshots.count, change.snapshots);
    }

    fn move_load(&self, change: i64) {
        if change != 0 {
            let before = self.load.count.fetch_add(change, Relaxed);
            self.keep_promise(before, before + change);
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
    pub(super) fn take(&self, wanted: &Request, tier: Tier) -> Result<(), Exceeded> {
        let bytes = wanted.bytes() as i64;
        let (inodes, snapshots) = (wanted.inodes as i64, wanted.snapshots as i64);
        if bytes != 0 {
            let slack = tier.slack(self.load.limit(), self.settled());
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
        Ok(())
    }

    /// As [`Self::take`], taking nothing.
    pub(super) fn would_take(&self, wanted: &Request, tier: Tier) -> Result<(), Exceeded> {
        let fits = |gate: &Gate, wanted: u64, slack: i64| {
            let limit = gate.limit().saturating_add(slack);
            wanted == 0 || gate.count().saturating_add(wanted as i64) <= limit
        };
        let slack = tier.slack(self.load.limit(), self.settled());
        if !fits(&self.load, wanted.bytes(), slack) {
            Err(self.exceeded(Resource::Bytes, wanted))
        } else if !fits(&self.inodes, wanted.inodes, 0) {
            Err(self.exceeded(Resource::Inodes, wanted))
        } else if !fits(&self.snapshots, wanted.snapshots, 0) {
            Err(self.exceeded(Resource::Snapshots, wanted))
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
            Resource::Snapshots => (&self.snapshots, request.snapshots),
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
