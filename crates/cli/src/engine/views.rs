//! The views of `debug`: the structures on a device, one function a view, each as JSON.
//!
//! Views use code that verifies as little as possible: `labels` needs no pool that opens,
//! `log` needs a label and an uberblock, the others a pool that can be opened read-only.

use std::collections::BTreeMap;
use std::path::Path;

use copyhold_device::pi::Format;
use copyhold_device::{DynDevice, OpenMode};
use copyhold_format::label::Label;
use copyhold_format::node::Level;
use copyhold_log::{Recovered, Ring, recover};
use copyhold_pool::{PoolError, find_labels, newest_uberblock, read_labels, read_uberblocks};
use copyhold_serve::describe;
use copyhold_types::{NodePtr, Txg};
use serde_json::{Value, json};

use super::Machine;
use crate::failure::Failure;

/// Labels at both ends, and every uberblock that verifies.
pub(crate) fn labels(pool: &Path) -> Result<Value, Failure> {
    let machine = Machine::start()?;
    let device = machine.open_device(pool, OpenMode::ReadOnly)?;
    machine.run(async {
        let labels = find_labels(&device).await?;
        let label = &labels.label;
        let [start, end] = labels.problems.map(|problem| problem.unwrap_or("good".into()));
        let ring = match read_uberblocks(&device, label).await {
            Ok(found) => found,
            Err(error) => return Err(Failure::from(error)),
        };
        let uberblocks: Vec<Value> = ring.iter().map(uberblock).collect();
        let created = label.created.secs;
        Ok(json!({
            "pool": describe::id(label.pool),
            "label": label.name,
            "label_at_start": start,
            "label_at_end": end,
            "device": label.device.0,
            "devices": label.devices,
            "generation": label.generation,
            "features": format!("{:?}", label.features),
            "created": created,
            "blocks": label.blocks,
            "log_at": label.log,
            "log_blocks": label.log_blocks,
            "metaslab_blocks": label.metaslab_blocks,
            "node_bytes": label.node_bytes,
            "partition_leaves": label.partition_leaves,
            "protection": label.namespace.map(|needed| match Format::of_bytes(needed.format) {
                Ok(format) => format.to_string(),
                Err(problem) => problem.to_string(),
            }),
            "uberblocks": uberblocks,
        }))
    })
}

fn uberblock(uberblock: &copyhold_format::uberblock::Uberblock) -> Value {
    json!({
        "number": uberblock.number,
        "incarnation": uberblock.incarnation.0,
        "durable_txg": uberblock.durable.get(),
        "head": uberblock.head,
        "before_head_txg": uberblock.before_head_txg,
        "before_head": format!("{:032x}", uberblock.before_head.0),
    })
}

/// Batches from the log's head to its end, as recovery finds them.
pub(crate) fn log(pool: &Path) -> Result<Value, Failure> {
    let machine = Machine::start()?;
    let device = machine.open_device(pool, OpenMode::ReadOnly)?;
    machine.run(async {
        let label = read_labels(&device).await?.label;
        let recovered = recovered(&device, &label).await?;
        let batches: Vec<Value> = recovered
            .batches
            .iter()
            .map(|batch| {
                let header = &batch.batch;
                json!({
                    "txg": batch.txg.get(),
                    "position": batch.start,
                    "pieces": header.pieces.len(),
                    "record_bytes": batch.records().map(<[u8]>::len).sum::<usize>(),
                    "knows_durable": header.durable,
                    "data_flushed": header.data_flushed,
                    "digest": format!("{:032x}", batch.digest.0),
                })
            })
            .collect();
        Ok(json!({
            "last_txg": recovered.last,
            "last_is_confirmed": recovered.confirmed,
            "incarnation": recovered.incarnation.0,
            "next_position": recovered.next_position,
            "ring_blocks": label.log_blocks,
            "copies_to_repair": recovered.repairs.len(),
            "damage": recovered.damage.as_ref().map(ToString::to_string),
            "batches": batches,
        }))
    })
}

async fn recovered(device: &DynDevice, label: &Label) -> Result<Recovered, Failure> {
    let newest = newest_uberblock(device, label).await?;
    let ring = Ring::new(device.clone(), label.log, label.log_blocks, label.pool, label.secret);
    Ok(recover(&ring, &newest).await.map_err(PoolError::from)?)
}

/// Each partition of each table, and what the log holds for it.
pub(crate) fn tables(pool: &Path) -> Result<Value, Failure> {
    let machine = Machine::start()?;
    let pool = machine.open_to_read(pool)?;
    let mut partitions = Vec::new();
    for table in pool.tables() {
        let stats: BTreeMap<_, _> =
            table.stats().into_iter().map(|stats| (stats.id, stats)).collect();
        for (id, descriptor) in table.descriptors() {
            let unflushed = stats.get(&id);
            partitions.push(json!({
                "table": table.id().0,
                "partition": id,
                "start": descriptor.start.to_string(),
                "height": descriptor.height,
                "items": descriptor.items,
                "complete_to": descriptor.complete_to.map(Txg::get),
                "layers": descriptor.layers.len(),
                "unflushed_edits": unflushed.map(|stats| stats.edits),
                "root": descriptor.root.as_ref().map(place),
            }));
        }
    }
    Ok(json!({ "partitions": partitions }))
}

/// Each node that a base refers to; all of them are read.
pub(crate) fn nodes(pool: &Path, only: Option<u64>) -> Result<Value, Failure> {
    let machine = Machine::start()?;
    let pool = machine.open_to_read(pool)?;
    let mut nodes = Vec::new();
    for table in pool.tables() {
        if only.is_some_and(|id| id != table.id().0) {
            continue;
        }
        machine.run(table.for_each_node(pool.node_source(), true, &mut |visit| {
            let header = match visit.node {
                Some(Ok(node)) => Some(node.header().clone()),
                _ => None,
            };
            let problem = match visit.node {
                Some(Err(error)) => error.to_string(),
                _ => "good".into(),
            };
            nodes.push(json!({
                "table": table.id().0,
                "level": match visit.level { Level::Leaf => "leaf", Level::Inner => "inner" },
                "state": problem,
                "items": header.as_ref().map(|header| header.items),
                "used_bytes": header.as_ref().map(|header| header.used),
                "birth_txg": header.as_ref().map(|header| header.birth.get()),
                "first": header.as_ref().map(|header| header.first.to_string()),
                "last": header.as_ref().map(|header| header.last.to_string()),
                "epoch": visit.ptr.epoch.0,
                "at": place(&visit.ptr),
            }));
        }));
    }
    Ok(json!({ "nodes": nodes }))
}

/// `device:block` of each copy.
fn place(ptr: &NodePtr) -> String {
    let copies: Vec<String> = ptr.runs().map(|run| run.addr.to_string()).collect();
    format!("{}+{}", copies.join(" "), ptr.blocks)
}

/// Metaslabs, their allocations, and how contiguous the rest is.
pub(crate) fn space(pool: &Path) -> Result<Value, Failure> {
    let machine = Machine::start()?;
    let pool = machine.open_to_read(pool)?;
    Ok(json!(machine.run(copyhold_check::debug::space(&pool))))
}
