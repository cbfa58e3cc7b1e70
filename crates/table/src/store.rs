//! Nodes in memory, for tests: a source and a sink with waits and failures on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use copyhold_format::digest;
use copyhold_format::node::Node;
use copyhold_sync::{Mutex, of};
use copyhold_types::{BlockAddr, Buf, DeviceId, EpochId, NodePtr, Purpose};

use crate::{NodeFuture, NodeSink, NodeSource, TableError};

#[derive(Debug, Default)]
pub(crate) struct Store {
    inside: Mutex<Inside, of::TableStore>,
}

#[derive(Debug, Default)]
struct Inside {
    nodes: BTreeMap<BlockAddr, Buf>,
    next_block: u64,
    /// One in so many nodes has to be waited for; 0: none.
    slow: u64,
    reads: u64,
    failing: bool,
    /// Nodes that cannot be read.
    rotten: BTreeSet<BlockAddr>,
}

impl Store {
    /// One in `slow` nodes is not cached from now on; 0: all are.
    pub(crate) fn set_slow(&self, slow: u64) {
        self.inside.lock().slow = slow;
    }

    /// Whether reads fail from now on.
    pub(crate) fn set_failing(&self, failing: bool) {
        self.inside.lock().failing = failing;
    }

    /// The node there cannot be read, until it is freed or healed.
    pub(crate) fn set_rotten(&self, addr: BlockAddr) {
        self.inside.lock().rotten.insert(addr);
    }

    pub(crate) fn heal(&self) {
        self.inside.lock().rotten.clear();
    }

    pub(crate) fn reads(&self) -> u64 {
        self.inside.lock().reads
    }

    pub(crate) fn addresses(&self) -> BTreeSet<BlockAddr> {
        self.inside.lock().nodes.keys().copied().collect()
    }

    pub(crate) fn free(&self, ptr: &NodePtr) {
        let addr = ptr.copies[0].expect("the store makes one copy");
        let mut inside = self.inside.lock();
        inside.rotten.remove(&addr);
        inside.nodes.remove(&addr).expect("freed once");
    }

    fn node(&self, ptr: &NodePtr) -> Arc<Node> {
        let addr = ptr.copies[0].expect("the store makes one copy");
        let buf = self.inside.lock().nodes.get(&addr).expect("a node that is not freed").clone();
        assert_eq!(digest(&buf), ptr.digest);
        Arc::new(Node::parse(buf).unwrap())
    }
}

impl NodeSource for Store {
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        let inside = self.inside.lock();
        let (slow, addr) = (inside.slow, ptr.copies[0]?);
        let waits = slow > 0 && addr.block().is_multiple_of(slow) || inside.rotten.contains(&addr);
        drop(inside);
        (!waits).then(|| self.node(ptr))
    }

    fn read(&self, ptr: NodePtr, why: Purpose) -> NodeFuture<'_, Arc<Node>> {
        Box::pin(async move {
            let turns = ptr.copies[0].map_or(0, BlockAddr::block) % 4;
            for _ in 0..turns {
                pause().await;
            }
            let mut inside = self.inside.lock();
            inside.reads += 1;
            if inside.failing || ptr.copies[0].is_some_and(|addr| inside.rotten.contains(&addr)) {
                let source = Arc::new(std::io::Error::other("failing on demand"));
                return Err(TableError::Unreadable { ptr, source });
            }
            drop(inside);
            let node = self.node(&ptr);
            assert!(why == Purpose::Layer || why == node.level().purpose());
            Ok(node)
        })
    }
}

/// The sink of one flush; knows its nodes.
pub(crate) struct Sink {
    pub(crate) store: Arc<Store>,
    pub(crate) written: Vec<NodePtr>,
}

impl Sink {
    pub(crate) fn new(store: &Arc<Store>) -> Sink {
        Sink { store: store.clone(), written: Vec::new() }
    }
}

impl NodeSink for Sink {
    fn write(&mut self, why: Purpose, node: Buf) -> NodeFuture<'_, NodePtr> {
        Box::pin(async move {
            let level = Node::parse(node.clone()).unwrap().level();
            assert!(why == Purpose::Layer || why == level.purpose());
            let mut inside = self.store.inside.lock();
            inside.next_block += 1;
            let addr = BlockAddr::new(DeviceId(0), inside.next_block);
            let ptr = NodePtr {
                copies: [Some(addr), None],
                blocks: node.blocks() as u32,
                fragmented: false,
                epoch: EpochId::POOL,
                digest: digest(&node),
            };
            inside.nodes.insert(addr, node);
            self.written.push(ptr);
            Ok(ptr)
        })
    }
}

async fn pause() {
    let mut paused = false;
    poll_fn(|_| match std::mem::replace(&mut paused, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await
}

/// Runs a future that only waits for being polled again.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}
