//! One round of flushing: freezes the chosen units, merges or spills them, writes the result, and
//! logs it in one transaction.
//!
//! ```text
//!   freeze · merge, spill or encode · write nodes in two copies · flush the device ·
//!   one transaction: new roots, allocations, releases · commit · move the head
//! ```
//!
//! Which units a round takes, and when, is `flush`'s business, whose invariants these are.

use std::collections::BTreeSet;
use std::sync::Arc;

use copyhold_format::node::pieces_of;
use copyhold_runtime::yield_now;
use copyhold_space::{Claim, MapJob, MetaslabId, Tier};
use copyhold_table::{FlushJob, Flushed, FreezePoint, MergeSize, NodeSource, Table, TableError};
use copyhold_types::{BlockAddr, Buf, EpochId, Key, NodePtr, Purpose, TableId, Txg};

use crate::fragments::{Listed, Pieces, expand};
use crate::node_writer::{NodeWriter, blocks_max};
use crate::nodes::{COPIES, NodesOf};
use crate::tenancy::{EDITS_PER_RELEASE, NodeTurnover, RELEASE_EDIT_BYTES, free_node};
use crate::transaction::Transaction;
use crate::units::{Aim, Unit};
use crate::{Pool, PoolError, Sabotage, loads};

/// Edits that one flush of a partition takes at most, so that a round stays bounded.
const EDITS_PER_FLUSH: usize = 256 << 10;
/// A unit's row in the table of tables takes at most this, and mostly less than half of it.
const DESCRIPTOR_BYTES: usize = 768;

/// The result of a round.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// Units that were flushed.
    pub(crate) flushed: usize,
    /// Units that failed, or had nothing to flush.
    pub(crate) skipped: Vec<Unit>,
    /// A skipped unit pins a full log, so the round flushed nothing.
    pub(crate) is_held_up: bool,
    /// The last failure.
    pub(crate) failed: Option<PoolError>,
}

/// The progress of a unit. `replaced`: the nodes that it releases, in pieces.
enum Work {
    Partition { table: Arc<Table>, job: FlushJob, flushed: Flushed, replaced: Vec<NodePtr> },
    Metaslab { job: MapJob, map: Option<NodePtr>, replaced: Vec<NodePtr> },
}

/// Why a round does not flush a unit.
enum Unready {
    /// There is nothing to flush.
    Idle,
    /// A later round may load its map (LOADS-M5).
    Waits,
    Failed(PoolError),
}

impl From<PoolError> for Unready {
    fn from(error: PoolError) -> Unready {
        Unready::Failed(error)
    }
}

impl Work {
    /// The delta that was written of a metaslab which was set aside meanwhile.
    fn overtaken(&self) -> Option<NodePtr> {
        match self {
            Work::Metaslab { job, map, .. } if job.was_set_aside() => *map,
            _ => None,
        }
    }

    /// The nodes and maps that it releases, in pieces.
    fn replaced(&self) -> &[NodePtr] {
        match self {
            Work::Partition { replaced, .. } | Work::Metaslab { replaced, .. } => replaced,
        }
    }
}

impl Pool {
    pub(crate) async fn run_round(
        self: &Arc<Self>,
        units: Vec<Unit>,
        aim: Aim,
    ) -> Result<Round, PoolError> {
        // One round at a time: while one is blocked, since the host is full, others would fill the
        // log with records that retire nothing.
        let _round = self.flusher.rounds.lock().await;
        self.check_writable()?;
        loads::keep_stock(self).await;
        let pin = self.oldest_pin().unwrap_or_else(|| self.open_txg());
        let reservation = self.space.reserve(0, Tier::Internal)?;
        let mut writer = NodeWriter::new(self.clone(), reservation);
        let (mut done, mut round) = (Vec::new(), Round::default());
        let mut maps = loads::LoadsOfRound::default();
        for unit in units {
            // LOADS-M2
            loads::fill_stock(self).await;
            let mark = writer.mark();
            match self.prepare(unit, aim, &mut maps, &mut writer).await {
                Ok(work) => done.push(work),
                Err(Unready::Waits) => {}
                Err(unready) => {
                    if let Unready::Failed(error) = unready {
                        round.failed = Some(error);
                    }
                    writer.give_up(mark);
                    round.is_held_up |= self.unit_pin(unit).is_some_and(|of| of <= pin);
                    round.skipped.push(unit);
                }
            }
        }
        // While the oldest log pin stays, records would only use up the ring.
        round.is_held_up &= self.is_log_full();
        if done.is_empty() || round.is_held_up {
            self.abort(done);
            writer.finish().await?;
            if aim.trims() {
                self.move_head().await?;
            }
            return Ok(round);
        }
        round.flushed = done.len();
        // Nothing is read any more, so nothing is pinned: writes may wait for long (R22, R32).
        match self.finish_writes(writer).await {
            Ok((claims, pieces)) => {
                if let Err(error) = Box::pin(self.carry(&done)).await {
                    self.abort(done);
                    return Err(error);
                }
                self.record(done, claims, pieces, pin, aim).await?;
            }
            Err(error) => {
                self.abort(done);
                return Err(error);
            }
        }
        self.admission.wake();
        if aim.trims() {
            self.move_head().await?;
        }
        // Maps that were written can be evicted.
        self.space.evict(self.limits.maps_bytes);
        Ok(round)
    }

    pub(crate) fn pin_of(&self, unit: Unit) -> Option<Txg> {
        match unit {
            Unit::Partition(table, _) => self.tables.find(table)?.pin(),
            Unit::Metaslab(id) => self.space.pin_of(id),
        }
    }

    /// As [`Self::pin_of`], but of one partition's edits.
    fn unit_pin(&self, unit: Unit) -> Option<Txg> {
        let Unit::Partition(table, start) = unit else { return self.pin_of(unit) };
        let stats = self.tables.find(table)?.stats();
        stats.into_iter().find(|stats| stats.start == start)?.pin
    }

    pub(crate) fn is_log_full(&self) -> bool {
        self.journal.pressure(self.limits.replay_edits) > 1.0
    }

    async fn finish_writes(&self, writer: NodeWriter) -> Result<(Vec<Claim>, Pieces), PoolError> {
        let written = writer.finish().await?;
        if !self.sabotaged(Sabotage::NoFlushBeforeRoot) {
            self.flush_device().await?;
        }
        Ok(written)
    }

    /// Freezes a unit and starts writing its new nodes.
    async fn prepare(
        self: &Arc<Self>,
        unit: Unit,
        aim: Aim,
        maps: &mut loads::LoadsOfRound,
        writer: &mut NodeWriter,
    ) -> Result<Work, Unready> {
        match unit {
            Unit::Partition(table, start) => {
                // None: it was handed over while this round waited.
                let table = self.tables.find(table).ok_or(Unready::Idle)?;
                self.flush_partition(table, start, aim, writer).await?.ok_or(Unready::Idle)
            }
            Unit::Metaslab(id) => self.flush_metaslab(id, maps, writer).await,
        }
    }

    async fn flush_metaslab(
        self: &Arc<Self>,
        id: MetaslabId,
        maps: &mut loads::LoadsOfRound,
        writer: &mut NodeWriter,
    ) -> Result<Work, Unready> {
        let freeze = || self.space.freeze(id, self.open_txg().prev()?);
        let mut job = freeze();
        if job.is_none() && self.space.wants_load(id) {
            if !maps.admit(self, id) {
                return Err(Unready::Waits);
            }
            loads::load(self, id).await;
            job = freeze();
        }
        let job = job.ok_or(Unready::Idle)?;
        writer.epoch = EpochId::POOL;
        match job.encode().map(|map| writer.place(Buf::from_bytes(&map), Purpose::Map)).transpose()
        {
            Ok(map) => {
                map.iter().for_each(|ptr| self.nodes.loads.note_written(job.is_delta(), ptr));
                let replaced = self.given_up(&job).await;
                Ok(Work::Metaslab { job, map, replaced })
            }
            Err(error) => {
                tracing::error!("the map of {id:?} cannot be written: {error}");
                self.space.abort(job);
                Err(error.into())
            }
        }
    }

    /// The blocks of the map and of the deltas that a new map replaces. The pieces of all maps in
    /// use are known, so only a map that was made anew, its list being unreadable, loses blocks,
    /// which stay allocated.
    async fn given_up(&self, job: &MapJob) -> Vec<NodePtr> {
        let mut given_up = Vec::new();
        for old in job.replaces() {
            given_up.extend(self.nodes.pieces(old).await.unwrap_or_else(|error| {
                tracing::error!("{error}; its fragments are lost, and `copyhold check` names them");
                pieces_of(&old, &[])
            }));
        }
        given_up
    }

    async fn flush_partition(
        &self,
        table: Arc<Table>,
        start: Key,
        aim: Aim,
        writer: &mut NodeWriter,
    ) -> Result<Option<Work>, PoolError> {
        let _pin = self.pin();
        let birth = self.open_txg();
        let Some(complete_to) = birth.prev() else { return Ok(None) };
        let own = self.tenancy().own_from(table.id());
        let point = FreezePoint { complete_to, birth, own, edits_max: EDITS_PER_FLUSH };
        let job = match aim {
            Aim::Trim | Aim::Hand => table.freeze(start, point),
            Aim::Settle | Aim::Compact => table.freeze_layers(start, point),
        };
        let Some(mut job) = job else { return Ok(None) };
        if aim == Aim::Compact || self.tables.is_under(table.id()) {
            job = job.compacting();
        }
        writer.epoch = self.tenancy().epoch(table.id());
        writer.table = Some(table.clone());
        let nodes = Listed::new(self, &table);
        let of = self.nodes.of(&table);
        // A compaction is no reason to use space that others need.
        let has_room = aim != Aim::Compact || self.has_room_to_merge(&of, &job).await;
        let flushed = match self.spills(&table, &job, aim).await {
            true if job.is_idle() && !(aim == Aim::Compact && has_room) => {
                self.give_up(&table, job);
                return Ok(None);
            }
            true => match self.spill(&job, &nodes, writer).await {
                Err(error) if error.is_of_layers() && self.has_room_to_merge(&of, &job).await => {
                    self.merge(&job, &nodes, writer).await
                }
                spilled => spilled,
            },
            false => self.merge(&job, &nodes, writer).await,
        };
        match flushed {
            Ok(flushed)
                if flushed.written.is_empty() && flushed.replaced.is_empty() && job.is_idle() =>
            {
                self.give_up(&table, job);
                Ok(None)
            }
            Ok(flushed) => {
                let replaced = expand(&flushed.replaced, &nodes.pieces());
                Ok(Some(Work::Partition { table, job, flushed, replaced }))
            }
            Err(error) => {
                tracing::error!("{error}");
                self.give_up(&table, job);
                Err(reason(error))
            }
        }
    }

    /// A job that was about layers alone kept its table from being settled; a handover has skipped
    /// that table.
    fn give_up(&self, table: &Table, job: FlushJob) {
        self.settled(table.abort(job));
        self.tables.flushed(table.id());
    }

    /// Whether the edits become a layer: a node that a merge needs is still unreadable, or a merge
    /// would write more.
    async fn spills(&self, table: &Table, job: &FlushJob, aim: Aim) -> bool {
        let nodes = self.nodes.of(table);
        let broken = self.flusher.broken.lock().get(&(job.table(), job.start())).copied();
        match broken {
            Some(Some(node)) => nodes.read(node, Purpose::Leaf).await.is_err(),
            Some(None) => false,
            None if aim == Aim::Compact => true,
            None if aim == Aim::Settle && job.is_in_vain() => {
                !self.sabotaged(Sabotage::MergeShared)
            }
            None if aim != Aim::Settle && job.is_cheaper_to_spill(&nodes).await => true,
            None => !self.has_room_to_merge(&nodes, job).await,
        }
    }

    /// Whether there is space for a merge beside the growth of its own edits, which a layer takes.
    /// If leaves are shared, new ones free nothing: that must be users' space. Unshared leaves are
    /// only written anew, and may take the reserve until the old nodes are free (R21).
    async fn has_room_to_merge(&self, nodes: &NodesOf<'_>, job: &FlushJob) -> bool {
        let limits = job.limits();
        let leaf = blocks_max(limits.leaf_bytes as u64);
        let share = job.edits_bytes() as f64 / self.flusher.bytes().max(1) as f64;
        let promised = self.admission.promised(share);
        let is_free = |leaves: usize, tier: Tier| {
            let more = (leaves as u64 * leaf).saturating_sub(promised);
            loads::expect_room(self, more, tier).is_ok()
        };
        // Layers have hardly more edits than the base has items (LAYERS-L3).
        let partition = 3 * limits.partition_leaves.min(1 << 16);
        if is_free(partition, Tier::Write) {
            return true;
        }
        let MergeSize { leaves, is_shared } = job.merge_size(nodes).await;
        is_free(leaves, if is_shared { Tier::Write } else { Tier::FinishSubvolume })
    }

    /// Makes a layer of the edits, which have reserved the space for it. Layers that it takes in
    /// may use unreserved space, until they are free.
    async fn spill(
        &self,
        job: &FlushJob,
        nodes: &Listed<'_>,
        writer: &mut NodeWriter,
    ) -> Result<Flushed, TableError> {
        let room = self.space.loaded_left() / COPIES;
        job.spill(nodes, writer, room).await
    }

    /// Merges the edits into the base, or, if that cannot be read, makes a layer of them.
    async fn merge(
        &self,
        job: &FlushJob,
        nodes: &Listed<'_>,
        writer: &mut NodeWriter,
    ) -> Result<Flushed, TableError> {
        let unit = (job.table(), job.start());
        let mark = writer.mark();
        match job.merge(nodes, writer).await {
            Err(error) if !error.is_unwritable() => {
                tracing::error!("{error}; new edits are written as a layer");
                self.flusher.broken.lock().insert(unit, error.node());
                writer.give_up(mark);
                self.spill(job, nodes, writer).await
            }
            // Space was taken meanwhile; a layer needs less.
            Err(_) if !job.is_idle() => {
                writer.give_up(mark);
                self.spill(job, nodes, writer).await
            }
            Ok(flushed) => {
                if self.flusher.broken.lock().remove(&unit).is_some() {
                    tracing::info!("keys from {} of table {} can be read again", unit.1, unit.0);
                }
                Ok(flushed)
            }
            full => full,
        }
    }

    /// Whether commits are needed for the space that they free, or for log space.
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

    /// Logs again the edits of metaslabs that are set aside, in bounded transactions (R28). The old
    /// log stays pinned until the round's record is durable.
    async fn carry(self: &Arc<Self>, done: &[Work]) -> Result<(), PoolError> {
        let jobs = done.iter().filter_map(|work| match work {
            Work::Metaslab { job, .. } if job.is_set_aside() => Some(job),
            _ => None,
        });
        for job in jobs {
            let (mut from, most) = (Some(0), self.limits.carried_runs);
            while let Some(block) = from {
                let credit = self.internal_credit(0, 0, 2 * most)?;
                self.apply_with(credit, Transaction::new(), |txg, tx| {
                    let carried = self.space.carry(job, block, most, txg);
                    from = carried.next;
                    tx.carried.push(carried);
                })?;
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Edits, their bytes, and runs of a round's record.
    fn record_size(&self, done: &[Work], claims: &[Claim]) -> (usize, usize, usize) {
        // A node that a snapshot shares becomes rows of a deadlist.
        let buried = |work: &Work| match work {
            Work::Partition { table, replaced, .. } => {
                let own = self.tenancy().own_from(table.id());
                replaced.iter().filter(|ptr| ptr.epoch < own).count()
            }
            Work::Metaslab { .. } => 0,
        };
        let copies = COPIES as usize;
        let buried: usize = done.iter().map(|work| buried(work) * copies * EDITS_PER_RELEASE).sum();
        let freed: usize = done.iter().map(|work| work.replaced().len() * copies).sum();
        let gone = self.forks.gone_most();
        let bytes = done.len() * DESCRIPTOR_BYTES + buried * RELEASE_EDIT_BYTES + gone * Key::BYTES;
        (done.len() * 2 + buried + gone, bytes, claims.len() + freed)
    }

    /// Logs the new roots and waits until that is durable, unless it is only for the tables' sake.
    async fn record(
        self: &Arc<Self>,
        done: Vec<Work>,
        claims: Vec<Claim>,
        pieces: Pieces,
        pin: Txg,
        aim: Aim,
    ) -> Result<(), PoolError> {
        let (done, claims) = give_up_overtaken(self, done, claims, &pieces);
        let (edits, bytes, runs) = self.record_size(&done, &claims);
        let credit = self.internal_credit(edits, bytes, runs)?;
        let mut maps = Vec::new();
        let mut roots = Some(done);
        let tables = tables_of(roots.as_deref().unwrap_or_default());
        let mut job = Some((credit, claims));
        let mut record = None;
        self.tenancy().with_families_locked(&tables, &mut |turnover| {
            // From the first base that counts until the record is applied: a table is not handed
            // over before the table of tables contains its bases (FORK-G1).
            let _order = self.forks.order.lock();
            let (credit, claims) = job.take().expect("a record is applied once");
            record = Some(self.apply_with(credit, Transaction::new(), |txg, tx| {
                claims.into_iter().for_each(|claim| tx.allocate(claim));
                self.flusher.pin_until(txg, pin);
                for work in roots.take().expect("a transaction is prepared once") {
                    self.install(work, &pieces, turnover, tx, &mut maps);
                }
                self.forget_gone(tx);
            }));
        });
        let record = match record.expect("the layer above runs what it is given") {
            Ok(record) => record,
            Err(error) => {
                self.abort(roots.take().unwrap_or_default());
                return Err(error);
            }
        };
        self.admission.settled(|| self.unflushed());
        if self.sabotaged(Sabotage::HeadAheadOfRecord) {
            self.move_head().await?;
        }
        if aim.trims() || self.is_short() {
            self.commit(record).await?;
        }
        for (job, map) in maps {
            self.nodes.replace_map(job.replaces(), map, &pieces);
            if self.sabotaged(Sabotage::ForgetLateChanges) {
                self.space.forget_late_changes(job.metaslab());
            }
            self.space.installed(job, map);
        }
        let durable = self.durable_txg();
        self.flusher.recording.lock().retain(|recording| recording.record > durable);
        Ok(())
    }

    /// Swaps in a new base, and adds its records to the transaction.
    fn install(
        &self,
        work: Work,
        pieces: &Pieces,
        turnover: &mut dyn NodeTurnover,
        tx: &mut Transaction,
        maps: &mut Vec<(MapJob, Option<NodePtr>)>,
    ) {
        match work {
            Work::Partition { table, job, flushed, replaced } => {
                let written = expand(&flushed.written, pieces);
                turnover.turned_over(table.id(), &written, &replaced, tx);
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
            Work::Metaslab { job, map, .. } if job.is_set_aside() => maps.push((job, map)),
            Work::Metaslab { job, map, replaced } => {
                replaced.iter().for_each(|old| free_node(tx, old));
                tx.put(Pool::TABLES, job.key(), job.descriptor(map).encode());
                maps.push((job, map));
            }
        }
    }
}

/// Gives up the deltas of metaslabs that were set aside since the freeze. Their map may not have a
/// block that such a delta frees, and no map could be read again with that delta behind it.
fn give_up_overtaken(
    pool: &Pool,
    done: Vec<Work>,
    claims: Vec<Claim>,
    pieces: &Pieces,
) -> (Vec<Work>, Vec<Claim>) {
    let (overtaken, done): (Vec<_>, Vec<_>) =
        done.into_iter().partition(|work| work.overtaken().is_some());
    let deltas: Vec<NodePtr> = overtaken.iter().filter_map(Work::overtaken).collect();
    let deltas = expand(&deltas, pieces);
    let places: BTreeSet<BlockAddr> =
        deltas.iter().flat_map(NodePtr::runs).map(|run| run.addr).collect();
    pool.abort(overtaken);
    let is_used = |claim: &Claim| !places.contains(&claim.run().addr);
    (done, claims.into_iter().filter(is_used).collect())
}

/// Why a flush failed, in the pool's own words where it was the pool that refused.
fn reason(error: TableError) -> PoolError {
    let mut cause = &error;
    while let TableError::Partition { source, .. } = cause {
        cause = source;
    }
    if let TableError::Unwritable { source, .. } = cause
        && let Some(own) = source.downcast_ref::<PoolError>()
    {
        return own.clone();
    }
    error.into()
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
