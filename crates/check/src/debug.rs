//! The structures on a device: plain values for `copyhold debug` and for programs.
//!
//! Each view shows the readable part, and the errors of the rest. `labels` needs nothing, `log` a
//! label and an uberblock, the others a pool that opens read-only. A field whose name ends in
//! `blocks` counts blocks of 4 KiB, `bytes` bytes.

mod extents;

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_format::label::Label;
use copyhold_format::node::{Level, Node};
use copyhold_format::uberblock::Uberblock;
use copyhold_log::{Ring, recover};
use copyhold_pool::{
    FlushRow, Pool, PoolError, flush_figures, metaslab_view, newest_uberblock, read_labels,
};
use copyhold_space::{FreeRuns, MapView};
use copyhold_table::Table;
use copyhold_types::{Buf, Key, NodePtr, TableId, Txg};
use serde::Serialize;

use crate::copies::Copies;
use crate::labels::{Area, read_areas};
use crate::problem::End;

pub use extents::{ExtentView, ExtentsView, extents};

/// Both ends of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabelsView {
    pub device: String,
    pub device_blocks: u64,
    pub ends: Vec<EndView>,
    pub uberblocks: Vec<UberblockView>,
}

/// One end of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndView {
    pub end: &'static str,
    /// "good", or the error of the label.
    pub state: String,
    pub label: Option<LabelView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabelView {
    pub pool: String,
    pub name: String,
    pub device: u16,
    pub devices: u16,
    pub generation: u64,
    pub compat: u64,
    pub ro_compat: u64,
    pub incompat: u64,
    pub created: i64,
    pub blocks: u64,
    pub log_at: [u64; 2],
    pub log_blocks: u64,
    pub metaslab_blocks: u64,
    pub node_bytes: u32,
    pub partition_leaves: u32,
    /// The format of the protection information that the pool needs.
    pub protection: Option<[u8; 8]>,
}

/// One slot of the ring of uberblocks that is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UberblockView {
    pub end: &'static str,
    pub slot: u64,
    /// "good", or its error; then all else is missing.
    pub state: String,
    pub number: Option<u64>,
    pub incarnation: Option<u64>,
    pub durable_txg: Option<u64>,
    pub head: Option<u64>,
    pub before_head_txg: Option<u64>,
    pub before_head: Option<String>,
}

/// Labels and uberblocks, good or not.
pub async fn labels(device: &DynDevice) -> LabelsView {
    let geometry = device.geometry();
    let areas = read_areas(device).await;
    let ends = End::BOTH.into_iter().zip(&areas);
    LabelsView {
        ends: ends.clone().map(|(end, area)| end_view(end, area)).collect(),
        uberblocks: ends.flat_map(|(end, area)| ring_view(end, area, &areas)).collect(),
        device: geometry.name,
        device_blocks: geometry.blocks,
    }
}

fn end_view(end: End, area: &Area) -> EndView {
    let state = area.label.as_ref().map_or_else(Clone::clone, |_| "good".to_owned());
    EndView { end: end.name(), state, label: area.label.as_ref().ok().map(label_view) }
}

fn label_view(label: &Label) -> LabelView {
    LabelView {
        pool: label.pool.to_string(),
        name: label.name.clone(),
        device: label.device.0,
        devices: label.devices,
        generation: label.generation,
        compat: label.features.compat,
        ro_compat: label.features.ro_compat,
        incompat: label.features.incompat,
        created: label.created.secs,
        blocks: label.blocks,
        log_at: label.log,
        log_blocks: label.log_blocks,
        metaslab_blocks: label.metaslab_blocks,
        node_bytes: label.node_bytes,
        partition_leaves: label.partition_leaves,
        protection: label.namespace.map(|needed| needed.format),
    }
}

fn ring_view(end: End, area: &Area, areas: &[Area; 2]) -> Vec<UberblockView> {
    let pool = areas.iter().find_map(|area| area.label.as_ref().ok()).map(|label| label.pool);
    let is_used = |block: &Option<Buf>| {
        block.as_ref().is_none_or(|block| block.iter().any(|&byte| byte != 0))
    };
    let used = (0..).zip(&area.ring).filter(|(_, block)| is_used(block));
    let view = |(slot, block): (u64, &Option<Buf>)| {
        let parsed = match (pool, block) {
            (_, None) => Err("it cannot be read".into()),
            (None, _) => Err("no label says which pool it should be of".into()),
            (Some(pool), Some(block)) => {
                Uberblock::parse(block, pool).map_err(|error| error.to_string())
            }
        };
        let found = parsed.as_ref().ok();
        UberblockView {
            end: end.name(),
            slot,
            state: parsed.as_ref().map_or_else(Clone::clone, |_| "good".to_owned()),
            number: found.map(|it| it.number),
            incarnation: found.map(|it| it.incarnation.0),
            durable_txg: found.map(|it| it.durable.get()),
            head: found.map(|it| it.head),
            before_head_txg: found.map(|it| it.before_head_txg),
            before_head: found.map(|it| it.before_head.to_string()),
        }
    };
    used.map(view).collect()
}

/// The log, as recovery reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogView {
    pub last_txg: u64,
    /// Whether something says that the last batch is durable.
    pub last_is_confirmed: bool,
    pub incarnation: u64,
    pub head: u64,
    pub next_position: u64,
    pub ring_blocks: u64,
    /// Frames that are in one copy only.
    pub copies_to_repair: usize,
    pub damage: Option<String>,
    pub batches: Vec<BatchView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchView {
    pub txg: u64,
    /// Where its first frame is.
    pub position: u64,
    pub pieces: usize,
    pub record_bytes: usize,
    pub knows_durable: u64,
    pub data_flushed: bool,
    pub digest: String,
}

/// Batches from the head of the log to its end.
///
/// # Errors
/// No label or no uberblock can be used, or the log cannot be read.
pub async fn log(device: &DynDevice) -> Result<LogView, PoolError> {
    let label = read_labels(device).await?.label;
    let newest = newest_uberblock(device, &label).await?;
    let ring = Ring::new(device.clone(), label.log, label.log_blocks, label.pool, label.secret);
    let recovered = recover(&ring, &newest).await?;
    let batches = recovered.batches.iter().map(|batch| BatchView {
        txg: batch.txg.get(),
        position: batch.start,
        pieces: batch.pieces.len(),
        record_bytes: batch.records().map(<[u8]>::len).sum(),
        knows_durable: batch.batch.durable,
        data_flushed: batch.batch.data_flushed,
        digest: batch.digest.to_string(),
    });
    Ok(LogView {
        batches: batches.collect(),
        last_txg: recovered.last,
        last_is_confirmed: recovered.confirmed,
        incarnation: recovered.incarnation.0,
        head: newest.head,
        next_position: recovered.next_position,
        ring_blocks: label.log_blocks,
        copies_to_repair: recovered.repairs.len(),
        damage: recovered.damage.map(|damage| damage.to_string()),
    })
}

/// A partition of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionView {
    pub table: u64,
    pub partition: u64,
    pub start: String,
    pub height: u8,
    pub items: u64,
    pub complete_to: Option<u64>,
    pub layers: usize,
    /// Edits in layers; a key may have one in several.
    pub layer_edits: u64,
    /// Edits that are in the log only.
    pub unflushed_edits: usize,
    pub root: Option<String>,
}

/// Each partition of each table.
pub fn tables(pool: &Pool) -> Vec<PartitionView> {
    pool.tables().iter().flat_map(|table| partitions(table)).collect()
}

fn partitions(table: &Table) -> Vec<PartitionView> {
    let stats = table.stats();
    let view = |(id, descriptor): (u64, copyhold_format::node::PartitionDescriptor)| {
        let unflushed = stats.iter().find(|stats| stats.id == id);
        PartitionView {
            table: table.id().0,
            partition: id,
            start: descriptor.start.to_string(),
            height: descriptor.height,
            items: descriptor.items,
            complete_to: descriptor.complete_to.map(Txg::get),
            layers: descriptor.layers.len(),
            layer_edits: descriptor.layers.iter().map(|layer| layer.items).sum(),
            unflushed_edits: unflushed.map_or(0, |stats| stats.edits + stats.frozen_edits),
            root: descriptor.root.as_ref().map(place),
        }
    };
    table.descriptors().into_iter().map(view).collect()
}

/// `device:block` of each copy, and how many blocks each has.
fn place(ptr: &NodePtr) -> String {
    let copies: Vec<String> = ptr.runs().map(|run| run.addr.to_string()).collect();
    let how = if ptr.fragmented { " in fragments" } else { "" };
    format!("{}+{}{how}", copies.join(" "), ptr.blocks)
}

/// A node of a base or layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeView {
    pub table: u64,
    /// The layer that it is of, 0 for the newest; none: the base.
    pub layer: Option<usize>,
    pub level: &'static str,
    /// "good", or the errors of its copies.
    pub state: String,
    pub items: Option<usize>,
    pub used_bytes: Option<usize>,
    pub birth_txg: Option<u64>,
    pub first: Option<String>,
    pub last: Option<String>,
    pub epoch: u64,
    pub at: String,
}

/// Each node of each table, or of one; every copy is read.
pub async fn nodes(pool: &Pool, only: Option<TableId>) -> Vec<NodeView> {
    let mut views = Vec::new();
    for table in pool.tables() {
        if only.is_some_and(|id| id != table.id()) {
            continue;
        }
        let mut found = Vec::new();
        let mut visit = |visit: copyhold_table::NodeVisit<'_>| {
            found.push((visit.ptr, visit.level, visit.layer))
        };
        table.for_each_node(pool.node_source(), false, &mut visit).await;
        for (ptr, level, layer) in found {
            let copies = Copies::read(pool.device(), ptr, level.purpose()).await;
            let view = node_view(table.id(), ptr, level, &copies);
            views.push(NodeView { layer, ..view });
        }
    }
    views
}

fn node_view(table: TableId, ptr: NodePtr, level: Level, copies: &Copies) -> NodeView {
    let parsed = copies.good.clone().map(Node::parse);
    let state = match &parsed {
        Some(Err(error)) => error.to_string(),
        _ if copies.bad.is_empty() => "good".into(),
        _ => copies.complaints(),
    };
    let header = parsed.and_then(Result::ok).map(|node| node.header().clone());
    let header = header.as_ref();
    let shown = |key: Key| key.to_string();
    NodeView {
        table: table.0,
        layer: None,
        level: match level {
            Level::Leaf => "leaf",
            Level::Inner => "inner",
        },
        state,
        items: header.map(|header| header.items),
        used_bytes: header.map(|header| header.used),
        birth_txg: header.map(|header| header.birth.get()),
        first: header.map(|header| shown(header.first)),
        last: header.map(|header| shown(header.last)),
        epoch: ptr.epoch.0,
        at: place(&ptr),
    }
}

/// Space of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpaceView {
    pub total_blocks: u64,
    pub allocated_blocks: u64,
    pub free_blocks: u64,
    pub freeing_blocks: u64,
    pub reserve_blocks: u64,
    pub metaslab_blocks: u64,
    /// Blocks of the longest free run.
    pub longest_free_blocks: u64,
    /// Free blocks by the length of their run: element *i* counts those in runs of 2^*i* to
    /// 2^(*i*+1) − 1 blocks.
    pub free_blocks_by_run: Vec<u64>,
    /// Percent, by OpenZFS's table of 2019, with blocks that are freed and not yet allocatable:
    /// those of txgs in the log, on a pool that is not mounted. `None` where nothing is free.
    pub fragmentation: Option<u64>,
    /// Metaslabs with changes, and partitions with edits, that only the log has.
    pub dirty_metaslabs: u64,
    pub dirty_partitions: u64,
    /// The log by age, oldest first.
    pub log: Vec<LogRowView>,
    pub metaslabs: Vec<MetaslabView>,
}

/// A part of the log. `units`: metaslabs and partitions of which the oldest change is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogRowView {
    pub last_txg: u64,
    pub blocks: u64,
    pub edits: u64,
    pub units: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MetaslabView {
    pub device: u16,
    pub metaslab: u32,
    pub allocated_blocks: u64,
    pub allocated_runs: usize,
    pub free_runs: usize,
    pub longest_free_blocks: u64,
    /// As of the pool.
    pub fragmentation: Option<u64>,
    /// The oldest txg in the log with a change that the map does not have.
    pub oldest_pin: Option<u64>,
}

/// Metaslabs, their allocations, and how contiguous the rest is.
pub async fn space(pool: &Arc<Pool>) -> SpaceView {
    let figures = pool.space();
    let map = pool.space_map();
    let (mut free_runs, mut fragments) = (FreeRuns::default(), FreeRuns::default());
    let mut metaslabs = Vec::new();
    // One map at a time: they may not fit in memory together.
    for id in map.metaslabs() {
        let MapView { allocated, free, free_and_freeing } = metaslab_view(pool, id).await;
        let longest = free.iter().map(|run| run.blocks).max().unwrap_or(0);
        free.iter().for_each(|run| free_runs.add(run.blocks));
        let mut fragments_here = FreeRuns::default();
        free_and_freeing.iter().for_each(|run| fragments_here.add(run.blocks));
        fragments.join(&fragments_here);
        metaslabs.push(MetaslabView {
            device: id.device.0,
            metaslab: id.index,
            allocated_blocks: allocated.iter().map(|run| u64::from(run.blocks)).sum(),
            allocated_runs: allocated.len(),
            free_runs: free.len(),
            longest_free_blocks: longest.into(),
            fragmentation: fragments_here.fragmentation(),
            oldest_pin: map.metaslab(id).and_then(|info| info.oldest_pin).map(Txg::get),
        });
    }
    let flush = flush_figures(pool);
    let log_row = |row: &FlushRow| LogRowView {
        last_txg: row.last.get(),
        blocks: row.blocks,
        edits: row.edits,
        units: row.units,
    };
    SpaceView {
        total_blocks: figures.total,
        allocated_blocks: figures.allocated,
        free_blocks: figures.free,
        freeing_blocks: figures.freeing,
        reserve_blocks: figures.reserve,
        metaslab_blocks: pool.label().metaslab_blocks,
        longest_free_blocks: metaslabs
            .iter()
            .map(|view| view.longest_free_blocks)
            .max()
            .unwrap_or(0),
        free_blocks_by_run: free_runs.blocks_by_class().to_vec(),
        fragmentation: fragments.fragmentation(),
        dirty_metaslabs: flush.metaslabs.0,
        dirty_partitions: flush.partitions,
        log: flush.rows.iter().map(log_row).collect(),
        metaslabs,
    }
}
