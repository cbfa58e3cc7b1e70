//! How much of a table is read ahead of the look-ups that need it.
//!
//! Problem.  Nodes that are read ahead, and evicted before they are used, are read twice, and they
//!           have evicted others.
//! Idea.     Few at a time, measured by the room of the cache, and none for a group that has no
//!           memory to spare.
//!
//! AHEAD-A1  A call reads at most an eighth of the bytes that the cache of nodes has room for, and
//!           nothing if these are less than two leaves.
//! AHEAD-A2  A call reads nothing if a leaf for each key would bring the tenant's group above one
//!           of its limits.

use copyhold_memory::MemoryOwner;
use copyhold_table::ReadBounds;
use copyhold_types::{Key, TableId};

use crate::Pool;

/// Requests at the device at once: enough for a fast one.
const AT_ONCE: usize = 32;
/// The part of the cache that one call may fill.
const PART_OF_CACHE: usize = 8;

/// Reads the nodes that look-ups of these keys would wait for, many at a time, for a tenant.
/// Returns false if there is no room for them, or if the cache did not keep them all: more calls
/// would be in vain.
pub async fn read_together(
    pool: &Pool,
    tenant: &MemoryOwner,
    table: TableId,
    keys: &[Key],
) -> bool {
    let table = pool.table(table);
    let leaf_bytes = table.limits().leaf_bytes;
    let nodes = pool.nodes.cache_room() / PART_OF_CACHE / leaf_bytes;
    let wanted = keys.len().min(nodes) * leaf_bytes;
    if nodes < 2 || tenant.over_any_limit(wanted as u64).is_some() {
        return false;
    }
    let _pin = pool.pin();
    let bounds = ReadBounds { at_once: AT_ONCE, nodes };
    table.read_together(&pool.nodes.of(&table), keys, bounds).await
}
