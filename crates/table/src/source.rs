//! The environment of a table: nodes by pointer, and a place for new ones.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;

use copyhold_format::node::{InnerView, LeafView, Level, Node};
use copyhold_types::{Buf, Key, NodePtr, Purpose};

use crate::TableError;

/// A boxed future of a node operation; the same type as the runtime's `BoxFuture`.
pub type NodeFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, TableError>> + Send + 'a>>;

/// Reads nodes by pointer.
///
/// Nodes under a reader may be replaced meanwhile; the reader's pin (R3), which the caller of the
/// table holds, prevents their reuse.
pub trait NodeSource: Send + Sync {
    /// The node, if it needs no waiting.
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>>;

    /// Whether the node needs no waiting, without a use of it.
    fn has(&self, ptr: &NodePtr) -> bool {
        self.cached(ptr).is_some()
    }

    /// Reads and verifies the node from any good copy. `why`: the purpose that counts the read.
    fn read(&self, ptr: NodePtr, why: Purpose) -> NodeFuture<'_, Arc<Node>>;
}

/// Takes the new nodes of a flush.
pub trait NodeSink: Send + Sync {
    /// Allocates the copies of `node`, computes its digest and starts writing it; the pointer is
    /// known before the write is done. A merge waits for all writes before it uses any pointer.
    fn write(&mut self, why: Purpose, node: Buf) -> NodeFuture<'_, NodePtr>;
}

/// A node that is known to be a leaf.
#[derive(Clone)]
pub(crate) struct LeafNode(Arc<Node>);

/// A node that is known to be an inner one.
#[derive(Clone)]
pub(crate) struct InnerNode(Arc<Node>);

impl LeafNode {
    pub(crate) fn new(node: Arc<Node>, ptr: NodePtr) -> Result<LeafNode, TableError> {
        match node.level() {
            Level::Leaf => Ok(LeafNode(node)),
            Level::Inner => Err(TableError::Level { ptr, level: Level::Leaf }),
        }
    }

    pub(crate) async fn fetch(
        nodes: &dyn NodeSource,
        ptr: NodePtr,
        why: Purpose,
    ) -> Result<LeafNode, TableError> {
        LeafNode::new(fetch(nodes, ptr, why).await?, ptr)
    }

    /// The leaf, if all its keys are in the range that its parent records. Digests protect from
    /// rot, not from an image that was made by hand: merges and walks want keys that ascend.
    pub(crate) fn within(
        self,
        ptr: NodePtr,
        from: Key,
        to: Option<Key>,
    ) -> Result<LeafNode, TableError> {
        let (first, last) = (self.key(&self.first()), self.key(&self.last()));
        match from <= first && to.is_none_or(|to| last < to) {
            true => Ok(self),
            false => Err(TableError::Keys { ptr, from }),
        }
    }
}

impl InnerNode {
    /// The `n`th child's leaf, if its keys belong there.
    pub(crate) fn own(&self, n: usize, leaf: LeafNode) -> Result<LeafNode, TableError> {
        let child = self.child(n);
        let from = if n == 0 { Key::MIN } else { child.first };
        let to = (n + 1 < self.children()).then(|| self.child(n + 1).first);
        leaf.within(child.ptr, from, to)
    }

    pub(crate) fn new(node: Arc<Node>, ptr: NodePtr) -> Result<InnerNode, TableError> {
        match node.level() {
            Level::Inner => Ok(InnerNode(node)),
            Level::Leaf => Err(TableError::Level { ptr, level: Level::Inner }),
        }
    }

    pub(crate) async fn fetch(
        nodes: &dyn NodeSource,
        ptr: NodePtr,
        why: Purpose,
    ) -> Result<InnerNode, TableError> {
        InnerNode::new(fetch(nodes, ptr, why).await?, ptr)
    }
}

impl Deref for LeafNode {
    type Target = LeafView;

    fn deref(&self) -> &LeafView {
        self.0.as_leaf().expect("was a leaf when it was wrapped")
    }
}

impl Deref for InnerNode {
    type Target = InnerView;

    fn deref(&self) -> &InnerView {
        self.0.as_inner().expect("was an inner node when it was wrapped")
    }
}

async fn fetch(
    nodes: &dyn NodeSource,
    ptr: NodePtr,
    why: Purpose,
) -> Result<Arc<Node>, TableError> {
    match nodes.cached(&ptr) {
        Some(node) => Ok(node),
        None => nodes.read(ptr, why).await,
    }
}
