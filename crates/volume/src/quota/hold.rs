//! Holds: promises to a write before it is accepted (R23).
//!
//! A hold is taken against the owner and everything above it, all or nothing. From then on each of
//! its bytes is in one place only: in the hold, in the usage that was charged from it, or in the
//! estimate of unflushed edits; the rest returns when the hold is dropped.

use std::fmt;
use std::sync::Arc;

use super::account::Account;
use super::amount::Amount;
use super::request::Request;

/// The reservation for one owner. Dropping it releases the rest.
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
            subvolumes: part.subvolumes.min(self.left.subvolumes),
        };
        self.left.data -= part.data;
        self.left.metadata -= part.metadata;
        self.left.inodes -= part.inodes;
        self.left.snapshots -= part.snapshots;
        self.left.subvolumes -= part.subvolumes;
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
        self.left.subvolumes += more.subvolumes;
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

    /// As [`Self::spend_metadata`], of content that has become an edit, too: of a tiny file.
    pub fn spend_all(&mut self) {
        self.left.metadata += std::mem::take(&mut self.left.data);
        self.spend_metadata();
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
        self.left.snapshots -= u32::from(has);
        has
    }
}

impl Hold {
    /// The subvolume that it was taken for lives from now on.
    pub(super) fn settle_subvolume(&mut self) {
        self.left.subvolumes = 0;
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
