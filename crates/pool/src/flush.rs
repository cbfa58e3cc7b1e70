//! The flush policy, and the flush of what it chooses: partitions, metaslabs, the table of tables.
//!
//! Each of these pins the log from the oldest edit that its base does not have (`units`). Nothing
//! is flushed while log and memory are below seven tenths of their limits: an edit that waits may
//! be overtaken by another, and the more edits a flush gathers, the less it writes for each (P4).
//! From there on rounds follow commits, so that the work is even, above 85 hundredths each other;
//! at the limit user transactions wait (`admission`).
//!
//! A partition is merged into its base, or its edits become a layer over it: when that writes less
//! (P4), and while a node that the merge needs cannot be read. Such a partition frees its part of
//! the log like any other, and the node is tried again at each of its flushes (R20 iii).
//!
//! ```text
//!   a round:  freeze · merge, spill or encode · write nodes in two copies · flush the device ·
//!             one transaction: new roots, allocations, releases · commit · move the head
//! ```
//!
//! F1  The transaction joins when all nodes that it points to are durable.
//! F2  What was flushed pins the log until that transaction is durable (rule R6).
//! F3  A flush of a table edits the table of tables only, and of a metaslab one item of it; the
//!     table of tables lies in no table. So what flushing adds to the log is a small part of what
//!     it retires (rule R20).
//! F4  While the log is full, a round that cannot flush what pins it longest records nothing: users
//!     wait then, and the ring is not used up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use copyhold_runtime::{FifoMutex, Finishing, finishing};
use copyhold_space::{Claim, MapJob, Tier};
use copyhold_sync::{Mutex, of};
use copyhold_table::{FlushJob, Flushed, FreezePoint, NodeSource, Table, TableError, Weight};
use copyhold_types::{BLOCK_BYTES, Buf, EpochId, Key, NodePtr, Purpose, TableId, Txg};

use crate::marker::Kick;
use crate::nodes::{COPIES, NodeWriter};
use crate::tenancy::{NodeTurnover, free_node};
use crate::transaction::Transaction;
use crate::units::{Aim, Unit, one_round};
use crate::{Pool, PoolError, Sabotage};

/// Edits that one flush of a partition takes at most, so that a round stays bounded.
const EDITS_PER_FLUSH: usize = 256 << 10;
/// The flusher looks by itself this often, should nobody kick it.
const IDLE: Duration = Duration::from_secs(1);
/// Before it looks again for something to flush when there was nothing.
const PAUSE: Duration = Duration::from_millis(50);
/// From where one round follows each commit, and from where rounds follow each other.
const START: f64 = 0.7;
const HURRY: f64 = 0.85;
/// A unit's row in the table of tables takes at most this, and mostly less than half of it.
const DESCRIPTOR_BYTES: usize = 768;

/// The policy's state.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    kick: Kick,
    closing: AtomicBool,
    running: Arc<FifoMutex>,
    /// Held while a round goes on, whoever asked for it.
    rounds: FifoMutex,
    /// Flushed, but their record is not durable (F2).
    recording: Mutex<Vec<Recording>, of::FlushRecording>,
    /// Partitions that cannot be merged, each with the node that is unreadable.
    pub(crate) broken: Mutex<BTreeMap<(TableId, Key), Option<NodePtr>>, of::BrokenParts>,
    /// Edits that are in memory only, and the memory that they take.
    edits: AtomicI64,
    bytes: AtomicI64,
    /// Partitions that have any.
    dirty: AtomicI64,
    /// A transaction has kicked since the flusher last looked.
    urged: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Recording {
    record: Txg,
    pin: Txg,
}

/// How far a unit has come.
enum Work {
    Partition { table: Arc<Table>, job: FlushJob, flushed: Flushed },
    Metaslab { job: MapJob, map: Option<NodePtr> },
}

impl Flusher {
    /// Of edits in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed).max(0) as u64
    }

    /// `weight`: of what recovery has found.
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

    /// Until `record` is durable, recovery needs the log from `pin` on (F2).
    pub(crate) fn pin_until(&self, record: Txg, pin: Txg) {
        self.recording.lock().push(Recording { record, pin });
    }
}

/// Flushes as the policy says, until the pool is closed or stopped.
pub(crate) async fn run(pool: Weak<Pool>) {
    let Some(strong) = pool.upgrade() else { return };
    let running = strong.flusher.running.clone();
    let _running = running.lock().await;
    let rt = strong.rt.clone();
    drop(strong);
    loop {
        let Some(strong) = pool.upgrade() else { return };
        if strong.is_closing() || strong.health.check().is_err() {
            return;
        }
        strong.flusher.kick.wait(&rt, IDLE).await;
        strong.flusher.urged.store(false, Relaxed);
        match strong.flush_by_policy().await {
            // Nothing can be flushed now; those who wait would only kick again.
            Ok(false) if strong.is_full() => rt.sleep(PAUSE).await,
            Ok(_) => {}
            Err(error) => {
                tracing::error!("flushing: {error}");
                rt.sleep(IDLE).await;
            }
        }
        strong.admission.wake();
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

    /// Whether anything was flushed.
    async fn flush_by_policy(self: &Arc<Self>) -> Result<bool, PoolError> {
        let mut any = self.hand_over()?;
        any |= self.settle_deep().await?;
        while self.pressure() > START && !self.is_closing() {
            // What lies over a table that is settled by now can be flushed from here on.
            any |= self.hand_over()?;
            let flushed = self.flush_round(Aim::Trim).await? > 0;
            any |= flushed;
            if !flushed || self.pressure() <= HURRY {
                break;
            }
        }
        Ok(any)
    }

    /// Flushes everything that pins the log, merges all layers, and trims the log: for tests, for
    /// space, and before a long rest.
    pub async fn flush_all(self: &Arc<Self>) -> Result<(), PoolError> {
        // Flushing leaves a few edits of its own behind; the second pass leaves next to none.
        for _ in 0..2 {
            self.commit(self.open_txg()).await?;
            self.hand_over()?;
            let mut units = self.units(Aim::Settle).len();
            while units > 0 {
                match self.flush_round(Aim::Settle).await? {
                    0 => break,
                    flushed => units = units.saturating_sub(flushed),
                }
            }
        }
        Ok(())
    }

    /// Flushes what is most urgent. How many units it took, none if nothing could be flushed.
    async fn flush_round(self: &Arc<Self>, aim: Aim) -> Result<usize, PoolError> {
        let units = one_round(self.units(aim));
        let count = units.len();
        Ok(if self.flush_units(units, aim).await? { count } else { 0 })
    }

    /// Flushes partitions of these tables, and merges their `layers`, too. Whether there was
    /// anything to flush. What the log says of it is durable some time later.
    pub(crate) async fn flush_only(
        self: &Arc<Self>,
        tables: impl IntoIterator<Item = &Arc<Table>>,
        layers: bool,
    ) -> Result<bool, PoolError> {
        let mut units = Vec::new();
        for table in tables {
            let stats = table.stats().into_iter();
            let due = stats.filter(|stats| stats.edits > 0 || layers && stats.layers > 0);
            let unit = |edits: u64, start| (Unit::Partition(table.id(), start), edits);
            units.extend(due.map(|stats| unit(stats.edits as u64, stats.start)));
        }
        let aim = if layers { Aim::Settle } else { Aim::Hand };
        self.flush_units(one_round(units), aim).await
    }

    /// Whether a part of this table can only be kept in layers, since its base is unreadable.
    pub(crate) fn is_broken(&self, table: TableId) -> bool {
        let broken = self.flusher.broken.lock();
        broken.range((table, Key::MIN)..).next().is_some_and(|((of, _), _)| *of == table)
    }

    /// Should the caller give up, the round goes on: nodes are being written to what it has
    /// claimed, and its units wait for their new bases.
    fn flush_units(
        self: &Arc<Self>,
        units: Vec<Unit>,
        aim: Aim,
    ) -> Finishing<Result<bool, PoolError>> {
        let pool = self.clone();
        finishing(&self.rt, async move { pool.run_round(units, aim).await })
    }

    async fn run_round(self: &Arc<Self>, units: Vec<Unit>, aim: Aim) -> Result<bool, PoolError> {
        // One round at a time: while one cannot go on, since the host is full, others would fill
        // the log with records that retire nothing.
        let _round = self.flusher.rounds.lock().await;
        self.check_writable()?;
        let pin = self.oldest_pin().unwrap_or_else(|| self.open_txg());
        let reservation = self.space.reserve(0, Tier::Internal)?;
        let mut writer = NodeWriter::new(self.clone(), reservation);
        let (mut done, mut held_up) = (Vec::new(), false);
        for unit in units {
            let mark = writer.mark();
            match self.prepare(unit, aim, &mut writer).await {
                Some(work) => done.push(work),
                None => {
                    writer.give_up(mark);
                    held_up |= self.pin_of(unit).is_some_and(|of| of <= pin);
                }
            }
        }
        // While what pins the log longest stays, records would only use up the ring.
        if done.is_empty() || (held_up && self.is_log_full()) {
            self.abort(done);
            writer.finish().await?;
            if aim.trims() {
                self.move_head().await?;
            }
            return Ok(false);
        }
        // Nothing is read any more, so nothing is pinned: writes may wait for long (R22, R32).
        match self.finish_writes(writer).await {
            Ok(claims) => self.record(done, claims, pin, aim).await?,
            Err(error) => {
                self.abort(done);
                return Err(error);
            }
        }
        self.admission.wake();
        if aim.trims() {
            self.move_head().await?;
        }
        Ok(true)
    }

    fn pin_of(&self, unit: Unit) -> Option<Txg> {
        match unit {
            Unit::Partition(table, _) => self.tables.find(table)?.pin(),
            Unit::Metaslab(id) => {
                self.space.pins().find(|pin| pin.metaslab == id).map(|pin| pin.oldest)
            }
        }
    }

    fn is_log_full(&self) -> bool {
        self.journal.pressure(self.limits.replay_edits) > 1.0
    }

    async fn finish_writes(&self, writer: NodeWriter) -> Result<Vec<Claim>, PoolError> {
        let claims = writer.finish().await?;
        if !self.sabotaged(Sabotage::NoFlushBeforeRoot) {
            self.flush_device().await?;
        }
        Ok(claims)
    }

    /// Freezes a unit and starts writing its new nodes. Nothing, if it cannot be flushed now.
    async fn prepare(&self, unit: Unit, aim: Aim, writer: &mut NodeWriter) -> Option<Work> {
        match unit {
            // It may have been handed over while this round waited.
            Unit::Partition(table, start) => {
                self.flush_partition(self.tables.find(table)?, start, aim, writer).await
            }
            Unit::Metaslab(id) => {
                let closed = self.open_txg().prev()?;
                let job = self.space.freeze(id, closed)?;
                writer.epoch = EpochId::POOL;
                match job.encode().map(|map| writer.place(Buf::from_bytes(&map), Purpose::Map)) {
                    None => Some(Work::Metaslab { job, map: None }),
                    Some(Ok(map)) => Some(Work::Metaslab { job, map: Some(map) }),
                    Some(Err(error)) => {
                        tracing::error!("the map of {id:?} cannot be written: {error}");
                        self.space.abort(job);
                        None
                    }
                }
            }
        }
    }

    async fn flush_partition(
        &self,
        table: Arc<Table>,
        start: Key,
        aim: Aim,
        writer: &mut NodeWriter,
    ) -> Option<Work> {
        let _pin = self.pin();
        let birth = self.open_txg();
        let point = FreezePoint { complete_to: birth.prev()?, birth, edits_max: EDITS_PER_FLUSH };
        let job = match aim {
            Aim::Trim | Aim::Hand => table.freeze(start, point)?,
            Aim::Settle => table.freeze_layers(start, point)?,
        };
        writer.epoch = self.tenancy().epoch(table.id());
        let flushed = match self.spills(&job, aim).await {
            true if job.is_idle() => {
                self.give_up(&table, job);
                return None;
            }
            true => job.spill(&self.nodes, writer).await,
            false => self.merge(&job, writer).await,
        };
        match flushed {
            Ok(flushed) => Some(Work::Partition { table, job, flushed }),
            Err(error) => {
                tracing::error!("{error}");
                self.give_up(&table, job);
                None
            }
        }
    }

    /// A job that was about layers alone kept its table from being settled; who wanted to hand that
    /// over has left it alone.
    fn give_up(&self, table: &Table, job: FlushJob) {
        self.settled(table.abort(job));
        self.tables.flushed(table.id());
    }

    /// Whether the edits become a layer: what a merge needs is still unreadable, or it would write
    /// more.
    async fn spills(&self, job: &FlushJob, aim: Aim) -> bool {
        let broken = self.flusher.broken.lock().get(&(job.table(), job.start())).copied();
        match broken {
            Some(Some(node)) => self.nodes.read(node, Purpose::Leaf).await.is_err(),
            Some(None) => false,
            None if aim != Aim::Settle && job.is_cheaper_to_spill(&self.nodes).await => true,
            None => !self.has_room_to_merge(job).await,
        }
    }

    /// Whether users' part of the space has room for a merge. The promise to an edit covers a layer
    /// and no more: where leaves are shared, new ones give nothing back.
    async fn has_room_to_merge(&self, job: &FlushJob) -> bool {
        let limits = job.limits();
        let partition = (2 * limits.partition_leaves.min(1 << 16) * limits.leaf_bytes) as u64;
        let is_free = |bytes: u64| {
            let blocks = bytes.div_ceil(BLOCK_BYTES as u64) * COPIES;
            self.space.reserve(blocks, Tier::Write).is_ok()
        };
        is_free(partition) || is_free(job.merge_bytes_max(&self.nodes).await)
    }

    /// Merges the edits into the base, or, if that cannot be read, makes a layer of them.
    async fn merge(&self, job: &FlushJob, writer: &mut NodeWriter) -> Result<Flushed, TableError> {
        let unit = (job.table(), job.start());
        let mark = writer.mark();
        match job.merge(&self.nodes, writer).await {
            // Where there is no room now there may be some later.
            Err(error) if !error.is_unwritable() => {
                tracing::error!("{error}; what is new is kept beside it");
                self.flusher.broken.lock().insert(unit, error.node());
                writer.give_up(mark);
                job.spill(&self.nodes, writer).await
            }
            Ok(flushed) => {
                if self.flusher.broken.lock().remove(&unit).is_some() {
                    tracing::info!("keys from {} of table {} are whole again", unit.1, unit.0);
                }
                Ok(flushed)
            }
            full => full,
        }
    }

    /// Whether commits are needed for the space that they give back, or for room in the log.
    fn is_short(&self) -> bool {
        let figures = self.space();
        self.is_full() || figures.freeing > figures.available()
    }

    fn abort(&self, done: Vec<Work>) {
        for work in done {
            match work {
                Work::Partition { table, job, .. } => self.give_up(&table, job),
                Work::Metaslab { job, .. } => self.space.abort(job),
            }
        }
    }

    /// Logs the new roots and waits until that is durable, unless it is only for the tables' sake.
    async fn record(
        self: &Arc<Self>,
        done: Vec<Work>,
        claims: Vec<Claim>,
        pin: Txg,
        aim: Aim,
    ) -> Result<(), PoolError> {
        let mut edits = self.unflushed_edits();
        let credit = self.internal_credit(done.len() * 2, done.len() * DESCRIPTOR_BYTES)?;
        let mut maps = Vec::new();
        let mut roots = Some(done);
        let tables = tables_of(roots.as_deref().unwrap_or_default());
        let mut job = Some((credit, claims));
        let mut record = None;
        self.tenancy().steady(&tables, &mut |turnover| {
            // From the first base that counts until the record is applied: a table is not handed
            // over before the table of tables has been told of its bases (G1).
            let _order = self.forks.order.lock();
            let (credit, claims) = job.take().expect("a record is applied once");
            record = Some(self.apply_with(credit, Transaction::new(), |txg, tx| {
                claims.into_iter().for_each(|claim| tx.allocate(claim));
                self.flusher.pin_until(txg, pin);
                for work in roots.take().expect("a transaction is prepared once") {
                    self.install(work, turnover, tx, &mut maps);
                }
                self.forget_gone(tx);
                edits += tx.len() as u64;
            }));
        });
        let record = match record.expect("the layer above runs what it is given") {
            Ok(record) => record,
            Err(error) => {
                self.abort(roots.take().unwrap_or_default());
                return Err(error);
            }
        };
        let left = self.unflushed_edits();
        // Of all growth that is promised, the record's own included.
        let share = 1.0 - left as f64 / edits.max(1) as f64;
        self.admission.settled(share, || self.unflushed());
        if self.sabotaged(Sabotage::HeadAheadOfRecord) {
            self.move_head().await?;
        }
        if aim.trims() || self.is_short() {
            self.commit(record).await?;
        }
        for (job, map) in maps {
            self.space.installed(job, map);
        }
        let durable = self.durable_txg();
        self.flusher.recording.lock().retain(|recording| recording.record > durable);
        Ok(())
    }

    /// Swaps in a new base, and adds to the transaction what the log must say of it.
    fn install(
        &self,
        work: Work,
        turnover: &mut dyn NodeTurnover,
        tx: &mut Transaction,
        maps: &mut Vec<(MapJob, Option<NodePtr>)>,
    ) {
        match work {
            Work::Partition { table, job, flushed } => {
                turnover.turned_over(table.id(), &flushed.written, &flushed.replaced, tx);
                let (tells, settled) = table.install(job, flushed);
                self.settled(settled);
                for told in tells {
                    match &told.descriptor {
                        Some(descriptor) if told.table == Pool::TABLES => {
                            assert_eq!(told.partition, 0, "the table of tables is one partition");
                            self.tables.set_root(descriptor);
                        }
                        _ => tx.edit(Pool::TABLES, told.key(), told.edit()),
                    }
                }
                self.tables.flushed(table.id());
            }
            Work::Metaslab { job, map } => {
                if let Some(old) = job.replaces() {
                    free_node(tx, &old);
                }
                tx.put(Pool::TABLES, job.key(), &job.descriptor(map).encode());
                maps.push((job, map));
            }
        }
    }

    /// The oldest txg that recovery would still have to apply, flushed but unrecorded ones
    /// included.
    pub(crate) fn oldest_pin(&self) -> Option<Txg> {
        let durable = self.durable_txg();
        let recording = self.flusher.recording.lock().clone();
        let ahead = self.sabotaged(Sabotage::HeadAheadOfRecord);
        let recorded = recording.iter().filter(|r| r.record > durable && !ahead).map(|r| r.pin);
        let edits = self.tables.oldest_pin();
        edits.into_iter().chain(self.space.oldest_pin()).chain(recorded).min()
    }

    /// Trims the log: a new uberblock, if the head can move. Within a round, or while the pool is
    /// opened: nobody gives it up half-way.
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

    pub(crate) fn unflushed_edits(&self) -> u64 {
        self.unflushed().edits.max(0) as u64
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

    /// Edits are in memory no more, or were replaced there.
    pub(crate) fn settled(&self, weight: Weight) {
        self.edited(Weight::default() - weight);
    }

    /// Promises each partition with edits its layer (A2).
    pub(crate) fn promise_layers(&self) {
        let dirty = || self.unflushed().partitions.max(0) as u64;
        self.admission.are_dirty(&self.space, dirty);
    }
}

/// The tables whose trees a round has written.
fn tables_of(done: &[Work]) -> Vec<TableId> {
    let mut tables: Vec<TableId> = done
        .iter()
        .filter_map(|work| match work {
            Work::Partition { table, .. } => Some(table.id()),
            Work::Metaslab { .. } => None,
        })
        .collect();
    tables.sort();
    tables.dedup();
    tables
}
