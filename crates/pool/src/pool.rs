//! The pool itself: its parts, and the application of a transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use copyhold_device::DynDevice;
use copyhold_format::label::Label;
use copyhold_memory::{Memory, MemoryOwner};
use copyhold_runtime::{BoxFuture, Rt};
use copyhold_space::{Claim, Figures, Lane, LaneClass, Reservation, Space, Tier, Wanted};
use copyhold_sync::{RwLock, of};
use copyhold_table::{Cached, Table, Value};
use copyhold_types::{Buf, Bufs, Key, Purpose, Run, TableId, Txg};

use crate::PoolError;
use crate::Sabotage;
use crate::admission::Admission;
use crate::births::BlockMode;
use crate::config::Limits;
use crate::data::DataStore;
use crate::devices::Devices;
use crate::flush::Flusher;
use crate::fork::Forks;
use crate::group::Group;
use crate::guards::{GuardedWrite, explain};
use crate::health::Health;
use crate::ids::Ids;
use crate::join_wait::JoinWaits;
use crate::journal::{Journal, LogUse};
use crate::labels::OpenLabel;
use crate::log_room::blocks_of;
use crate::marker::Marker;
use crate::nodes::NodeStore;
use crate::open_txg::{Introduced, Joined, OpenTxg};
use crate::patient::Patient;
use crate::pins::{Pin, Pins};
use crate::tables::Tables;
use crate::tenancy::Tenancy;
use crate::transaction::{Credit, Transaction};
use crate::verified::{Condition, Problem};

/// An open pool. Everything takes `&self`; the pool is shared as `Arc<Pool>`.
pub struct Pool {
    pub(crate) rt: Rt,
    pub(crate) devices: Devices,
    pub(crate) label: OpenLabel,
    pub(crate) limits: Limits,
    /// Why the pool may not be written at all; `None`: it may.
    pub(crate) read_only: Option<String>,
    pub(crate) cut: Option<String>,
    pub(crate) health: Arc<Health>,
    pub(crate) journal: Journal,
    pub(crate) space: Space,
    pub(crate) tables: Tables,
    pub(crate) nodes: NodeStore,
    pub(crate) open: OpenTxg,
    pub(crate) data: DataStore,
    pub(crate) group: Group,
    pub(crate) pins: Pins,
    pub(crate) ids: Ids,
    pub(crate) admission: Admission,
    pub(crate) flusher: Flusher,
    pub(crate) marker: Marker,
    pub(crate) forks: Forks,
    /// A layer above was announced ([`OpenOptions::tenants`]).
    pub(crate) tenants: bool,
    pub(crate) tenancy: RwLock<Arc<dyn Tenancy>, of::Tenancy>,
    pub(crate) join_waits: JoinWaits,
    pub(crate) host: Arc<Patient>,
    /// The last txg that a transaction has joined, and the last that a durable batch calls durable.
    pub(crate) joined: AtomicU64,
    pub(crate) proven: AtomicU64,
}

impl Pool {
    /// The table of tables: descriptors of partitions and metaslabs.
    pub const TABLES: TableId = TableId(1);
    /// The pool's own table: subvolumes, epochs, settings, high-water marks of ids.
    pub const SYSTEM: TableId = TableId(2);
    /// References beyond the first, and releases that are not decided yet: the layer above's.
    pub const SHARES: TableId = TableId(3);
    pub const PENDING: TableId = TableId(4);

    pub fn runtime(&self) -> &Rt {
        &self.rt
    }

    pub fn label(&self) -> Label {
        self.label.now()
    }

    pub fn device(&self) -> &DynDevice {
        self.devices.home()
    }

    /// Why the pool was opened read-only, if it was.
    pub fn read_only(&self) -> Option<&str> {
        self.read_only.as_deref()
    }

    /// The part of a damaged log that was discarded at opening.
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only.is_some()
    }

    /// Fails if nothing may be written, any more or at all.
    pub fn check_writable(&self) -> Result<(), PoolError> {
        match &self.read_only {
            Some(why) => Err(PoolError::ReadOnly { why: why.clone() }),
            None => self.health.check(),
        }
    }

    // -- reading ------------------------------------------------------------

    /// To be held from before a look-up until the last use of its result (rule R3).
    pub fn pin(&self) -> Pin {
        self.pins.pin(self.open.number())
    }

    pub async fn get(&self, table: TableId, key: Key) -> Result<Option<Value>, PoolError> {
        let _pin = self.pin();
        let table = self.table(table);
        Ok(table.get(&self.nodes.of(&table), key).await?)
    }

    /// Items with `from <= key < to`, ascending, at most `limit`.
    pub async fn range(
        &self,
        table: TableId,
        from: Key,
        to: Key,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, PoolError> {
        let _pin = self.pin();
        let table = self.table(table);
        Ok(table.range(&self.nodes.of(&table), from..to, limit).await?)
    }

    /// The last item with `floor <= key < below`.
    pub async fn last_below(
        &self,
        table: TableId,
        below: Key,
        floor: Key,
    ) -> Result<Option<(Key, Value)>, PoolError> {
        let _pin = self.pin();
        let table = self.table(table);
        Ok(table.last_below(&self.nodes.of(&table), below, floor).await?)
    }

    /// The content of a run, as expected. The caller holds a pin since before the look-up that has
    /// found the run (R3). `keep`: clean data is kept in memory for this owner, and found there.
    pub async fn read(
        &self,
        run: Run,
        condition: Condition<'_>,
        why: Purpose,
        keep: Option<&MemoryOwner>,
    ) -> Result<Buf, Problem> {
        let from_device = self.sabotaged(Sabotage::ReadBeforeWritten);
        self.data.read(run, condition, why, keep, from_device).await
    }

    /// As [`Self::range`], for where nothing may wait.
    pub fn range_cached(
        &self,
        table: TableId,
        from: Key,
        to: Key,
        limit: usize,
    ) -> Cached<Vec<(Key, Value)>> {
        let _pin = self.pin();
        self.table(table).range_cached(&self.nodes, from..to, limit)
    }

    pub(crate) fn tenancy(&self) -> Arc<dyn Tenancy> {
        self.tenancy.read().clone()
    }

    pub fn table(&self, id: TableId) -> Arc<Table> {
        self.tables.get(id)
    }

    // -- writing ------------------------------------------------------------

    /// As [`Self::reserve`], but never waits: full when it would have to.
    pub fn reserve_now(
        &self,
        wanted: impl Into<Wanted>,
        tier: Tier,
    ) -> Result<Reservation, PoolError> {
        self.check_writable()?;
        Ok(self.space.reserve(wanted, self.tier(tier))?)
    }

    /// Places `blocks` of an accepted reservation: as few runs as there are, in order.
    pub fn claim(
        self: &Arc<Self>,
        class: LaneClass,
        blocks: u64,
        from: &mut Reservation,
    ) -> Result<Vec<Claim>, PoolError> {
        let lane = Lane { cpu: self.rt.current_cpu(), class };
        let claims: Vec<Claim> = self.space.claim(lane, blocks, from)?.into_iter().collect();
        if self.sabotaged(Sabotage::LogClaims) {
            self.log_claims(&claims);
        }
        Ok(claims)
    }

    /// Writes claimed space. Guards of the host are made here. While the host has no room for a
    /// sparse pool file the write waits and is tried again, loudly; nothing is lost (rule R32).
    ///
    /// The claim must outlive the request, which continues when this is dropped: a caller that may
    /// be cancelled waits for it in something that is finished all the same
    /// ([`finishing`](copyhold_runtime::finishing)).
    pub async fn write(
        &self,
        run: Run,
        data: Bufs,
        why: Purpose,
        mode: BlockMode,
    ) -> Result<(), PoolError> {
        if self.sabotaged(Sabotage::JoinBeforeData) {
            let protect = mode.protect(&self.devices, run, &data);
            let write = self.devices.write(run, data, why, protect);
            self.rt.spawn(Box::pin(async move { drop(write.await) }));
            return Ok(());
        }
        self.begin_write(run, data, why, mode).await
    }

    /// As [`Self::write`], begun at the call.
    pub(crate) fn begin_write(
        &self,
        run: Run,
        data: Bufs,
        why: Purpose,
        mode: BlockMode,
    ) -> BoxFuture<'static, Result<(), PoolError>> {
        if let Err(stopped) = self.health.check() {
            return Box::pin(std::future::ready(Err(stopped)));
        }
        let health = self.health.clone();
        let mut protect = mode.protect(&self.devices, run, &data);
        if self.sabotaged(Sabotage::ChangeMemory) {
            self.data.changed_memory.change_once(&mut protect);
        }
        let guarded = GuardedWrite::of(&self.devices, run, &data, &protect);
        let write = self.devices.write(run, data, why, protect);
        Box::pin(async move {
            let Err(error) = write.await else { return Ok(()) };
            // For a pool that has stopped, the reason is returned rather than the result.
            health.check()?;
            Err(explain(guarded, error))
        })
    }

    /// Joins the open txg and applies everything at once; never waits. Fails only when the pool
    /// may not be written or has stopped, and then nothing was applied.
    pub fn apply(self: &Arc<Self>, credit: Credit, tx: Transaction) -> Result<Txg, PoolError> {
        self.check_writable()?;
        self.check_released(&tx)?;
        if tx.changes_lineage() {
            return self.apply_with(credit, tx, |_, _| ());
        }
        let allocations = !self.sabotaged(Sabotage::LogClaims);
        let records = tx.records(allocations);
        let joined = self.join(credit.waited);
        Ok(self.apply_joined(joined, credit, tx, records))
    }

    /// As [`Self::apply`]; `prepare` completes the transaction when its txg is known, and cannot
    /// be undone. The state that it depends on does not change until this returns: the caller
    /// holds its locks.
    pub fn apply_with(
        self: &Arc<Self>,
        credit: Credit,
        mut tx: Transaction,
        prepare: impl FnOnce(Txg, &mut Transaction),
    ) -> Result<Txg, PoolError> {
        self.check_writable()?;
        let order = tx.changes_lineage().then(|| self.forks.order.lock());
        let joined = self.join(credit.waited);
        if order.is_some() {
            self.log_lineage(joined.txg(), &mut tx);
        }
        prepare(joined.txg(), &mut tx);
        let records = tx.records(true);
        Ok(self.apply_joined(joined, credit, tx, records))
    }

    fn apply_joined(
        self: &Arc<Self>,
        joined: Joined<'_>,
        mut credit: Credit,
        tx: Transaction,
        records: Vec<u8>,
    ) -> Txg {
        let txg = joined.txg();
        let edits = tx.len() as u64;
        let introduces = Introduced::by(&tx);
        self.joined.fetch_max(txg.get(), Ordering::AcqRel);
        self.make_forks(txg, &tx);
        for (table, owner) in &tx.owned {
            self.table(*table).set_owner(owner);
        }
        let mut room = std::mem::take(&mut credit.room);
        room.resize(blocks_of(records.len() as u64));
        let ticket = credit.ticket;
        let grows = tx.growth();
        self.data.attached.add(txg, tx.attached);
        let piece = joined.gather(&records, room, ticket, edits, introduces);
        let edits = tx.edits.into_iter();
        let more = edits.map(|(table, key, edit)| self.tables.apply(txg, table, key, edit)).sum();
        self.edited(more);
        for claim in tx.claims {
            self.space.log_alloc(txg, claim);
        }
        for pointer in tx.released {
            self.devices.clean().remove(pointer.run);
            if let Err(error) = self.space.log_free(txg, pointer.run) {
                self.stop(&format!("{:?} was freed twice: {error}", pointer.run));
            }
            if self.sabotaged(Sabotage::DiscardEarly) {
                let discard = self.devices.discard(pointer.run);
                self.rt.spawn(Box::pin(async move { drop(discard.await) }));
            }
        }
        drop(joined);
        self.spend(credit, grows);
        if let Some(piece) = piece {
            self.write_piece(piece);
        }
        txg
    }

    /// A pointer to something that is not allocated is damage; better to stop before it is logged.
    fn check_released(&self, tx: &Transaction) -> Result<(), PoolError> {
        for pointer in &tx.released {
            if let Err(error) = self.space.check_allocated(pointer.run) {
                self.stop(&format!("{:?} is to be freed, but: {error}", pointer.run));
                return self.health.check();
            }
        }
        Ok(())
    }

    /// The txg that a transaction would join now.
    pub fn open_txg(&self) -> Txg {
        self.open.number()
    }

    /// The last txg that is durable.
    pub fn durable_txg(&self) -> Txg {
        self.group.durable()
    }

    pub(crate) fn last_joined(&self) -> Txg {
        Txg::new(self.joined.load(Ordering::Acquire)).unwrap_or_else(|| self.durable_txg())
    }

    /// Stops all writing at once; nothing after this reaches the device (GOINGDOWN, rule R12).
    pub fn stop(&self, why: &str) {
        self.health.stop(why);
        self.group.wake_all();
        self.admission.wake();
        self.flusher.kick();
        self.marker.kick();
    }

    // -- figures ------------------------------------------------------------

    pub fn space(&self) -> Figures {
        self.space.figures()
    }

    /// The allocator, for `check` and debug views.
    pub fn space_map(&self) -> &Space {
        &self.space
    }

    pub fn log_use(&self) -> LogUse {
        self.journal.usage()
    }

    /// The devices, with the counts of their requests and failures.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// The owners of what is in memory.
    pub fn memory(&self) -> &Arc<Memory> {
        self.nodes.memory()
    }
}
