//! Visiting everything, for `check` and the debug views.

use std::ops::Range;

use copyhold_format::node::{Level, Node};
use copyhold_types::{Key, NodePtr};

use crate::read_ahead::ReadAhead;
use crate::source::InnerNode;
use crate::table::Table;
use crate::{NodeSource, TableError};

/// Items that are gathered at a time.
const ITEMS_AT_ONCE: usize = 1024;

/// One node of a base.
#[derive(Debug)]
pub struct NodeVisit<'a> {
    /// Where its partition starts.
    pub partition: Key,
    pub ptr: NodePtr,
    pub level: Level,
    /// `None`: a leaf, and leaves are not read.
    pub node: Option<Result<&'a Node, &'a TableError>>,
}

impl Table {
    /// Visits every node that a base refers to, once, parents before children; each partition's are
    /// of one moment. Leaves are read only if `read_leaves`. A node that cannot be read is visited
    /// with its error, and the walk goes on.
    pub async fn for_each_node(
        &self,
        nodes: &dyn NodeSource,
        read_leaves: bool,
        visit: &mut (dyn FnMut(NodeVisit<'_>) + Send),
    ) {
        for (_, descriptor) in self.descriptors() {
            let Some(root) = descriptor.root else { continue };
            let partition = descriptor.start;
            let mut leaves = vec![root];
            if descriptor.height > 0 {
                leaves.clear();
                let read = match nodes.cached(&root) {
                    Some(node) => Ok(node),
                    None => nodes.read(root, Level::Inner).await,
                };
                let inner = read.clone().and_then(|node| InnerNode::new(node, root));
                let node = match (&inner, &read) {
                    (Ok(_), Ok(node)) => Ok(&**node),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                };
                visit(NodeVisit { partition, ptr: root, level: Level::Inner, node: Some(node) });
                if let Ok(inner) = &inner {
                    leaves.extend(inner.iter().map(|child| child.ptr));
                }
            }
            if !read_leaves {
                for ptr in leaves {
                    visit(NodeVisit { partition, ptr, level: Level::Leaf, node: None });
                }
                continue;
            }
            let mut leaves = ReadAhead::new(nodes, self.limits().read_ahead, leaves.into_iter());
            while let Some((ptr, read)) = leaves.next().await {
                let node = Some(read.as_ref().map(|node| &**node));
                visit(NodeVisit { partition, ptr, level: Level::Leaf, node });
            }
        }
    }

    /// Visits the items in `range` in order, edits over bases; consistent as a
    /// [range](Table::range) is.
    ///
    /// # Errors
    /// The first node that cannot be read.
    pub async fn for_each_item(
        &self,
        nodes: &dyn NodeSource,
        range: Range<Key>,
        visit: &mut (dyn FnMut(Key, &[u8]) + Send),
    ) -> Result<(), TableError> {
        let mut from = range.start;
        loop {
            let items = self.range(nodes, from..range.end, ITEMS_AT_ONCE).await?;
            items.iter().for_each(|(key, value)| visit(*key, value));
            match items.last().and_then(|(key, _)| key.successor()) {
                Some(next) if items.len() == ITEMS_AT_ONCE => from = next,
                _ => return Ok(()),
            }
        }
    }
}
