//! One block of a file in memory.

use copyhold_types::{BLOCK_BYTES, Buf};

/// A block's place in a buffer that may hold more of them.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) buf: Buf,
    pub(crate) index: u32,
}

impl Slot {
    pub(crate) fn bytes(&self) -> &[u8] {
        let start = self.index as usize * BLOCK_BYTES;
        &self.buf[start..start + BLOCK_BYTES]
    }

    /// For changing: in a buffer of its own, copied if anyone else holds it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.buf.blocks() != 1 {
            *self = Slot { buf: Buf::from_bytes(self.bytes()), index: 0 };
        }
        self.buf.make_mut()
    }
}
