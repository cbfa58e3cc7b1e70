//! Merging frozen edits and all layers into a base: the touched leaves are written anew, the others
//! kept.
//!
//! Leaves are taken in key order and read ahead. A leaf that edits really change opens a *stretch*,
//! whose items flow with the edits through a [`Packer`] into new leaves; a leaf that nothing
//! changes closes it and is kept by its pointer. At its edges a stretch takes in a neighbour when
//! both then make one leaf that is not nearly full. Last, the inner nodes: one, or several if the
//! partition has grown too large.
//!
//! MERGE-M1  A leaf is either kept or replaced, with all its items; so the new base is the old one
//!           plus the edits.
//! MERGE-M2  Existing nodes are not changed: until the result is installed, the old base is valid.

use copyhold_format::node::{Child, LayerDescriptor, LeafBuilder, NodeOrigin, encode_inner};
use copyhold_types::{BLOCK_BYTES, Buf, Key, NodePtr, Purpose};

use crate::edits::Edits;
use crate::flush::FlushJob;
use crate::packer::Packer;
use crate::read_ahead::{ReadAhead, give_way};
use crate::settled::Base;
use crate::source::{InnerNode, LeafNode};
use crate::{Edit, NodeSink, NodeSource, TableError};

/// The result of a merge or spill. It has no effect before it is installed.
#[must_use]
#[derive(Debug)]
pub struct Flushed {
    /// The partition, or its parts after a split, in the order of keys.
    pub parts: Vec<Part>,
    /// The layers over it, the newest first; over a part of several none.
    pub layers: Vec<LayerDescriptor>,
    /// Nodes that base and layers do not have any more; to be released.
    pub replaced: Vec<NodePtr>,
    /// Nodes that they did not have before.
    pub written: Vec<NodePtr>,
    /// Leaves that were read.
    pub leaves_read: usize,
}

/// The new base of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub start: Key,
    pub root: Option<NodePtr>,
    pub height: u8,
    pub items: u64,
}

impl Part {
    pub(crate) fn base(&self) -> Base {
        Base { root: self.root, height: self.height, items: self.items }
    }
}

impl FlushJob {
    /// Merges edits and layers into the base, for [`crate::Table::install`].
    ///
    /// # Errors
    /// [`TableError::Partition`], when a node cannot be read or written. Then the job is to be
    /// aborted, and the nodes in the sink are not needed.
    pub async fn merge(
        &self,
        nodes: &dyn NodeSource,
        sink: &mut dyn NodeSink,
    ) -> Result<Flushed, TableError> {
        let merged = async {
            let layers = &self.settled.layers;
            let ahead = self.limits.read_ahead;
            let merge = Merge {
                job: self,
                nodes,
                sink,
                edits: Edits::new(nodes, &self.frozen, layers, ahead).await?,
                packer: Packer::new(self.limits.leaf_bytes),
                out: Vec::new(),
                replaced: Vec::new(),
                written: Vec::new(),
                leaves_read: 0,
                scratch: Vec::new(),
            };
            merge.run().await
        };
        merged.await.map_err(|error| self.failed(error))
    }

    pub(crate) fn failed(&self, error: TableError) -> TableError {
        TableError::Partition { table: self.table, start: self.start, source: Box::new(error) }
    }

    /// The leaves of the old base.
    pub(crate) async fn children(&self, nodes: &dyn NodeSource) -> Result<Vec<Child>, TableError> {
        let Base { root, height, items } = self.settled.base;
        let Some(root) = root else { return Ok(Vec::new()) };
        if height == 0 {
            let items = u32::try_from(items).unwrap_or(u32::MAX);
            return Ok(vec![Child { first: self.start, ptr: root, items }]);
        }
        let children: Vec<Child> =
            InnerNode::fetch(nodes, root, Purpose::Inner).await?.iter().collect();
        match children.get(1) {
            Some(second) if second.first <= self.start => Err(TableError::Descriptors {
                table: self.table,
                why: format!("the one that starts at {} has keys before that", self.start),
            }),
            _ => Ok(children),
        }
    }

    /// Whether two leaves make one that is not nearly full.
    fn fit_together(&self, a: usize, b: usize) -> bool {
        a + b <= self.limits.leaf_bytes / 3 * 2
    }

    pub(crate) fn origin(&self) -> NodeOrigin {
        NodeOrigin { table: self.table, birth: self.birth }
    }
}

struct Merge<'a> {
    job: &'a FlushJob,
    nodes: &'a dyn NodeSource,
    sink: &'a mut dyn NodeSink,
    edits: Edits<'a>,
    packer: Packer,
    /// The new leaves in order.
    out: Vec<Leaf>,
    replaced: Vec<NodePtr>,
    written: Vec<NodePtr>,
    leaves_read: usize,
    scratch: Vec<u8>,
}

struct Leaf {
    child: Child,
    /// Of one that is kept, where its keys end.
    kept: Option<Option<Key>>,
}

/// A leaf of the old base, where the keys that belong in it end, and whether it is read ahead.
struct OldLeaf {
    child: Child,
    from: Key,
    to: Option<Key>,
    ahead: bool,
}

impl Merge<'_> {
    async fn run(mut self) -> Result<Flushed, TableError> {
        let places = self.plan().await?;
        let wanted = places.iter().filter(|place| place.ahead).map(|place| place.child.ptr);
        let window = self.job.limits.read_ahead;
        let mut leaves = ReadAhead::new(self.nodes, Purpose::Leaf, window, wanted);
        if places.is_empty() {
            self.feed_edits(None).await?;
        }
        for place in &places {
            let leaf = if place.ahead {
                let (ptr, leaf) = leaves.next().await.expect("the leaf was asked for");
                Some(self.own(place, LeafNode::new(leaf?, ptr)?)?)
            } else if self.edits.peek_before(place.to).is_some() || self.joins(&place.child.ptr) {
                let leaf = LeafNode::fetch(self.nodes, place.child.ptr, Purpose::Leaf).await?;
                Some(self.own(place, leaf)?)
            } else {
                None
            };
            self.leaves_read += usize::from(leaf.is_some());
            match leaf {
                Some(leaf) if self.is_rewritten(&leaf, place).await? => {
                    self.feed(&leaf, place.to).await?;
                    self.replaced.push(place.child.ptr);
                    give_way().await;
                }
                _ => {
                    self.close_stretch(false).await?;
                    let to = place.to.or(self.job.end);
                    self.out.push(Leaf { child: place.child, kept: Some(to) });
                }
            }
        }
        self.close_stretch(true).await?;
        self.finish().await
    }

    /// The leaf, if its keys belong there.
    fn own(&self, place: &OldLeaf, leaf: LeafNode) -> Result<LeafNode, TableError> {
        leaf.within(place.child.ptr, place.from, place.to.or(self.job.end))
    }

    async fn plan(&mut self) -> Result<Vec<OldLeaf>, TableError> {
        let children = self.job.children(self.nodes).await?;
        let mut from = self.job.start;
        let mut places = Vec::with_capacity(children.len());
        for (n, child) in children.iter().enumerate() {
            let to = children.get(n + 1).map(|next| next.first);
            let ahead = self.edits.are_likely_in(&self.job.frozen, from, to);
            places.push(OldLeaf { child: *child, from, to, ahead });
            from = to.unwrap_or(from);
        }
        Ok(places)
    }

    /// Whether the stretch takes in the leaf that follows it.
    fn joins(&self, next: &NodePtr) -> bool {
        !self.packer.is_empty()
            && self.job.fit_together(self.packer.current_bytes(), bytes_of(next))
    }

    /// Whether edits change the leaf; those before the first that does are dropped.
    async fn is_rewritten(&mut self, leaf: &LeafNode, place: &OldLeaf) -> Result<bool, TableError> {
        while let Some((key, edit)) = self.edits.peek_before(place.to) {
            let changes = match (leaf.find(*key), edit) {
                (None, Edit::Delete) => false,
                (Some(at), Edit::Put(value)) => {
                    let old = leaf.value(&at);
                    old.len() != value.len() || old.to_vec() != value[..]
                }
                _ => true,
            };
            if changes {
                return Ok(true);
            }
            self.edits.next_before(place.to).await?;
        }
        Ok(self.joins(&place.child.ptr))
    }

    /// Sends a leaf's items and the edits among them, up to `to`, to the packer.
    async fn feed(&mut self, leaf: &LeafNode, to: Option<Key>) -> Result<(), TableError> {
        let mut at = Some(leaf.first());
        while let Some(place) = at {
            let key = leaf.key(&place);
            match self.edits.peek_before(to) {
                Some((edited, edit)) if *edited <= key => {
                    if *edited == key {
                        at = leaf.next(&place);
                    }
                    push_edit(&mut self.packer, *edited, edit);
                    self.edits.next_before(to).await?;
                }
                _ => {
                    let value = leaf.value(&place);
                    self.scratch.resize(value.len(), 0);
                    value.copy_to(&mut self.scratch);
                    self.packer.push(key, &self.scratch);
                    at = leaf.next(&place);
                }
            }
            if self.packer.has_full() {
                self.write_full().await?;
            }
        }
        self.feed_edits(to).await
    }

    /// Sends edits to the packer where the leaf has ended, or there is none.
    async fn feed_edits(&mut self, to: Option<Key>) -> Result<(), TableError> {
        while let Some((key, edit)) = self.edits.next_before(to).await? {
            push_edit(&mut self.packer, key, &edit);
            if self.packer.has_full() {
                self.write_full().await?;
                give_way().await;
            }
        }
        Ok(())
    }

    /// Ends a stretch: its last leaves are written.
    async fn close_stretch(&mut self, at_end: bool) -> Result<(), TableError> {
        self.join_left().await?;
        for leaf in self.packer.finish(at_end) {
            self.write_leaf(&leaf).await?;
        }
        Ok(())
    }

    /// Takes in the leaf before the stretch, if both then make one.
    async fn join_left(&mut self) -> Result<(), TableError> {
        let Some(Leaf { child, kept: Some(to) }) = self.out.last() else { return Ok(()) };
        let (ptr, first, to) = (child.ptr, child.first, *to);
        if !self.packer.is_only() || !self.joins(&ptr) {
            return Ok(());
        }
        let left = LeafNode::fetch(self.nodes, ptr, Purpose::Leaf).await?;
        let from = if self.out.len() == 1 { self.job.start } else { first };
        let left = left.within(ptr, from, to)?;
        self.leaves_read += 1;
        let right = self.packer.take_only().expect("it is the only one");
        for (key, value) in left.iter() {
            self.packer.push(key, &value.to_vec());
        }
        right.for_each(|key, value| self.packer.push(key, value));
        self.out.pop();
        self.replaced.push(ptr);
        Ok(())
    }

    async fn write_full(&mut self) -> Result<(), TableError> {
        for leaf in self.packer.take_full() {
            self.write_leaf(&leaf).await?;
        }
        Ok(())
    }

    async fn write_leaf(&mut self, leaf: &LeafBuilder) -> Result<(), TableError> {
        let ptr = self.write(Purpose::Leaf, leaf.finish(self.job.origin())).await?;
        let child = Child { first: leaf.first(), ptr, items: leaf.items() as u32 };
        self.out.push(Leaf { child, kept: None });
        Ok(())
    }

    async fn write(&mut self, why: Purpose, node: Buf) -> Result<NodePtr, TableError> {
        let ptr = self.sink.write(why, node).await?;
        self.written.push(ptr);
        Ok(ptr)
    }

    /// Inner nodes over the new leaves.
    async fn finish(mut self) -> Result<Flushed, TableError> {
        let Base { root, height, items } = self.job.settled.base;
        let start = self.job.start;
        let mut parts = Vec::new();
        if self.replaced.is_empty() && self.written.is_empty() {
            parts.push(Part { start, root, height, items });
        } else {
            if height > 0 {
                self.replaced.extend(root);
            }
            let leaves: Vec<Child> = self.out.iter().map(|leaf| leaf.child).collect();
            for (n, leaves) in self.split(&leaves).into_iter().enumerate() {
                let start = if n == 0 { start } else { leaves[0].first };
                parts.push(self.write_part(start, leaves).await?);
            }
        }
        let Merge { edits, mut replaced, written, leaves_read, .. } = self;
        replaced.extend(edits.layer_nodes());
        Ok(Flushed { parts, layers: Vec::new(), replaced, written, leaves_read })
    }

    /// The leaves of each part. Parts of a split are about three quarters full.
    fn split<'c>(&self, leaves: &'c [Child]) -> Vec<&'c [Child]> {
        let most = self.job.limits.partition_leaves;
        if leaves.len() <= most {
            return vec![leaves];
        }
        let parts = leaves.len().div_ceil((most * 3 / 4).max(1));
        let cut = |n: usize| leaves.len() * n / parts;
        (0..parts).map(|n| &leaves[cut(n)..cut(n + 1)]).collect()
    }

    async fn write_part(&mut self, start: Key, leaves: &[Child]) -> Result<Part, TableError> {
        let items = leaves.iter().map(|leaf| u64::from(leaf.items)).sum();
        let (root, height) = match leaves {
            [] => (None, 0),
            [leaf] => (Some(leaf.ptr), 0),
            _ => {
                let node = encode_inner(self.job.origin(), leaves);
                (Some(self.write(Purpose::Inner, node).await?), 1)
            }
        };
        Ok(Part { start, root, height, items })
    }
}

fn push_edit(packer: &mut Packer, key: Key, edit: &Edit) {
    if let Some(value) = edit.value() {
        packer.push(key, value);
    }
}

fn bytes_of(ptr: &NodePtr) -> usize {
    ptr.blocks as usize * BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;
    use std::sync::Arc;

    use copyhold_format::node::Level;
    use copyhold_types::{EpochId, Kind, TableId, Txg};

    use crate::cursor::Cursor;
    use crate::store::{Sink, Store, block_on};
    use crate::{Edit, FreezePoint, Limits, Table};

    use super::*;

    fn key(n: u64) -> Key {
        Key::new(7, Kind(1), n)
    }

    /// Leaves of three blocks, about 53 items each.
    struct Settled {
        table: Table,
        store: Arc<Store>,
    }

    impl Settled {
        fn new() -> Settled {
            let limits = Limits { leaf_bytes: 12 << 10, partition_leaves: 8, read_ahead: 2 };
            let settled = Settled { table: Table::new(TableId(1), limits), store: Arc::default() };
            settled.edit(0..200, Edit::put(vec![1; 200]));
            assert_eq!(settled.leaves().len(), 4);
            settled
        }

        /// First key and blocks of each leaf.
        fn leaves(&self) -> Vec<(u64, u32)> {
            let mut leaves = Vec::new();
            let mut reachable = BTreeSet::new();
            block_on(self.table.for_each_node(&*self.store, true, &mut |visit| {
                reachable.extend(visit.ptr.copies[0]);
                if visit.level == Level::Leaf {
                    let header = visit.node.unwrap().unwrap().header();
                    leaves.push((header.first.offset, visit.ptr.blocks));
                }
            }));
            assert_eq!(
                reachable,
                self.store.addresses(),
                "MERGE-M1: replaced is what is not there"
            );
            leaves
        }

        /// Makes one edit of each key, to be flushed.
        fn job(&self, keys: Range<u64>, edit: &Edit) -> FlushJob {
            keys.for_each(|n| self.table.apply(Txg::FIRST, key(n), edit.clone()));
            let birth = Txg::FIRST.next();
            let point =
                FreezePoint { complete_to: Txg::FIRST, birth, own: EpochId::POOL, edits_max: 1000 };
            self.table.freeze(Key::MIN, point).unwrap()
        }

        /// Makes one edit of each key and flushes.
        fn edit(&self, keys: Range<u64>, edit: Edit) {
            let job = self.job(keys, &edit);
            let flushed = block_on(job.merge(&*self.store, &mut Sink::new(&self.store))).unwrap();
            flushed.replaced.iter().for_each(|ptr| self.store.free(ptr));
            self.table.install(job, flushed);
        }

        fn items(&self) -> Vec<u64> {
            let all = block_on(self.table.range(&*self.store, Key::MIN..Key::MAX, 1000)).unwrap();
            all.into_iter().map(|(key, _)| key.offset).collect()
        }
    }

    #[test]
    fn leaves_that_shrink_join_the_one_before_or_behind() {
        let settled = Settled::new();
        let [first, second, third, fourth] = settled.leaves()[..] else { unreachable!() };
        assert_eq!((first.1, second.1, third.1), (3, 3, 3));
        settled.edit(second.0 + 5..third.0, Edit::Delete);
        assert_eq!(settled.leaves(), [first, (second.0, 1), third, fourth], "neighbours are full");
        settled.edit(third.0 + 5..fourth.0, Edit::Delete);
        assert_eq!(settled.leaves(), [first, (second.0, 1), fourth], "joins the one before");
        settled.edit(first.0 + 5..second.0, Edit::Delete);
        assert_eq!(settled.leaves(), [(0, 1), fourth], "joins the one behind");
        let kept = |n| [first.0, second.0, third.0].map(|from| from + n);
        let mut expect: Vec<u64> = (0..5).flat_map(kept).chain(fourth.0..200).collect();
        expect.sort();
        assert_eq!(settled.items(), expect);
    }

    /// An image that was made by hand can have any leaf in any place, with right digests.
    #[test]
    fn a_leaf_in_the_place_of_another_is_damage() {
        let settled = Settled::new();
        let store = &settled.store;
        let mut job = settled.job(0..200, &Edit::put(vec![2; 200]));
        let mut children = block_on(job.children(&**store)).unwrap();
        let (one, other) = (children[1].ptr, children[2].ptr);
        (children[1].ptr, children[2].ptr) = (other, one);
        let inner = encode_inner(job.origin(), &children);
        let root = block_on(Sink::new(store).write(Purpose::Inner, inner)).unwrap();
        job.settled.base.root = Some(root);
        let merged = block_on(job.merge(&**store, &mut Sink::new(store)));
        assert_eq!(merged.unwrap_err().node(), Some(other));
        let tree = job.settled.base.tree();
        for read_ahead in [0, 2] {
            let walked = block_on(async {
                let walk = Cursor::upwards(&**store, tree, Key::MIN, Key::MAX, read_ahead);
                let mut cursor = walk.await?;
                while cursor.key().is_some() {
                    cursor.advance().await?;
                }
                Ok(())
            });
            assert!(matches!(walked, Err(TableError::Keys { ptr, .. }) if ptr == other));
        }
    }

    #[test]
    fn a_neighbour_that_is_rather_full_is_left_alone() {
        let settled = Settled::new();
        let [first, second, third, fourth] = settled.leaves()[..] else { unreachable!() };
        settled.edit(second.0 + 5..third.0, Edit::Delete);
        settled.edit(third.0 + 25..fourth.0, Edit::Delete);
        assert_eq!(settled.leaves(), [first, (second.0, 1), (third.0, 2), fourth]);
        settled.edit(0..1, Edit::put(vec![2; 10]));
        assert_eq!(settled.leaves().len(), 4);
    }
}
