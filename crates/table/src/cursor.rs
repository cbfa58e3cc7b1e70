//! Walking a base in either direction; a node is read only when its items are needed.
//!
//! A base is at most two levels high: a leaf, or one inner node over leaves.

use copyhold_format::node::{Place, ValueRef};
use copyhold_types::Key;

use crate::partition::Base;
use crate::read_ahead::ReadAhead;
use crate::source::{InnerNode, LeafNode};
use crate::{NodeSource, TableError};

/// The items of a base in [from, to), upwards or downwards.
pub(crate) struct Cursor<'n> {
    nodes: &'n dyn NodeSource,
    from: Key,
    to: Key,
    downwards: bool,
    inner: Option<InnerNode>,
    /// Of `inner`, the child in which `leaf` is.
    child: usize,
    at: Option<(LeafNode, Place)>,
    /// The leaves behind, if they are read ahead.
    ahead: Option<ReadAhead<'n>>,
}

impl<'n> Cursor<'n> {
    fn new(nodes: &'n dyn NodeSource, from: Key, to: Key, downwards: bool) -> Cursor<'n> {
        Cursor { nodes, from, to, downwards, inner: None, child: 0, at: None, ahead: None }
    }

    /// Stands on the first item of `base` at or above `from`; goes up, and reads `read_ahead`
    /// leaves beyond the one that it is in.
    pub(crate) async fn upwards(
        nodes: &'n dyn NodeSource,
        base: &Base,
        from: Key,
        to: Key,
        read_ahead: usize,
    ) -> Result<Cursor<'n>, TableError> {
        let mut cursor = Cursor::new(nodes, from, to, false);
        let leaf = match cursor.open(base).await? {
            Opened::Nothing => return Ok(cursor),
            Opened::Leaf(leaf) => leaf,
            Opened::Inner(inner) if inner.child(0).first >= to => return Ok(cursor),
            Opened::Inner(inner) => {
                cursor.child = inner.find(from).unwrap_or(0);
                if read_ahead > 0 {
                    let behind = inner.iter().skip(cursor.child + 1);
                    let wanted = behind.take_while(|child| child.first < to).map(|child| child.ptr);
                    cursor.ahead = Some(ReadAhead::new(nodes, read_ahead, wanted));
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

    /// Stands on the last item of `base` below `to`; goes down.
    pub(crate) async fn downwards(
        nodes: &'n dyn NodeSource,
        base: &Base,
        from: Key,
        to: Key,
    ) -> Result<Cursor<'n>, TableError> {
        let mut cursor = Cursor::new(nodes, from, to, true);
        let leaf = match cursor.open(base).await? {
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

    /// The value under the cursor, where [`Self::key`] has one.
    pub(crate) fn value(&self) -> ValueRef<'_> {
        let (leaf, place) = self.at.as_ref().expect("the cursor stands on an item");
        leaf.value(place)
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
            let next = self.child + 1;
            if next >= inner.children() || inner.child(next).first >= self.to {
                return Ok(());
            }
            self.child = next;
            let leaf = match &mut self.ahead {
                Some(ahead) => {
                    let (ptr, leaf) = ahead.next().await.expect("every leaf was asked for");
                    LeafNode::new(leaf?, ptr)?
                }
                None => self.leaf_of(&inner).await?,
            };
            let first = leaf.first();
            self.at = Some((leaf, first));
        }
        Ok(())
    }

    async fn open(&mut self, base: &Base) -> Result<Opened, TableError> {
        let Some(root) = base.root else { return Ok(Opened::Nothing) };
        if base.height == 0 {
            return Ok(Opened::Leaf(LeafNode::fetch(self.nodes, root).await?));
        }
        let inner = InnerNode::fetch(self.nodes, root).await?;
        self.inner = Some(inner.clone());
        Ok(Opened::Inner(inner))
    }

    async fn leaf_of(&mut self, inner: &InnerNode) -> Result<LeafNode, TableError> {
        LeafNode::fetch(self.nodes, inner.child(self.child).ptr).await
    }
}

enum Opened {
    Nothing,
    Leaf(LeafNode),
    Inner(InnerNode),
}
