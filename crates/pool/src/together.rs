//! How much of a table is read ahead of the look-ups that need it.
//!
//! Problem.  Nodes that are read ahead, and evicted before they are used, are read twice, and they
//!           have evicted others. A tenant that lists with many threads fills the device's queue.
//! Idea.     Few at a time, measured by the room of the cache, and none for a group that has no
//!           memory to spare. All calls share a few requests at the device; a call that finds none
//!           left reads nothing ahead, and its look-ups read one node at a time, as without it.
//!
//! AHEAD-A1  A call reads at most an eighth of the bytes that the cache of nodes has room for, and
//!           nothing if these are less than two leaves.
//! AHEAD-A2  A call reads nothing if a leaf for each key would bring the tenant's group above one
//!           of its limits.
//! AHEAD-A3  All calls together have at most 32 requests under way, a call half of them
//!           (`requests`).

use copyhold_memory::MemoryOwner;
use copyhold_table::ReadBounds;
use copyhold_types::{Key, TableId};

use crate::Pool;

/// The part of the cache that one call may fill.
const PART_OF_CACHE: usize = 8;

/// Reads the nodes that look-ups of these keys would wait for, at most `most`, many at a time, for
/// a tenant; of the first keys first. Returns false if there is no room for them, or if the cache
/// did not keep them all: more calls would be in vain.
pub async fn read_together(
    pool: &Pool,
    tenant: &MemoryOwner,
    table: TableId,
    keys: &[Key],
    most: usize,
) -> bool {
    let table = pool.table(table);
    let leaf_bytes = table.limits().leaf_bytes;
    let nodes = (pool.nodes.cache_room() / PART_OF_CACHE / leaf_bytes).min(most);
    let wanted = keys.len().min(nodes) * leaf_bytes;
    if nodes < 2 || tenant.over_any_limit(wanted as u64).is_some() {
        return false;
    }
    let Some(granted) = pool.nodes.ahead().grant() else { return true };
    let _pin = pool.pin();
    let bounds = ReadBounds { at_once: granted.count, nodes };
    table.read_together(&pool.nodes.of(&table), keys, bounds).await
}
