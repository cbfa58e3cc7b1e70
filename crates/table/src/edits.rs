//! The edits that a flush settles, in the order of keys: frozen edits, over layers that go with
//! them.

use std::collections::btree_map;
use std::iter::Peekable;

use copyhold_format::node::LayerDescriptor;
use copyhold_types::{Key, NodePtr};

use crate::delta::Delta;
use crate::pile::Pile;
use crate::{Edit, NodeSource, TableError, Value};

pub(crate) struct Edits<'a> {
    frozen: Peekable<btree_map::Range<'a, Key, Edit>>,
    layers: Pile<'a>,
    /// Taken out already, and the next to be returned.
    head: Option<(Key, Edit)>,
}

impl<'a> Edits<'a> {
    pub(crate) async fn new(
        nodes: &'a dyn NodeSource,
        frozen: &'a Delta,
        layers: &[LayerDescriptor],
        read_ahead: usize,
    ) -> Result<Edits<'a>, TableError> {
        let layers = Pile::of_layers(nodes, layers, Key::MIN, Key::MAX, read_ahead).await?;
        let mut edits = Edits { frozen: frozen.range(..).peekable(), layers, head: None };
        edits.advance().await?;
        Ok(edits)
    }

    /// The next edit.
    pub(crate) fn peek(&self) -> Option<&(Key, Edit)> {
        self.head.as_ref()
    }

    /// The next edit, if its key is before `to`; `None` means no bound.
    pub(crate) fn peek_before(&self, to: Option<Key>) -> Option<&(Key, Edit)> {
        self.peek().filter(|(key, _)| to.is_none_or(|to| *key < to))
    }

    pub(crate) async fn next_before(
        &mut self,
        to: Option<Key>,
    ) -> Result<Option<(Key, Edit)>, TableError> {
        if self.peek_before(to).is_none() {
            return Ok(None);
        }
        let next = self.head.take();
        self.advance().await?;
        Ok(next)
    }

    /// Whether there are likely to be edits in [from, to), before any was taken.
    pub(crate) fn are_likely_in(&self, frozen: &Delta, from: Key, to: Option<Key>) -> bool {
        let frozen = match to {
            Some(to) => frozen.range(from..to).next(),
            None => frozen.range(from..).next(),
        };
        frozen.is_some() || self.layers.is_likely_in(from, to)
    }

    pub(crate) fn layer_nodes(&self) -> Vec<NodePtr> {
        self.layers.layer_nodes()
    }

    async fn advance(&mut self) -> Result<(), TableError> {
        let frozen = self.frozen.peek().map(|(key, _)| **key);
        let layered = self.layers.key();
        self.head = match layered {
            Some(key) if frozen.is_none_or(|frozen| key < frozen) => {
                let value = self.layers.value()?;
                Some((key, Edit::from(value.map(Value::from))))
            }
            _ => self.frozen.next().map(|(key, edit)| (*key, edit.clone())),
        };
        match &self.head {
            Some((key, _)) if layered == Some(*key) => self.layers.advance().await,
            _ => Ok(()),
        }
    }
}
