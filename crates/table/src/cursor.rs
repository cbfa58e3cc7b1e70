//! Walking a tree in either direction; a node is read only when its items are needed.
//!
//! A base or layer is at most two levels high: a leaf, or one inner node over leaves.

use copyhold_format::node::{LeafPosition, Level, ValueRef};
use copyhold_types::{Key, NodePtr};

use crate::read_ahead::ReadAhead;
use crate::settled::{Tree, edit_of};
use crate::source::{InnerNode, LeafNode};
use crate::{NodeSource, TableError};

/// Which leaves are read.
pub(crate) type Wants<'a> = dyn Fn(&NodePtr) -> bool + Send + Sync + 'a;

/// Every leaf is.
pub(crate) const ALL: &Wants<'static> = &|_| true;

/// The items of a tree in [from, to), upwards or downwards.
pub(crate) struct Cursor<'n> {
    nodes: &'n dyn NodeSource,
    tree: Tree,
    /// The others are passed over, upwards.
    wants: &'n Wants<'n>,
    from: Key,
    to: Key,
    downwards: bool,
    inner: Option<InnerNode>,
    /// Of `inner`, the child in which `leaf` is.
    child: usize,
    at: Option<(LeafNode, LeafPosition)>,
    /// The leaves behind, if they are read ahead.
    ahead: Option<ReadAhead<'n>>,
}

impl<'n> Cursor<'n> {
    fn new(
        nodes: &'n dyn NodeSource,
        tree: Tree,
        from: Key,
        to: Key,
        downwards: bool,
    ) -> Cursor<'n> {
        let (inner, child, at, ahead) = (None, 0, None, None);
        Cursor { nodes, tree, wants: ALL, from, to, downwards, inner, child, at, ahead }
    }

    /// Over no tree.
    pub(crate) fn nothing(nodes: &'n dyn NodeSource) -> Cursor<'n> {
        let tree = Tree { root: None, height: 0, is_layer: false };
        Cursor::new(nodes, tree, Key::MIN, Key::MIN, false)
    }

    /// Begins at the first item of `tree` at or above `from`; goes up, and reads `read_ahead`
    /// leaves beyond its own.
    pub(crate) async fn upwards(
        nodes: &'n dyn NodeSource,
        tree: Tree,
        from: Key,
        to: Key,
        read_ahead: usize,
    ) -> Result<Cursor<'n>, TableError> {
        Cursor::partly(nodes, tree, ALL, from, to, read_ahead).await
    }

    /// As [`Self::upwards`], over the leaves that are wanted.
    pub(crate) async fn partly(
        nodes: &'n dyn NodeSource,
        tree: Tree,
        wants: &'n Wants<'n>,
        from: Key,
        to: Key,
        read_ahead: usize,
    ) -> Result<Cursor<'n>, TableError> {
        let mut cursor = Cursor { wants, ..Cursor::new(nodes, tree, from, to, false) };
        let is_leaf = |root: &NodePtr| tree.height == 0 && !wants(root);
        if from >= to || tree.root.as_ref().is_some_and(is_leaf) {
            return Ok(cursor);
        }
        let leaf = match cursor.open().await? {
            Opened::Nothing => return Ok(cursor),
            Opened::Leaf(leaf) => leaf,
            Opened::Inner(inner) if inner.child(0).first >= to => return Ok(cursor),
            Opened::Inner(inner) => {
                let first = inner.find(from).unwrap_or(0);
                let Some(first) = cursor.wanted_from(&inner, first) else { return Ok(cursor) };
                cursor.child = first;
                if read_ahead > 0 {
                    let behind = inner.iter().skip(cursor.child + 1);
                    let wanted = behind.take_while(|child| child.first < to).map(|child| child.ptr);
                    let wanted = wanted.filter(wants);
                    cursor.ahead =
                        Some(ReadAhead::new(nodes, tree.purpose(Level::Leaf), read_ahead, wanted));
                }
                cursor.leaf_of(&inner).await?
            }
        };
        match leaf.lower_bound(from) {
            Some(place) => cursor.at = Some((leaf, place)),
            None => cursor.next_leaf().await?,
        }
        Ok(cursor)
    }

    /// Begins at the last item of `tree` below `to`; goes down.
    pub(crate) async fn downwards(
        nodes: &'n dyn NodeSource,
        tree: Tree,
        from: Key,
        to: Key,
    ) -> Result<Cursor<'n>, TableError> {
        let mut cursor = Cursor::new(nodes, tree, from, to, true);
        let leaf = match cursor.open().await? {
            Opened::Nothing => return Ok(cursor),
            Opened::Leaf(leaf) => leaf,
            Opened::Inner(inner) => {
                cursor.child = match inner.find(to) {
                    Some(child) if inner.child(child).first == to => match child.checked_sub(1) {
                        Some(before) => before,
                        None => return Ok(cursor),
                    },
                    Some(child) => child,
                    None => return Ok(cursor),
                };
                cursor.leaf_of(&inner).await?
            }
        };
        let place = match leaf.lower_bound(to) {
            Some(above) => leaf.previous(&above),
            None => Some(leaf.last()),
        };
        cursor.at = place.map(|place| (leaf, place));
        Ok(cursor)
    }

    /// The item under the cursor, unless it has left [from, to).
    pub(crate) fn key(&self) -> Option<Key> {
        let (leaf, place) = self.at.as_ref()?;
        let key = leaf.key(place);
        (self.from <= key && key < self.to).then_some(key)
    }

    /// The value under the cursor, where [`Self::key`] has one; `None`: the layer has a deletion
    /// of the key.
    pub(crate) fn edit(&self) -> Result<Option<ValueRef<'_>>, TableError> {
        let (leaf, place) = self.at.as_ref().expect("the cursor stands on an item");
        let value = leaf.value(place);
        if self.tree.is_layer { edit_of(value, self.leaf_ptr()) } else { Ok(Some(value)) }
    }

    fn leaf_ptr(&self) -> NodePtr {
        match &self.inner {
            Some(inner) => inner.child(self.child).ptr,
            None => self.tree.root.expect("a leaf is at hand"),
        }
    }

    /// Whether the tree is likely to have items in [from, to): a guess if the cached nodes do not
    /// show it.
    pub(crate) fn is_likely_in(&self, from: Key, to: Option<Key>) -> bool {
        let before_end = |key: Key| to.is_none_or(|to| key < to);
        match (&self.inner, &self.at) {
            (Some(inner), _) => {
                let behind = inner.find(from).map_or(0, |child| child + 1);
                let starts_there =
                    behind < inner.children() && before_end(inner.child(behind).first);
                starts_there || (0 < behind && behind < inner.children())
            }
            (None, Some((leaf, _))) => {
                leaf.lower_bound(from).is_some_and(|place| before_end(leaf.key(&place)))
            }
            (None, None) => false,
        }
    }

    /// The root, and the leaves below it.
    pub(crate) fn nodes(&self) -> Vec<NodePtr> {
        let leaves = self.inner.iter().flat_map(|inner| inner.iter().map(|child| child.ptr));
        self.tree.root.into_iter().chain(leaves).collect()
    }

    /// One item on. Does not read a leaf that cannot have items in the range.
    pub(crate) async fn advance(&mut self) -> Result<(), TableError> {
        let Some((leaf, place)) = &mut self.at else { return Ok(()) };
        let next = if self.downwards { leaf.previous(place) } else { leaf.next(place) };
        match next {
            Some(next) => *place = next,
            None => self.next_leaf().await?,
        }
        Ok(())
    }

    async fn next_leaf(&mut self) -> Result<(), TableError> {
        self.at = None;
        let Some(inner) = self.inner.clone() else { return Ok(()) };
        if self.downwards {
            if self.child == 0 || inner.child(self.child).first <= self.from {
                return Ok(());
            }
            self.child -= 1;
            let leaf = self.leaf_of(&inner).await?;
            let last = leaf.last();
            self.at = Some((leaf, last));
        } else {
            let Some(next) = self.wanted_from(&inner, self.child + 1) else { return Ok(()) };
            self.child = next;
            let leaf = match &mut self.ahead {
                Some(ahead) => {
                    let (ptr, leaf) = ahead.next().await.expect("every leaf was asked for");
                    inner.own(next, LeafNode::new(leaf?, ptr)?)?
                }
                None => self.leaf_of(&inner).await?,
            };
            let first = leaf.first();
            self.at = Some((leaf, first));
        }
        Ok(())
    }

    /// The first wanted child from the `n`th on that may have items in the range.
    fn wanted_from(&self, inner: &InnerNode, n: usize) -> Option<usize> {
        let behind = (n..inner.children()).map(|n| (n, inner.child(n)));
        // The `n`th itself may begin before the range.
        let mut inside = behind.take_while(|(_, child)| child.first < self.to);
        inside.find(|(_, child)| (self.wants)(&child.ptr)).map(|(n, _)| n)
    }

    async fn open(&mut self) -> Result<Opened, TableError> {
        let Some(root) = self.tree.root else { return Ok(Opened::Nothing) };
        if self.tree.height == 0 {
            let why = self.tree.purpose(Level::Leaf);
            return Ok(Opened::Leaf(LeafNode::fetch(self.nodes, root, why).await?));
        }
        let why = self.tree.purpose(Level::Inner);
        let inner = InnerNode::fetch(self.nodes, root, why).await?;
        self.inner = Some(inner.clone());
        Ok(Opened::Inner(inner))
    }

    async fn leaf_of(&mut self, inner: &InnerNode) -> Result<LeafNode, TableError> {
        let why = self.tree.purpose(Level::Leaf);
        let leaf = LeafNode::fetch(self.nodes, inner.child(self.child).ptr, why).await?;
        inner.own(self.child, leaf)
    }
}

enum Opened {
    Nothing,
    Leaf(LeafNode),
    Inner(InnerNode),
}
