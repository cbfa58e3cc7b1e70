//! The room of nodes and of clean data: one number of bytes, and a boundary that moves.
//!
//! Problem.  Clean data is worth much to clones that read their base, and nothing to tenants that
//!           read their own files once. A fixed share would be too little, or lost for nodes.
//! Idea.     A cache that evicts takes the room that the other does not use. If there is none, the
//!           one that evicts more takes room from the other, a step at a time. A node counts for
//!           more than data, because each fetch of a node serves many look-ups.
//!
//! BALANCE-B1  The two bounds are together at most the whole, at every moment: one is lowered
//!             before the other is raised.
//! BALANCE-B2  Nodes keep a quarter of the whole at least, and all that they must have.
//! BALANCE-B3  A cache gives no room that its protections keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use copyhold_sync::{Mutex, of};
use copyhold_table::NodeCache;

use crate::clean::CleanData;

/// The boundary moves by a part of the most that clean data may have.
const STEPS: usize = 16;
/// Evicted bytes of nodes count so many times those of data.
const NODE_WEIGHT: i64 = 4;

pub(crate) struct Balance {
    nodes: Arc<NodeCache>,
    clean: Arc<CleanData>,
    bounds: Bounds,
    /// The bound of clean data.
    boundary: Mutex<usize, of::CacheBalance>,
    /// Evictions of data less those of nodes, since the boundary moved.
    tilt: AtomicI64,
}

/// The bytes of both caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) whole: usize,
    /// Most of it for clean data.
    pub(crate) data_max: usize,
}

impl Bounds {
    /// Of a cache of nodes of `whole` bytes, which gives up to `wanted` for clean data, but keeps
    /// `nodes_min` in any case (BALANCE-B2).
    pub(crate) fn new(whole: usize, wanted: usize, nodes_min: usize) -> Bounds {
        let keeps = nodes_min.max(whole.div_ceil(4));
        Bounds { whole, data_max: wanted.min(whole.saturating_sub(keeps)) }
    }

    fn step(self) -> usize {
        self.data_max.div_ceil(STEPS)
    }
}

impl Balance {
    /// Clean data begins with one step.
    pub(crate) fn new(nodes: Arc<NodeCache>, clean: Arc<CleanData>, bounds: Bounds) -> Balance {
        let balance = Balance {
            nodes,
            clean,
            bounds,
            boundary: Mutex::new(bounds.step()),
            tilt: AtomicI64::new(0),
        };
        balance.nodes.set_bytes_max(bounds.whole - bounds.step());
        if bounds.data_max > 0 {
            balance.clean.set_bytes_max(bounds.step());
        }
        balance
    }

    pub(crate) fn clean(&self) -> &CleanData {
        &self.clean
    }

    /// The cache of nodes has evicted so many bytes.
    pub(crate) fn nodes_evicted(&self, bytes: usize) {
        self.tip(-(bytes as i64).saturating_mul(NODE_WEIGHT));
    }

    /// Clean data has evicted so many bytes, or found no room for them.
    pub(crate) fn data_evicted(&self, bytes: usize) {
        self.tip(bytes as i64);
    }

    fn tip(&self, by: i64) {
        if by == 0 || self.bounds.data_max == 0 {
            return;
        }
        // One that is being moved already is enough.
        let Some(mut boundary) = self.boundary.try_lock() else { return };
        let tilt = self.tilt.fetch_add(by, Ordering::Relaxed) + by;
        let step = self.bounds.step();
        let (whole, more) = (self.bounds.whole, by > 0);
        let unused = match more {
            true => whole.saturating_sub(*boundary + self.nodes.bytes()),
            false => boundary.saturating_sub(self.clean.bytes()),
        };
        let is_due = tilt.unsigned_abs() >= step as u64 && more == (tilt > 0);
        let by = match unused.saturating_sub(step) {
            0 if is_due => step,
            free => free,
        };
        if by > 0 {
            self.tilt.store(0, Ordering::Relaxed);
            *boundary = if more { self.raise(*boundary, by) } else { self.lower(*boundary, by) };
        }
    }

    /// More for clean data.
    fn raise(&self, from: usize, by: usize) -> usize {
        let Bounds { whole, data_max } = self.bounds;
        let wanted = (from + by).min(data_max);
        if wanted <= from {
            return from;
        }
        let nodes = self.nodes.fit_bytes_max(whole - wanted);
        // Protected nodes may leave less.
        self.clean.fit_bytes_max((whole - nodes).min(wanted))
    }

    /// More for nodes; a step remains for clean data, so that it can grow again.
    fn lower(&self, from: usize, by: usize) -> usize {
        let wanted = from.saturating_sub(by).max(self.bounds.step());
        if wanted >= from {
            return from;
        }
        let data = self.clean.fit_bytes_max(wanted);
        self.nodes.fit_bytes_max(self.bounds.whole - data);
        data
    }
}

#[cfg(test)]
mod tests {
    use copyhold_memory::{GroupLimits, Memory, Promise};
    use copyhold_types::{BlockAddr, Buf, DeviceId, Run};

    use super::*;
    use crate::clean::Broken;

    const WHOLE: usize = 4 << 20;

    struct World {
        memory: Arc<Memory>,
        balance: Balance,
    }

    impl World {
        fn new() -> World {
            let memory = Arc::new(Memory::default());
            let bounds = Bounds::new(WHOLE, WHOLE, 0);
            let nodes = Arc::new(NodeCache::new(memory.clone(), 0, 2));
            let clean = CleanData::new(memory.clone(), bounds.data_max, Broken::default());
            World { memory, balance: Balance::new(nodes, Arc::new(clean), bounds) }
        }

        fn bound(&self) -> usize {
            *self.balance.boundary.lock()
        }

        fn read(&self, blocks: std::ops::Range<u64>) {
            for n in blocks {
                let run = Run::new(BlockAddr::new(DeviceId(0), n), 1);
                let fetch = self.balance.clean.begin(run, false).expect("it does not wait");
                self.balance.data_evicted(fetch.keep(&Buf::zeroed(1), self.memory.shared()));
                assert!(self.balance.clean.stats().bytes <= self.bound(), "BALANCE-B1");
            }
        }
    }

    #[test]
    fn the_cache_that_evicts_takes_room_and_gives_it_back() {
        let world = World::new();
        let bounds = world.balance.bounds;
        assert_eq!((bounds.data_max, world.bound()), (WHOLE / 4 * 3, bounds.step()));
        world.read(0..10_000);
        assert_eq!(world.bound(), bounds.data_max, "BALANCE-B2");
        for _ in 0..200 {
            world.balance.nodes_evicted(16 << 10);
        }
        assert_eq!(world.bound(), bounds.step());
        assert!(world.balance.clean.stats().bytes <= bounds.step());
    }

    /// BALANCE-B3.
    #[test]
    fn protected_data_stays() {
        let world = World::new();
        world.read(0..10_000);
        let promise = Promise { min: 2 << 20, low: 0 };
        world.memory.shared().set_limits(&GroupLimits { promise, ..GroupLimits::default() });
        for _ in 0..200 {
            world.balance.nodes_evicted(16 << 10);
        }
        let bytes = world.balance.clean.stats().bytes;
        // But for the block that the last scan began with.
        assert!(bytes + 8192 > 2 << 20 && bytes <= world.bound(), "{bytes} of {}", world.bound());
    }

    #[test]
    fn nodes_keep_their_part() {
        assert_eq!(Bounds::new(1000, 1000, 0).data_max, 750);
        assert_eq!(Bounds::new(1000, 600, 300).data_max, 600);
        assert_eq!(Bounds::new(1000, 1000, 900).data_max, 100);
        assert_eq!(Bounds::new(1000, 1000, 2000).data_max, 0);
        assert_eq!(Bounds::new(0, 0, 0).step(), 0);
    }
}
