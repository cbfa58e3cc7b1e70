//! A cache of parsed nodes, bounded in bytes, shared by memory groups.
//!
//! Nodes are kept as they are on disk, under address and digest: an address alone may have been
//! reused since (R3). Each shard has the nodes of all owners in [`Rings`], which evict by groups:
//! if protections leave too little to evict, a node is not kept (RINGS-N1).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use copyhold_format::node::Node;
use copyhold_memory::{Evicted, Memory, MemoryClass, MemoryOwner, RingKind, Rings, fit_parts};
use copyhold_sync::{Mutex, MutexGuard, of};
use copyhold_types::{BlockAddr, NodePtr};

/// Shared by all tables of a pool.
#[derive(Debug)]
pub struct NodeCache {
    memory: Arc<Memory>,
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

/// Hashed by the digest, which is random enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    addr: BlockAddr,
    digest: u128,
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest as u64 ^ self.addr.raw().rotate_left(32));
    }
}

type Guard<'a> = MutexGuard<'a, Shard>;

#[derive(Debug)]
struct Shard {
    nodes: Rings<Name, Arc<Node>>,
    hits: u64,
    misses: u64,
}

impl Default for Shard {
    fn default() -> Shard {
        let nodes = Rings::new(MemoryClass::Node, RingKind::OneRing);
        Shard { nodes, hits: 0, misses: 0 }
    }
}

impl NodeCache {
    /// `bytes_max` over all shards; more shards than CPUs that use it gain nothing.
    pub fn new(memory: Arc<Memory>, bytes_max: usize, shards: usize) -> NodeCache {
        assert!(shards > 0, "a cache has a shard");
        let shards = (0..shards).map(|_| Mutex::default()).collect();
        let cache = NodeCache { memory, shards };
        cache.set_bytes_max(bytes_max);
        cache
    }

    /// A new bound, kept at once.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        let each = bytes_max / self.shards.len();
        self.change(|shard| shard.nodes.set_bytes_max(&self.memory, each));
    }

    /// A new bound, as far as protections allow. Returns the bound that is kept now.
    pub fn fit_bytes_max(&self, bytes_max: usize) -> usize {
        let bound = |shard: usize| self.shards[shard].lock().nodes.bytes_max();
        fit_parts(self.shards.len(), bytes_max, bound, |shard, bytes| {
            let mut shard = self.lock_to_walk(shard);
            let (kept, evicted) = shard.nodes.fit_bytes_max(&self.memory, bytes);
            drop(shard);
            drop(evicted);
            kept
        })
    }

    /// The bound, over all shards.
    pub fn bytes_max(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().nodes.bytes_max()).sum()
    }

    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().nodes.bytes()).sum()
    }

    pub fn get(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        let name = name_of(ptr);
        self.shard(&name).lock().get(&name)
    }

    /// Whether it is here; that is no use of it.
    pub fn has(&self, ptr: &NodePtr) -> bool {
        let name = name_of(ptr);
        self.shard(&name).lock().nodes.contains(&name)
    }

    /// Keeps `node`, which `ptr` refers to and `owner` pays for. Returns the bytes that were
    /// evicted for it: a measure for how short of room the cache is.
    pub fn insert(&self, ptr: &NodePtr, node: Arc<Node>, owner: &MemoryOwner) -> usize {
        let name = name_of(ptr);
        let bytes = node.memory_bytes() + Rings::<Name, Arc<Node>>::overhead();
        let memory = &self.memory;
        let needs_picture = |shard: &Guard<'_>| shard.nodes.needs_picture(memory, bytes, owner);
        let mut shard = memory.lock_with_picture(|| self.shard(&name).lock(), needs_picture);
        let (_, evicted) = shard.nodes.insert(&self.memory, name, node, bytes, owner);
        drop(shard);
        evicted.bytes()
    }

    /// The parts that [`Self::reclaim_in`] knows.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Evicts `bytes` of the nodes of a group and of all that it holds in one shard, if there are
    /// as many. Its own promise does not count, those of the groups that it holds do, `low` as long
    /// as anything else is left. Returns the bytes that were evicted.
    pub fn reclaim_in(&self, shard: usize, group: &MemoryOwner, bytes: u64) -> u64 {
        let evicted = self.lock_to_walk(shard).nodes.reclaim(&self.memory, group, bytes);
        evicted.bytes() as u64
    }

    fn lock_to_walk(&self, shard: usize) -> Guard<'_> {
        let needs_picture = |shard: &Guard<'_>| !self.memory.shows(&shard.nodes.owners());
        self.memory.lock_with_picture(|| self.shards[shard].lock(), needs_picture)
    }

    /// Forgets a node, because its place is free or its copies are damaged.
    pub fn remove(&self, ptr: &NodePtr) {
        let name = name_of(ptr);
        let mut shard = self.shard(&name).lock();
        let removed = shard.nodes.remove(&name);
        drop(shard);
        drop(removed);
    }

    /// Forgets all nodes.
    pub fn clear(&self) {
        self.change(|shard| shard.nodes.clear());
    }

    pub fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        for shard in &self.shards {
            let shard = shard.lock();
            sum.hits += shard.hits;
            sum.misses += shard.misses;
            sum.evictions += shard.nodes.evictions();
            sum.nodes += shard.nodes.len();
            sum.bytes += shard.nodes.bytes();
        }
        sum
    }

    /// Evicted nodes are dropped outside of the lock.
    fn change(&self, change: impl Fn(&mut Shard) -> Evicted<Name, Arc<Node>>) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let evicted = change(&mut shard);
            drop(shard);
            drop(evicted);
        }
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
        let found = self.nodes.get(name).cloned();
        match found {
            Some(_) => self.hits += 1,
            None => self.misses += 1,
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use copyhold_format::node::{LeafBuilder, NodeOrigin};
    use copyhold_memory::{Event, GroupLimits, Memory, Promise, Stat};
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
        let memory = Arc::new(Memory::default());
        let (owner, cache) = (memory.shared().clone(), NodeCache::new(memory, 50_000, 1));
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
        let memory = Arc::new(Memory::default());
        let (owner, cache) = (memory.shared().clone(), NodeCache::new(memory, 1 << 20, 4));
        let (ptr, content) = node(7);
        cache.insert(&ptr, content, &owner);
        assert!(cache.get(&NodePtr { digest: Digest(1), ..ptr }).is_none());
        assert!(cache.get(&ptr).is_some());
        cache.clear();
        assert!(cache.get(&ptr).is_none());
    }

    /// A tenant reads all that it can; its neighbour's nodes stay as far as they are promised.
    #[test]
    fn a_neighbour_keeps_its_promise_beside_a_scan() {
        let memory = Arc::new(Memory::default());
        let (neighbour, rival) = (memory.add_owner(), memory.add_owner());
        let kept = |low: u64| {
            let promise = Promise { min: 0, low };
            neighbour.set_limits(&GroupLimits { promise, ..GroupLimits::default() });
            let cache = NodeCache::new(memory.clone(), 1 << 20, 2);
            let put = |n: u64, owner: &MemoryOwner| {
                let (ptr, content) = node(n);
                cache.insert(&ptr, content, owner);
            };
            (0..150).for_each(|n| put(n, &neighbour));
            let whole = neighbour.charged(MemoryClass::Node);
            (1000..4000).for_each(|n| put(n, &rival));
            let stats = cache.stats();
            assert!(stats.bytes <= 1 << 20 && stats.bytes > 900 << 10, "{stats:?}");
            neighbour.charged(MemoryClass::Node) as f64 / whole as f64
        };
        assert_eq!(kept(1 << 20), 1.0, "all of it is promised");
        let half = kept(300 << 10);
        assert!((0.4..0.75).contains(&half), "{half} of it stays");
        assert!(kept(0) < 0.1, "nothing is promised");
    }

    /// If all is protected, a node is not kept, its reader has it (RINGS-N1).
    #[test]
    fn nothing_is_evicted_for_a_node_when_all_is_protected() {
        let memory = Arc::new(Memory::default());
        let (owner, other) = (memory.add_owner(), memory.add_owner());
        let promise = Promise { min: 1 << 30, low: 0 };
        owner.set_limits(&GroupLimits { promise, ..GroupLimits::default() });
        let cache = NodeCache::new(memory, 100_000, 1);
        for n in 0..100 {
            let (ptr, content) = node(n);
            cache.insert(&ptr, content, &owner);
        }
        let before = cache.stats();
        let (ptr, content) = node(100);
        cache.insert(&ptr, content, &other);
        assert!(cache.get(&ptr).is_none());
        assert_eq!(cache.stats().nodes, before.nodes);
        cache.set_bytes_max(0);
        assert_eq!((cache.stats().nodes, owner.charged(MemoryClass::Node)), (0, 0));
    }

    /// A cache with so many nodes of each owner.
    fn filled(memory: &Arc<Memory>, owners: &[&MemoryOwner], nodes: u64) -> NodeCache {
        let cache = NodeCache::new(memory.clone(), 64 << 20, 4);
        for (n, owner) in owners.iter().enumerate() {
            for at in 0..nodes {
                let (ptr, content) = node(1000 * n as u64 + at);
                cache.insert(&ptr, content, owner);
            }
        }
        cache
    }

    fn low(low: u64) -> GroupLimits {
        GroupLimits { promise: Promise { min: 0, low }, ..GroupLimits::default() }
    }

    fn bytes(owner: &MemoryOwner) -> u64 {
        owner.charged(MemoryClass::Node) as u64
    }

    #[test]
    fn reclaim_of_a_group_ignores_its_own_promise_and_keeps_those_inside() {
        let memory = Arc::new(Memory::default());
        let [group, kept, other] = std::array::from_fn(|_| memory.add_owner());
        kept.set_holder(Some(&group));
        let cache = filled(&memory, &[&group, &kept, &other], 200);
        let each = bytes(&group);
        group.set_limits(&low(1 << 30));
        kept.set_limits(&low(1 << 30));
        let reclaim = |group: &MemoryOwner, bytes: u64| {
            // As many of each shard, then what is missing.
            let of = |n: u64, bytes: u64| cache.reclaim_in(n as usize % 4, group, bytes);
            let even: u64 = (0..4).map(|n| of(n, bytes.div_ceil(4))).sum();
            (0..4).fold(even, |freed, n| match bytes.saturating_sub(freed) {
                0 => freed,
                left => freed + of(n, left),
            })
        };
        let freed = reclaim(&group, each / 2);
        assert!((each / 2..each).contains(&freed), "{freed} of {each}");
        assert_eq!([&kept, &other].map(bytes), [each; 2]);
        assert_eq!(bytes(&group), each - freed);
        let counts = group.counts();
        assert_eq!(counts.stat(Stat::Steal), freed);
        assert_eq!(counts.stat(Stat::ScanDirect), 0, "no request needed the room");
        assert!(counts.stat(Stat::Scan) >= freed);
        assert_eq!(kept.counts().event(Event::Low), 0);
        // Then nothing but the promise inside is left, and it gives way.
        assert_eq!(reclaim(&group, 4 * each), 2 * each - freed);
        assert!(kept.counts().event(Event::Low) > 0, "WALK-N1");
        assert_eq!([&group, &kept, &other].map(bytes), [0, 0, each]);
        assert_eq!(reclaim(&group, 1), 0);
    }

    #[test]
    fn reclaim_never_takes_what_is_promised_as_min_inside() {
        let memory = Arc::new(Memory::default());
        let [group, kept] = std::array::from_fn(|_| memory.add_owner());
        kept.set_holder(Some(&group));
        let cache = filled(&memory, &[&kept], 100);
        let promise = Promise { min: 1 << 30, low: 0 };
        kept.set_limits(&GroupLimits { promise, ..GroupLimits::default() });
        let reclaim =
            |of: &MemoryOwner| (0..4).map(|n| cache.reclaim_in(n, of, 1 << 20)).sum::<u64>();
        assert_eq!(reclaim(&group), 0);
        assert!(reclaim(&kept) > 0, "its own promise does not count");
    }

    #[test]
    fn a_request_that_needs_room_is_counted_to_the_groups_that_give_it() {
        let memory = Arc::new(Memory::default());
        let (owner, rival) = (memory.add_owner(), memory.add_owner());
        let cache = NodeCache::new(memory, 1 << 20, 1);
        for (n, owner) in (0..600).map(|n| (n, if n < 100 { &owner } else { &rival })) {
            let (ptr, content) = node(n);
            cache.insert(&ptr, content, owner);
        }
        let counts = [&owner, &rival].map(MemoryOwner::counts);
        for of in counts {
            assert_eq!(of.stat(Stat::Scan), of.stat(Stat::ScanDirect));
            assert_eq!(of.stat(Stat::Scan), of.stat(Stat::Steal), "no node was used again");
        }
        let size = cache.stats().bytes / cache.stats().nodes;
        let evicted = counts[0].stat(Stat::Steal) + counts[1].stat(Stat::Steal);
        assert_eq!(evicted, cache.stats().evictions * size as u64);
    }
}
