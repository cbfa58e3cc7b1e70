//! References to what a pool stores: extents and tree nodes.

use std::fmt;

use crate::{BlockAddr, EpochId, Run};

/// 128-bit digest (xxh3) of a node or a log frame; zero only where nothing is referred to.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u128);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A reference that can be released: `epoch` decides sharing, `origin` (an epoch too) who pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer {
    pub run: Run,
    pub epoch: EpochId,
    pub origin: EpochId,
}

/// A reference to an immutable metadata node (or space map): one or two copies of `blocks` blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePtr {
    pub copies: [Option<BlockAddr>; 2],
    pub blocks: u32,
    pub epoch: EpochId,
    pub digest: Digest,
}

impl NodePtr {
    /// The runs of the copies that exist.
    pub fn runs(&self) -> impl Iterator<Item = Run> + use<> {
        let blocks = self.blocks;
        self.copies.into_iter().flatten().map(move |addr| Run::new(addr, blocks))
    }
}

impl fmt::Debug for NodePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {:?}+{} epoch {}", self.copies, self.blocks, self.epoch)
    }
}
