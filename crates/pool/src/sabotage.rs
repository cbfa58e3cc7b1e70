//! Rules broken on purpose, so that a test can see the simulation notice.
//!
//! Without the feature `sabotage` this is nothing: `Pool::sabotaged` is `false` at compile time.

use crate::Pool;

/// One broken rule or ordering each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// R1: edits reach memory in one order and the log in another.
    JoinFirst,
    /// R2: a bad batch ends the log, whatever stands behind it.
    CutInTheMiddle,
    /// R2: the log is written once.
    OneLogCopy,
    /// R3: freed space is reused while somebody reads it.
    IgnorePins,
    /// R5: recovery does not apply edits older than what a base calls complete, but reads bases early.
    ReplayReadsBase,
    /// R6: the head moves on what is flushed, before the record of it is durable.
    HeadAheadOfRecord,
    /// R6: log segments are reused as soon as the head has moved in memory.
    ReuseLogAtOnce,
    /// R12: a failed flush is retried and trusted.
    TrustSecondFlush,
    /// R13: recovery does not begin a new incarnation.
    NoIncarnation,
    /// R14: no mark is written, and a rotten last batch is cut although it was acknowledged.
    NoMark,
    /// R15: runs are discarded when they are freed.
    DiscardEarly,
    /// Data need not be complete when its transaction joins.
    JoinBeforeData,
    /// A commit is acknowledged without a flush.
    NoFlushBeforeAcknowledgement,
    /// Frees are usable when their own txg is durable, not one later.
    ReuseFreesAtOnce,
    /// The record of a flushed partition joins before its nodes are flushed.
    NoFlushBeforeRoot,
    /// What the last batch introduces is not verified.
    TailNotVerified,
}

impl Pool {
    pub(crate) fn sabotaged(&self, rule: Sabotage) -> bool {
        self.limits.breaks(rule)
    }
}
