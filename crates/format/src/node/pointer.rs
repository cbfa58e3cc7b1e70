//! A node pointer on disk, in inner nodes and descriptors: 44 bytes.
//!
//! A copy's address 0 means that there is none: block 0 of device 0 is a label. The highest bit of
//! the blocks means that the addresses are those of a list of fragments (`fragments`).

use copyhold_types::{BlockAddr, Digest, EpochId, NodePtr};
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;

/// Bytes of an encoded pointer.
pub const NODE_PTR_BYTES: usize = 44;

/// Largest node: 256 MiB. A pointer to a larger one is damage, not a reason to allocate it.
pub const NODE_BLOCKS_MAX: u32 = 1 << 16;

const WHAT: &str = "node pointer";
/// In `blocks`.
const FRAGMENTED: u32 = 1 << 31;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct NodePtrDisk {
    copies: [U64; 2],
    epoch: U64,
    digest: U128,
    blocks: U32,
}
const _: () = assert!(size_of::<NodePtrDisk>() == NODE_PTR_BYTES);

impl From<&NodePtr> for NodePtrDisk {
    fn from(ptr: &NodePtr) -> NodePtrDisk {
        assert!(ptr.copies.iter().any(Option::is_some), "a pointer has a copy");
        assert!(ptr.blocks > 0 && ptr.blocks <= NODE_BLOCKS_MAX, "{ptr:?} has an odd size");
        NodePtrDisk {
            copies: ptr.copies.map(|copy| copy.map_or(0, BlockAddr::raw).into()),
            epoch: ptr.epoch.0.into(),
            digest: ptr.digest.0.into(),
            blocks: (ptr.blocks | if ptr.fragmented { FRAGMENTED } else { 0 }).into(),
        }
    }
}

impl NodePtrDisk {
    pub(super) fn parse(&self) -> Result<NodePtr, FormatError> {
        let blocks = self.blocks.get() & !FRAGMENTED;
        let run = if self.blocks.get() == blocks { blocks } else { 1 };
        if blocks == 0 || blocks > NODE_BLOCKS_MAX {
            return Err(field("blocks", blocks.into()));
        }
        for raw in self.copies {
            let addr = BlockAddr::from_raw(raw.get());
            if addr.block() + u64::from(run) > BlockAddr::MAX_BLOCK {
                return Err(field("address", addr.raw()));
            }
        }
        if self.copies.iter().all(|raw| raw.get() == 0) {
            return Err(field("copies", 0));
        }
        Ok(self.assume_parsed())
    }

    /// For bytes that [`Self::parse`] has accepted.
    pub(super) fn assume_parsed(&self) -> NodePtr {
        let copy = |raw: U64| (raw.get() != 0).then(|| BlockAddr::from_raw(raw.get()));
        NodePtr {
            copies: self.copies.map(copy),
            blocks: self.blocks.get() & !FRAGMENTED,
            fragmented: self.blocks.get() & FRAGMENTED != 0,
            epoch: EpochId(self.epoch.get()),
            digest: Digest(self.digest.get()),
        }
    }
}

/// The pointer as in every structure on disk.
pub fn encode_ptr(ptr: &NodePtr) -> [u8; NODE_PTR_BYTES] {
    let mut bytes = [0; NODE_PTR_BYTES];
    bytes.copy_from_slice(NodePtrDisk::from(ptr).as_bytes());
    bytes
}

/// The pointer at the start of `bytes`; `None` for the 44 zeros that encode no pointer.
pub fn decode_ptr(bytes: &[u8]) -> Result<Option<NodePtr>, FormatError> {
    let (disk, _) = NodePtrDisk::ref_from_prefix(bytes)
        .map_err(|_| FormatError::Short { what: WHAT, len: bytes.len() })?;
    if disk.as_bytes().iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    disk.parse().map(Some)
}

fn field(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: WHAT, field, value }
}

#[cfg(test)]
mod tests {
    use copyhold_types::DeviceId;

    use super::*;

    #[test]
    fn a_pointer_comes_back_as_it_was() {
        let ptr = NodePtr {
            copies: [Some(BlockAddr::new(DeviceId(0), 7)), None],
            blocks: 8,
            fragmented: false,
            epoch: EpochId(3),
            digest: Digest(1 << 100),
        };
        assert_eq!(decode_ptr(&encode_ptr(&ptr)), Ok(Some(ptr)));
        let ptr = NodePtr { fragmented: true, ..ptr };
        assert_eq!(decode_ptr(&encode_ptr(&ptr)), Ok(Some(ptr)));
        assert_eq!(decode_ptr(&[0; NODE_PTR_BYTES]), Ok(None));
    }

    #[test]
    fn a_pointer_to_nothing_or_to_too_much_is_refused() {
        let mut bytes = [0; NODE_PTR_BYTES];
        bytes[40] = 1;
        assert!(decode_ptr(&bytes).is_err(), "no copy");
        bytes[..8].fill(0xff);
        assert!(decode_ptr(&bytes).is_err(), "reaches past the last block");
        assert!(decode_ptr(&bytes[..43]).is_err(), "cut short");
    }
}
