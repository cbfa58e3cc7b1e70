//! How much of a table is read ahead of the look-ups that need it.
//!
//! Problem.  Nodes that are read ahead, and evicted before they are used, are read twice, and they
//!           have evicted others. A tenant that lists with many threads fills the device's queue.
//! Idea.     Few at a time, measured by the room of the cache, and by the memory that the tenant's
//!           group has left, or has nodes in. All calls share a few requests at the device; a call
//!           that finds none left reads nothing ahead, and its look-ups read one node at a time, as
//!           without it.
//!
//! AHEAD-A1  A call reads at most an eighth of the bytes that the cache of nodes has room for, and
//!           nothing if these are less than two leaves.
//! AHEAD-A2  A call for a tenant whose group is near one of its limits reads as much as fits below
//!           it, and an eighth of the bytes of nodes that the tenant has in memory, which take the
//!           place of others of that group. It reads nothing if these are less than two leaves, or
//!           above the limit: the look-up reads one by itself.
//! AHEAD-A3  All calls together have at most 32 requests under way, a call half of them
//!           (`requests`).

use copyhold_memory::{MemoryClass, MemoryOwner};
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
    let nodes = match room_below_limits(tenant, wanted as u64) {
        // Other classes of the group are above the limit: the cache would keep no node.
        0 if tenant.over_any_limit(0).is_some() => 0,
        room if room < wanted as u64 => {
            let own = tenant.charged(MemoryClass::Node).max(0) as u64 / PART_OF_CACHE as u64;
            nodes.min((room + own) as usize / leaf_bytes)
        }
        _ => nodes,
    };
    if nodes < 2 {
        return false;
    }
    let Some(granted) = pool.nodes.ahead().grant() else { return true };
    let _pin = pool.pin();
    let bounds = ReadBounds { at_once: granted.count, nodes };
    table.read_together(&pool.nodes.of(&table), keys, bounds).await
}

/// The part of these bytes that brings the tenant's group, and those above it, above no limit.
fn room_below_limits(tenant: &MemoryOwner, wanted: u64) -> u64 {
    let mut fits = wanted;
    while let Some(at) = tenant.over_any_limit(fits).filter(|_| fits > 0) {
        fits = fits.saturating_sub(at.over);
    }
    fits
}

#[cfg(test)]
mod tests {
    use copyhold_memory::{GroupLimits, Memory};

    use super::*;

    /// AHEAD-A2.
    #[test]
    fn the_room_of_a_tenant_is_below_its_limits_and_those_of_its_holder() {
        let memory = Memory::default();
        let [holder, tenant] = std::array::from_fn(|_| memory.add_owner());
        tenant.set_holder(Some(&holder));
        let _used = tenant.charge(MemoryClass::Node, 5000);
        let room = |high, max, holder_max| {
            tenant.set_limits(&GroupLimits { high, max, ..GroupLimits::default() });
            holder.set_limits(&GroupLimits { max: holder_max, ..GroupLimits::default() });
            room_below_limits(&tenant, 10_000)
        };
        let none = u64::MAX;
        assert_eq!(room(none, none, none), 10_000);
        assert_eq!(room(none, 15_000, none), 10_000);
        assert_eq!(room(none, 14_999, none), 9999);
        assert_eq!(room(8000, 14_999, none), 3000);
        assert_eq!(room(8000, 14_999, 6000), 1000);
        assert_eq!(room(8000, 4000, none), 0);
    }
}
