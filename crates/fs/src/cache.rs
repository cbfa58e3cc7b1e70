//! The inodes in memory, and how often the front end holds each.
//!
//! A node id says by itself where its inode is, so an inode that is clean may leave memory although
//! the front end still knows it; only the count of look-ups stays, until they are forgotten.
//!
//! Every request looks here, so both stand in one entry of a hash map: by subvolume and then by
//! number, since a subvolume that is deleted takes its inodes along.
//!
//! C1  An inode is in memory at most once: it is loaded under its shard's load lock, and leaves
//!     only when nothing but the cache refers to it.
//! C2  What an inode had logged before it left is in a txg up to `evicted_txg` (R34).

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use copyhold_runtime::{FifoMutex, FifoMutexGuard};
use copyhold_types::{InodeNo, SubvolId, Txg};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::NodeId;
use crate::inode::{Inode, InodeRef};

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
    subvols: FxHashMap<SubvolId, FxHashMap<InodeNo, Known>>,
    /// Inodes in memory.
    cached: usize,
    /// Candidates for leaving, oldest first: each cached inode once, and some that were removed.
    order: VecDeque<NodeId>,
    evicted_txg: Option<Txg>,
}

/// What is there of a node: an inode, or look-ups, or both.
#[derive(Default)]
struct Known {
    inode: Option<InodeRef>,
    lookups: u64,
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
        self.shard(node).map.lock().known(node)?.inode.clone()
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
        map.put(inode)
    }

    /// Takes out an inode that was removed for good.
    pub(crate) fn remove(&self, node: NodeId) {
        let mut map = self.shard(node).map.lock();
        map.take(node);
        if map.order.len() > 2 * map.cached + 64 {
            let mut order = std::mem::take(&mut map.order);
            order.retain(|&node| map.known(node).is_some_and(|known| known.inode.is_some()));
            map.order = order;
        }
    }

    pub(crate) fn add_lookup(&self, node: NodeId) {
        self.shard(node).map.lock().entry(node).lookups += 1;
    }

    /// Whether none is left.
    pub(crate) fn drop_lookups(&self, node: NodeId, count: u64) -> bool {
        self.shard(node).map.lock().change(node, |known| {
            known.lookups = known.lookups.saturating_sub(count);
            known.lookups == 0
        })
    }

    pub(crate) fn has_lookups(&self, node: NodeId) -> bool {
        self.shard(node).map.lock().known(node).is_some_and(|known| known.lookups > 0)
    }

    /// The inodes in memory of one subvolume, however many there are of others.
    pub(crate) fn of_subvol(&self, subvol: SubvolId) -> Vec<InodeRef> {
        let mut found: Vec<InodeRef> = Vec::new();
        for shard in &self.shards {
            let map = shard.map.lock();
            found.extend(map.subvols.get(&subvol).into_iter().flat_map(inodes).cloned());
        }
        found.sort_unstable_by_key(|inode| inode.node);
        found
    }

    /// Whether there is one in memory that `is`.
    pub(crate) fn any(&self, is: impl Fn(&Inode) -> bool) -> bool {
        self.shards.iter().any(|shard| {
            let map = shard.map.lock();
            map.subvols.values().flat_map(inodes).any(|inode| is(inode))
        })
    }

    /// All inodes in memory, by number.
    pub(crate) fn all(&self) -> Vec<InodeRef> {
        let mut all: Vec<InodeRef> = Vec::new();
        for shard in &self.shards {
            let map = shard.map.lock();
            all.reserve(map.cached);
            all.extend(map.subvols.values().flat_map(inodes).cloned());
        }
        all.sort_unstable_by_key(|inode| inode.node);
        all
    }
}

fn inodes(of: &FxHashMap<InodeNo, Known>) -> impl Iterator<Item = &InodeRef> {
    of.values().filter_map(|known| known.inode.as_ref())
}

impl ShardMap {
    fn known(&self, node: NodeId) -> Option<&Known> {
        self.subvols.get(&node.subvol)?.get(&node.ino)
    }

    fn entry(&mut self, node: NodeId) -> &mut Known {
        self.subvols.entry(node.subvol).or_default().entry(node.ino).or_default()
    }

    /// Changes what is known of `node`, be it nothing, and keeps no entry of nothing.
    fn change<T>(&mut self, node: NodeId, change: impl FnOnce(&mut Known) -> T) -> T {
        let Entry::Occupied(mut subvol) = self.subvols.entry(node.subvol) else {
            return change(&mut Known::default());
        };
        let Entry::Occupied(mut entry) = subvol.get_mut().entry(node.ino) else {
            return change(&mut Known::default());
        };
        let result = change(entry.get_mut());
        if entry.get().inode.is_none() && entry.get().lookups == 0 {
            entry.remove();
            if subvol.get().is_empty() {
                subvol.remove();
            }
        }
        result
    }

    fn put(&mut self, inode: InodeRef) -> Option<InodeRef> {
        let before = self.entry(inode.node).inode.replace(inode);
        self.cached += usize::from(before.is_none());
        before
    }

    fn take(&mut self, node: NodeId) -> Option<InodeRef> {
        let taken = self.change(node, |known| known.inode.take());
        self.cached -= usize::from(taken.is_some());
        taken
    }

    /// Lets a few clean inodes go if there are `max`. The cache may exceed it by those in use.
    fn make_room(&mut self, max: usize) {
        let mut tries = 8.min(self.order.len());
        while self.cached >= max && tries > 0 {
            tries -= 1;
            let Some(node) = self.order.pop_front() else { return };
            let Some(inode) = self.known(node).and_then(|known| known.inode.as_ref()) else {
                continue;
            };
            // Every other reference was cloned from this one under this lock, or from such a clone.
            let idle = Arc::strong_count(inode) == 1 && {
                let state = inode.state();
                state.is_clean() && !state.atime_lazy
            };
            if idle {
                let gone = self.take(node).expect("looked up above");
                self.evicted_txg = self.evicted_txg.max(gone.state().last_txg);
            } else {
                self.order.push_back(node);
            }
        }
    }
}
