//! Partitions (`docs/format.md`, 7.4 and 7.5): a base, and layers of edits over it.
//!
//! A look-up in a tree gives the leaf that covers a key, and the key up to which it does. So any
//! number of trees over each other can be read a leaf of each at a time.

use crate::bytes::Bytes;
use crate::damage::{Damage, Parse, demand};
use crate::key::Key;
use crate::node::Pointer;

const LAYERS_MAX: u8 = 8;

/// A tree of at most two levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) root: Pointer,
    pub(crate) height: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) start: Key,
    /// All edits of txgs up to this one are in the trees.
    pub(crate) complete_to: u64,
    pub(crate) base: Option<Tree>,
    /// The newest first.
    pub(crate) layers: Vec<Tree>,
}

impl Partition {
    pub(crate) fn parse(value: &[u8]) -> Parse<Partition> {
        let mut bytes = Bytes(value);
        let start = Key::parse(&mut bytes)?;
        let (height, rooted, layers) = (bytes.u8()?, bytes.u8()?, bytes.u8()?);
        demand(height <= 1 && rooted <= 1 && layers <= LAYERS_MAX, "an invalid shape")?;
        bytes.u64()?;
        let complete_to = bytes.u64()?;
        let base = if rooted == 1 {
            Some(Tree { root: Pointer::parse(&mut bytes)?, height })
        } else {
            None
        };
        let layers = (0..layers).map(|_| layer(&mut bytes)).collect::<Parse<_>>()?;
        bytes.end()?;
        Ok(Partition { start, complete_to, base, layers })
    }
}

fn layer(bytes: &mut Bytes<'_>) -> Parse<Tree> {
    let (root, height) = (Pointer::parse(bytes)?, bytes.u8()?);
    demand(height <= 1, "a layer of more than two levels")?;
    bytes.take(3 + 8 + 8 + 8)?;
    Ok(Tree { root, height })
}

/// A value of a layer: the value put, or that the key is deleted.
pub(crate) fn layered(value: &[u8]) -> Result<Option<&[u8]>, Damage> {
    match value.split_last() {
        Some((0, value)) => Ok(Some(value)),
        Some((1, _)) => Ok(None),
        _ => Err(Damage::new("an edit in a layer", "neither put nor deleted")),
    }
}
