//! A cache of parsed nodes, bounded in bytes, shared by memory groups.
//!
//! Nodes are kept as they are on disk, under address and digest: an address alone may have been
//! reused since (R3). Each owner has a ring in each shard. When a shard is full, reclaim says how
//! much of which ring is looked at (`memory::reclaim`), by the owners' usage and protection. In a
//! ring eviction is CLOCK: a hit sets a mark, the hand clears marks and evicts nodes without one.
//! Which node goes depends on the order of calls only, never on a hash's seed.
//!
//! NODECACHE-N1  If protections leave too little to evict, a node is not kept: its reader has it,
//!               and no request fails.
//! NODECACHE-N2  An owner without nodes in a shard has no ring there.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use copyhold_format::node::Node;
use copyhold_memory::{
    Arm, Carry, GroupUse, Lists, Memory, MemoryCharge, MemoryClass, MemoryOwner, Picture,
    Slot as OwnerSlot, reclaim,
};
use copyhold_sync::{Mutex, of};
use copyhold_types::{BlockAddr, NodePtr};
use slab::Slab;

/// A full shard evicts one in so many of its bytes at once.
const BATCH: usize = 64;

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
    nodes: Slab<Slot>,
    rings: BTreeMap<OwnerSlot, Ring>,
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
    /// The neighbours in the owner's ring, by place in the slab.
    before: usize,
    behind: usize,
}

/// The nodes of one owner; never empty (NODECACHE-N2).
#[derive(Debug)]
struct Ring {
    /// The node that is looked at next: new ones come before it.
    hand: usize,
    bytes: usize,
    carry: Carry,
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
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.bytes_max = bytes_max / self.shards.len();
            let evicted = shard.make_room(&self.memory, 0, true);
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
        let evicted = shard.insert(&self.memory, name, node, owner);
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
            shard.rings.clear();
            shard.bytes = 0;
            let nodes = std::mem::take(&mut shard.nodes);
            drop(shard);
            drop(nodes);
        }
    }

    pub fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        for shard in &self.shards {
            let shard = shard.lock();
            sum.hits += shard.hits;
            sum.misses += shard.misses;
            sum.evictions += shard.evictions;
            sum.nodes += shard.nodes.len();
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
        let slot = &mut self.nodes[at];
        slot.used = true;
        Some(slot.node.clone())
    }

    /// A new node has no mark: the nodes of a scan are evicted before those that were used again.
    fn insert(
        &mut self,
        memory: &Memory,
        name: Name,
        node: Arc<Node>,
        owner: &MemoryOwner,
    ) -> Vec<Slot> {
        let bytes = node.memory_bytes() + size_of::<Slot>() + size_of::<(Name, usize)>();
        if bytes > self.bytes_max || self.places.contains_key(&name) {
            return Vec::new();
        }
        let evicted = self.make_room(memory, bytes, false);
        if self.bytes + bytes > self.bytes_max {
            return evicted;
        }
        let charge = owner.charge(MemoryClass::Node, bytes as i64);
        let slot = Slot { name, node, charge, used: false, before: 0, behind: 0 };
        let at = self.nodes.insert(slot);
        self.places.insert(name, at);
        self.bytes += bytes;
        self.link(owner.slot(), at, bytes);
        evicted
    }

    /// Puts a node at the end of its owner's ring: before the hand.
    fn link(&mut self, owner: OwnerSlot, at: usize, bytes: usize) {
        let ring = self.rings.entry(owner).or_insert_with(|| {
            (self.nodes[at].before, self.nodes[at].behind) = (at, at);
            Ring { hand: at, bytes: 0, carry: Carry::default() }
        });
        ring.bytes += bytes;
        let hand = ring.hand;
        if hand != at {
            let last = self.nodes[hand].before;
            (self.nodes[at].before, self.nodes[at].behind) = (last, hand);
            self.nodes[last].behind = at;
            self.nodes[hand].before = at;
        }
    }

    /// Evicts so that `bytes` more keep the bound; `all`: whatever is protected.
    fn make_room(&mut self, memory: &Memory, bytes: usize, all: bool) -> Vec<Slot> {
        let mut evicted = Vec::new();
        let over = (self.bytes + bytes).saturating_sub(self.bytes_max);
        if over == 0 {
            return evicted;
        }
        let need = over.max(self.bytes_max / BATCH) as u64;
        let arm = if all { Arm::Off } else { Arm::Proportional };
        let mut used = Walk { picture: memory.picture(usage), shard: self, evicted: &mut evicted };
        reclaim(&mut used, need, arm);
        evicted
    }

    /// Takes out the node at `at`.
    fn take(&mut self, at: usize) -> Slot {
        let slot = self.nodes.remove(at);
        self.places.remove(&slot.name);
        let (owner, bytes) = (slot.charge.owner().slot(), slot.charge.bytes() as usize);
        self.bytes -= bytes;
        if slot.behind == at {
            self.rings.remove(&owner);
            return slot;
        }
        self.nodes[slot.before].behind = slot.behind;
        self.nodes[slot.behind].before = slot.before;
        let ring = self.rings.get_mut(&owner).expect("NODECACHE-N2: it has nodes");
        ring.bytes -= bytes;
        if ring.hand == at {
            ring.hand = slot.behind;
        }
        slot
    }

    /// Looks at the next `bytes` of a ring. Returns the bytes that it has evicted.
    fn shrink(&mut self, owner: OwnerSlot, bytes: u64, evicted: &mut Vec<Slot>) -> u64 {
        let (mut seen, mut freed) = (0, 0);
        while seen < bytes {
            let Some(ring) = self.rings.get_mut(&owner) else { break };
            let slot = &mut self.nodes[ring.hand];
            let size = slot.charge.bytes() as u64;
            seen += size;
            if std::mem::take(&mut slot.used) {
                ring.hand = slot.behind;
            } else {
                let hand = ring.hand;
                evicted.push(self.take(hand));
                self.evictions += 1;
                freed += size;
            }
        }
        freed
    }
}

/// Bytes of an owner in memory, of all classes.
fn usage(owner: &MemoryOwner) -> u64 {
    MemoryClass::ALL.iter().map(|class| owner.charged(*class).max(0) as u64).sum()
}

/// The rings of a shard, in the groups' order.
struct Walk<'a> {
    picture: Picture,
    shard: &'a mut Shard,
    evicted: &'a mut Vec<Slot>,
}

impl Lists for Walk<'_> {
    fn groups(&self) -> Vec<GroupUse> {
        self.picture.groups.clone()
    }

    fn size(&self, group: usize) -> u64 {
        let ring = self.picture.lists[group].and_then(|owner| self.shard.rings.get(&owner));
        ring.map_or(0, |ring| ring.bytes as u64)
    }

    fn carry(&mut self, group: usize) -> &mut Carry {
        let owner = self.picture.lists[group].expect("a list has an owner");
        &mut self.shard.rings.get_mut(&owner).expect("it has a size").carry
    }

    fn shrink(&mut self, group: usize, bytes: u64) -> u64 {
        let Some(owner) = self.picture.lists[group] else { return 0 };
        let freed = self.shard.shrink(owner, bytes, self.evicted);
        let mut at = Some(group);
        while let Some(of) = at {
            let of = &mut self.picture.groups[of];
            of.usage = of.usage.saturating_sub(freed);
            at = of.parent;
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use copyhold_format::node::{LeafBuilder, NodeOrigin};
    use copyhold_memory::{GroupLimits, Memory, Promise};
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

    /// If all is protected, a node is not kept, its reader has it (NODECACHE-N1).
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
}
