//! The room under limits that an operation needs, and how far over a limit it may go.

use super::share::Share;

/// The amounts wanted. Zeros want nothing, and so fit whatever the limits say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub data: u64,
    /// An estimate: nodes, in all their copies.
    pub metadata: u64,
    pub inodes: u64,
    pub snapshots: u32,
    pub subvolumes: u32,
}

impl Request {
    const COPIES: u64 = 2;
    /// The only leaf of a new subvolume.
    pub(super) const LEAF: u64 = Self::COPIES * 4096;
    /// The nodes that the first edits of a snapshot copy: a leaf and the node above it, of the size
    /// that pools have unless they are made otherwise.
    pub(super) const PATH: u64 = Self::COPIES * 2 * (32 << 10);
    /// More than any device holds; sums of such requests do not overflow.
    pub(super) const MAX: u64 = 1 << 60;

    /// Of `edits` edits of tables, with keys and values of `bytes` bytes: the most that they add
    /// to the tables, in two copies, in leaves that are a third full.
    pub fn for_edits(edits: usize, bytes: usize) -> Request {
        const OVERHEAD: u64 = 16;
        const WORST_FILL: u64 = 3;
        let metadata = (bytes as u64 + edits as u64 * OVERHEAD) * Self::COPIES * WORST_FILL;
        Request { metadata, ..Request::default() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.data + self.metadata
    }

    /// The part that a node with this share of the account counts.
    pub(super) fn of(&self, share: Share) -> Request {
        match share {
            Share::Own => Request { subvolumes: 0, ..*self },
            Share::Member | Share::Inside => *self,
        }
    }

    pub(super) fn is_sane(&self) -> bool {
        [self.data, self.metadata, self.inodes].iter().all(|n| *n <= Self::MAX)
    }
}

/// The kind of the request, by its effect on the owner's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Adds data of files. It leaves some space for nodes, which are whole blocks in two copies and
    /// may exceed the estimate: 64 KiB, of limits below 4 MiB a 64th.
    Data,
    /// Adds anything else.
    Write,
    /// Replaces items by ones that are hardly larger: chmod, rename to a name at most 8 bytes
    /// longer, blocks at the ends of a punched hole. May take half of the overdraft.
    Change,
    /// Removes items: unlink, truncate. May take the whole overdraft, and as much as the limit: a
    /// removal copies leaves that snapshots share, and what was removed is never removed again.
    Delete,
}

impl Tier {
    const DATA_ROOM: i64 = 64 << 10;
    const DATA_PART: i64 = 64;
    const OVERDRAFT_MIN: i64 = 1 << 20;
    const OVERDRAFT_PART: i64 = 64;

    /// The most that an owner may be over its limit by its own operations: 1 MiB and a 64th of the
    /// limit, more than all leaves that map a full subvolume's data take.
    pub(super) fn overdraft(limit: i64) -> i64 {
        Self::OVERDRAFT_MIN + limit / Self::OVERDRAFT_PART
    }

    /// The largest excuse that makes the room of removals larger by at most `bytes`: an excuse
    /// adds to the overdraft, too.
    pub(super) fn excuse_for(bytes: i64) -> i64 {
        (bytes as i128 * i128::from(Self::OVERDRAFT_PART) / i128::from(Self::OVERDRAFT_PART + 1))
            as i64
    }

    /// Bytes beyond `limit` (negative: below), where `excused` bytes over it are no work of the
    /// owner's own.
    pub(super) fn slack(self, limit: i64, excused: i64) -> i64 {
        let overdraft = || Self::overdraft(limit.saturating_add(excused));
        match self {
            Tier::Data => -Self::DATA_ROOM.min(limit / Self::DATA_PART),
            Tier::Write => 0,
            Tier::Change => excused + overdraft() / 2,
            Tier::Delete => limit.saturating_add(excused + overdraft()),
        }
    }
}
