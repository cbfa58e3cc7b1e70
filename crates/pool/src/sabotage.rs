//! Rules broken on purpose, so that a test can see the simulation notice.
//!
//! Without the feature `sabotage` this has no code: `Pool::sabotaged` is `false` at compile time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use copyhold_format::item::INODE;
use copyhold_format::log::{Record, RecordWriter};
use copyhold_space::{Claim, Tier};
use copyhold_table::Edit;
use copyhold_types::{Key, Purpose};

use crate::Pool;
use crate::log_room::LogRoom;
use crate::open_txg::{Gathered, Introduced};

/// One broken rule or ordering each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// R1: edits reach memory in one order and the log in another.
    JoinFirst,
    /// R2: a bad batch ends the log, even if valid ones follow.
    CutInTheMiddle,
    /// R2: recovery takes frames only that are whole in one copy of the log.
    WholeFrameRecovery,
    /// R2: the log is written once.
    OneLogCopy,
    /// R3: freed space is reused while a reader pins it.
    IgnorePins,
    /// R5: recovery does not apply edits that a base declares complete, but reads bases early.
    ReplayReadsBase,
    /// R6: the head moves past flushed edits at once, before their record is durable.
    HeadAheadOfRecord,
    /// R6: the log is reused as soon as the head has moved in memory; an uberblock records that
    /// later.
    ReuseLogAtOnce,
    /// R6: after a mount only the log that the newest uberblock needs is kept.
    KeepNewestHeadOnly,
    /// FLUSH-F2: the pins of records are read before those of tables, which may release theirs in
    /// between.
    RecordsAskedFirst,
    /// LOGROOM-A3: a transaction that nothing else is before is admitted also above the log's
    /// limit.
    AdmitAboveLimit,
    /// GROW-G1: new blocks are used, and no label names them.
    GrowWithoutLabels,
    /// R9: numbers are assigned before their mark is durable.
    ReissueIds,
    /// R8: data that only its tuples protect is not flushed before the batch that refers to it.
    NoFlushBeforeGuard,
    /// BIRTH-B1: all blocks have the same birth.
    NoBirth,
    /// R34: the memory of a write changes behind the making of its guards, once.
    ChangeMemory,
    /// PITAG-B3: a block that has lost its content is read as the device returns it.
    AcceptEscape,
    /// R12: a failed flush is retried and trusted.
    TrustSecondFlush,
    /// R13: data of the last batch that cannot be read is taken for torn.
    ErrorIsTorn,
    /// R13: the log ends where no frame verifies, though blocks there cannot be read.
    ErrorEndsLog,
    /// OPEN-O1: a mount does not flush the writes of a killed daemon before it relies on them.
    NoFlushAtMount,
    /// R13: recovery does not begin a new incarnation.
    NoIncarnation,
    /// OPEN-O2: each mount begins an incarnation, although no batch was cut.
    AlwaysBegin,
    /// R14: no mark is written, and a rotten last batch is cut although it was acknowledged.
    NoMark,
    /// R15: runs are discarded when they are freed.
    DiscardEarly,
    /// R19: an allocation is logged when it is claimed, before any pointer refers to it.
    LogClaims,
    /// LAYERS-L3: a flush for space merges the layers of each snapshot, though all have the same.
    MergeShared,
    /// R21: writes may take the reserve.
    NoReserve,
    /// R21: a node needs a run: blocks are counted, and no run is found.
    WholeNodes,
    /// R22: a full pool refuses at once, even if space is being freed.
    RefuseAtOnce,
    /// R22: a full pool does not wait for the space of deleted snapshots.
    RefuseBeforeDeletions,
    /// R30: a sealed table that was handed over stays readable.
    KeepSealed,
    /// R28: a table that is handed over in steps is not sealed before the first.
    HandOverUnsealed,
    /// Data need not be complete when its transaction joins.
    JoinBeforeData,
    /// A commit is acknowledged without a flush.
    NoFlushBeforeAcknowledgement,
    /// Frees are usable when their own txg is durable, not one later.
    ReuseFreesAtOnce,
    /// The record of a flushed partition joins before its nodes are flushed.
    NoFlushBeforeRoot,
    /// The data that the last batch introduces is not verified.
    TailNotVerified,
    /// Replay mixes two puts of one key: of an inode the later one leaves the nanoseconds of its
    /// last change as they were. The result is consistent, but never existed.
    ReplayMixesPuts,
    /// ASIDE-Q1: a space map that cannot be read now is recorded as lost, and so is all of its
    /// space.
    QuarantineOnError,
    /// AWAY-A1: the frees that are noted beside a map are forgotten when it is loaded.
    ForgetNotedFrees,
    /// STORED-D1: changes of space that come while a map is written are in no delta.
    ForgetLateChanges,
    /// AWAY-A2: a request is granted though its blocks are in maps that are away, and no map is
    /// loaded for the stock.
    GrantUnloaded,
    /// FRAGMENT-P1: a node whose list cannot be read is replaced all the same, and its fragments
    /// stay.
    ForgetFragments,
    /// REST-R1: a table that is not used rests, and forgets its edits.
    RestWithEdits,
    /// R32: the log does not wait for the host's space: it is written already.
    LogDoesNotWait,
    /// ATTACH-B1: attached data is read from the device, be it there or not.
    ReadBeforeWritten,
    /// CLEAN-D2: a write, a free or a discard leaves the blocks in memory that it overtakes.
    KeepOverwritten,
    /// EDITS-E4: a wait for a part of unflushed edits never ends.
    ForgetEditWaiters,
}

impl Sabotage {
    /// All of them, in the order of the rules.
    pub const ALL: [Sabotage; 49] = [
        Sabotage::JoinFirst,
        Sabotage::CutInTheMiddle,
        Sabotage::WholeFrameRecovery,
        Sabotage::OneLogCopy,
        Sabotage::IgnorePins,
        Sabotage::ReplayReadsBase,
        Sabotage::HeadAheadOfRecord,
        Sabotage::ReuseLogAtOnce,
        Sabotage::KeepNewestHeadOnly,
        Sabotage::RecordsAskedFirst,
        Sabotage::AdmitAboveLimit,
        Sabotage::GrowWithoutLabels,
        Sabotage::ReissueIds,
        Sabotage::NoFlushBeforeGuard,
        Sabotage::NoBirth,
        Sabotage::ChangeMemory,
        Sabotage::AcceptEscape,
        Sabotage::TrustSecondFlush,
        Sabotage::ErrorIsTorn,
        Sabotage::ErrorEndsLog,
        Sabotage::NoFlushAtMount,
        Sabotage::NoIncarnation,
        Sabotage::AlwaysBegin,
        Sabotage::NoMark,
        Sabotage::DiscardEarly,
        Sabotage::LogClaims,
        Sabotage::MergeShared,
        Sabotage::NoReserve,
        Sabotage::WholeNodes,
        Sabotage::RefuseAtOnce,
        Sabotage::RefuseBeforeDeletions,
        Sabotage::KeepSealed,
        Sabotage::HandOverUnsealed,
        Sabotage::JoinBeforeData,
        Sabotage::NoFlushBeforeAcknowledgement,
        Sabotage::ReuseFreesAtOnce,
        Sabotage::NoFlushBeforeRoot,
        Sabotage::TailNotVerified,
        Sabotage::ReplayMixesPuts,
        Sabotage::QuarantineOnError,
        Sabotage::ForgetNotedFrees,
        Sabotage::ForgetLateChanges,
        Sabotage::GrantUnloaded,
        Sabotage::ForgetFragments,
        Sabotage::RestWithEdits,
        Sabotage::LogDoesNotWait,
        Sabotage::ReadBeforeWritten,
        Sabotage::KeepOverwritten,
        Sabotage::ForgetEditWaiters,
    ];
}

/// A program that writes nonsense with right digests: changes nodes and maps (whole blocks), pieces
/// and batches of the log (`Purpose::Log`, their content) before they are written.
#[derive(Clone)]
pub struct Scribble(pub Arc<ScribbleFn>);

/// A change of bytes that are about to be written.
pub type ScribbleFn = dyn Fn(Purpose, &mut [u8]) + Send + Sync;

impl std::fmt::Debug for Scribble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scribble")
    }
}

/// Where in an inode the nanoseconds of its last change are.
const CHANGED_NANOS: std::ops::Range<usize> = 72..76;

/// The value with which a replay that mixes puts replaces a later one.
pub(crate) fn mixed(before: Option<&Edit>, key: Key, value: &[u8]) -> Vec<u8> {
    let mut mixed = value.to_vec();
    if let Some(Edit::Put(before)) = before
        && key.kind == INODE
    {
        mixed[CHANGED_NANOS].copy_from_slice(&before[CHANGED_NANOS]);
    }
    mixed
}

impl Gathered {
    /// Puts records at the position of their ticket, also if others have joined meanwhile.
    pub(crate) fn insert(&mut self, ticket: u64, records: &[u8]) {
        let place = self.tickets.partition_point(|(other, _)| *other < ticket);
        let at: usize = self.tickets[..place].iter().map(|(_, bytes)| bytes).sum();
        self.tickets.insert(place, (ticket, records.len()));
        self.records.splice(at..at, records.iter().copied());
    }
}

impl Pool {
    /// The place in the log of a transaction that joins when it is admitted.
    pub(crate) fn join_first(&self) -> Option<u64> {
        let first = self.sabotaged(Sabotage::JoinFirst);
        first.then(|| self.admission.tickets.fetch_add(1, Ordering::Relaxed))
    }

    /// Logs that claims are allocated.
    pub(crate) fn log_claims(self: &Arc<Self>, claims: &[Claim]) {
        let mut records = RecordWriter::with_capacity(claims.len() * 16);
        claims.iter().for_each(|claim| records.push(Record::Alloc(claim.run())));
        let joined = self.join(0);
        self.joined.fetch_max(joined.txg().get(), Ordering::AcqRel);
        let piece = joined.gather(
            &records.finish(),
            LogRoom::default(),
            None,
            claims.len() as u64,
            Introduced::default(),
        );
        drop(joined);
        if let Some(piece) = piece {
            self.write_piece(piece);
        }
    }

    /// The tier of a request for space.
    pub(crate) fn tier(&self, tier: Tier) -> Tier {
        match self.sabotaged(Sabotage::NoReserve) && tier == Tier::Write {
            true => Tier::Internal,
            false => tier,
        }
    }

    pub(crate) fn sabotaged(&self, rule: Sabotage) -> bool {
        self.limits.breaks(rule)
    }
}
