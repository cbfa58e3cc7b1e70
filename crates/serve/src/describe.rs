//! The description of a pool for `info`, mounted or not.

use std::path::Path;

use copyhold_format::item::ChecksumMode;
use copyhold_fs::Filesystem;
use copyhold_memory::{MemoryClass, Shares};
use copyhold_pool::{Failure, Failures, FlushFigures, FlushRow, JoinWait, Pool, StockFigures};
use copyhold_types::{BLOCK_BYTES, DeviceId, PoolId, Purpose};
use copyhold_volume::AtRest;
use serde_json::{Map, Value, json};

use crate::wire::names::NamesTotals;

/// All fields, in the order in which they are shown.
pub fn pool(pool: &Pool, path: &Path) -> Map<String, Value> {
    let label = pool.label();
    let space = pool.space();
    let log = pool.log_use();
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    let fields = json!({
        "pool": path.to_string_lossy(),
        "id": id(label.pool),
        "label": label.name,
        "read_only": pool.is_read_only(),
        "read_only_because": pool.read_only(),
        "durable_txg": pool.durable_txg().get(),
        "protection": pool.devices().protection().map(|format| format.to_string()),
        "size_bytes": bytes(label.blocks),
        "allocated_bytes": bytes(space.allocated),
        "available_bytes": bytes(space.available()),
        "freeing_bytes": bytes(space.freeing),
        "reserve_bytes": bytes(space.reserve),
        "log_used_bytes": bytes(log.live_blocks),
        "log_size_bytes": bytes(log.ring_blocks),
        "log_edits": log.edits,
    });
    let Value::Object(mut fields) = fields else { unreachable!("an object was made") };
    let counters = pool.devices().counters();
    fields.insert("checksum_modes".into(), checksum_modes(pool));
    fields.insert("flushes".into(), counters.flushes.into());
    fields.insert("discarded_bytes".into(), counters.discarded_bytes.into());
    fields.insert("flush".into(), flush(&copyhold_pool::flush_figures(pool)));
    fields.insert("join_wait".into(), join_wait(&pool.join_wait()));
    let failures = pool.devices().failures();
    fields.insert("read_failures".into(), by_device(failures, &Failure::READS));
    fields.insert("refused_guards".into(), by_device(failures, &Failure::REFUSED_GUARDS));
    let by_purpose = Purpose::ALL.iter().zip(&counters.purposes).map(|(purpose, count)| {
        let counts = json!({
            "writes": count.writes,
            "written_bytes": count.written_bytes,
            "reads": count.reads,
            "read_bytes": count.read_bytes,
        });
        (purpose.name().to_owned(), counts)
    });
    fields.insert("counters".into(), Value::Object(by_purpose.collect()));
    fields
}

/// The mode that new extents get on this device, by the mode that their file has.
fn checksum_modes(pool: &Pool) -> Value {
    let is_protected = pool.devices().protection().is_some();
    let row = |mode: ChecksumMode| {
        let in_effect = mode.on_device(is_protected).name();
        (mode.name().to_owned(), json!({ "new_extents": in_effect }))
    };
    Value::Object(ChecksumMode::ALL.into_iter().map(row).collect())
}

/// The fields for callers without privilege: df(1) shows the same.
pub fn outline(pool: &Pool) -> Value {
    let (label, space) = (pool.label(), pool.space());
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    json!({
        "label": label.name,
        "read_only": pool.is_read_only(),
        "size_bytes": bytes(label.blocks),
        "available_bytes": bytes(space.available()),
    })
}

/// The flush policy at work.
fn flush(figures: &FlushFigures) -> Value {
    let [blocks, edits, bytes] = figures.levels.map(|(used, limit)| json!([used, limit]));
    let row = |row: &FlushRow| {
        json!({
            "last_txg": row.last.get(),
            "blocks": row.blocks,
            "edits": row.edits,
            "units": row.units,
        })
    };
    json!({
        "policy": figures.policy.name(),
        "commits": figures.commits,
        "rounds": figures.rounds,
        "units": figures.units,
        "units_most": figures.most,
        "units_mean": figures.units as f64 / figures.commits.max(1) as f64,
        "pace": figures.pace,
        "due": figures.due,
        "incoming": figures.incoming,
        "log_blocks": blocks,
        "log_edits": edits,
        "delta_bytes": bytes,
        "dirty_metaslabs": figures.metaslabs.0,
        "metaslabs": figures.metaslabs.1,
        "dirty_partitions": figures.partitions,
        "replay": { "edits": figures.replay.edits, "ns": figures.replay.ns },
        "stock": figures.stock.as_ref().map(stock),
        "rows": figures.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

/// The passes of stock mode.
fn stock(figures: &StockFigures) -> Value {
    json!({
        "txgs": figures.txgs,
        "single_pass": figures.single,
        "passes": figures.passes,
        "passes_most": figures.most,
        "maps": figures.maps,
        "map_edits": figures.edits,
    })
}

/// Counts of these kinds by device, since the mount.
fn by_device(failures: &Failures, kinds: &[Failure]) -> Value {
    let of_device = |id: DeviceId| {
        let count = |kind: &Failure| (kind.name().to_owned(), failures.get(id, *kind).into());
        (id.0.to_string(), Value::Object(kinds.iter().map(count).collect()))
    };
    Value::Object(failures.devices().map(of_device).collect())
}

/// The memory in use, and its limits.
pub fn memory(fs: &Filesystem, shares: &Shares) -> Value {
    let (inodes, lookups) = fs.inodes_and_lookups();
    let charged = |class| fs.pool().memory().charged(class);
    let clean = fs.pool().devices().clean().stats();
    json!({
        "budget_bytes": shares.budget,
        "dirty_bytes": fs.dirty_bytes(),
        "unflushed_bytes": charged(MemoryClass::Edit),
        "node_bytes": charged(MemoryClass::Node),
        "data_bytes": charged(MemoryClass::Data),
        "data": {
            "blocks": clean.blocks,
            "hits": clean.hits,
            "misses": clean.misses,
            "evictions": clean.evictions,
            "waits": clean.waits,
            "overtaken": clean.overtaken,
            "mismatches": clean.mismatches,
        },
        "inodes": inodes,
        "lookups": lookups,
        "groups": fs.pool().memory().owners().len(),
        "at_rest": at_rest(&copyhold_volume::at_rest(fs.volumes())),
    })
}

/// The memory of subvolumes that are not used, outside of the budget's shares.
fn at_rest(figures: &AtRest) -> Value {
    json!({
        "bytes": figures.bytes(),
        "subvolumes": figures.subvols.count,
        "epochs": figures.epochs.count,
        "tables": figures.tables.count,
    })
}

/// The names that are known to be absent.
pub fn names(fs: &Filesystem) -> Value {
    let (_, held) = fs.inodes_and_lookups();
    let NamesTotals { live, limit, setting, bound_by, events, dentry_state, .. } =
        NamesTotals::new(fs.names(), held as u64);
    let shown = ["hits", "pruned", "forced", "delayed"];
    let mut fields = Map::from_iter([
        ("live".to_owned(), live.into()),
        ("limit".to_owned(), limit.into()),
        ("setting".to_owned(), setting.into()),
        ("bound_by".to_owned(), bound_by.into()),
    ]);
    fields.extend(events.into_iter().filter(|(name, _)| shown.contains(&name.as_str())));
    fields.insert("dentry_state".into(), dentry_state.into());
    Value::Object(fields)
}

/// How long operations have waited before they joined a transaction group.
fn join_wait(waits: &JoinWait) -> Value {
    json!({
        "count": waits.count,
        "waited": waits.waited,
        "total_ns": waits.total,
        "max_ns": waits.max,
        "p50_ns": waits.p50,
        "p95_ns": waits.p95,
        "p99_ns": waits.p99,
    })
}

/// As UUIDs are written.
pub fn id(id: PoolId) -> String {
    let hex: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_shown_as_a_uuid() {
        let shown = id(PoolId(std::array::from_fn(|place| place as u8)));
        assert_eq!(shown, "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
