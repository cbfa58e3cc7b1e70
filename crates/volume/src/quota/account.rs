//! An account: the charges of one owner, and the way up from there.
//!
//! Problem.  A group's sum is that of the distinct accounts below it, while charges go on and
//!           groups are rearranged; and no lock may be shared by tenants (P8).
//! Idea.     Each account knows its way up, a set of nodes, under a lock of its own. A change holds
//!           it shared and visits each node once. Rearranging holds it exclusively, account by
//!           account: nodes that are new on the way get the account's sums, nodes that have gone
//!           lose them. So there is nothing that could be counted twice (QUOTA-Q3).
//!
//! ACCOUNT-A1  A change is added to the account and to all of its way, or it is added to the
//!             heir's.
//! ACCOUNT-A2  The way of an account with an heir is empty, and so are its sums.
//! ACCOUNT-A3  A subvolume without a node of its own owes [`Request::LEAF`] or [`Request::PATH`]
//!             beyond the estimate of its edits: it has no leaf that they fit into. A new
//!             subvolume owes it from its creation, a snapshot from its first edits, until a flush
//!             has written them. So many clones with one change each stay under their limit. The
//!             source of a snapshot owes a path again, from its next edits on: it shares all that
//!             it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use copyhold_format::item::{GroupId, InodesItem};
use copyhold_sync::{RwLock, of};
use copyhold_types::{InodeNo, SubvolId};

use super::error::Exceeded;
use super::hold::Hold;
use super::node::{Node, Sums};
use super::request::{Request, Tier};
use super::share::Share;

/// The nodes above an account, each once, in the order in which they are asked.
pub(super) type Above = Vec<(Arc<Node>, Share)>;

#[derive(Debug)]
pub(super) struct Account {
    pub(super) subvol: SubvolId,
    /// Its group of level 0.
    pub(super) node: Arc<Node>,
    way: RwLock<Way, of::AccountWay>,
    /// Its own part of the counts in the gates of its node.
    inodes: AtomicI64,
    snapshots: AtomicI64,
    /// One while it lives.
    subvolumes: AtomicI64,
    taken: AtomicU64,
    /// Rows that name it.
    pub(super) rows: AtomicU64,
    dead: AtomicBool,
    /// All its nodes are shared: it has had no edits since it began as a snapshot, or since a
    /// snapshot of it was made (ACCOUNT-A3).
    shares_all: AtomicBool,
    pub(super) files: Files,
}

#[derive(Debug, Default)]
struct Way {
    above: Above,
    heir: Option<Arc<Account>>,
}

/// The exact number of an owner's inodes, from a certain number on.
#[derive(Debug)]
pub(super) struct Files {
    from: AtomicU64,
    count: AtomicU64,
    pub(super) dirty: AtomicBool,
}

impl Files {
    /// No inode has this number.
    const UNCOUNTED: u64 = u64::MAX;

    pub(super) fn counts(&self, ino: InodeNo) -> bool {
        ino.0 >= self.from.load(Relaxed)
    }

    pub(super) fn item(&self) -> Option<InodesItem> {
        let from = self.from.load(Relaxed);
        let count = self.count.load(Relaxed);
        (from != Self::UNCOUNTED).then_some(InodesItem { counted_from: InodeNo(from), count })
    }

    pub(super) fn set(&self, item: &InodesItem) {
        self.from.store(item.counted_from.0, Relaxed);
        self.count.store(item.count, Relaxed);
    }

    pub(super) fn clear(&self) -> u64 {
        self.from.store(Self::UNCOUNTED, Relaxed);
        self.count.swap(0, Relaxed)
    }

    /// Begins to count, unless it is being done.
    pub(super) fn begin(&self, from: InodeNo) -> bool {
        self.from.compare_exchange(Self::UNCOUNTED, from.0, Relaxed, Relaxed).is_ok()
    }

    pub(super) fn add(&self) {
        self.count.fetch_add(1, Relaxed);
    }

    /// False if there is none to take away.
    pub(super) fn remove(&self) -> bool {
        self.count.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).is_ok()
    }
}

impl Account {
    pub(super) fn new(subvol: SubvolId, promised: Arc<AtomicI64>) -> Account {
        Account {
            subvol,
            node: Arc::new(Node::new(GroupId::of(subvol), promised)),
            way: RwLock::default(),
            inodes: AtomicI64::new(0),
            snapshots: AtomicI64::new(0),
            subvolumes: AtomicI64::new(0),
            taken: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            shares_all: AtomicBool::new(false),
            files: Files {
                from: AtomicU64::new(Files::UNCOUNTED),
                count: AtomicU64::new(0),
                dirty: AtomicBool::new(false),
            },
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    pub(super) fn has_rows(&self) -> bool {
        self.rows.load(Relaxed) > 0
    }

    pub(super) fn set_dead(&self) {
        self.dead.store(true, Relaxed);
    }

    /// Living snapshots of it.
    pub(super) fn snapshots(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// A snapshot of it has been made; `gated` if a hold has let it through.
    pub(super) fn count_snapshot(&self, gated: bool) {
        self.share_all();
        self.taken.fetch_add(1, Relaxed);
        if !gated {
            self.pay(&Sums { snapshots: 1, ..Sums::default() });
        }
    }

    /// `count` of the living snapshots are not counted any more.
    pub(super) fn uncount_snapshots(&self, count: u64) {
        let less = |taken: u64| taken.checked_sub(count);
        if self.taken.fetch_update(Relaxed, Relaxed, less).is_ok() {
            self.pay(&Sums { snapshots: -(count as i64), ..Sums::default() });
        }
    }

    /// Whether the payer of this account's space counts in this group.
    pub(super) fn pays_into(&self, group: GroupId) -> bool {
        self.with_payer(|account, above| nodes(&account.node, above).any(|node| node.id == group))
    }

    /// Calls `act` for the payer, with the nodes above, while neither can change.
    fn with_payer<T>(&self, act: impl FnOnce(&Account, &Above) -> T) -> T {
        self.with_payer_at(0, act)
    }

    fn with_payer_at<T>(&self, place: u64, act: impl FnOnce(&Account, &Above) -> T) -> T {
        let way = self.way.read_at(place);
        let Some(heir) = &way.heir else { return act(self, &way.above) };
        let heir = Arc::clone(heir);
        drop(way);
        heir.with_payer_at(place, act)
    }

    fn add(&self, change: &Sums) {
        self.node.add(change, Share::Own);
        self.count(change);
    }

    /// Its part of the counts in gates.
    fn count(&self, change: &Sums) {
        if change.inodes != 0 {
            self.inodes.fetch_add(change.inodes, Relaxed);
        }
        if change.snapshots != 0 {
            self.snapshots.fetch_add(change.snapshots, Relaxed);
        }
        if change.subvolumes != 0 {
            self.subvolumes.fetch_add(change.subvolumes, Relaxed);
        }
    }

    /// It counts as a living subvolume from now on, at any limits.
    pub(super) fn begin_life(&self) {
        self.pay(&Sums { subvolumes: 1, ..Sums::default() });
    }

    /// It is dead.
    pub(super) fn end_life(&self) {
        self.dead.store(true, Relaxed);
        let counted = self.subvolumes.load(Relaxed);
        self.pay(&Sums { subvolumes: -counted, ..Sums::default() });
    }

    /// Its inodes count no more.
    pub(super) fn forget_inodes(&self) {
        let inodes = self.files.clear() as i64;
        self.pay(&Sums { inodes: -inodes, ..Sums::default() });
    }

    /// Changes its sums and those above (ACCOUNT-A1).
    pub(super) fn pay(&self, change: &Sums) {
        self.pay_at(0, change);
    }

    fn pay_at(&self, place: u64, change: &Sums) {
        self.with_payer_at(place, |account, above| {
            account.add(change);
            above.iter().for_each(|(node, share)| node.add(change, *share));
        });
    }

    /// Breaks COUNTER-N4.
    pub(super) fn excuse_all(&self) {
        self.with_payer(|account, above| {
            nodes(&account.node, above).for_each(|of| of.excuse_all())
        });
    }

    /// Reserves, here and everywhere above, or nowhere (QUOTA-Q4). It looks before it takes, so
    /// a refusal disturbs no other call; only two that take the last room at once can both be
    /// refused.
    pub(super) fn hold(self: &Arc<Self>, wanted: Request, tier: Tier) -> Result<Hold, Exceeded> {
        if wanted.metadata == 0 || !self.shares_all.load(Relaxed) {
            return self.hold_this(wanted, tier);
        }
        let path = Request { metadata: Request::PATH, ..Request::default() };
        let wanted = Request { metadata: wanted.metadata + path.metadata, ..wanted };
        let mut hold = self.hold_this(wanted, tier)?;
        let mut path = hold.split(path);
        // Of several first edits one owes it, whatever becomes of the operation.
        if self.shares_all.swap(false, Relaxed) {
            path.spend_metadata();
        }
        Ok(hold)
    }

    /// Its next edits copy a path of shared nodes (ACCOUNT-A3).
    pub(super) fn share_all(&self) {
        self.shares_all.store(true, Relaxed);
    }

    pub(super) fn has_nodes(&self) -> bool {
        self.node.sums().metadata > 0
    }

    fn hold_this(self: &Arc<Self>, wanted: Request, tier: Tier) -> Result<Hold, Exceeded> {
        self.with_payer(|account, above| {
            let mut nodes = shares(&account.node, above);
            nodes.try_for_each(|(node, share)| node.would_take(&wanted, share, tier))?;
            account.take(above, &wanted, tier)
        })?;
        Ok(Hold::new(Arc::clone(self), wanted))
    }

    /// Takes from every node, or returns the part taken from those before.
    fn take(&self, above: &Above, wanted: &Request, tier: Tier) -> Result<(), Exceeded> {
        let change = wanted.reserving();
        for (taken, (node, share)) in shares(&self.node, above).enumerate() {
            if let Err(exceeded) = node.take(wanted, share, tier) {
                let back = change.negated();
                let before = shares(&self.node, above).take(taken);
                before.for_each(|(node, share)| node.add_to_gates(&back, share));
                return Err(exceeded);
            }
        }
        self.node.note_reserved(change.reserved);
        self.count(&change);
        let members = above.iter().filter(|(_, share)| *share == Share::Member);
        members.for_each(|(node, _)| node.note_reserved(change.reserved));
        Ok(())
    }

    pub(super) fn give_back(&self, left: &Request) {
        self.pay(&left.reserving().negated());
    }

    /// Reserved bytes become an estimate of the space for edits.
    pub(super) fn owe_reserved(&self, bytes: u64) {
        let bytes = bytes as i64;
        if bytes != 0 {
            self.pay(&Sums { reserved: -bytes, unflushed: bytes, ..Sums::default() });
        }
    }

    /// A flush has written `merged` of `merged + left` bytes of edits: the estimate shrinks with
    /// them. An heir's estimate is settled by its own flushes.
    pub(super) fn settle_flushed(&self, merged: u64, left: u64) {
        let way = self.way.read();
        if way.heir.is_none() {
            let settled = self.node.settle_unflushed(merged, left);
            let change = Sums { unflushed: -settled, ..Sums::default() };
            way.above.iter().for_each(|(node, share)| node.add(&change, *share));
        }
    }

    /// Its own sums, without those of whom it holds. The way is locked.
    fn own(&self) -> Sums {
        Sums {
            inodes: self.inodes.load(Relaxed),
            snapshots: self.snapshots.load(Relaxed),
            subvolumes: self.subvolumes.load(Relaxed),
            ..self.node.sums()
        }
    }

    /// Adds what it counts to a request.
    pub(super) fn add_to(&self, wanted: &mut Request) {
        let own = self.own();
        let positive = |count: i64| count.max(0) as u64;
        wanted.data += positive(own.data + own.reserved);
        wanted.metadata += positive(own.metadata + own.unflushed);
        wanted.inodes += positive(own.inodes);
        let small = |count: i64| u32::try_from(count.max(0)).unwrap_or(u32::MAX);
        wanted.snapshots = wanted.snapshots.saturating_add(small(own.snapshots));
        wanted.subvolumes = wanted.subvolumes.saturating_add(small(own.subvolumes));
    }

    /// Gives it another way up; the sums on the old one and the new one stay as they are.
    pub(super) fn set_above(&self, above: Above) {
        let mut way = self.way.write();
        assert!(way.heir.is_none(), "ACCOUNT-A2: who has an heir has no way up");
        let own = self.own();
        let is_on = |nodes: &Above, id: GroupId| nodes.iter().any(|(node, _)| node.id == id);
        for (node, share) in above.iter().filter(|(node, _)| !is_on(&way.above, node.id)) {
            node.add_moved(&own, *share);
        }
        for (node, share) in way.above.iter().filter(|(node, _)| !is_on(&above, node.id)) {
            node.add_moved(&own.negated(), *share);
        }
        way.above = above;
    }

    /// From now on `heir` pays (ACCOUNT-A2). The estimate of unflushed edits is not inherited.
    ///
    /// The way of the heir is waited for with this one's held: the caller has the lock of groups,
    /// so no two accounts get an heir at the same time.
    pub(super) fn set_heir(&self, heir: &Arc<Account>) {
        let mut way = self.way.write();
        if way.heir.is_none() {
            let own = self.own();
            let is_ours =
                |of: &Node| shares(&self.node, &way.above).any(|(node, _)| node.id == of.id);
            // First the heir: a moment of too much is safe, a moment of too little is not.
            let theirs = heir.inherit(&Sums { unflushed: 0, ..own }, is_ours);
            let gone = own.negated();
            self.count(&gone);
            for (node, share) in shares(&self.node, &way.above) {
                node.move_in(&gone, share, theirs.contains(&node.id));
            }
            way.above.clear();
        }
        way.heir = Some(Arc::clone(heir));
    }

    /// Takes over the sums of another account, whose way some of the nodes may be on. Returns the
    /// nodes that count them now.
    fn inherit(&self, own: &Sums, is_counted: impl Fn(&Node) -> bool) -> Vec<GroupId> {
        self.with_payer_at(1, |account, above| {
            account.count(own);
            let mut counting = Vec::with_capacity(above.len() + 1);
            for (node, share) in shares(&account.node, above) {
                node.move_in(own, share, is_counted(node));
                counting.push(node.id);
            }
            counting
        })
    }

    /// While this is held, nothing changes the sums of this account, nor of the nodes above it by
    /// way of this account.
    pub(super) fn still(&self) -> impl Sized + '_ {
        self.way.write_at(self.subvol.0.into())
    }

    /// Bytes and inodes that the limits here and above leave; `None` where there is no limit.
    pub(super) fn available(&self) -> (Option<u64>, Option<u64>) {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        self.with_payer(|account, above| {
            let nodes = above.iter().map(|(node, _)| node.left());
            nodes.fold(account.node.left(), |(bytes, inodes), left| {
                (least(bytes, left.0), least(inodes, left.1))
            })
        })
    }
}

/// As [`nodes`], with the share of the account's sums that each counts.
fn shares<'a>(
    own: &'a Arc<Node>,
    above: &'a Above,
) -> impl Iterator<Item = (&'a Arc<Node>, Share)> {
    let above = above.iter().map(|(node, share)| (node, *share));
    std::iter::once((own, Share::Own)).chain(above)
}

/// An account's own node, and those above.
fn nodes<'a>(own: &'a Arc<Node>, above: &'a Above) -> impl Iterator<Item = &'a Arc<Node>> {
    std::iter::once(own).chain(above.iter().map(|(node, _)| node))
}

impl Request {
    /// As a change of sums.
    fn reserving(&self) -> Sums {
        Sums {
            reserved: self.bytes() as i64,
            inodes: self.inodes as i64,
            snapshots: self.snapshots.into(),
            subvolumes: self.subvolumes.into(),
            ..Sums::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use copyhold_format::item::Limits;

    use super::*;

    #[test]
    fn whoever_is_too_late_for_the_last_room_gives_back_what_it_took_on_the_way() {
        let promised = Arc::new(AtomicI64::new(0));
        let account = Account::new(SubvolId(2), Arc::clone(&promised));
        let node = |id| Arc::new(Node::new(GroupId::new(1, id).unwrap(), Arc::clone(&promised)));
        let (first, last) = (node(1), node(2));
        let above = vec![(Arc::clone(&first), Share::Member), (Arc::clone(&last), Share::Member)];
        let wanted = Request { data: 4096, metadata: 4096, inodes: 2, snapshots: 1, subvolumes: 1 };
        for limits in [
            Limits { referenced: Some(8191), ..Limits::default() },
            Limits { inodes: Some(1), ..Limits::default() },
            Limits { snapshots: Some(0), ..Limits::default() },
            Limits { subvolumes: Some(0), ..Limits::default() },
        ] {
            last.set_limits(&limits);
            // It looked before, and there was room.
            let refused = account.take(&above, &wanted, Tier::Write).unwrap_err();
            assert_eq!(refused.group, last.id);
            for node in [&account.node, &first, &last] {
                assert_eq!((node.sums(), node.load()), (Sums::default(), 0));
            }
        }
        last.set_limits(&Limits::default());
        account.take(&above, &wanted, Tier::Write).unwrap();
        assert_eq!((last.load(), last.sums().reserved), (8192, 8192));
    }
}
