//! Holds: promises to a write before it is accepted (R23).
//!
//! A hold is taken against the owner and everything above it, all or nothing. From then on each of
//! its bytes is in one place only: in the hold, in the usage that was charged from it, or in the
//! estimate of unflushed edits; the rest returns when the hold is dropped.

use std::fmt;
use std::sync::Arc;

use super::account::Account;
use super::ledger::Amount;

/// The amounts wanted. Zeros want nothing, and so fit whatever the limits say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub data: u64,
    /// An estimate: nodes, in all their copies.
    pub metadata: u64,
    pub inodes: u64,
    pub snapshots: u64,
}

impl Request {
    /// More than any device holds; sums of such requests do not overflow.
    pub(super) const MAX: u64 = 1 << 60;

    /// Of `edits` edits of tables, with keys and values of `bytes` bytes: the most that they add
    /// to the tables, in two copies, in leaves that are a third full.
    pub fn for_edits(edits: usize, bytes: usize) -> Request {
        const OVERHEAD: u64 = 16;
        const COPIES: u64 = 2;
        const WORST_FILL: u64 = 3;
        let metadata = (bytes as u64 + edits as u64 * OVERHEAD) * COPIES * WORST_FILL;
        Request { metadata, ..Request::default() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.data + self.metadata
    }

    pub(super) fn is_sane(&self) -> bool {
        [self.data, self.metadata, self.inodes, self.snapshots].iter().all(|n| *n <= Self::MAX)
    }
}

/// The kind of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Data of files. It leaves some room for nodes, which are whole blocks in two copies and so
    /// may come to more than was estimated: 64 KiB, of limits below 4 MiB a 64th.
    Data,
    /// Whatever else adds something.
    Write,
    /// Transactions that tidy up or barely add: unlink, truncate down, punch, chmod, rename. May
    /// go over a limit by 1 MiB and a 64th of it: more than all leaves that map a full subvolume's
    /// data take. Where more than the limit is in use already, since that was set below it or
    /// something was inherited, as much over that: an owner over a limit can always tidy up.
    Tidy,
}

impl Tier {
    const DATA_ROOM: i64 = 64 << 10;
    const DATA_PART: i64 = 64;
    const TIDY_MIN: i64 = 1 << 20;
    const TIDY_PART: i64 = 64;

    /// Bytes beyond `limit`, where `used` bytes are in use.
    pub(super) fn slack(self, limit: i64, used: i64) -> i64 {
        match self {
            Tier::Data => -Self::DATA_ROOM.min(limit / Self::DATA_PART),
            Tier::Write => 0,
            Tier::Tidy => {
                let over = used.saturating_sub(limit).max(0);
                Self::TIDY_MIN + limit / Self::TIDY_PART + over
            }
        }
    }
}

/// The reservation for one owner. Dropping it gives back the rest.
#[must_use = "dropping a hold gives it back"]
#[derive(Default)]
pub struct Hold {
    /// `None` while quotas are off.
    account: Option<Arc<Account>>,
    left: Request,
}

impl Hold {
    pub(super) fn new(account: Arc<Account>, left: Request) -> Hold {
        Hold { account: Some(account), left }
    }

    /// A hold of nothing, as one has while quotas are off.
    pub fn nothing() -> Hold {
        Hold::default()
    }

    /// The rest that it still holds.
    pub fn left(&self) -> Request {
        self.left
    }

    /// Takes up to this much of it out into a hold of its own.
    pub fn split(&mut self, part: Request) -> Hold {
        let part = Request {
            data: part.data.min(self.left.data),
            metadata: part.metadata.min(self.left.metadata),
            inodes: part.inodes.min(self.left.inodes),
            snapshots: part.snapshots.min(self.left.snapshots),
        };
        self.left.data -= part.data;
        self.left.metadata -= part.metadata;
        self.left.inodes -= part.inodes;
        self.left.snapshots -= part.snapshots;
        Hold { account: self.account.clone(), left: part }
    }

    /// Adds another one of the same owner. One of another owner, or from before quotas were turned
    /// off and on again, comes back.
    pub fn join(&mut self, mut other: Hold) -> Option<Hold> {
        if self.left == Request::default() {
            std::mem::swap(self, &mut other);
            return None;
        }
        if other.left != Request::default() && !self.is_of(other.account.as_ref()) {
            return Some(other);
        }
        let more = std::mem::take(&mut other.left);
        self.left.data += more.data;
        self.left.metadata += more.metadata;
        self.left.inodes += more.inodes;
        self.left.snapshots += more.snapshots;
        None
    }

    /// The transaction is applied: its metadata has become edits, which a flush will turn into
    /// nodes. From now on it is the owner's estimate of unflushed edits.
    pub fn spend_metadata(&mut self) {
        let metadata = std::mem::take(&mut self.left.metadata);
        if let Some(account) = &self.account {
            account.owe_reserved(metadata);
        }
    }

    fn is_of(&self, account: Option<&Arc<Account>>) -> bool {
        match (&self.account, account) {
            (Some(mine), Some(other)) => Arc::ptr_eq(mine, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// Takes out the part that pays for `amount`, which is being charged to `account`. The caller
    /// accounts for it.
    pub(super) fn settle(&mut self, account: &Arc<Account>, amount: Amount) -> u64 {
        if !self.is_of(Some(account)) {
            return 0;
        }
        let data = self.left.data.min(amount.data);
        let metadata = self.left.metadata.min(amount.metadata);
        self.left.data -= data;
        self.left.metadata -= metadata;
        data + metadata
    }

    /// Takes out an inode, or a snapshot, if it has one for `account`.
    pub(super) fn settle_inodes(&mut self, account: &Arc<Account>, count: u64) -> u64 {
        let count = if self.is_of(Some(account)) { count.min(self.left.inodes) } else { 0 };
        self.left.inodes -= count;
        count
    }

    pub(super) fn settle_snapshot(&mut self, account: &Arc<Account>) -> bool {
        let has = self.is_of(Some(account)) && self.left.snapshots > 0;
        self.left.snapshots -= u64::from(has);
        has
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(account) = &self.account
            && self.left != Request::default()
        {
            account.give_back(&self.left);
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.account.as_ref().map(|account| account.subvol);
        write!(f, "Hold({:?} of {owner:?})", self.left)
    }
}
