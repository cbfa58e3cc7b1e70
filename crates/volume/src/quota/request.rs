//! The room under limits that an operation needs, and how far over a limit it may go.

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
    /// Data of files. It leaves some space for nodes, which are whole blocks in two copies and may
    /// exceed the estimate: 64 KiB, of limits below 4 MiB a 64th.
    Data,
    /// Every other addition.
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
