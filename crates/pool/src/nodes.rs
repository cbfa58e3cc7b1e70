//! Tree nodes and space maps: cached, and read from either copy by the verified reader.
//! `node_writer` writes them.
//!
//! NODEIO-N1  A node is found by its address and digest together (rule R3): a reused block never
//!            passes for its previous content. A read looks at one copy, and at the other only if
//!            that is bad (VERIFY-V1). Which comes first depends on the node and on the mount, so
//!            that the next mount looks at the copy that this one skips: a bad copy is repaired by
//!            every second mount that reads the node from the device.

use std::sync::Arc;

use copyhold_format::node::{Fragment, Node, parse_fragments, pieces_of};
use copyhold_memory::{Memory, MemoryClass, MemoryOwner};
use copyhold_space::StoredMap;
use copyhold_sync::{Mutex, of};
use copyhold_table::{NodeCache, NodeFuture, NodeSource, Table, TableError};
use copyhold_types::{Buf, NodePtr, Purpose};
use futures_util::future::try_join_all;

use crate::balance::{Balance, Bounds};
use crate::clean::CleanData;
use crate::copies::{Copies, fragmented, named_by};
use crate::fragments::Pieces;
use crate::loads::Loads;
use crate::requests::Requests;
use crate::verified::{Condition, Reader};
use crate::{Pool, PoolError};

/// Parts of the node cache, each under a lock of its own.
const CACHE_SHARDS: usize = 8;
/// Nodes that each part has room for, or else there is one part.
const SHARD_NODES: usize = 64;
/// Nodes that are kept for any configured cache size, on a pool of tenants: the nodes for one
/// release of a pointer must be cached at once, or it would stay pending for ever.
pub(crate) const CACHE_NODES_MIN: usize = 32;

/// Copies of each node on a pool of one device.
pub(crate) const COPIES: u64 = 2;

/// Reads nodes. The table layer's [`NodeSource`]; of one table, by [`NodeStore::of`].
pub(crate) struct NodeStore {
    reader: Arc<Reader>,
    memory: Arc<Memory>,
    cache: Arc<NodeCache>,
    balance: Arc<Balance>,
    /// The pieces of fragmented maps in use (FRAGMENT-P1).
    maps: Mutex<Pieces, of::MapPieces>,
    pub(crate) loads: Loads,
    ahead: Requests,
    /// Drawn at each mount: decides which copy is read first.
    turn: u64,
}

impl NodeStore {
    /// `turn`: drawn anew for each mount.
    pub(crate) fn new(
        reader: Arc<Reader>,
        clean: Arc<CleanData>,
        bounds: Bounds,
        node_bytes: usize,
        turn: u64,
    ) -> NodeStore {
        let memory = clean.memory().clone();
        let shards = (bounds.whole / (SHARD_NODES * node_bytes)).clamp(1, CACHE_SHARDS);
        let cache = Arc::new(NodeCache::new(memory.clone(), 0, shards));
        let balance = Arc::new(Balance::new(cache.clone(), clean, bounds));
        NodeStore {
            reader,
            memory,
            cache,
            balance,
            maps: Mutex::default(),
            loads: Loads::default(),
            ahead: Requests::default(),
            turn,
        }
    }

    /// The room of the cache, and of the one beside it.
    pub(crate) fn balance(&self) -> &Arc<Balance> {
        &self.balance
    }

    /// Bytes of nodes that the cache has room for.
    pub(crate) fn cache_room(&self) -> usize {
        self.cache.bytes_max()
    }

    /// The requests that may be under way for nodes that are read ahead.
    pub(crate) fn ahead(&self) -> &Requests {
        &self.ahead
    }

    /// Keeps a node for `owner`; none: it is shared.
    pub(crate) fn keep(&self, ptr: &NodePtr, node: Arc<Node>, owner: Option<&MemoryOwner>) {
        let owner = owner.unwrap_or(self.memory.shared());
        self.balance.nodes_evicted(self.cache.insert(ptr, node, owner));
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Nodes that are kept for the owner of a table.
    pub(crate) fn of<'a>(&'a self, table: &'a Table) -> NodesOf<'a> {
        NodesOf { nodes: self, table }
    }

    async fn read_for(
        &self,
        ptr: NodePtr,
        why: Purpose,
        owner: Option<MemoryOwner>,
    ) -> Result<Arc<Node>, TableError> {
        let unreadable = |error: PoolError| TableError::Unreadable { ptr, source: Arc::new(error) };
        let buf = self.read_verified(ptr, why).await.map_err(unreadable)?;
        let node = Node::parse(buf).map_err(|source| TableError::Damaged { ptr, source })?;
        let node = Arc::new(node);
        self.keep(&ptr, node.clone(), owner.as_ref());
        Ok(node)
    }

    /// The bytes behind `ptr` from a copy that matches its digest.
    pub(crate) async fn read_verified(&self, ptr: NodePtr, why: Purpose) -> Result<Buf, PoolError> {
        let copies = match ptr.fragmented {
            false => named_by(&ptr),
            true => fragmented(&self.fragments(&ptr, why).await?),
        };
        self.read_good(&ptr, copies, Condition::Digest(ptr.digest), why).await
    }

    /// Where the content of a fragmented node is.
    async fn fragments(&self, ptr: &NodePtr, why: Purpose) -> Result<Vec<Fragment>, PoolError> {
        let list = self.read_good(ptr, named_by(ptr), Condition::Fragments(ptr), why).await?;
        parse_fragments(&list, ptr).map_err(|error| PoolError::damaged(format!("{ptr:?}"), error))
    }

    /// All that a pointer has allocated, as pointers to nodes that lie in one run: itself, or, of a
    /// fragmented node, the list and each fragment.
    pub(crate) async fn pieces(&self, ptr: NodePtr) -> Result<Vec<NodePtr>, PoolError> {
        if !ptr.fragmented {
            return Ok(vec![ptr]);
        }
        if let Some(pieces) = self.maps.lock().get(&ptr) {
            return Ok(pieces.clone());
        }
        Ok(pieces_of(&ptr, &self.fragments(&ptr, Purpose::Inner).await?))
    }

    /// The bytes of the base and of the deltas of a map that is in use from now on.
    pub(crate) async fn read_map(&self, map: &StoredMap) -> Result<Vec<Buf>, PoolError> {
        try_join_all(map.parts().map(|part| self.read_map_part(part))).await
    }

    async fn read_map_part(&self, ptr: NodePtr) -> Result<Buf, PoolError> {
        let bytes = self.read_verified(ptr, Purpose::Map).await?;
        let pieces = self.pieces(ptr).await?;
        self.replace_map([], Some(ptr), &Pieces::from([(ptr, pieces)]));
        Ok(bytes)
    }

    /// A map or delta has taken the place of others, if any; `pieces`: of the new one.
    pub(crate) fn replace_map(
        &self,
        old: impl IntoIterator<Item = NodePtr>,
        new: Option<NodePtr>,
        pieces: &Pieces,
    ) {
        let mut maps = self.maps.lock();
        old.into_iter().for_each(|old| {
            maps.remove(&old);
        });
        if let Some(new) = new.filter(|new| new.fragmented)
            && let Some(pieces) = pieces.get(&new)
        {
            maps.insert(new, pieces.clone());
        }
    }

    /// The first good one of these copies; the copy whose turn it is comes first.
    async fn read_good(
        &self,
        ptr: &NodePtr,
        mut copies: Copies,
        condition: Condition<'_>,
        why: Purpose,
    ) -> Result<Buf, PoolError> {
        if (ptr.digest.0 as u64).wrapping_add(self.turn) % 2 == 1 {
            copies.reverse();
        }
        let read = self.reader.read(&copies, condition, why).await;
        read.map_err(|problem| PoolError::damaged(format!("{ptr:?}"), problem))
    }
}

/// A shard of one of the pool's caches, to evict from.
#[derive(Clone, Copy)]
pub struct CachePart<'a> {
    pool: &'a Pool,
    class: MemoryClass,
    shard: usize,
}

/// The shards of nodes, then those of clean data.
pub fn cache_parts(pool: &Pool) -> impl Iterator<Item = CachePart<'_>> {
    let part = move |class, shard| CachePart { pool, class, shard };
    let nodes = (0..pool.nodes.cache.shards()).map(move |shard| part(MemoryClass::Node, shard));
    let data = 0..pool.nodes.balance.clean().shards();
    nodes.chain(data.map(move |shard| part(MemoryClass::Data, shard)))
}

/// Bytes of the nodes in the pool's cache.
pub fn cached_node_bytes(pool: &Pool) -> usize {
    pool.nodes.cache.bytes()
}

/// Evicts nodes and clean data of a memory group at once, an even part of each shard first; how
/// many bytes that were.
pub fn reclaim_nodes(pool: &Pool, group: &MemoryOwner, bytes: u64) -> u64 {
    let parts = cache_parts(pool).count();
    let evict = |freed: u64, (part, among): (CachePart<'_>, usize)| match bytes
        .saturating_sub(freed)
        .div_ceil(among as u64)
    {
        0 => freed,
        need => freed + part.evict(group, need),
    };
    let even = cache_parts(pool).zip((1..=parts).rev()).fold(0, evict);
    cache_parts(pool).map(|part| (part, 1)).fold(even, evict)
}

impl CachePart<'_> {
    pub fn class(self) -> MemoryClass {
        self.class
    }

    /// Evicts `bytes` of a memory group ([`NodeCache::reclaim_in`]); how many bytes that were.
    pub fn evict(self, group: &MemoryOwner, bytes: u64) -> u64 {
        let CachePart { pool, class, shard } = self;
        match class {
            MemoryClass::Data => pool.nodes.balance.clean().reclaim_in(shard, group, bytes),
            _ => pool.nodes.cache.reclaim_in(shard, group, bytes),
        }
    }
}

impl NodeSource for NodeStore {
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.cache.get(ptr)
    }

    fn has(&self, ptr: &NodePtr) -> bool {
        self.cache.has(ptr)
    }

    fn read(&self, ptr: NodePtr, why: Purpose) -> NodeFuture<'_, Arc<Node>> {
        Box::pin(self.read_for(ptr, why, None))
    }
}

/// The nodes of a table, charged to its owner.
pub(crate) struct NodesOf<'a> {
    nodes: &'a NodeStore,
    table: &'a Table,
}

impl NodeSource for NodesOf<'_> {
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.nodes.cached(ptr)
    }

    fn has(&self, ptr: &NodePtr) -> bool {
        self.nodes.has(ptr)
    }

    fn read(&self, ptr: NodePtr, why: Purpose) -> NodeFuture<'_, Arc<Node>> {
        Box::pin(self.nodes.read_for(ptr, why, self.table.owner_of(&ptr)))
    }
}
