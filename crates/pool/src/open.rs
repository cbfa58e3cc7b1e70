//! Opening a pool: labels, uberblock, the log, the tables, and the first batch of an incarnation,
//! or none (OPEN-O2).
//!
//! ```text
//!   labels → newest uberblock → both copies of the log → the chain of batches (`cut`: damage)
//!   verify the data of the last, unconfirmed batch; cut it if it is not whole
//!   replay: records into edits, without reading any base (rule R5)
//!   table of tables → descriptors → tables and space maps
//!   read-write: flush, repair labels and log, then an empty batch of a new incarnation, flushed
//!               (R13, OPEN-O2)
//! ```
//!
//! Nothing is written before all of it could be read, and nothing is served before the incarnation
//! and all repairs are durable. A crash anywhere in between is as if the pool had not been opened.
//!
//! OPEN-O1  Recovery may have read unflushed writes of a killed daemon. The first flush of a mount
//!          makes them durable before anything is written that relies on them: repairs, the
//!          uberblock of a cut, and the first batch, which proves that those before it are
//!          complete.
//! OPEN-O2  If the last batch of the log is empty, all of the ring can be read, and behind that
//!          batch are only marks of it, then no batch was cut and none needs proof. The mount
//!          continues the incarnation of that batch and writes no batch; it flushes its repairs.
//!          So mounts that are killed do not fill the ring before the head can move.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use copyhold_device::DynDevice;
use copyhold_format::label::{AREA_BLOCKS, Label};
use copyhold_format::log::{Record, Records};
use copyhold_format::node::{LINEAGE, Lineage, PARTITION, PartitionDescriptor};
use copyhold_format::space_map::{Descriptor, METASLAB, SpaceMap};
use copyhold_format::uberblock::Uberblock;
use copyhold_log::{Broken, Recovered, RecoveredBatch, Ring};
use copyhold_runtime::Rt;
use copyhold_space::{Config, Figures, MetaslabId, MetaslabLayout, Restore, StoredMap};
use copyhold_sync::{Mutex, RwLock};
use copyhold_table::{Edit, Limits as TableLimits, RecoveringTable, Table, Weight};
use copyhold_types::{BlockAddr, Incarnation, Key, Run, TableId, Txg};

use crate::admission::Admission;
use crate::balance::Bounds;
use crate::clean::{self, CleanData};
use crate::config::{CreateOptions, Limits, OpenOptions};
use crate::cut::Start;
use crate::data::DataStore;
use crate::devices::Devices;
use crate::features;
use crate::flush::Flusher;
use crate::fork::{Forks, Gone};
use crate::group::Group;
use crate::health::Health;
use crate::ids::Ids;
use crate::join_wait::JoinWaits;
use crate::journal::{Journal, Resume};
use crate::labels::{self, Labels, OpenLabel};
use crate::log_room::piece_bytes;
use crate::marker::{self, Marker};
use crate::node_writer::blocks_max;
use crate::nodes::{CACHE_NODES_MIN, NodeStore};
use crate::open_txg::OpenTxg;
use crate::opened::Opened;
use crate::patient::Patient;
use crate::pins::Pins;
use crate::replay_limit::Replay;
use crate::tables::Tables;
use crate::tail::Tail;
use crate::tenancy::{NoTenants, Tenancy};
use crate::verified::{Reader, Repair};
use crate::{Pool, PoolError, Sabotage, loads, maps, protection, sabotage, tail, uberblocks};

impl Pool {
    /// Makes an empty pool on `device`, for any previous content.
    pub async fn create(
        rt: &Rt,
        device: &DynDevice,
        options: &CreateOptions,
    ) -> Result<Label, PoolError> {
        crate::create::create(rt, device, options).await
    }

    /// Opens the pool on `device`, after a crash as after a clean close.
    pub async fn open(
        rt: Rt,
        device: DynDevice,
        options: OpenOptions,
    ) -> Result<Arc<Pool>, PoolError> {
        let tenants = options.tenants;
        for defect in device.defects() {
            let name = device.geometry().name;
            tracing::warn!(
                "{name}: a header of protection information is bad: {defect}; unmount the pool, \
                 and run `copyhold check --repair`"
            );
        }
        let health = Arc::new(Health::default());
        let patient = Patient::new(device, rt.clone(), health.clone(), &options.limits);
        let device: DynDevice = patient.clone();
        let labels = labels::read_labels(&device).await?;
        let mut label = labels.label.clone();
        if !label.features.writable() && !options.read_only {
            let why = "it uses features that this program can only read; mount it read-only";
            return Err(PoolError::ReadOnly { why: why.into() });
        }
        if !options.read_only {
            label.features = label.features.in_use();
            if let (None, Some(found)) = (label.namespace, protection::of(&device)) {
                label = label.needing(found);
            }
            label.generation += u64::from(label.features != labels.label.features);
        }
        let ring = log_ring(&device, &label, &options);
        let uberblocks = uberblocks::find(&device, &label).await?;
        let since = rt.now();
        let start = Start::find(&uberblocks, &ring, &options).await?;
        let Start { uberblock, mut heads, mut recovered, mut cut } = start;
        if options.limits.breaks(Sabotage::KeepNewestHeadOnly) {
            heads = vec![uberblock.head];
        }
        if let Some(cut) = &cut {
            tracing::error!(
                "the log is damaged after txg {}; continuing without {cut}",
                recovered.last
            );
        }
        let bounds = cache_bounds(&label, &options);
        let clean = CleanData::new(Arc::default(), bounds.data_max, broken(&options.limits));
        let devices = Devices::one(label.device, device.clone(), Arc::new(clean));
        // The tail is judged, and nothing of it is repaired.
        let reader = Arc::new(Reader::new(devices.clone(), None));
        let tail = cut_unverified_tail(&reader, &uberblock, &mut recovered, &options).await?;
        cut = cut.or(tail);
        recovered.is_idle &= cut.is_none() && !options.limits.breaks(Sabotage::AlwaysBegin);
        if options.limits.breaks(Sabotage::ReplayReadsBase) {
            read_early(reader, &label, &uberblock).await?;
        }
        let mixes = options.limits.breaks(Sabotage::ReplayMixesPuts);
        let space = restore_space(&rt, &label, &options.limits)?;
        let replayed = Replayed::of(&recovered.batches, space, mixes)?;
        let replayed_in = rt.now() - since;
        let pool = assemble(
            rt,
            patient.clone(),
            devices,
            health,
            label,
            ring.clone(),
            uberblock.clone(),
            heads,
            &recovered,
            replayed,
            options,
        );
        let mut pool = pool.await?;
        pool.cut = cut;
        pool.flusher.replay = Replay { edits: pool.log_use().edits, ns: replayed_in };
        pool.limits.replay_edits = pool.flusher.replay.limit(&pool.limits);
        let pool = Arc::new(pool);
        if !pool.is_read_only() {
            if !pool.sabotaged(Sabotage::NoFlushAtMount) {
                pool.flush_device().await?;
            }
            if uberblocks.repair(pool.devices.home(), &pool.label.now()).await? {
                pool.flush_device().await?;
            }
            if pool.cut.is_some() {
                pool.journal.go_back_to(&uberblock, &pool.health).await?;
                pool.journal.give_up(&recovered).await?;
            }
            pool.write_first(&labels, &ring, &recovered).await?;
            if !tenants {
                pool.begin_flushing();
            }
        }
        patient.begin();
        Ok(pool)
    }

    /// The first writes of a mount: repairs, and the first batch of a new incarnation unless the
    /// mount continues the last one (OPEN-O2).
    async fn write_first(
        self: &Arc<Self>,
        labels: &Labels,
        ring: &Ring,
        recovered: &Recovered,
    ) -> Result<(), PoolError> {
        labels::repair_labels(self.devices.home(), labels).await?;
        let label = self.label.now();
        if label != labels.label {
            features::write_labels(self, &label).await?;
        }
        ring.repair(&recovered.repairs).await?;
        self.journal.renew(recovered).await;
        // ADMIT-A2 holds for the edits that recovery found, too.
        let Weight { edits, bytes, .. } = self.tables.weight();
        // The edits are counted already, so there is no growth to compare.
        self.spend(self.internal_credit(edits as usize, bytes as usize, 0)?, 0);
        self.promise_layers();
        self.data.births.begin(self.durable_txg());
        match recovered.batches.last().filter(|_| recovered.is_idle) {
            Some(last) => {
                // As with a first batch, the repairs are durable before anything is served.
                self.flush_device().await?;
                // The last batch is durable, and names the one before it.
                let before = Txg::new(last.batch.durable).unwrap_or(Txg::FIRST);
                self.after_commit(last.txg, before);
            }
            None if self.sabotaged(Sabotage::NoIncarnation) => {}
            None => self.commit_empty().await?,
        }
        self.rt.spawn(Box::pin(marker::run(Arc::downgrade(self))));
        maps::begin_retries(self);
        Ok(())
    }

    fn begin_flushing(self: &Arc<Self>) {
        self.rt.spawn(Box::pin(crate::flush::run(Arc::downgrade(self))));
    }

    /// Sets the layer that knows the owner of each table from now on ([`OpenOptions::tenants`]).
    ///
    /// # Panics
    /// No tenancy was announced: a flush meanwhile may have freed blocks that another tree
    /// references.
    pub fn set_tenancy(self: &Arc<Self>, tenancy: Arc<dyn Tenancy>) {
        assert!(self.tenants || self.is_read_only(), "a pool is opened for tenants, or has none");
        *self.tenancy.write() = tenancy;
        if !self.is_read_only() {
            self.begin_flushing();
        }
    }

    /// Makes everything durable, marks it so, and ends all background work. Later calls return
    /// that the pool has stopped.
    pub async fn close(self: &Arc<Self>) -> Result<(), PoolError> {
        if self.is_read_only() {
            return Ok(());
        }
        self.flusher.close();
        self.flusher.ended().await;
        self.marker.kick();
        self.marker.ended().await;
        self.commit(self.open_txg()).await?;
        marker::mark(self).await;
        self.move_head().await?;
        self.flush_device().await?;
        self.health.close();
        Ok(())
    }

    /// Ends all background work without making anything durable, as a kill does. Later calls
    /// return that the pool has stopped.
    pub async fn abandon(&self) {
        self.health.close();
        self.flusher.close();
        self.marker.kick();
        self.flusher.ended().await;
        self.marker.ended().await;
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.flusher.is_closing()
    }
}

fn log_ring(device: &DynDevice, label: &Label, options: &OpenOptions) -> Ring {
    let (log, blocks) = (label.log, label.log_blocks);
    let mut ring = Ring::new(device.clone(), log, blocks, label.pool, label.secret);
    if options.limits.breaks(Sabotage::WholeFrameRecovery) {
        ring.break_rule(Broken::WholeCopiesOnly);
    }
    if options.limits.breaks(Sabotage::ErrorEndsLog) {
        ring.break_rule(Broken::ErrorIsEnd);
    }
    ring
}

/// The last batch may be durable without its data: one flush covered both. Returns a description
/// of the part that was discarded on demand.
async fn cut_unverified_tail(
    reader: &Reader,
    uberblock: &Uberblock,
    recovered: &mut Recovered,
    options: &OpenOptions,
) -> Result<Option<String>, PoolError> {
    let skip = options.limits.breaks(Sabotage::TailNotVerified);
    let Some(last) = recovered.batches.last().filter(|_| !recovered.confirmed && !skip) else {
        return Ok(None);
    };
    if last.batch.data_flushed {
        return Ok(None);
    }
    let txg = last.txg;
    let given_up = match tail::verify(reader, last).await? {
        Tail::Whole => return Ok(None),
        Tail::Torn => {
            tracing::warn!("txg {txg} was not completely written before the crash; it is cut");
            None
        }
        Tail::Unreadable { .. } if options.limits.breaks(Sabotage::ErrorIsTorn) => None,
        Tail::Unreadable { matching, unreadable, error } => {
            let what = format!("txg {txg}, which has {unreadable} blocks of data");
            if !options.cut_tail && (options.read_only || matching > 0) {
                tracing::error!("{what} that cannot be read: {error}; its other blocks are kept");
                return Ok(None);
            }
            if !options.cut_tail {
                let what = format!("data that txg {txg} wrote ({unreadable} blocks)");
                let lost = format!("the changes of txg {txg}");
                return Err(PoolError::Unreadable { what, lost, source: Box::new(error) });
            }
            tracing::error!("{what} that cannot be read: {error}; it is cut");
            Some(format!("{what} that cannot be read"))
        }
    };
    recovered.batches.pop();
    recovered.is_idle = false;
    let (txg, digest) = match recovered.batches.last() {
        Some(before) => (before.txg.get(), before.digest),
        None => (uberblock.before_head_txg, uberblock.before_head),
    };
    (recovered.last, recovered.last_digest) = (txg, digest);
    Ok(given_up)
}

/// The memory of nodes and clean data.
fn cache_bounds(label: &Label, options: &OpenOptions) -> Bounds {
    let limits = &options.limits;
    let least = if options.tenants { CACHE_NODES_MIN * label.node_bytes as usize } else { 0 };
    Bounds::new(limits.node_cache_bytes.max(least), limits.clean_data_bytes, least)
}

fn broken(limits: &Limits) -> clean::Broken {
    let keep_overwritten = limits.breaks(Sabotage::KeepOverwritten);
    clean::Broken { keep_overwritten, ..clean::Broken::default() }
}

/// Looks things up in the base that the uberblock names, as replay must not (rule R5).
async fn read_early(
    reader: Arc<Reader>,
    label: &Label,
    uberblock: &Uberblock,
) -> Result<(), PoolError> {
    let clean = reader.devices().clean().clone();
    let nodes = NodeStore::new(reader, clean, Bounds::default(), label.node_bytes as usize, 0);
    let descriptor = PartitionDescriptor::parse(&uberblock.tables)
        .map_err(|error| PoolError::damaged("the table of tables", error))?;
    let limits = TableLimits { leaf_bytes: label.node_bytes as usize, ..TableLimits::default() };
    let tot = Table::restore(Pool::TABLES, limits, vec![(0, descriptor)])?;
    Catalogue::read(&tot, &nodes).await.map(drop)
}

fn restore_space(rt: &Rt, label: &Label, limits: &Limits) -> Result<Restore, PoolError> {
    let metaslab = Some(label.metaslab_blocks as u32);
    let layout = MetaslabLayout::for_device(label.device, label.blocks, metaslab);
    let run = |start, blocks: u64| Run::new(BlockAddr::new(label.device, start), blocks as u32);
    let fixed: Vec<Run> = Label::areas(label.blocks)
        .into_iter()
        .map(|start| run(start, AREA_BLOCKS))
        .chain(label.log.into_iter().map(|start| run(start, label.log_blocks)))
        .collect();
    let all_warm = label.features.preallocated();
    let (run_max, maps_bytes) = (limits.run_max, Some(limits.maps_bytes));
    let prefer_deltas = limits.prefer_deltas;
    let config = Config { all_warm, run_max, maps_bytes, prefer_deltas, ..Config::default() };
    Restore::new(&[layout], &fixed, rt.cpus(), config)
        .map_err(|error| PoolError::damaged("the label", error))
}

/// The state after replay of the log's records, before any base is read.
struct Replayed {
    tables: BTreeMap<TableId, RecoveringTable>,
    space: Restore,
    mixes: bool,
}

impl Replayed {
    fn of(batches: &[RecoveredBatch], space: Restore, mixes: bool) -> Result<Replayed, PoolError> {
        let mut replayed = Replayed { tables: BTreeMap::new(), space, mixes };
        for batch in batches {
            for bytes in batch.records() {
                for record in Records::new(bytes) {
                    let wrong = |e| PoolError::damaged(format!("txg {} of the log", batch.txg), e);
                    replayed.apply(batch.txg, record.map_err(wrong)?)?;
                }
            }
        }
        Ok(replayed)
    }

    fn apply(&mut self, txg: Txg, record: Record<'_>) -> Result<(), PoolError> {
        let wrong = |error| PoolError::damaged(format!("txg {txg} of the log"), error);
        match record {
            Record::Put { table, key, value } if self.mixes => {
                let table = self.table(table);
                let value = sabotage::mixed(table.get(key), key, value);
                table.apply(txg, key, Edit::put(&value[..]));
            }
            Record::Put { table, key, value } => {
                self.table(table).apply(txg, key, Edit::put(value));
            }
            Record::Delete { table, key } => self.table(table).apply(txg, key, Edit::Delete),
            Record::Alloc(run) => self.space.replay_alloc(txg, run).map_err(wrong)?,
            Record::Free(run) => self.space.replay_free(txg, run).map_err(wrong)?,
        }
        Ok(())
    }

    fn table(&mut self, id: TableId) -> &mut RecoveringTable {
        self.tables.entry(id).or_insert_with(|| RecoveringTable::new(id))
    }
}

#[allow(clippy::too_many_arguments)]
async fn assemble(
    rt: Rt,
    host: Arc<Patient>,
    devices: Devices,
    health: Arc<Health>,
    label: Label,
    ring: Ring,
    uberblock: Uberblock,
    heads: Vec<u64>,
    recovered: &Recovered,
    mut replayed: Replayed,
    options: OpenOptions,
) -> Result<Pool, PoolError> {
    let pins = Pins::default();
    let repair = Repair { rt: rt.clone(), pins: pins.clone() };
    let repair = (!options.read_only).then_some(repair);
    let reader = Arc::new(Reader::new(devices.clone(), repair).breaking(&options.limits));
    let node_bytes = label.node_bytes as usize;
    let (turn, clean) = (rt.random(), devices.clean().clone());
    let memory = clean.memory().clone();
    let bounds = cache_bounds(&label, &options);
    let nodes = NodeStore::new(reader.clone(), clean, bounds, node_bytes, turn);
    let limits = TableLimits { leaf_bytes: label.node_bytes as usize, ..TableLimits::default() };
    let root = recovered.batches.last().map_or(&uberblock.tables, |last| &last.batch.tables);
    let root = root.clone();
    let tot = open_root(&mut replayed, &root, limits)?;
    let catalogue = Catalogue::read(&tot, &nodes).await?;
    load_maps(&rt, &catalogue, &nodes, &mut replayed.space).await?;
    let gone = catalogue.gone();
    let space = replayed.space.finish(None).map_err(|e| PoolError::damaged("space", e))?;
    let partition_leaves = partition_leaves(&label, &space.figures());
    let limits = TableLimits { partition_leaves, ..limits };
    let tables = open_tables(tot, catalogue, replayed.tables, limits)?;
    let last = Txg::new(recovered.last).unwrap_or(Txg::FIRST);
    let resume = Resume {
        incarnation: Incarnation(recovered.incarnation.0 + u64::from(!recovered.is_idle)),
        next_position: recovered.next_position,
        last_txg: recovered.last,
        last_digest: recovered.last_digest,
        tables: root.clone(),
        uberblock,
        heads,
    };
    let mut opened = Opened::new(limits, options.limits.open_tables);
    opened.forgets_edits = options.limits.breaks(Sabotage::RestWithEdits);
    let tables = Tables::new(opened, limits, root, memory.shared().clone(), tables);
    let ring_blocks = ring.blocks();
    let admission = Admission::new(options.limits.delta_bytes);
    Ok(Pool {
        flusher: Flusher::new(tables.weight()),
        journal: Journal::new(devices.clone(), &label, ring, resume, recovered, &options.limits),
        tables,
        cut: None,
        read_only: options.read_only.then(|| "it was asked for".to_owned()),
        limits: options.limits,
        health,
        data: DataStore::new(reader, nodes.balance().clone()),
        open: OpenTxg::new(recovered.next_txg.max(last.next()), piece_bytes(ring_blocks)),
        group: Group::new(last),
        pins,
        ids: Ids::default(),
        admission,
        marker: Marker::default(),
        forks: Forks { gone: Mutex::new(gone), ..Forks::default() },
        tenants: options.tenants,
        tenancy: RwLock::new(Arc::new(NoTenants)),
        join_waits: JoinWaits::default(),
        host,
        joined: AtomicU64::new(0),
        proven: AtomicU64::new(0),
        rt,
        devices,
        label: OpenLabel::new(label),
        space,
        nodes,
    })
}

/// Leaves of a partition: so many that the reserve has room for writing them anew, and half as
/// many again in layers, also in fragments (R21).
fn partition_leaves(label: &Label, space: &Figures) -> usize {
    let most = space.reserve / (2 * blocks_max(label.node_bytes.into()));
    (label.partition_leaves as usize).min(most as usize).max(2)
}

fn open_root(
    replayed: &mut Replayed,
    root: &[u8],
    limits: TableLimits,
) -> Result<Table, PoolError> {
    let wrong = |error| PoolError::damaged("the table of tables", error);
    let descriptor = PartitionDescriptor::parse(root).map_err(wrong)?;
    let edits = replayed.tables.remove(&Pool::TABLES);
    let edits = edits.unwrap_or_else(|| RecoveringTable::new(Pool::TABLES));
    // It is one partition, however large.
    let limits = TableLimits { partition_leaves: usize::MAX, ..limits };
    Ok(edits.finish(limits, vec![(0, descriptor)])?)
}

/// The content of the table of tables.
#[derive(Default)]
struct Catalogue {
    partitions: BTreeMap<TableId, Vec<(u64, PartitionDescriptor)>>,
    metaslabs: Vec<(MetaslabId, Descriptor)>,
    lineages: BTreeMap<TableId, Lineage>,
}

impl Catalogue {
    /// Tables that went, and when.
    fn gone(&self) -> Vec<Gone> {
        let gone = |(id, lineage): (&TableId, &Lineage)| match lineage {
            Lineage::Gone(since) => Some(Gone::new(*id, *since)),
            Lineage::Over(_) => None,
        };
        self.lineages.iter().filter_map(gone).collect()
    }

    async fn read(tot: &Table, nodes: &NodeStore) -> Result<Catalogue, PoolError> {
        const STEP: usize = 1024;
        let mut catalogue = Catalogue::default();
        let mut from = Some(Key::MIN);
        while let Some(start) = from {
            let items = tot.range(nodes, start..Key::MAX, STEP).await?;
            from = (items.len() == STEP).then(|| items[STEP - 1].0.successor()).flatten();
            for (key, value) in items {
                catalogue.add(key, &value)?;
            }
        }
        Ok(catalogue)
    }

    fn add(&mut self, key: Key, value: &[u8]) -> Result<(), PoolError> {
        let wrong = |error| PoolError::damaged(format!("item {key} of the table of tables"), error);
        if key.kind == PARTITION {
            let descriptor = PartitionDescriptor::parse(value).map_err(wrong)?;
            let of = self.partitions.entry(TableId(key.object)).or_default();
            of.push((key.offset, descriptor));
        } else if key.kind == LINEAGE {
            self.lineages.insert(TableId(key.object), Lineage::parse(value).map_err(wrong)?);
        } else if key.kind == METASLAB {
            let (device, index) = Descriptor::parse_key(key).map_err(wrong)?;
            let descriptor = Descriptor::parse(value).map_err(wrong)?;
            self.metaslabs.push((MetaslabId { device, index }, descriptor));
        } else {
            let what = format!("item {key} of the table of tables");
            return Err(PoolError::damaged(what, "its kind is unknown"));
        }
        Ok(())
    }
}

/// Reads the space maps that there is memory for; `loads` is about the others. Where no copy can be
/// read, or deltas do not fit their base, the metaslab is set aside (`maps`).
async fn load_maps(
    rt: &Rt,
    catalogue: &Catalogue,
    nodes: &NodeStore,
    space: &mut Restore,
) -> Result<(), PoolError> {
    // WORTH: the first ones may be all that there is memory for.
    let mut metaslabs = catalogue.metaslabs.clone();
    metaslabs.sort_by_key(|(_, found)| (Reverse(found.longest_free), found.allocated));
    for (id, descriptor) in metaslabs {
        let wrong = |e: &dyn ToString| PoolError::damaged(format!("{id:?}"), e.to_string());
        let map = match StoredMap::of(&descriptor) {
            None if descriptor.is_lost => {
                tracing::error!(
                    "the space map of {id} is lost: nothing is allocated there until `copyhold \
                     check --repair` has rebuilt it"
                );
                space.set_aside(id, descriptor).map_err(|e| wrong(&e))?;
                continue;
            }
            None => None,
            Some(_) if !space.has_room() => {
                space.leave(id, descriptor).map_err(|e| wrong(&e))?;
                continue;
            }
            Some(map) => match load_map(rt, nodes, &map).await {
                Ok(map) => Some(map),
                Err(error) => {
                    tracing::error!(
                        "the space map of {id} cannot be used: nothing is allocated there until \
                         the map can be read or `copyhold check --repair` has rebuilt it; {error}"
                    );
                    space.set_aside(id, descriptor).map_err(|e| wrong(&e))?;
                    continue;
                }
            },
        };
        space.load(id, descriptor, map.as_ref()).map_err(|e| wrong(&e))?;
    }
    Ok(())
}

/// A map whose parts can be read but do not fit together is as unusable as one that cannot be read.
async fn load_map(rt: &Rt, nodes: &NodeStore, map: &StoredMap) -> Result<SpaceMap, String> {
    let parts = loads::patiently(rt, || nodes.read_map(map)).await;
    let parts = parts.map_err(|error| error.to_string())?;
    loads::parse(&parts).map_err(|error| error.to_string())
}

fn open_tables(
    tot: Table,
    mut catalogue: Catalogue,
    edits: BTreeMap<TableId, RecoveringTable>,
    limits: TableLimits,
) -> Result<Vec<Arc<Table>>, PoolError> {
    let mut tables = vec![tot];
    for (id, edits) in edits {
        if let Some(Lineage::Gone(_)) = catalogue.lineages.get(&id) {
            continue;
        }
        let descriptors = catalogue.partitions.remove(&id).unwrap_or_default();
        tables.push(edits.finish(limits, descriptors)?);
    }
    for (id, descriptors) in catalogue.partitions {
        tables.push(Table::restore(id, limits, descriptors)?);
    }
    lay_over(tables, catalogue.lineages, limits)
}

/// Lays forked tables over each other again, the lower ones first: ids grow with every fork.
fn lay_over(
    tables: Vec<Table>,
    lineages: BTreeMap<TableId, Lineage>,
    limits: TableLimits,
) -> Result<Vec<Arc<Table>>, PoolError> {
    let mut tables: BTreeMap<TableId, Arc<Table>> =
        tables.into_iter().map(|table| (table.id(), Arc::new(table))).collect();
    for (id, lineage) in lineages {
        let Lineage::Over(under) = lineage else { continue };
        let damaged =
            |why: String| Err(PoolError::damaged(format!("the lineage of table {id}"), why));
        if under >= id {
            return damaged(format!("it lies over table {under}, which is not older"));
        }
        let mut get =
            |id| tables.entry(id).or_insert_with(|| Arc::new(Table::new(id, limits))).clone();
        let (table, under) = (get(id), get(under));
        if table.stats().len() != 1 || table.stats()[0].base_items != 0 {
            return damaged("it lies over another table and has a base of its own".into());
        }
        table.lay_over(under);
    }
    // A part of those over it may have it already (FORK-G3).
    for under in tables.values().filter_map(|table| table.under()) {
        under.stand_still();
    }
    Ok(tables.into_values().collect())
}
