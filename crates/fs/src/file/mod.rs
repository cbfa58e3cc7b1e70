//! File data.

use std::ops::Range;

use copyhold_types::Buf;

/// Flags of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Clear set-user-id, set-group-id and capabilities first (`FUSE_WRITE_KILL_SUIDGID`).
    pub kill_priv: bool,
    /// The descriptor was opened to append: the offset is ignored, the data goes to the end.
    pub append: bool,
}

/// What `fallocate` is to do; `keep_size` where the size may stay below the range's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    Allocate { keep_size: bool },
    Punch,
    Zero { keep_size: bool },
}

/// `SEEK_DATA` and `SEEK_HOLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// What a read returned: slices of buffers that are not copied.
#[derive(Clone, Debug, Default)]
pub struct ReadData {
    pieces: Vec<(Buf, Range<usize>)>,
    len: usize,
}

impl ReadData {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|(buf, range)| &buf[range.clone()])
    }

    /// Copies everything.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len);
        self.slices().for_each(|slice| all.extend_from_slice(slice));
        all
    }
}
