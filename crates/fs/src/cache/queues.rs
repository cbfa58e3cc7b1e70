//! Inodes that may leave memory, by owner, in the order in which they are looked at.
//!
//! QUEUES-N1  Each inode in memory is in the queue of its owner once, beside some that were removed
//!            since: no more than there are in memory, and a few. An owner without inodes in memory
//!            has no queue.

use std::collections::{BTreeMap, VecDeque};

use copyhold_memory::{Carry, INODE_BYTES, Slot};

use crate::NodeId;

/// Removed nodes that a queue may have beside as many as it has inodes.
const REMOVED: usize = 64;

#[derive(Default)]
pub(super) struct Queues {
    queues: BTreeMap<Slot, Queue>,
    /// Queues that there were.
    made: u64,
}

#[derive(Default)]
struct Queue {
    order: VecDeque<NodeId>,
    /// Inodes in memory.
    cached: usize,
    carry: Carry,
}

impl Queues {
    /// The owners with inodes in memory.
    pub(super) fn owners(&self) -> Vec<Slot> {
        self.queues.keys().copied().collect()
    }

    /// How many these are.
    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    /// An inode comes into memory, or is looked at again behind all others.
    pub(super) fn push(&mut self, owner: Slot, node: NodeId) {
        let queue = self.queues.entry(owner).or_insert_with(|| {
            self.made += 1;
            Queue { carry: Carry::of_list(self.made, INODE_BYTES), ..Queue::default() }
        });
        queue.cached += 1;
        queue.order.push_back(node);
    }

    /// An inode of the owner has left memory. `is_cached`: those that have not.
    pub(super) fn left(&mut self, owner: Slot, is_cached: impl Fn(NodeId) -> bool) {
        let queue = self.queues.get_mut(&owner).expect("QUEUES-N1: its inode was in memory");
        queue.cached -= 1;
        if queue.cached == 0 {
            self.queues.remove(&owner);
        } else if queue.order.len() > 2 * queue.cached + REMOVED {
            queue.order.retain(|node| is_cached(*node));
        }
    }

    /// The next node to look at; it is in no queue until [`Self::again`].
    pub(super) fn next(&mut self, owner: Slot) -> Option<NodeId> {
        self.queues.get_mut(&owner)?.order.pop_front()
    }

    /// A node that stays is looked at again behind all others.
    pub(super) fn again(&mut self, owner: Slot, node: NodeId) {
        let queue = self.queues.get_mut(&owner);
        queue.expect("QUEUES-N1: its inode is in memory").order.push_back(node);
    }

    /// Bytes of the inodes in memory.
    pub(super) fn size(&self, owner: Slot) -> u64 {
        self.queues.get(&owner).map_or(0, |queue| queue.cached as u64 * INODE_BYTES)
    }

    pub(super) fn carry(&mut self, owner: Slot) -> &mut Carry {
        &mut self.queues.get_mut(&owner).expect("it has a size").carry
    }
}
