//! The flush policy, and the flush of the chosen units: partitions, metaslabs, the table of
//! tables.
//!
//! Each of these pins the log from the oldest edit that its base does not have (`units`). An edit
//! that waits may be overtaken by another, and the more edits a flush gathers, the less it writes
//! for each (P4). So with the policy `threshold`, nothing is flushed below seven tenths of the
//! limits of log and memory, and a round follows each commit from there on. With `even`, rounds
//! begin before, as a plan says, so that all commits carry the same (`pace`). Above 85 hundredths
//! rounds follow each other; at the limit user transactions wait (`admission`).
//!
//! A partition is merged into its base, or its edits become a layer over it: when that writes less
//! (P4), and while a node that the merge needs cannot be read. Such a partition frees its part of
//! the log like any other, and the node is tried again at each of its flushes (R20 iii).
//!
//! `round` writes the chosen units.
//!
//! FLUSH-F1  The transaction joins when all nodes that it points to are durable.
//! FLUSH-F2  Flushed edits pin the log until that transaction is durable (rule R6).
//! FLUSH-F3  A flush of a table edits the table of tables only, and of a metaslab one item of it;
//!           the table of tables lies in no table. So flushing adds to the log only a small part
//!           of the records that it retires (rule R20).
//! FLUSH-F4  While the log is full, a round that cannot flush the oldest log pin records nothing:
//!           users wait then, and the ring is not used up.
//! FLUSH-F5  An idle pool flushes until its edits reserve at most a [`PROMISED`]th of the space
//!           for growth, or a round does not reduce that. Else an empty pool could seem full: the
//!           growth of a deletion stays reserved until a flush. The pool flushes so once each time
//!           that it becomes idle, and then comes to rest. It is idle when no transaction has
//!           asked for admission for [`IDLE`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use copyhold_runtime::{FifoMutex, Finishing, finishing};
use copyhold_sync::{Mutex, of};
use copyhold_table::{NodeSource, Table, Weight};
use copyhold_types::{Key, Nanos, NodePtr, Purpose, TableId, Txg};

use crate::config::FlushPolicy;
use crate::edit_parts::START;
use crate::flush_figures;
use crate::marker::Kick;
use crate::pace::Pace;
use crate::replay_limit::Replay;
use crate::round::Round;
use crate::stock::Stock;
use crate::units::{Aim, HURRY, Unit, is_urgent, one_round};
use crate::{Pool, PoolError, Sabotage, loads, maps};

/// The flusher looks by itself this often, without a kick. A pool becomes idle after as long
/// without a transaction (FLUSH-F5).
const IDLE: Duration = Duration::from_secs(1);
/// Before it looks again for something to flush when there was nothing.
const PAUSE: Duration = Duration::from_millis(50);
/// After so many commits all freed blocks are allocatable, unless a reader pins them.
const COMMITS_TO_FREE: u32 = 2;
/// The part of the space that an idle pool may reserve for growth: a 64th, 16 MiB of 1 GiB.
const PROMISED: u64 = 64;
/// While edits fill their limit once, the flusher looks so often at least.
const LOOKS: u64 = 512;
/// Passes of [`Pool::flush_all`], though snapshots are made and written to meanwhile.
const PASSES_MAX: usize = 64;

/// The time without transactions, and whether the pool has flushed its reserved growth since
/// (FLUSH-F5).
#[derive(Default)]
struct Rest {
    asked: u64,
    since: Nanos,
    is_done: bool,
}

impl Rest {
    /// Whether the pool has become idle. Once for each time that it does.
    fn begins(&mut self, asked: u64, now: Nanos) -> bool {
        if asked != self.asked {
            (self.asked, self.since, self.is_done) = (asked, now, false);
        }
        let begins = !self.is_done && now - self.since >= IDLE.as_nanos() as Nanos;
        self.is_done |= begins;
        begins
    }
}

/// The policy's state.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    kick: Arc<Kick>,
    closing: AtomicBool,
    running: Arc<FifoMutex>,
    /// Locked during a round of any caller.
    pub(crate) rounds: FifoMutex,
    /// Flushed, but their record is not durable (FLUSH-F2).
    pub(crate) recording: Mutex<Vec<Recording>, of::FlushRecording>,
    /// Partitions that cannot be merged, each with the node that is unreadable.
    pub(crate) broken: Mutex<BTreeMap<(TableId, Key), Option<NodePtr>>, of::BrokenParts>,
    /// Edits that are in memory only, and the memory that they take.
    edits: AtomicI64,
    bytes: AtomicI64,
    /// Partitions that have any.
    dirty: AtomicI64,
    /// The sum of the bytes of all edits since the pool was opened.
    came: AtomicU64,
    /// A transaction has kicked since the flusher last looked.
    urged: AtomicBool,
    pub(crate) pace: Mutex<Pace, of::FlushPace>,
    pub(crate) stock: Stock,
    /// The recovery when the pool was opened.
    pub(crate) replay: Replay,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Recording {
    pub(crate) record: Txg,
    pin: Txg,
}

impl Flusher {
    /// Of edits in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed).max(0) as u64
    }

    /// The sum of the bytes of all edits since the pool was opened.
    pub(crate) fn came(&self) -> u64 {
        self.came.load(Relaxed)
    }

    /// `weight`: the usage of recovered edits.
    pub(crate) fn new(weight: Weight) -> Flusher {
        let Weight { edits, bytes, partitions } = weight;
        Flusher {
            edits: AtomicI64::new(edits),
            bytes: AtomicI64::new(bytes),
            dirty: AtomicI64::new(partitions),
            ..Flusher::default()
        }
    }

    pub(crate) fn kick(&self) {
        self.kick.kick();
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, Relaxed);
        self.kick();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    pub(crate) async fn ended(&self) {
        drop(self.running.lock().await);
    }

    /// Until `record` is durable, recovery needs the log from `pin` on (FLUSH-F2).
    pub(crate) fn pin_until(&self, record: Txg, pin: Txg) {
        self.recording.lock().push(Recording { record, pin });
    }
}

/// The end of an attempt to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// No round was due.
    NotDue,
    /// A round was due, and nothing could be flushed.
    InVain,
    Flushed,
}

/// Flushes by the policy, until the pool is closed or stopped.
pub(crate) async fn run(pool: Weak<Pool>) {
    let Some(strong) = pool.upgrade() else { return };
    let running = strong.flusher.running.clone();
    let _running = running.lock().await;
    let (rt, kick) = (strong.rt.clone(), strong.flusher.kick.clone());
    drop(strong);
    let mut in_vain = 0;
    let mut rest = Rest::default();
    loop {
        let Some(strong) = pool.upgrade() else { return };
        if strong.is_closing() || strong.health.check().is_err() {
            // No round follows that would wake them.
            strong.admission.wake();
            return;
        }
        drop(strong);
        kick.wait(&rt, IDLE).await;
        let Some(strong) = pool.upgrade() else { return };
        strong.flusher.urged.store(false, Relaxed);
        loads::keep_stock(&strong).await;
        maps::begin_retries(&strong);
        strong.tables.trim();
        let flushed = match rest.begins(strong.admission.asked(), rt.now()) {
            true => strong.flush_promised(rest.asked).await,
            false => strong.flush_by_policy().await,
        };
        let is_in_vain = matches!(flushed, Ok(Outcome::InVain) | Err(_)) && strong.wants_rounds();
        strong.admission.parts.note_round(is_in_vain);
        if is_in_vain {
            // EDITS-E2: groups wait for no part meanwhile, so not until the pause has ended.
            strong.admission.wake();
        }
        match flushed {
            // Nothing can be flushed now; the waiters would only kick again.
            Ok(Outcome::InVain) if strong.is_full() => {
                in_vain += 1;
                // The freed blocks may be all that is missing, and no other task commits.
                if in_vain <= COMMITS_TO_FREE && strong.space().freeing > 0 {
                    let committed = strong.commit_empty().await;
                    committed.unwrap_or_else(|error| tracing::error!("flushing: {error}"));
                }
                // Ever less often, since its wait may be long.
                rt.sleep((PAUSE * (1 << in_vain.min(5))).min(IDLE)).await;
            }
            Ok(_) => in_vain = 0,
            Err(error) => {
                tracing::error!("flushing: {error}");
                rt.sleep(IDLE).await;
            }
        }
        strong.admission.wake();
    }
}

/// The most units of the round that is due now, or `None`. Even rounds have the limits from
/// which thresholds begin, so that the part above remains for bursts.
fn due(pool: &Pool) -> Option<usize> {
    pool.flusher.pace.lock().note_commits(pool.journal.came().commits);
    if pool.limits.flush == FlushPolicy::Threshold {
        return pool.wants_rounds().then_some(usize::MAX);
    }
    let levels = flush_figures::levels(pool, START);
    let rows = || flush_figures::rows(pool, &levels);
    let due = pool.flusher.pace.lock().advance(levels, rows);
    match is_urgent(pool) {
        true => Some(usize::MAX),
        false => (due > 0).then_some(due as usize),
    }
}

impl Pool {
    /// How full the fuller of log and deltas is; above 1.0 is beyond the limit.
    pub(crate) fn pressure(&self) -> f64 {
        self.delta_pressure().max(self.journal.pressure(self.limits.replay_edits))
    }

    pub(crate) fn delta_pressure(&self) -> f64 {
        self.flusher.bytes() as f64 / self.limits.delta_bytes as f64
    }

    async fn flush_by_policy(self: &Arc<Self>) -> Result<Outcome, PoolError> {
        let mut any = self.hand_over().await?;
        any |= self.settle_deep().await?;
        let mut outcome = Outcome::NotDue;
        while let Some(most) = due(self).filter(|_| !self.is_closing()) {
            // The tables over a table that is settled by now can be flushed from here on.
            any |= self.hand_over().await?;
            let mut units = one_round(self.units(Aim::Trim));
            units.truncate(most);
            let flushed = self.flush_units(units, Aim::Trim).await?.flushed;
            self.flusher.pace.lock().note_round(flushed as u64);
            any |= flushed > 0;
            outcome = Outcome::InVain;
            if flushed == 0 {
                break;
            }
            // EDITS-E2: from here on groups wait for their parts again.
            self.admission.parts.note_round(false);
            if self.pressure() <= HURRY {
                break;
            }
        }
        Ok(if any { Outcome::Flushed } else { outcome })
    }

    /// In an idle pool: flushes by the policy, and until little space is reserved for growth
    /// (FLUSH-F5).
    async fn flush_promised(self: &Arc<Self>, asked: u64) -> Result<Outcome, PoolError> {
        let outcome = self.flush_by_policy().await?;
        let mut any = outcome == Outcome::Flushed;
        let most = self.space().total / PROMISED;
        let mut promised = self.admission.promised(1.0);
        while promised > most && self.admission.asked() == asked && !self.is_closing() {
            any |= self.hand_over().await?;
            any |= self.flush_round(Aim::Trim).await?.flushed > 0;
            let before = std::mem::replace(&mut promised, self.admission.promised(1.0));
            if promised >= before {
                break;
            }
        }
        Ok(if any { Outcome::Flushed } else { outcome })
    }

    /// Whether rounds follow commits, or each other.
    pub(crate) fn wants_rounds(&self) -> bool {
        self.pressure() > START
    }

    /// Flushes all edits but those of metaslabs that are set aside, which are logged again only
    /// when they are due (`maps`); merges layers where there is room, unless other tables share
    /// nodes and the merge is not due, and trims the log: for tests, for space, and before a long
    /// rest.
    ///
    /// # Errors
    /// A unit could not be flushed, for lack of space or because of damage. All other units are
    /// flushed, unless that unit pins a full log ([`PoolError::LogFull`]).
    pub async fn flush_all(self: &Arc<Self>) -> Result<(), PoolError> {
        // A pass flushes only the lowest table of those that lie over each other, so passes that
        // begin with a handover are not counted. Of the two others, the second flushes the edits
        // that the first made.
        let (mut failed, mut passes) = (None, 2);
        for _ in 0..PASSES_MAX {
            let under = self.tables.under().len();
            self.commit(self.open_txg()).await?;
            let handed_over = self.hand_over().await?;
            // A round under way has units that are not seen here.
            drop(self.flusher.rounds.lock().await);
            self.try_broken_again().await;
            // In a box: few requests come here, and all have the room for it.
            Box::pin(self.retry_maps()).await;
            failed = self.flush_each().await?;
            let lowered = self.tables.under().len() < under;
            passes -= usize::from(!handed_over && !lowered);
            if passes == 0 {
                break;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Flushes as many units as are dirty at the call, the most urgent first. Skips a unit that
    /// cannot be flushed. If such a unit pins a full log, stops: more records would fill the ring.
    /// Returns the last failure.
    async fn flush_each(self: &Arc<Self>) -> Result<Option<PoolError>, PoolError> {
        let (mut failed, mut skipped) = (None, BTreeSet::new());
        let mut turns = self.units(Aim::Settle).len();
        while turns > 0 {
            let mut units = self.units(Aim::Settle);
            units.retain(|(unit, _)| !skipped.contains(unit));
            if units.is_empty() {
                break;
            }
            let round = self.flush_units(one_round(units), Aim::Settle).await?;
            failed = round.failed.or(failed);
            if round.is_held_up {
                return Ok(failed.or(Some(PoolError::LogFull)));
            }
            turns = turns.saturating_sub(round.flushed + round.skipped.len());
            skipped.extend(round.skipped);
        }
        Ok(failed)
    }

    /// No round flushes a partition without edits, so its bad node is tried here; where that can
    /// be read, the partition is like any other. A table that is gone has none.
    async fn try_broken_again(&self) {
        let broken = self.flusher.broken.lock().clone();
        for (unit, node) in broken {
            let _pin = self.pin();
            let is_whole = match node {
                Some(node) => self.nodes.read(node, Purpose::Leaf).await.is_ok(),
                None => true,
            };
            if is_whole || self.tables.find(unit.0).is_none() {
                self.flusher.broken.lock().remove(&unit);
            }
        }
    }

    /// Flushes the most urgent units.
    pub(crate) async fn flush_round(self: &Arc<Self>, aim: Aim) -> Result<Round, PoolError> {
        self.flush_units(one_round(self.units(aim)), aim).await
    }

    /// Flushes partitions of these tables. Returns whether there was anything to flush. Its records
    /// are durable some time later.
    pub(crate) async fn flush_only(
        self: &Arc<Self>,
        tables: impl IntoIterator<Item = &Arc<Table>>,
    ) -> Result<bool, PoolError> {
        let mut units = Vec::new();
        for table in tables {
            let stats = table.stats().into_iter();
            let due = stats.filter(|stats| stats.edits > 0);
            let unit = |edits: u64, start| (Unit::Partition(table.id(), start), edits);
            units.extend(due.map(|stats| unit(stats.edits as u64, stats.start)));
        }
        Ok(self.flush_units(one_round(units), Aim::Hand).await?.flushed > 0)
    }

    /// If the caller is cancelled, the round continues: its claims have nodes under write, and its
    /// units wait for their new bases.
    pub(crate) fn flush_units(
        self: &Arc<Self>,
        units: Vec<Unit>,
        aim: Aim,
    ) -> Finishing<Result<Round, PoolError>> {
        let pool = self.clone();
        finishing(&self.rt, async move { pool.run_round(units, aim).await })
    }

    /// The oldest txg that recovery would still have to apply, flushed but unrecorded ones
    /// included.
    pub fn oldest_pin(&self) -> Option<Txg> {
        let first = self.sabotaged(Sabotage::RecordsAskedFirst).then(|| self.recorded_pin());
        // Edits are recorded before they leave their table: the record has a pin that the table
        // has released.
        let edits = self.edits_pin();
        let recorded = first.unwrap_or_else(|| self.recorded_pin());
        edits.into_iter().chain(recorded).min()
    }

    /// The oldest txg of an edit that no base and no map has.
    pub(crate) fn edits_pin(&self) -> Option<Txg> {
        self.tables.oldest_pin().into_iter().chain(self.space.oldest_pin()).min()
    }

    /// The oldest txg that was flushed and whose record is not durable (FLUSH-F2).
    fn recorded_pin(&self) -> Option<Txg> {
        let durable = self.durable_txg();
        let recording = self.flusher.recording.lock();
        let ahead = self.sabotaged(Sabotage::HeadAheadOfRecord);
        let pending = recording.iter().filter(|r| r.record > durable && !ahead);
        pending.map(|r| r.pin).min()
    }

    /// Trims the log: a new uberblock, if the head can move. Within a round, or while the pool is
    /// opened: no caller cancels it half-way.
    pub(crate) async fn move_head(&self) -> Result<(), PoolError> {
        self.group.lead(&self.health).await?;
        let lead = crate::group::Lead::begin(&self.group, &self.health);
        let pin = self.oldest_pin();
        let moved = self.journal.move_head(pin, &self.health).await;
        lead.end(None);
        if let Err(error) = moved {
            self.stop(&format!("an uberblock could not be written: {error}"));
            return Err(error);
        }
        Ok(())
    }

    /// Edits that are in memory only.
    pub fn unflushed(&self) -> Weight {
        let Flusher { edits, bytes, dirty, .. } = &self.flusher;
        Weight {
            edits: edits.load(Relaxed),
            bytes: bytes.load(Relaxed),
            partitions: dirty.load(Relaxed),
        }
    }

    /// A transaction has put edits into deltas. Wakes the flusher when that is enough for a round.
    pub(crate) fn edited(&self, more: Weight) {
        let flusher = &self.flusher;
        flusher.edits.fetch_add(more.edits, Relaxed);
        self.admission.parts.note_moved(more.bytes);
        let new = more.bytes.max(0) as u64;
        let came = flusher.came.fetch_add(new, Relaxed);
        let part = (self.limits.delta_bytes / LOOKS).max(1);
        if self.limits.flush == FlushPolicy::Even && came / part != (came + new) / part {
            flusher.kick();
        }
        let bytes = flusher.bytes.fetch_add(more.bytes, Relaxed) + more.bytes;
        let limit = self.limits.delta_bytes as f64 * START;
        if bytes as f64 > limit && !flusher.urged.swap(true, Relaxed) {
            flusher.kick();
        }
        if more.partitions != 0 {
            flusher.dirty.fetch_add(more.partitions, Relaxed);
            self.promise_layers();
        }
    }

    /// Edits have left memory, or were replaced there.
    pub(crate) fn settled(&self, weight: Weight) {
        self.edited(Weight::default() - weight);
    }

    /// Reserves for each partition with edits its layer (ADMIT-A2).
    pub(crate) fn promise_layers(&self) {
        let dirty = || self.unflushed().partitions.max(0) as u64;
        self.admission.are_dirty(&self.space, dirty);
    }
}
