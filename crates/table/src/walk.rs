//! Visiting all nodes, for `check` and the debug views.

use copyhold_format::node::{Level, Node};
use copyhold_types::{Key, NodePtr};

use crate::read_ahead::ReadAhead;
use crate::settled::Tree;
use crate::source::InnerNode;
use crate::table::Table;
use crate::{NodeSource, TableError};

/// One node of a base or layer.
#[derive(Debug)]
pub struct NodeVisit<'a> {
    /// Where its partition starts.
    pub partition: Key,
    /// The layer that it is of, 0 for the newest; `None`: of the base.
    pub layer: Option<usize>,
    pub ptr: NodePtr,
    pub level: Level,
    /// `None`: a leaf, and leaves are not read.
    pub node: Option<Result<&'a Node, &'a TableError>>,
}

impl Table {
    /// Visits every node that a base or layer refers to, once, parents before children; each
    /// partition's are of one moment. Leaves are read only if `read_leaves`. A node that cannot be
    /// read is visited with its error, and the walk continues.
    pub async fn for_each_node(
        &self,
        nodes: &dyn NodeSource,
        read_leaves: bool,
        visit: &mut (dyn FnMut(NodeVisit<'_>) + Send),
    ) {
        for (_, descriptor) in self.descriptors() {
            let layers = descriptor.layers.iter().enumerate();
            let layers = layers.map(|(n, layer)| (Some(n), Tree::of(layer)));
            let base = Tree { root: descriptor.root, height: descriptor.height, is_layer: false };
            for (layer, tree) in layers.chain([(None, base)]) {
                let walk = Walk { nodes, partition: descriptor.start, layer, tree };
                walk.run(self.limits().read_ahead, read_leaves, visit).await;
            }
        }
    }
}

/// Of one tree.
struct Walk<'n> {
    nodes: &'n dyn NodeSource,
    partition: Key,
    layer: Option<usize>,
    tree: Tree,
}

impl Walk<'_> {
    async fn run(
        &self,
        read_ahead: usize,
        read_leaves: bool,
        visit: &mut (dyn FnMut(NodeVisit<'_>) + Send),
    ) {
        let Some(root) = self.tree.root else { return };
        let mut leaves = vec![root];
        if self.tree.height > 0 {
            leaves.clear();
            let read = match self.nodes.cached(&root) {
                Some(node) => Ok(node),
                None => self.nodes.read(root, self.tree.purpose(Level::Inner)).await,
            };
            let inner = read.clone().and_then(|node| InnerNode::new(node, root));
            let node = match (&inner, &read) {
                (Ok(_), Ok(node)) => Ok(&**node),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
            visit(self.visit(root, Level::Inner, Some(node)));
            if let Ok(inner) = &inner {
                leaves.extend(inner.iter().map(|child| child.ptr));
            }
        }
        if !read_leaves {
            leaves.into_iter().for_each(|ptr| visit(self.visit(ptr, Level::Leaf, None)));
            return;
        }
        let why = self.tree.purpose(Level::Leaf);
        let mut leaves = ReadAhead::new(self.nodes, why, read_ahead, leaves.into_iter());
        while let Some((ptr, read)) = leaves.next().await {
            let node = Some(read.as_ref().map(|node| &**node));
            visit(self.visit(ptr, Level::Leaf, node));
        }
    }

    fn visit<'a>(
        &self,
        ptr: NodePtr,
        level: Level,
        node: Option<Result<&'a Node, &'a TableError>>,
    ) -> NodeVisit<'a> {
        NodeVisit { partition: self.partition, layer: self.layer, ptr, level, node }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use copyhold_types::{EpochId, Kind, TableId, Txg};

    use super::*;
    use crate::store::{Sink, Store, block_on};
    use crate::{Edit, FreezePoint, Limits};

    #[test]
    fn a_walk_tells_what_it_cannot_read_and_goes_on() {
        let limits = Limits { leaf_bytes: 4096, partition_leaves: 4, read_ahead: 2 };
        let (table, store) = (Table::new(TableId(1), limits), Arc::<Store>::default());
        for n in 0..200 {
            table.apply(Txg::FIRST, Key::new(7, Kind(1), n), Edit::put(vec![1; 200]));
        }
        let birth = Txg::FIRST.next();
        let point =
            FreezePoint { complete_to: Txg::FIRST, birth, own: EpochId::POOL, edits_max: 1000 };
        let job = table.freeze(Key::MIN, point).unwrap();
        let flushed = block_on(job.merge(&*store, &mut Sink::new(&store))).unwrap();
        let written = flushed.written.len();
        table.install(job, flushed);

        let visits = |read_leaves| {
            let (mut nodes, mut errors) = (0, 0);
            let mut visit = |visit: NodeVisit<'_>| {
                nodes += 1;
                errors += usize::from(matches!(visit.node, Some(Err(_))));
            };
            let walk = table.for_each_node(&*store, read_leaves, &mut visit);
            fn can_move_between_threads<T: Send>(future: T) -> T {
                future
            }
            block_on(can_move_between_threads(walk));
            (nodes, errors)
        };
        assert_eq!(visits(true), (written, 0));
        assert_eq!(visits(false), (written, 0));
        store.set_slow(2);
        store.set_failing(true);
        let (nodes, errors) = visits(true);
        assert!(errors > 0 && nodes > errors && nodes <= written);
        let mut nothing = |_: Key, _: &[u8]| {};
        let walk = table.for_each_item(&*store, Key::MIN..Key::MAX, &mut nothing);
        let walk: std::pin::Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(walk);
        assert!(block_on(walk).is_err());
    }
}
