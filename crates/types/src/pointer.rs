//! References to the data of a pool: extents and tree nodes.

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

/// A reference that can be released: `epoch` decides sharing, `origin` (an epoch too) the owner
/// that pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer {
    pub run: Run,
    pub epoch: EpochId,
    pub origin: EpochId,
}

/// A reference to an immutable metadata node (or space map): one or two copies of `blocks` blocks.
///
/// Where free space has no run for it, a node is *fragmented*: then `copies` are those of its list
/// of fragments, a block that names the runs of the content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePtr {
    pub copies: [Option<BlockAddr>; 2],
    /// Of the content.
    pub blocks: u32,
    pub fragmented: bool,
    pub epoch: EpochId,
    pub digest: Digest,
}

impl NodePtr {
    /// The runs that the pointer itself names, of the copies that exist: of a fragmented node those
    /// of its list.
    pub fn runs(&self) -> impl Iterator<Item = Run> + use<> {
        let blocks = if self.fragmented { 1 } else { self.blocks };
        self.copies.into_iter().flatten().map(move |addr| Run::new(addr, blocks))
    }
}

impl fmt::Debug for NodePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.fragmented { " in fragments" } else { "" };
        write!(f, "node {:?}+{}{how} epoch {}", self.copies, self.blocks, self.epoch)
    }
}
