//! Page-aligned buffers that devices read into and write from.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::BLOCK_BYTES;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// Whole blocks, aligned to 4 KiB. A clone shares the memory; changing a shared one copies it
/// first, so what was handed to a device never changes under it.
#[derive(Clone)]
pub struct Buf {
    blocks: Arc<Vec<Block>>,
}

impl Buf {
    pub fn zeroed(blocks: usize) -> Buf {
        Buf { blocks: Arc::new(vec![Block([0; BLOCK_BYTES]); blocks]) }
    }

    /// `bytes`, filled up with zeros to whole blocks.
    pub fn from_bytes(bytes: &[u8]) -> Buf {
        let mut buf = Buf::zeroed(bytes.len().div_ceil(BLOCK_BYTES));
        buf.make_mut()[..bytes.len()].copy_from_slice(bytes);
        buf
    }

    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The bytes for writing; copies them first when another clone exists.
    pub fn make_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.blocks).as_mut_slice().as_mut_bytes()
    }

    /// Whether a clone of this buffer is alive somewhere.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.blocks) > 1
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.blocks.as_slice().as_bytes()
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} blocks)", self.blocks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_is_not_changed_by_the_other() {
        let mut a = Buf::from_bytes(b"old");
        let b = a.clone();
        a.make_mut()[..3].copy_from_slice(b"new");
        assert_eq!((&a[..3], &b[..3]), (&b"new"[..], &b"old"[..]));
        assert_eq!(a.as_ptr() as usize % BLOCK_BYTES, 0);
    }
}
