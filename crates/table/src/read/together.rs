//! Nodes for many look-ups, read together before the look-ups.
//!
//! Problem.  Look-ups one after the other wait for one node at a time, though a device serves many
//!           requests at once.
//! Idea.     In rounds: each key names the first node on its path that is not in memory, and these
//!           nodes are read, each once and many at a time. Mostly the first round reads inner
//!           nodes, and the second one leaves. The look-ups then find all nodes in memory.
//!
//! TOGETHER-G1  A call reads a node once, and only if the look-up of one of its keys would read it.
//! TOGETHER-G2  At most [`ReadBounds::at_once`] reads are under way, and at most
//!              [`ReadBounds::nodes`] nodes are read in all.
//!              Keys that come first have the first nodes.
//! TOGETHER-G3  A round with a node that cannot be read, or that the cache does not keep, is the
//!              last one: the look-ups would read such nodes a second time.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_types::{Key, NodePtr, Purpose};

use super::Look;
use crate::read_ahead::ReadAhead;
use crate::settled::Settled;
use crate::{NodeSource, Table};

/// The most that one call reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBounds {
    pub at_once: usize,
    pub nodes: usize,
}

/// The nodes of a round, in the order of their addresses.
type Round = BTreeMap<Purpose, BTreeSet<NodePtr>>;

impl Table {
    /// Reads the nodes that look-ups of `keys` would wait for. Returns false if the look-ups of
    /// more keys would better not be prepared (TOGETHER-G3).
    pub async fn read_together(
        &self,
        nodes: &dyn NodeSource,
        keys: &[Key],
        bounds: ReadBounds,
    ) -> bool {
        let mut paths: Vec<(Key, Settled)> = Vec::with_capacity(keys.len());
        for key in keys {
            if let Look::Settled(settled) = self.look(*key) {
                paths.push((*key, settled));
            }
        }
        let mut seen = BTreeSet::new();
        loop {
            let round = next_round(nodes, &mut paths, &mut seen, bounds.nodes);
            if round.is_empty() {
                return true;
            }
            for (why, of_purpose) in round {
                if !read_and_keep(nodes, why, bounds.at_once, of_purpose).await {
                    return false;
                }
            }
        }
    }
}

/// The nodes that the paths wait for now and that were not read yet; paths that wait for none are
/// removed. `seen`: all nodes of earlier rounds, of which there are at most `most`.
fn next_round(
    nodes: &dyn NodeSource,
    paths: &mut Vec<(Key, Settled)>,
    seen: &mut BTreeSet<NodePtr>,
    most: usize,
) -> Round {
    let mut round = Round::new();
    paths.retain(|(key, settled)| {
        let Some((ptr, why)) = settled.missing(nodes, *key) else { return false };
        if seen.len() < most && seen.insert(ptr) {
            round.entry(why).or_default().insert(ptr);
        }
        // Behind a leaf of the base nothing is missing; to look there again would be a use of it.
        why != Purpose::Leaf
    });
    round
}

/// Whether the cache has all of these nodes now.
async fn read_and_keep(
    nodes: &dyn NodeSource,
    why: Purpose,
    at_once: usize,
    ptrs: BTreeSet<NodePtr>,
) -> bool {
    let mut reads = ReadAhead::new(nodes, why, at_once, ptrs.into_iter());
    let mut kept = true;
    while let Some((ptr, read)) = reads.next().await {
        kept &= read.is_ok() && nodes.has(&ptr);
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::Poll;

    use copyhold_format::node::Node;
    use copyhold_sync::{Mutex, of};
    use copyhold_types::{EpochId, Kind, TableId, Txg};
    use proptest::prelude::*;

    use super::*;
    use crate::store::{Sink, Store, block_on};
    use crate::{Edit, FreezePoint, Limits, NodeFuture, TableError};

    /// A cache over nodes that have to be waited for, and a count of its reads.
    struct Counted {
        store: Arc<Store>,
        keeps: bool,
        reads: Mutex<Reads, of::KeptNodes>,
    }

    #[derive(Default)]
    struct Reads {
        kept: BTreeMap<NodePtr, Arc<Node>>,
        count: usize,
        under_way: usize,
        most_under_way: usize,
    }

    impl Counted {
        fn new(store: &Arc<Store>, keeps: bool) -> Counted {
            Counted { store: store.clone(), keeps, reads: Mutex::default() }
        }

        fn count(&self) -> usize {
            self.reads.lock().count
        }
    }

    impl NodeSource for Counted {
        fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
            self.reads.lock().kept.get(ptr).cloned()
        }

        fn read(&self, ptr: NodePtr, why: Purpose) -> NodeFuture<'_, Arc<Node>> {
            Box::pin(async move {
                {
                    let mut reads = self.reads.lock();
                    (reads.count, reads.under_way) = (reads.count + 1, reads.under_way + 1);
                    reads.most_under_way = reads.most_under_way.max(reads.under_way);
                }
                let mut waited = false;
                poll_fn(|_| match std::mem::replace(&mut waited, true) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                })
                .await;
                let node = self.store.read(ptr, why).await;
                let mut reads = self.reads.lock();
                reads.under_way -= 1;
                if let (true, Ok(node)) = (self.keeps, &node) {
                    reads.kept.insert(ptr, node.clone());
                }
                node
            })
        }
    }

    fn key(n: u64) -> Key {
        Key::new(7, Kind(1), n)
    }

    /// Items 0, 2, 4 … 198 in several partitions, some of them in layers, some in the delta.
    fn settled() -> (Table, Arc<Store>) {
        let limits = Limits { leaf_bytes: 4096, partition_leaves: 8, read_ahead: 2 };
        let (table, store) = (Table::new(TableId(1), limits), Arc::<Store>::default());
        let put = |n: u64| table.apply(Txg::FIRST, key(n), Edit::put(vec![n as u8; 500]));
        (0..200).step_by(2).for_each(put);
        flush(&table, &store, false);
        (0..200).step_by(22).for_each(put);
        flush(&table, &store, true);
        (0..200).step_by(26).for_each(put);
        (table, store)
    }

    fn flush(table: &Table, store: &Arc<Store>, to_layers: bool) {
        let birth = Txg::FIRST.next();
        for start in table.stats().into_iter().filter(|s| s.edits > 0).map(|s| s.start) {
            let point =
                FreezePoint { complete_to: Txg::FIRST, birth, own: EpochId::POOL, edits_max: 1000 };
            let job = table.freeze(start, point).unwrap();
            let mut sink = Sink::new(store);
            let flushed = match to_layers {
                true => block_on(job.spill(&**store, &mut sink, u64::MAX)),
                false => block_on(job.merge(&**store, &mut sink)),
            };
            table.install(job, flushed.unwrap());
        }
    }

    fn look_up(table: &Table, nodes: &Counted, keys: &[Key]) {
        for key in keys {
            let found = block_on(table.get(nodes, *key)).unwrap();
            assert_eq!(found.is_some(), key.offset % 2 == 0, "{key}");
        }
    }

    const AMPLE: ReadBounds = ReadBounds { at_once: 4, nodes: 1000 };

    proptest! {
        /// TOGETHER-G1: both ways read the same number of nodes; and TOGETHER-G2.
        #[test]
        fn the_look_ups_read_nothing_more_and_would_have_read_as_much(
            keys in proptest::collection::btree_set(0..200u64, 0..60),
            most in 1..40usize,
        ) {
            let (table, store) = settled();
            let keys: Vec<Key> = keys.into_iter().map(key).collect();
            let one_by_one = Counted::new(&store, true);
            look_up(&table, &one_by_one, &keys);
            let together = Counted::new(&store, true);
            prop_assert!(block_on(table.read_together(&together, &keys, AMPLE)));
            prop_assert_eq!(together.count(), one_by_one.count());
            prop_assert!(together.reads.lock().most_under_way <= AMPLE.at_once);
            look_up(&table, &together, &keys);
            prop_assert_eq!(together.count(), one_by_one.count());
            let few = Counted::new(&store, true);
            block_on(table.read_together(&few, &keys, ReadBounds { nodes: most, ..AMPLE }));
            prop_assert!(few.count() <= most);
        }
    }

    #[test]
    fn leaves_are_read_many_at_a_time() {
        let (table, store) = settled();
        let nodes = Counted::new(&store, true);
        let keys: Vec<Key> = (0..200).map(key).collect();
        assert!(block_on(table.read_together(&nodes, &keys, AMPLE)));
        assert_eq!(nodes.reads.lock().most_under_way, AMPLE.at_once);
    }

    /// TOGETHER-G3.
    #[test]
    fn the_first_round_that_is_not_kept_or_not_readable_is_the_last() {
        let (table, store) = settled();
        let keys: Vec<Key> = (0..200).map(key).collect();
        let forgets = Counted::new(&store, false);
        assert!(!block_on(table.read_together(&forgets, &keys, AMPLE)));
        let partitions = table.stats().len();
        assert!(forgets.count() <= 2 * partitions, "{} in the first round", forgets.count());
        store.set_failing(true);
        let fails = Counted::new(&store, true);
        assert!(!block_on(table.read_together(&fails, &keys, AMPLE)));
        assert!(fails.count() <= 2 * partitions, "{} in the first round", fails.count());
        let error = block_on(table.get(&fails, key(2))).unwrap_err();
        assert!(matches!(error, TableError::Unreadable { .. }), "{error}");
    }
}
