//! The list of a fragmented node's fragments: where the content of a node is for which free space
//! had no run.
//!
//! Problem.  All free space may be in runs shorter than a node; a flush must still succeed.
//! Idea.     The content lies in fragments, down to single blocks. One block lists them, in two
//!           copies of its own, and the node's pointer names that block. So each write needs
//!           blocks, and never a run.
//! On disk.  One block:
//!
//! ```text
//!   0 magic `CHfragms`
//!   8 check u64       xxh3-64 over the rest of the block
//!  16 digest of the node
//!  32 fragments u32 · blocks of the content u32 · zeros up to 64
//!  64 rows of 20 bytes: address in each copy u64, blocks u32
//! ```
//!
//! A list belongs to one content: its digest is the pointer's. So a list of other content, at an
//! address that was used again, is not mistaken for it.

use copyhold_types::{BLOCK_BYTES, BlockAddr, Buf, Digest, NodePtr};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;

const WHAT: &str = "list of fragments";
const MAGIC: u64 = u64::from_le_bytes(*b"CHfragms");
const HEAD_BYTES: usize = 64;
const ROW_BYTES: usize = 20;
/// The check begins after its own field.
const CHECKED_FROM: usize = 16;

/// Most fragments of a node. Of all nodes only the root of a table of tables of some hundred
/// megabytes has more blocks.
pub const FRAGMENTS_MAX: usize = (BLOCK_BYTES - HEAD_BYTES) / ROW_BYTES;

/// Consecutive blocks of a node's content: where they begin in each copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub copies: [Option<BlockAddr>; 2],
    pub blocks: u32,
}

/// All runs that a fragmented node has allocated, as pointers of its epoch to one run each: its
/// list, and each fragment.
pub fn pieces_of(ptr: &NodePtr, fragments: &[Fragment]) -> Vec<NodePtr> {
    let piece = |copies, blocks| NodePtr {
        copies,
        blocks,
        fragmented: false,
        epoch: ptr.epoch,
        digest: Digest::default(),
    };
    let content = fragments.iter().map(|fragment| piece(fragment.copies, fragment.blocks));
    std::iter::once(piece(ptr.copies, 1)).chain(content).collect()
}

/// The list of the fragments of a content with this digest, in its order.
pub fn encode_fragments(digest: Digest, fragments: &[Fragment]) -> Buf {
    assert!((1..=FRAGMENTS_MAX).contains(&fragments.len()), "{} fragments", fragments.len());
    let mut buf = Buf::zeroed(1);
    let bytes = buf.make_mut();
    let rows = &mut bytes[HEAD_BYTES..HEAD_BYTES + fragments.len() * ROW_BYTES];
    for (row, fragment) in rows.chunks_exact_mut(ROW_BYTES).zip(fragments) {
        row.copy_from_slice(RowDisk::from(fragment).as_bytes());
    }
    let blocks: u32 = fragments.iter().map(|fragment| fragment.blocks).sum();
    let mut head = HeadDisk {
        magic: MAGIC.into(),
        check: 0.into(),
        digest: digest.0.into(),
        fragments: (fragments.len() as u32).into(),
        blocks: blocks.into(),
        zeros: [0; 24],
    };
    bytes[..HEAD_BYTES].copy_from_slice(head.as_bytes());
    head.check = xxh3_64(&bytes[CHECKED_FROM..]).into();
    bytes[..HEAD_BYTES].copy_from_slice(head.as_bytes());
    buf
}

/// The fragments of the node that `ptr` refers to, from its list.
pub fn parse_fragments(bytes: &[u8], ptr: &NodePtr) -> Result<Vec<Fragment>, FormatError> {
    let short = FormatError::Short { what: WHAT, len: bytes.len() };
    let (head, _) = HeadDisk::ref_from_prefix(bytes).map_err(|_| short.clone())?;
    if head.magic.get() != MAGIC {
        return Err(FormatError::Magic { what: WHAT });
    }
    if bytes.len() != BLOCK_BYTES {
        return Err(short);
    }
    let is_whole = xxh3_64(&bytes[CHECKED_FROM..]) == head.check.get();
    if !is_whole || head.digest.get() != ptr.digest.0 {
        return Err(FormatError::Digest { what: WHAT });
    }
    let count = head.fragments.get() as usize;
    if count == 0 || count > FRAGMENTS_MAX {
        return Err(field("fragments", count as u64));
    }
    let rows = &bytes[HEAD_BYTES..HEAD_BYTES + count * ROW_BYTES];
    let rows = <[RowDisk]>::ref_from_bytes(rows).map_err(|_| field("fragments", count as u64))?;
    let fragments = rows.iter().map(|row| row.parse(ptr)).collect::<Result<Vec<_>, _>>()?;
    let blocks: u64 = fragments.iter().map(|fragment| u64::from(fragment.blocks)).sum();
    if blocks != u64::from(ptr.blocks) || head.blocks.get() != ptr.blocks {
        return Err(field("blocks", blocks));
    }
    Ok(fragments)
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeadDisk {
    magic: U64,
    check: U64,
    digest: U128,
    fragments: U32,
    blocks: U32,
    zeros: [u8; 24],
}
const _: () = assert!(size_of::<HeadDisk>() == HEAD_BYTES);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RowDisk {
    copies: [U64; 2],
    blocks: U32,
}
const _: () = assert!(size_of::<RowDisk>() == ROW_BYTES);

impl RowDisk {
    /// A fragment has the copies that the pointer has.
    fn parse(&self, ptr: &NodePtr) -> Result<Fragment, FormatError> {
        let blocks = self.blocks.get();
        if blocks == 0 || blocks > ptr.blocks {
            return Err(field("blocks of a fragment", blocks.into()));
        }
        let copy = |raw: U64| (raw.get() != 0).then(|| BlockAddr::from_raw(raw.get()));
        let copies = self.copies.map(copy);
        for (copy, of_list) in copies.iter().zip(ptr.copies) {
            let end = copy.map_or(0, |addr| addr.block() + u64::from(blocks));
            if copy.is_some() != of_list.is_some() || end > BlockAddr::MAX_BLOCK {
                return Err(field("address of a fragment", copy.map_or(0, BlockAddr::raw)));
            }
        }
        Ok(Fragment { copies, blocks })
    }
}

impl From<&Fragment> for RowDisk {
    fn from(fragment: &Fragment) -> RowDisk {
        RowDisk {
            copies: fragment.copies.map(|copy| copy.map_or(0, BlockAddr::raw).into()),
            blocks: fragment.blocks.into(),
        }
    }
}

fn field(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: WHAT, field, value }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{DeviceId, EpochId};
    use proptest::prelude::*;

    use super::*;

    fn at(block: u64) -> Option<BlockAddr> {
        Some(BlockAddr::new(DeviceId(0), block))
    }

    fn list(fragments: usize) -> (NodePtr, Vec<Fragment>) {
        let fragment = |n: u64| Fragment { copies: [at(100 + n), at(9000 + n)], blocks: 3 };
        let ptr = NodePtr {
            copies: [at(5), at(90)],
            blocks: 3 * fragments as u32,
            fragmented: true,
            epoch: EpochId(2),
            digest: Digest(77),
        };
        (ptr, (0..fragments as u64).map(fragment).collect())
    }

    #[test]
    fn a_list_comes_back_as_it_was_for_its_pointer_alone() {
        for count in [1, 8, FRAGMENTS_MAX] {
            let (ptr, fragments) = list(count);
            let block = encode_fragments(ptr.digest, &fragments);
            assert_eq!(parse_fragments(&block, &ptr), Ok(fragments));
            for other in [
                NodePtr { digest: Digest(78), ..ptr },
                NodePtr { blocks: ptr.blocks + 1, ..ptr },
                NodePtr { copies: [ptr.copies[0], None], ..ptr },
            ] {
                assert!(parse_fragments(&block, &other).is_err(), "{other:?}");
            }
        }
    }

    #[test]
    fn a_map_of_the_largest_metaslab_may_be_in_single_blocks() {
        const MAP_BYTES: usize = 48 + (1 << 22) / 8;
        assert!(MAP_BYTES.div_ceil(BLOCK_BYTES) <= FRAGMENTS_MAX);
    }

    proptest! {
        #[test]
        fn any_change_is_noticed(at in 0..BLOCK_BYTES, with in 1..=255_u8) {
            let (ptr, fragments) = list(7);
            let mut block = encode_fragments(ptr.digest, &fragments);
            block.make_mut()[at] ^= with;
            prop_assert!(parse_fragments(&block, &ptr).is_err());
        }
    }
}
