//! Nodes in fragments: the pieces behind a node pointer.
//!
//! A node for which free space has no run lies in fragments, and its pointer names a list of them
//! (`format::node::fragments`). Code that counts, frees or hands on the blocks of a pointer uses
//! its *pieces*: pointers of the same epoch, each to one run. So no layer above knows fragments.
//!
//! FRAGMENT-P1  A node is replaced or freed only when its pieces are known: else its fragments
//!              would stay allocated for ever, because of an error that may pass. A flush takes
//!              its nodes from [`Listed`], where a node whose list cannot be read is one that
//!              cannot be read. A map is replaced unread, so the pieces of those in use are kept
//!              in memory (`NodeStore`).

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_format::node::{Node, pieces_of};
use copyhold_sync::{Mutex, of};
use copyhold_table::{NodeFuture, NodeSource, Table, TableError};
use copyhold_types::{NodePtr, Purpose};

use crate::nodes::{NodeStore, NodesOf};
use crate::{Pool, Sabotage};

/// The pieces of fragmented nodes.
pub(crate) type Pieces = BTreeMap<NodePtr, Vec<NodePtr>>;

/// Returns a fragmented node only together with its pieces, which it remembers.
pub(crate) struct Listed<'a> {
    nodes: &'a NodeStore,
    of: NodesOf<'a>,
    /// [`Sabotage::ForgetFragments`].
    forgets: bool,
    pieces: Mutex<Pieces, of::FlushPieces>,
}

impl<'a> Listed<'a> {
    pub(crate) fn new(pool: &'a Pool, table: &'a Table) -> Listed<'a> {
        let forgets = pool.sabotaged(Sabotage::ForgetFragments);
        let (nodes, of) = (&pool.nodes, pool.nodes.of(table));
        Listed { nodes, of, forgets, pieces: Mutex::default() }
    }

    /// The pieces of all fragmented nodes that it has returned.
    pub(crate) fn pieces(self) -> Pieces {
        self.pieces.into_inner()
    }

    fn knows(&self, ptr: &NodePtr) -> bool {
        !ptr.fragmented || self.pieces.lock().contains_key(ptr)
    }
}

impl NodeSource for Listed<'_> {
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.knows(ptr).then(|| self.nodes.cached(ptr)).flatten()
    }

    fn read(&self, ptr: NodePtr, why: Purpose) -> NodeFuture<'_, Arc<Node>> {
        Box::pin(async move {
            if !self.knows(&ptr) {
                let unreadable = |error| TableError::Unreadable { ptr, source: Arc::new(error) };
                let pieces = match self.nodes.pieces(ptr).await {
                    Err(_) if self.forgets => pieces_of(&ptr, &[]),
                    pieces => pieces.map_err(unreadable)?,
                };
                self.pieces.lock().insert(ptr, pieces);
            }
            match self.nodes.cached(&ptr) {
                Some(node) => Ok(node),
                None => self.of.read(ptr, why).await,
            }
        })
    }
}

/// The pointers, each fragmented one replaced by its pieces.
pub(crate) fn expand(nodes: &[NodePtr], pieces: &Pieces) -> Vec<NodePtr> {
    let of = |ptr: &NodePtr| match pieces.get(ptr) {
        Some(pieces) => pieces.clone(),
        None => {
            assert!(!ptr.fragmented, "FRAGMENT-P1: the pieces of {ptr:?} are unknown");
            vec![*ptr]
        }
    };
    nodes.iter().flat_map(of).collect()
}
