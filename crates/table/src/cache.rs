//! A cache of parsed nodes, bounded in bytes.
//!
//! Nodes are kept as they are on disk, under address and digest: an address alone may have been
//! reused since (R3). Eviction is CLOCK: a hit sets a mark, the hand clears marks and evicts nodes
//! without one. Which node goes depends on the order of calls only, never on a hash's seed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use copyhold_format::node::Node;
use copyhold_memory::{MemoryCharge, MemoryClass, MemoryOwner};
use copyhold_sync::{Mutex, of};
use copyhold_types::{BlockAddr, NodePtr};

/// Shared by all tables of a pool.
#[derive(Debug)]
pub struct NodeCache {
    shards: Vec<Mutex<Shard, of::NodeCache>>,
}

/// Figures since the cache was made, and its content now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    pub nodes: usize,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    addr: BlockAddr,
    digest: u128,
}

impl std::hash::Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest as u64 ^ self.addr.raw().rotate_left(32));
    }
}

/// Digests are random enough as they are.
#[derive(Clone, Copy, Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a name is hashed as one number");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[derive(Debug, Default)]
struct Shard {
    places: HashMap<Name, usize, BuildHasherDefault<AsIs>>,
    ring: Vec<Slot>,
    hand: usize,
    bytes: usize,
    bytes_max: usize,
    hits: u64,
    misses: u64,
    evictions: u64,
}

#[derive(Debug)]
struct Slot {
    name: Name,
    node: Arc<Node>,
    charge: MemoryCharge,
    used: bool,
}

impl NodeCache {
    /// `bytes_max` over all shards; more shards than CPUs that use it gain nothing.
    pub fn new(bytes_max: usize, shards: usize) -> NodeCache {
        assert!(shards > 0, "a cache has a shard");
        let cache = NodeCache { shards: (0..shards).map(|_| Mutex::default()).collect() };
        cache.set_bytes_max(bytes_max);
        cache
    }

    /// A new bound, kept at once.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.bytes_max = bytes_max / self.shards.len();
            let evicted = shard.make_room(0);
            drop(shard);
            drop(evicted);
        }
    }

    pub fn get(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        let name = name_of(ptr);
        self.shard(&name).lock().get(&name)
    }

    /// Keeps `node`, which `ptr` refers to and `owner` pays for. Evicted nodes are dropped outside
    /// of the lock.
    pub fn insert(&self, ptr: &NodePtr, node: Arc<Node>, owner: &MemoryOwner) {
        let name = name_of(ptr);
        let mut shard = self.shard(&name).lock();
        let evicted = shard.insert(name, node, owner);
        drop(shard);
        drop(evicted);
    }

    /// Forgets a node, because its place is free or its copies are damaged.
    pub fn remove(&self, ptr: &NodePtr) {
        let name = name_of(ptr);
        let mut shard = self.shard(&name).lock();
        let removed = shard.places.get(&name).copied().map(|at| shard.take(at));
        drop(shard);
        drop(removed);
    }

    /// Forgets all nodes.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.places.clear();
            shard.bytes = 0;
            shard.hand = 0;
            let ring = std::mem::take(&mut shard.ring);
            drop(shard);
            drop(ring);
        }
    }

    pub fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        for shard in &self.shards {
            let shard = shard.lock();
            sum.hits += shard.hits;
            sum.misses += shard.misses;
            sum.evictions += shard.evictions;
            sum.nodes += shard.ring.len();
            sum.bytes += shard.bytes;
        }
        sum
    }

    fn shard(&self, name: &Name) -> &Mutex<Shard, of::NodeCache> {
        &self.shards[(name.digest >> 64) as u64 as usize % self.shards.len()]
    }
}

fn name_of(ptr: &NodePtr) -> Name {
    let addr = ptr.copies.iter().flatten().next().copied().unwrap_or_default();
    Name { addr, digest: ptr.digest.0 }
}

impl Shard {
    fn get(&mut self, name: &Name) -> Option<Arc<Node>> {
        let Some(&at) = self.places.get(name) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        self.ring[at].used = true;
        Some(self.ring[at].node.clone())
    }

    /// A new node has no mark: the nodes of a scan are evicted before those that were used again.
    fn insert(&mut self, name: Name, node: Arc<Node>, owner: &MemoryOwner) -> Vec<Slot> {
        let bytes = node.memory_bytes() + size_of::<Slot>() + size_of::<(Name, usize)>();
        if bytes > self.bytes_max || self.places.contains_key(&name) {
            return Vec::new();
        }
        let evicted = self.make_room(bytes);
        self.places.insert(name, self.ring.len());
        let charge = owner.charge(MemoryClass::Node, bytes as i64);
        self.ring.push(Slot { name, node, charge, used: false });
        self.bytes += bytes;
        evicted
    }

    /// Evicts until `bytes` more keep the bound.
    fn make_room(&mut self, bytes: usize) -> Vec<Slot> {
        let mut evicted = Vec::new();
        while self.bytes + bytes > self.bytes_max {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let slot = &mut self.ring[self.hand];
            if std::mem::take(&mut slot.used) {
                self.hand += 1;
            } else {
                self.evictions += 1;
                evicted.push(self.take(self.hand));
            }
        }
        evicted
    }

    /// Takes out the slot at `at`; the last one takes its place.
    fn take(&mut self, at: usize) -> Slot {
        let slot = self.ring.swap_remove(at);
        self.places.remove(&slot.name);
        if let Some(moved) = self.ring.get(at) {
            self.places.insert(moved.name, at);
        }
        self.bytes -= slot.charge.bytes() as usize;
        slot
    }
}

#[cfg(test)]
mod tests {
    use copyhold_format::node::{LeafBuilder, NodeOrigin};
    use copyhold_memory::Memory;
    use copyhold_types::{DeviceId, Digest, EpochId, Key, TableId, Txg};

    use super::*;

    fn node(n: u64) -> (NodePtr, Arc<Node>) {
        let mut builder = LeafBuilder::new(4096);
        assert!(builder.push(Key::new(n, Default::default(), 0), &[]));
        let buf = builder.finish(NodeOrigin { table: TableId(1), birth: Txg::FIRST });
        let digest = copyhold_format::digest(&buf);
        let addr = BlockAddr::new(DeviceId(0), 100 + n);
        let ptr = NodePtr {
            copies: [Some(addr), None],
            blocks: 1,
            fragmented: false,
            epoch: EpochId::POOL,
            digest,
        };
        (ptr, Arc::new(Node::parse(buf).unwrap()))
    }

    #[test]
    fn the_bound_in_bytes_is_kept_and_what_is_used_stays() {
        let owner = Memory::default().shared().clone();
        let cache = NodeCache::new(50_000, 1);
        let (favourite, content) = node(0);
        cache.insert(&favourite, content, &owner);
        for n in 1..100 {
            let (ptr, content) = node(n);
            cache.insert(&ptr, content, &owner);
            assert!(cache.get(&favourite).is_some());
            assert!(cache.stats().bytes <= 50_000);
        }
        let stats = cache.stats();
        assert!(stats.nodes >= 8);
        assert_eq!(stats.evictions, 100 - stats.nodes as u64);
        cache.remove(&favourite);
        assert!(cache.get(&favourite).is_none());
        cache.set_bytes_max(0);
        assert_eq!((cache.stats().nodes, cache.stats().bytes), (0, 0));
    }

    #[test]
    fn a_reused_address_is_another_node() {
        let owner = Memory::default().shared().clone();
        let cache = NodeCache::new(1 << 20, 4);
        let (ptr, content) = node(7);
        cache.insert(&ptr, content, &owner);
        assert!(cache.get(&NodePtr { digest: Digest(1), ..ptr }).is_none());
        assert!(cache.get(&ptr).is_some());
        cache.clear();
        assert!(cache.get(&ptr).is_none());
    }
}
