//! Page-aligned buffers that devices read into and write from.
//!
//! Their memory is used again ([`crate::spare`]), so a new one costs neither page faults nor zeros
//! unless they are wanted.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::block::Block;
use crate::{BLOCK_BYTES, spare};

/// Whole blocks, aligned to 4 KiB. A clone shares the memory; changing a shared one copies it
/// first, so memory that a device uses never changes under it.
#[derive(Clone)]
pub struct Buf {
    memory: Arc<Memory>,
}

struct Memory {
    blocks: Vec<Block>,
}

/// Buffers that are written one behind the other. One or two, as in most requests, take no
/// memory of their own.
pub type Bufs = SmallVec<[Buf; 2]>;

impl From<Buf> for Bufs {
    fn from(buf: Buf) -> Bufs {
        let mut bufs = Bufs::new();
        bufs.push(buf);
        bufs
    }
}

impl Buf {
    pub fn zeroed(blocks: usize) -> Buf {
        Buf::of(spare::take_zeroed(blocks))
    }

    /// With arbitrary content, even of another tenant: for callers that overwrite all of it before
    /// any read.
    pub fn scratch(blocks: usize) -> Buf {
        Buf::of(spare::take(blocks))
    }

    /// `bytes`, filled up with zeros to whole blocks.
    pub fn from_bytes(bytes: &[u8]) -> Buf {
        let mut memory = spare::take(bytes.len().div_ceil(BLOCK_BYTES));
        let (used, rest) = memory.as_mut_slice().as_mut_bytes().split_at_mut(bytes.len());
        used.copy_from_slice(bytes);
        rest.fill(0);
        Buf::of(memory)
    }

    fn of(blocks: Vec<Block>) -> Buf {
        Buf { memory: Arc::new(Memory { blocks }) }
    }

    pub fn blocks(&self) -> usize {
        self.memory.blocks.len()
    }

    /// The bytes for writing; copies them first when another clone exists.
    pub fn make_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.memory).blocks.as_mut_slice().as_mut_bytes()
    }

    /// Whether another clone of this buffer is alive.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.memory) > 1
    }
}

impl Clone for Memory {
    fn clone(&self) -> Memory {
        let mut blocks = spare::take(self.blocks.len());
        blocks.copy_from_slice(&self.blocks);
        Memory { blocks }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        spare::give_back(std::mem::take(&mut self.blocks));
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.blocks.as_slice().as_bytes()
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

    #[test]
    fn whoever_had_the_memory_before_nothing_of_it_shows() {
        for _ in 0..10 {
            // All at once, so that some of it is used again beside other tests.
            let dirty: Vec<Buf> = (0..8).map(|_| Buf::from_bytes(&[7; 2 * BLOCK_BYTES])).collect();
            drop(dirty);
            let bufs: Vec<Buf> = (0..8).map(|_| Buf::from_bytes(&[1; BLOCK_BYTES + 1])).collect();
            for buf in &bufs {
                assert!(buf[..=BLOCK_BYTES].iter().all(|byte| *byte == 1));
                assert!(buf[BLOCK_BYTES + 1..].iter().all(|byte| *byte == 0));
            }
            drop(bufs);
            assert!(Buf::zeroed(2).iter().all(|byte| *byte == 0));
        }
    }
}
