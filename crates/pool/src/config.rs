//! How a pool is made, and the limits it runs under.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use copyhold_types::{BLOCK_BYTES, Buf, PoolId, Purpose};

/// Shape of a new pool. `None` and 0 choose by the size of the device.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions {
    /// Random when absent.
    pub id: Option<PoolId>,
    /// The administrator's name for it; at most 64 bytes.
    pub name: String,
    /// Size of the pool in blocks, when it is to be smaller than its device.
    pub blocks: Option<u64>,
    /// Bytes of one copy of the log ring.
    pub log_bytes: Option<u64>,
    /// Blocks of a metaslab; a power of two.
    pub metaslab_blocks: Option<u64>,
    /// The whole device is allocated already, and is to stay so: nothing is ever discarded.
    pub preallocated: bool,
    /// Most bytes of a tree node, and most leaves of a partition (P2, P3).
    pub node_bytes: Option<u32>,
    pub partition_leaves: Option<u32>,
    /// The device may have an older pool, whose labels are erased before anything else is written.
    pub replaces: bool,
}

/// How a pool is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub read_only: bool,
    /// A log that is damaged in its middle, or unreadable, is cut there, permanently (R14). Without
    /// this, such a pool does not open for writing.
    pub cut_tail: bool,
    /// A layer above will name the owner of each table ([`crate::Tenancy`]); nothing is flushed
    /// before.
    pub tenants: bool,
    pub limits: Limits,
}

/// When edits and maps are flushed, while the log and memory are below their limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushPolicy {
    /// A little with each commit, as much as the limits require by the time they are reached.
    Even,
    /// Nothing below seven tenths of a limit, and a round with each commit from there on.
    #[default]
    Threshold,
}

impl FlushPolicy {
    pub const ALL: [FlushPolicy; 2] = [FlushPolicy::Even, FlushPolicy::Threshold];

    /// The word of mount options.
    pub fn name(self) -> &'static str {
        match self {
            FlushPolicy::Even => "even",
            FlushPolicy::Threshold => "threshold",
        }
    }
}

impl fmt::Display for FlushPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FlushPolicy {
    type Err = ();

    fn from_str(text: &str) -> Result<FlushPolicy, ()> {
        FlushPolicy::ALL.into_iter().find(|policy| policy.name() == text).ok_or(())
    }
}

/// Every limit with its default.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A txg closes by itself this long after the one before.
    pub txg_interval: Duration,
    /// Idle this long after a commit, the pool marks its last batch as durable (rule R14).
    pub mark_after: Duration,
    /// Bytes of edits in memory that no base has yet, over all tables.
    pub delta_bytes: u64,
    /// The most edits that recovery may have to replay (P9).
    pub replay_edits: u64,
    /// Bytes that users may fill of one copy of the log, if half of it is more: a recovery has the
    /// records in memory (P9).
    pub log_bytes: u64,
    /// The time that a recovery may take. By a measured rate, or a stated one, this gives a lower
    /// limit on edits (`replay_limit`).
    pub replay: Option<Duration>,
    pub flush: FlushPolicy,
    /// Changes of space gather in the log. Otherwise each txg writes the maps that it changed
    /// (`stock`).
    pub space_log: bool,
    /// Bytes of clean tree nodes in memory; on a pool of tenants room for a few at least.
    pub node_cache_bytes: usize,
    /// Of these bytes at most so many for clean file data; nodes keep a quarter (BALANCE-B2).
    pub clean_data_bytes: usize,
    /// Tables that stay open while they are not used; others rest (`opened`).
    pub open_tables: usize,
    /// Bytes of space maps in memory, beside those that rounds need (LOADS-M2).
    pub maps_bytes: u64,
    /// The longest run of blocks that is allocated, for simulations of fragmented space.
    pub run_max: Option<u32>,
    /// Deltas of maps are written also where a whole map is as small, for simulations.
    pub prefer_deltas: bool,
    /// Data that one txg may introduce before a flush goes between it and the batch.
    pub tail_verify_bytes: u64,
    /// Edits of one transaction that hands a table over to those that lie over it; as many more as
    /// one of them needs (R28).
    pub handover_edits: usize,
    /// Most allocated runs, and most freed runs, that one transaction logs again for a metaslab
    /// whose map cannot be read (R28).
    pub carried_runs: usize,
    /// The largest size that the pool may be given while it is open: more would exceed the budget
    /// of memory.
    pub blocks_max: u64,
    /// The rule that is broken on purpose, for tests of the simulation.
    #[cfg(feature = "sabotage")]
    pub sabotage: Option<crate::Sabotage>,
    /// Changes nodes and log as they are written, before their digests are made.
    #[cfg(feature = "sabotage")]
    pub scribble: Option<crate::Scribble>,
}

impl Limits {
    /// The edits that a recovery replays in about a second.
    pub(crate) const REPLAY_EDITS: u64 = 1_500_000;

    #[cfg(feature = "sabotage")]
    pub(crate) fn breaks(&self, rule: crate::Sabotage) -> bool {
        self.sabotage == Some(rule)
    }

    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn breaks(&self, _: crate::Sabotage) -> bool {
        false
    }

    /// The blocks that are written instead of these.
    #[cfg(feature = "sabotage")]
    pub(crate) fn scribbled(&self, why: Purpose, mut blocks: Buf) -> Buf {
        if let Some(scribble) = &self.scribble {
            (scribble.0)(why, blocks.make_mut());
        }
        blocks
    }

    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn scribbled(&self, _: Purpose, blocks: Buf) -> Buf {
        blocks
    }

    /// The bytes that are logged instead of these.
    #[cfg(feature = "sabotage")]
    pub(crate) fn scribbled_log<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let Some(scribble) = &self.scribble else { return bytes.into() };
        let mut bytes = bytes.to_vec();
        (scribble.0)(Purpose::Log, &mut bytes);
        bytes.into()
    }

    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn scribbled_log<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        Cow::Borrowed(bytes)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            txg_interval: Duration::from_secs(5),
            mark_after: Duration::from_millis(100),
            delta_bytes: 64 << 20,
            replay_edits: Limits::REPLAY_EDITS,
            log_bytes: u64::MAX,
            replay: None,
            flush: FlushPolicy::default(),
            space_log: true,
            node_cache_bytes: 64 << 20,
            clean_data_bytes: 0,
            open_tables: 4096,
            maps_bytes: 64 << 20,
            run_max: None,
            prefer_deltas: false,
            tail_verify_bytes: 64 << 20,
            handover_edits: crate::Transaction::MAX_EDITS,
            carried_runs: crate::Transaction::MAX_EDITS / 2,
            blocks_max: u64::MAX / BLOCK_BYTES as u64,
            #[cfg(feature = "sabotage")]
            sabotage: None,
            #[cfg(feature = "sabotage")]
            scribble: None,
        }
    }
}
