//! Walking layers and base as one: of each key, the newest edit or item.

use std::cmp::Ordering;

use copyhold_format::node::{LayerDescriptor, ValueRef};
use copyhold_types::{Key, NodePtr};

use crate::cursor::{Cursor, Wants};
use crate::settled::{Settled, Tree};
use crate::{NodeSource, TableError};

/// Cursors over layers and a base, in the same direction.
pub(crate) struct Pile<'n> {
    /// The newest first (LAYERS-L1).
    layers: Vec<Cursor<'n>>,
    base: Cursor<'n>,
    /// How a key that comes first compares with one that comes later.
    direction: Ordering,
}

impl<'n> Pile<'n> {
    /// All that is settled in [from, to), upwards. The base is not read where a layer has the one
    /// key that the range can have.
    pub(crate) async fn upwards(
        nodes: &'n dyn NodeSource,
        settled: &Settled,
        from: Key,
        to: Key,
        read_ahead: usize,
    ) -> Result<Pile<'n>, TableError> {
        let mut pile = Pile::of_layers(nodes, &settled.layers, from, to, read_ahead).await?;
        if pile.key().is_none() || from.successor() != Some(to) {
            let base = settled.base.tree();
            pile.base = Cursor::upwards(nodes, base, from, to, read_ahead).await?;
        }
        Ok(pile)
    }

    /// The edits of layers in [from, to), upwards.
    pub(crate) async fn of_layers(
        nodes: &'n dyn NodeSource,
        of: &[LayerDescriptor],
        from: Key,
        to: Key,
        read_ahead: usize,
    ) -> Result<Pile<'n>, TableError> {
        let mut layers = Vec::with_capacity(of.len());
        for layer in of {
            layers.push(Cursor::upwards(nodes, Tree::of(layer), from, to, read_ahead).await?);
        }
        Ok(Pile { layers, base: Cursor::nothing(nodes), direction: Ordering::Less })
    }

    /// The edits of these layers and the items of the wanted leaves of a base in [from, to),
    /// upwards.
    pub(crate) async fn partly(
        nodes: &'n dyn NodeSource,
        (layers, base): (&[LayerDescriptor], Tree),
        wants: &'n Wants<'n>,
        (from, to): (Key, Key),
        read_ahead: usize,
    ) -> Result<Pile<'n>, TableError> {
        let mut pile = Pile::of_layers(nodes, layers, from, to, read_ahead).await?;
        pile.base = Cursor::partly(nodes, base, wants, from, to, read_ahead).await?;
        Ok(pile)
    }

    /// All that is settled in [from, to), downwards. The base is not read where a layer has an item
    /// right at the end and the caller wants no more: `first_only`.
    pub(crate) async fn downwards(
        nodes: &'n dyn NodeSource,
        settled: &Settled,
        from: Key,
        to: Key,
        first_only: bool,
    ) -> Result<Pile<'n>, TableError> {
        let mut layers = Vec::with_capacity(settled.layers.len());
        for layer in settled.layers.iter() {
            layers.push(Cursor::downwards(nodes, Tree::of(layer), from, to).await?);
        }
        let base = Cursor::nothing(nodes);
        let mut pile = Pile { layers, base, direction: Ordering::Greater };
        let at_end = pile.key().is_some_and(|key| key.successor() == Some(to));
        if !(first_only && at_end && pile.value()?.is_some()) {
            pile.base = Cursor::downwards(nodes, settled.base.tree(), from, to).await?;
        }
        Ok(pile)
    }

    /// The key that is next, unless all of the range was walked.
    pub(crate) fn key(&self) -> Option<Key> {
        self.front().and_then(Cursor::key)
    }

    /// The newest state of that key: a value, or that it is deleted.
    pub(crate) fn value(&self) -> Result<Option<ValueRef<'_>>, TableError> {
        self.front().expect("the walk is not at its end").edit()
    }

    pub(crate) async fn advance(&mut self) -> Result<(), TableError> {
        if self.layers.is_empty() {
            return self.base.advance().await;
        }
        let Some(key) = self.key() else { return Ok(()) };
        for cursor in self.layers.iter_mut().chain([&mut self.base]) {
            if cursor.key() == Some(key) {
                cursor.advance().await?;
            }
        }
        Ok(())
    }

    fn front(&self) -> Option<&Cursor<'n>> {
        let mut front = self.base.key().map(|key| (key, &self.base));
        // A later layer of this loop is newer, and wins if keys are equal.
        for cursor in self.layers.iter().rev() {
            if let Some(key) = cursor.key()
                && front.is_none_or(|(first, _)| key == first || key.cmp(&first) == self.direction)
            {
                front = Some((key, cursor));
            }
        }
        front.map(|(_, cursor)| cursor)
    }

    /// Whether a layer is likely to have edits in [from, to).
    pub(crate) fn is_likely_in(&self, from: Key, to: Option<Key>) -> bool {
        self.layers.iter().any(|layer| layer.is_likely_in(from, to))
    }

    /// Every node of the layers.
    pub(crate) fn layer_nodes(&self) -> Vec<NodePtr> {
        self.layers.iter().flat_map(Cursor::nodes).collect()
    }
}
