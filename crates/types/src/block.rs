//! The memory of one block.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::BLOCK_BYTES;

/// Whole and aligned, so that a vector of them is memory for direct I/O.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub(crate) struct Block(pub(crate) [u8; BLOCK_BYTES]);
