//! Nodes that a decision has read, until it is made.
//!
//! Problem.  A decision that must not wait looks up cached nodes only. For a missing one its caller
//!           reads, and tries again. A cache smaller than the nodes of one decision has forgotten
//!           the first when the last is read, so the tries never end.
//! Idea.     The caller keeps the nodes that it has read beside the cache. A node never changes
//!           while it has its pointer, so a later look-up may take it from here.

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_format::node::Node;
use copyhold_sync::{Mutex, of};
use copyhold_table::{Cached, NodeFuture, NodeSource, Value};
use copyhold_types::{Key, NodePtr, Purpose, TableId};

use crate::{Pool, PoolError};

/// At most the nodes of the look-ups of one decision: 64 releases, or the extents of one reflink.
#[derive(Debug, Default)]
pub struct KeptNodes(Mutex<BTreeMap<NodePtr, Arc<Node>>, of::KeptNodes>);

impl KeptNodes {
    /// As [`Pool::range`], keeping the nodes.
    pub async fn range(
        &self,
        pool: &Pool,
        table: TableId,
        (from, to): (Key, Key),
        limit: usize,
    ) -> Result<(), PoolError> {
        let _pin = pool.pin();
        let table = pool.table(table);
        let nodes = Keeping { kept: self, nodes: &pool.nodes.of(&table) };
        table.range(&nodes, from..to, limit).await?;
        Ok(())
    }

    /// As [`Pool::range_cached`], from the kept nodes as well.
    pub fn range_cached(
        &self,
        pool: &Pool,
        table: TableId,
        (from, to): (Key, Key),
        limit: usize,
    ) -> Cached<Vec<(Key, Value)>> {
        let _pin = pool.pin();
        let nodes = Keeping { kept: self, nodes: &pool.nodes };
        pool.table(table).range_cached(&nodes, from..to, limit)
    }
}

struct Keeping<'a> {
    kept: &'a KeptNodes,
    nodes: &'a dyn NodeSource,
}

impl NodeSource for Keeping<'_> {
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        let kept = self.kept.0.lock().get(ptr).cloned();
        kept.or_else(|| self.nodes.cached(ptr))
    }

    fn read(&self, ptr: NodePtr, why: Purpose) -> NodeFuture<'_, Arc<Node>> {
        Box::pin(async move {
            let node = self.nodes.read(ptr, why).await?;
            self.kept.0.lock().insert(ptr, node.clone());
            Ok(node)
        })
    }
}
