//! A partition's trees on disk: a base, and the layers that lie over it.
//!
//! A layer is a sorted run of edits. It is written where a base cannot be read, or is too large for
//! the few edits at hand to be merged into it, and is a tree like a base: the same nodes, the same
//! cursor. A lookup goes down from the newest layer and stops where it finds the key, so it reads
//! nothing below that.
//!
//! LAYERS-L1  The newest layer comes first. Its edit of a key counts, then the next, last the
//!            base.
//! LAYERS-L2  A layer has edits of its partition's keys only, at least one.
//! LAYERS-L3  A table that is a snapshot *inherits* layers. All other snapshots of the same table
//!            have these, too, and each would copy the same leaves to merge them. So inherited
//!            edits make no merge due: those of the table itself do. At most as many edits as the
//!            base has items count as inherited, so layers do not grow without bound from snapshot
//!            to snapshot.

use std::ops::Deref;
use std::sync::Arc;

use copyhold_format::node::{
    LAYERS_MAX, LayerDescriptor, LeafPosition, Level, ValueRef, parse_edit,
};
use copyhold_types::{EpochId, Key, NodePtr, Purpose};

use crate::source::{InnerNode, LeafNode};
use crate::table::Cached;
use crate::{NodeSource, TableError, Value};

/// A table with so many leaves fewer to its snapshots, which then have places for their own.
pub const LAYERS_HANDED: usize = LAYERS_MAX - 3;

/// The subtree of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) root: Option<NodePtr>,
    pub(crate) height: u8,
    pub(crate) items: u64,
}

/// The layers of a partition, shared with its readers (LAYERS-L1).
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers(Option<Arc<[LayerDescriptor]>>);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settled {
    pub(crate) base: Base,
    pub(crate) layers: Layers,
    /// LAYERS-L3; since a mount it may be unknown.
    pub(crate) inherited: Inherited,
}

/// How many edits of the layers, from the oldest on, are inherited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inherited {
    Known(u64),
    /// The layers with nodes that other tables may have.
    Unknown,
}

/// How a table is related to the one under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Descent {
    /// It is the same subvolume's.
    #[default]
    Continues,
    Snapshot,
    /// One of both: a mount does not know.
    Recovered,
}

impl Default for Inherited {
    fn default() -> Inherited {
        Inherited::Known(0)
    }
}

/// A base or a layer: at most two levels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    pub(crate) root: Option<NodePtr>,
    pub(crate) height: u8,
    pub(crate) is_layer: bool,
}

impl Base {
    pub(crate) fn tree(&self) -> Tree {
        Tree { root: self.root, height: self.height, is_layer: false }
    }
}

impl From<Vec<LayerDescriptor>> for Layers {
    fn from(layers: Vec<LayerDescriptor>) -> Layers {
        Layers((!layers.is_empty()).then(|| layers.into()))
    }
}

impl Deref for Layers {
    type Target = [LayerDescriptor];

    fn deref(&self) -> &[LayerDescriptor] {
        self.0.as_deref().unwrap_or(&[])
    }
}

impl Layers {
    pub(crate) fn edits(&self) -> u64 {
        self.iter().map(|layer| layer.items).sum()
    }
}

impl Settled {
    pub(crate) fn is_empty(&self) -> bool {
        self.base.root.is_none() && self.layers.is_empty()
    }

    /// How many edits of the layers are inherited (LAYERS-L3). `own`: nodes of this epoch and newer
    /// ones are this table's alone.
    pub(crate) fn inherited(&self, own: EpochId) -> u64 {
        let edits = match self.inherited {
            Inherited::Known(edits) => edits.min(self.layers.edits()),
            Inherited::Unknown => {
                let others = self.layers.iter().filter(|layer| layer.root.epoch < own);
                others.map(|layer| layer.items).sum()
            }
        };
        edits.min(self.base.items)
    }

    /// As a table over this one has it that is related to it so.
    pub(crate) fn for_child(&self, descent: Descent) -> Settled {
        let inherited = match descent {
            Descent::Continues => self.inherited,
            Descent::Snapshot => Inherited::Known(self.layers.edits()),
            Descent::Recovered => Inherited::Unknown,
        };
        Settled { inherited, ..self.clone() }
    }

    pub(crate) async fn get(
        &self,
        nodes: &dyn NodeSource,
        key: Key,
    ) -> Result<Option<Value>, TableError> {
        for layer in self.layers.iter() {
            if let Some(found) = Tree::of(layer).find(nodes, key).await? {
                return found.edit();
            }
        }
        let found = self.base.tree().find(nodes, key).await?;
        Ok(found.map(|found| Value::from(found.leaf.value(&found.place))))
    }

    /// As [`Self::get`], as far as no node has to be read. Errors of nodes are left to `get`.
    pub(crate) fn get_cached(&self, nodes: &dyn NodeSource, key: Key) -> Cached<Option<Value>> {
        for layer in self.layers.iter() {
            match Tree::of(layer).find_cached(nodes, key) {
                Step::Found(found) => return found.edit().map_or(Cached::Unknown, Cached::Known),
                Step::Absent => {}
                Step::Missing(..) => return Cached::Unknown,
            }
        }
        match self.base.tree().find_cached(nodes, key) {
            Step::Found(found) => Cached::Known(Some(Value::from(found.leaf.value(&found.place)))),
            Step::Absent => Cached::Known(None),
            Step::Missing(..) => Cached::Unknown,
        }
    }

    /// The first node that [`Self::get`] has to read.
    pub(crate) fn missing(&self, nodes: &dyn NodeSource, key: Key) -> Option<(NodePtr, Purpose)> {
        let layers = self.layers.iter().map(Tree::of);
        for tree in layers.chain([self.base.tree()]) {
            match tree.find_cached(nodes, key) {
                Step::Found(_) => return None,
                Step::Absent => {}
                Step::Missing(ptr, why) => return Some((ptr, why)),
            }
        }
        None
    }
}

/// How far a look-up in a tree comes without waiting.
enum Step {
    Found(Located),
    Absent,
    /// It has to read this node.
    Missing(NodePtr, Purpose),
}

/// An item where it is.
struct Located {
    ptr: NodePtr,
    leaf: LeafNode,
    place: LeafPosition,
}

impl Located {
    /// In a layer: the value that is put, if the key is not deleted.
    fn edit(&self) -> Result<Option<Value>, TableError> {
        let put = edit_of(self.leaf.value(&self.place), self.ptr)?;
        Ok(put.map(Value::from))
    }
}

impl Tree {
    pub(crate) fn of(layer: &LayerDescriptor) -> Tree {
        Tree { root: Some(layer.root), height: layer.height, is_layer: true }
    }

    /// The purpose with which requests for a node of the tree are counted.
    pub(crate) fn purpose(self, level: Level) -> Purpose {
        if self.is_layer { Purpose::Layer } else { level.purpose() }
    }

    async fn find(self, nodes: &dyn NodeSource, key: Key) -> Result<Option<Located>, TableError> {
        let Some(root) = self.root else { return Ok(None) };
        let ptr = if self.height == 0 {
            root
        } else {
            let inner = InnerNode::fetch(nodes, root, self.purpose(Level::Inner)).await?;
            match inner.find(key) {
                Some(child) => inner.child(child).ptr,
                None => return Ok(None),
            }
        };
        let leaf = LeafNode::fetch(nodes, ptr, self.purpose(Level::Leaf)).await?;
        Ok(leaf.find(key).map(|place| Located { ptr, leaf, place }))
    }

    fn find_cached(self, nodes: &dyn NodeSource, key: Key) -> Step {
        let Some(root) = self.root else { return Step::Absent };
        let ptr = if self.height == 0 {
            root
        } else {
            let node = nodes.cached(&root);
            let Some(inner) = node.as_ref().and_then(|node| node.as_inner()) else {
                return Step::Missing(root, self.purpose(Level::Inner));
            };
            match inner.find(key) {
                Some(child) => inner.child(child).ptr,
                None => return Step::Absent,
            }
        };
        match nodes.cached(&ptr).and_then(|node| LeafNode::new(node, ptr).ok()) {
            Some(leaf) => match leaf.find(key) {
                Some(place) => Step::Found(Located { ptr, leaf, place }),
                None => Step::Absent,
            },
            None => Step::Missing(ptr, self.purpose(Level::Leaf)),
        }
    }
}

/// The edit that a value in a layer encodes: a put value, or a deletion.
pub(crate) fn edit_of(
    value: ValueRef<'_>,
    ptr: NodePtr,
) -> Result<Option<ValueRef<'_>>, TableError> {
    parse_edit(value).map_err(|source| TableError::Damaged { ptr, source })
}
