//! The inodes in memory, and how often the front end holds each.
//!
//! A node id says by itself where its inode is, so an inode that is clean may leave memory although
//! the front end still knows it; only the count of look-ups stays, until they are forgotten.
//!
//! C1  An inode is in memory at most once: it is loaded under its shard's load lock, and leaves
//!     only when nothing but the cache refers to it.
//! C2  What an inode had logged before it left is in a txg up to `evicted_txg` (R34).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use copyhold_runtime::{FifoMutex, FifoMutexGuard};
use copyhold_types::{InodeNo, SubvolId, Txg};
use parking_lot::Mutex;

use crate::NodeId;
use crate::inode::InodeRef;

const SHARDS: usize = 64;

pub(crate) struct InodeCache {
    shards: Vec<Shard>,
    per_shard_max: usize,
}

#[derive(Default)]
struct Shard {
    /// Held while an inode of this shard is read from the table.
    load: FifoMutex,
    map: Mutex<ShardMap>,
}

#[derive(Default)]
struct ShardMap {
    inodes: BTreeMap<NodeId, InodeRef>,
    /// Candidates for leaving, oldest first: each cached inode once, and some that were removed.
    order: VecDeque<NodeId>,
    lookups: BTreeMap<NodeId, u64>,
    evicted_txg: Option<Txg>,
}

impl InodeCache {
    pub(crate) fn new(max: usize) -> InodeCache {
        InodeCache {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            per_shard_max: max.div_ceil(SHARDS).max(1),
        }
    }

    fn shard(&self, node: NodeId) -> &Shard {
        &self.shards[(node.raw() % SHARDS as u64) as usize]
    }

    pub(crate) fn get(&self, node: NodeId) -> Option<InodeRef> {
        self.shard(node).map.lock().inodes.get(&node).cloned()
    }

    /// Taken, and the cache asked again, before an inode is read from the table (C1).
    pub(crate) async fn loading(&self, node: NodeId) -> FifoMutexGuard<'_> {
        self.shard(node).load.lock().await
    }

    /// No change of an inode of this shard that is not in memory is in a later txg (C2).
    pub(crate) fn evicted_txg(&self, node: NodeId) -> Option<Txg> {
        self.shard(node).map.lock().evicted_txg
    }

    /// Adds an inode that was not in memory; others may leave for it.
    pub(crate) fn insert(&self, inode: InodeRef) {
        let before = self.put(inode);
        assert!(before.is_none(), "C1: an inode is in memory once");
    }

    /// Adds a new inode. Its number is nobody else's, unless the mark of numbers is damaged: then
    /// who uses the other one goes on with what is no more.
    pub(crate) fn insert_new(&self, inode: InodeRef) {
        let node = inode.node;
        if self.put(inode).is_some() {
            tracing::error!("{node} was there already: the mark of inode numbers is damaged");
        }
    }

    fn put(&self, inode: InodeRef) -> Option<InodeRef> {
        let mut map = self.shard(inode.node).map.lock();
        map.make_room(self.per_shard_max);
        map.order.push_back(inode.node);
        map.inodes.insert(inode.node, inode)
    }

    /// Takes out an inode that was removed for good.
    pub(crate) fn remove(&self, node: NodeId) {
        let mut map = self.shard(node).map.lock();
        map.inodes.remove(&node);
        if map.order.len() > 2 * map.inodes.len() + 64 {
            let ShardMap { inodes, order, .. } = &mut *map;
            order.retain(|node| inodes.contains_key(node));
        }
    }

    pub(crate) fn add_lookup(&self, node: NodeId) {
        *self.shard(node).map.lock().lookups.entry(node).or_insert(0) += 1;
    }

    /// Whether none is left.
    pub(crate) fn drop_lookups(&self, node: NodeId, count: u64) -> bool {
        let mut map = self.shard(node).map.lock();
        let Some(held) = map.lookups.get_mut(&node) else { return true };
        *held = held.saturating_sub(count);
        if *held == 0 {
            map.lookups.remove(&node);
            return true;
        }
        false
    }

    pub(crate) fn has_lookups(&self, node: NodeId) -> bool {
        self.shard(node).map.lock().lookups.contains_key(&node)
    }

    /// The inodes in memory of one subvolume, however many there are of others.
    pub(crate) fn of_subvol(&self, subvol: SubvolId) -> Vec<InodeRef> {
        let numbers = [0, u64::MAX].map(|ino| NodeId { subvol, ino: InodeNo(ino) });
        let mut found: Vec<InodeRef> = Vec::new();
        for shard in &self.shards {
            let map = shard.map.lock();
            found.extend(map.inodes.range(numbers[0]..=numbers[1]).map(|(_, inode)| inode.clone()));
        }
        found.sort_unstable_by_key(|inode| inode.node);
        found
    }

    /// All inodes in memory, by number.
    pub(crate) fn all(&self) -> Vec<InodeRef> {
        let mut all: Vec<InodeRef> = Vec::new();
        for shard in &self.shards {
            all.extend(shard.map.lock().inodes.values().cloned());
        }
        all.sort_unstable_by_key(|inode| inode.node);
        all
    }
}

impl ShardMap {
    /// Lets a few clean inodes go if there are `max`. The cache may exceed it by those in use.
    fn make_room(&mut self, max: usize) {
        let mut tries = 8.min(self.order.len());
        while self.inodes.len() >= max && tries > 0 {
            tries -= 1;
            let Some(node) = self.order.pop_front() else { return };
            let Some(inode) = self.inodes.get(&node) else { continue };
            // Every other reference was cloned from this one under this lock, or from such a clone.
            let idle = Arc::strong_count(inode) == 1 && {
                let state = inode.state();
                state.is_clean() && !state.atime_lazy
            };
            if idle {
                let gone = self.inodes.remove(&node).expect("looked up above");
                self.evicted_txg = self.evicted_txg.max(gone.state().last_txg);
            } else {
                self.order.push_back(node);
            }
        }
    }
}
