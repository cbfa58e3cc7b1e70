//! Space maps: which blocks of one metaslab are allocated, whole, as of one moment.
//!
//! Problem.  A metaslab of a quiet pool has few allocated runs, one of an aged pool has holes in
//!           every megabyte; one encoding would waste on one of them.
//! Idea.     The map holds sorted runs as varints, or a bitmap, whichever is smaller. So its size
//!           is bounded by the bitmap's (32 KiB per GiB). A few `delta`s over it may follow.
//! On disk.  A header of 48 bytes, the body, zeros to the end of the last block. All integers are
//!           little-endian. The digest is in the `NodePtr` of the metaslab's [`Descriptor`].
//!
//! ```text
//!    0  magic        "CHspcmap"
//!    8  version u16 · body u8 (0 runs, 1 bitmap) · 0 u8
//!   12  device u16 · 0 u16
//!   16  index u32           number of the metaslab on its device
//!   20  blocks u32          size of the metaslab
//!   24  first_block u64     where on the device it begins
//!   32  complete_to u64     every edit of a txg up to this one is in the map
//!   40  allocated u32       blocks
//!   44  body_len u32        bytes
//! ```
//!
//! SPACEMAP-F1  A run body is (gap, length) pairs: `gap` free blocks since the end of the run
//!              before (from the second run on less one, as neighbours are merged), then
//!              `length - 1`. So runs that overlap or are out of order cannot be written down.
//! SPACEMAP-F2  A bitmap body has bit `i % 64` of word `i / 64` set where block `i` is allocated;
//!              bits beyond the metaslab are clear.
//! SPACEMAP-F3  `allocated` is the sum of both.
//!
//! A map may also hold some edits of later txgs: edits are absolute, so replaying them again does
//! no harm (rule R5).

mod body;
mod delta;
mod descriptor;
mod error;

pub use body::{RunsOf, runs};
pub use delta::{Change, DELTAS_MAX, DELTAS_SMALL, MapDelta};
pub use descriptor::{Descriptor, METASLAB};

use copyhold_types::{BLOCK_BYTES, DeviceId, Txg};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;

use error::{WHAT, field};

const MAGIC: [u8; 8] = *b"CHspcmap";
const VERSION: u16 = 1;

/// Blocks of the largest metaslab that a map can describe (16 GiB).
pub const MAX_BLOCKS: u32 = 1 << 22;

/// Blocks that a whole map takes at most: a header, and a bit for each block.
pub const MAP_BLOCKS_MAX: u32 = MAX_BLOCKS / 8 / BLOCK_BYTES as u32 + 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderDisk {
    magic: [u8; 8],
    version: U16,
    body: u8,
    reserved_a: u8,
    device: U16,
    reserved_b: U16,
    index: U32,
    blocks: U32,
    first_block: U64,
    complete_to: U64,
    allocated: U32,
    body_len: U32,
}
const _: () = assert!(size_of::<HeaderDisk>() == 48);

/// Where the metaslab of a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRange {
    pub device: DeviceId,
    /// Number of the metaslab on its device.
    pub index: u32,
    pub first_block: u64,
    /// At most [`MAX_BLOCKS`].
    pub blocks: u32,
}

/// The allocated blocks of one metaslab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceMap {
    place: MapRange,
    complete_to: Txg,
    words: Vec<u64>,
    allocated: u32,
}

impl SpaceMap {
    /// `words`: bit `i % 64` of word `i / 64` is set where block `i` of the metaslab is allocated;
    /// exactly as many words as its blocks need, no bit beyond them.
    pub fn new(place: MapRange, complete_to: Txg, words: Vec<u64>) -> SpaceMap {
        assert!(place.blocks <= MAX_BLOCKS, "{place:?} is larger than a map can describe");
        assert!(body::fits(&words, place.blocks), "SPACEMAP-F2: bits beyond {place:?}");
        let allocated = words.iter().map(|word| word.count_ones()).sum();
        SpaceMap { place, complete_to, words, allocated }
    }

    pub fn place(&self) -> MapRange {
        self.place
    }

    /// Every edit of a txg up to this one is in the map.
    pub fn complete_to(&self) -> Txg {
        self.complete_to
    }

    /// Allocated blocks.
    pub fn allocated(&self) -> u32 {
        self.allocated
    }

    /// The bitmap, as given to [`Self::new`].
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Allocated runs in order, as (first block in the metaslab, blocks).
    pub fn runs(&self) -> RunsOf<'_> {
        runs(&self.words)
    }

    /// Length of the longest run of free blocks.
    pub fn longest_free(&self) -> u32 {
        let mut end = 0;
        let mut longest = 0;
        for (first, blocks) in self.runs() {
            longest = longest.max(first - end);
            end = first + blocks;
        }
        longest.max(self.place.blocks - end)
    }

    /// The bytes to be stored, without the zeros that fill up the last block.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = body::encode(&self.words);
        let header = HeaderDisk {
            magic: MAGIC,
            version: VERSION.into(),
            body: kind,
            reserved_a: 0,
            device: self.place.device.0.into(),
            reserved_b: 0.into(),
            index: self.place.index.into(),
            blocks: self.place.blocks.into(),
            first_block: self.place.first_block.into(),
            complete_to: self.complete_to.get().into(),
            allocated: self.allocated.into(),
            body_len: (body.len() as u32).into(),
        };
        [header.as_bytes(), &body].concat()
    }

    /// `bytes`: the whole blocks that a descriptor's pointer names, digest verified. Whether this
    /// is the map of the metaslab that it is wanted for is the caller's to compare.
    pub fn parse(bytes: &[u8]) -> Result<SpaceMap, FormatError> {
        let (header, rest) = HeaderDisk::read_from_prefix(bytes)
            .map_err(|_| FormatError::Short { what: WHAT, len: bytes.len() })?;
        if header.magic != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        if header.version.get() != VERSION {
            let found = header.version.get().into();
            return Err(FormatError::Version { found, supported: VERSION.into() });
        }
        if header.reserved_a != 0 || header.reserved_b.get() != 0 {
            return Err(field("reserved", header.reserved_b.get().into()));
        }
        let complete_to = header.complete_to.get();
        let place = MapRange {
            device: DeviceId(header.device.get()),
            index: header.index.get(),
            first_block: header.first_block.get(),
            blocks: header.blocks.get(),
        };
        if place.blocks == 0 || place.blocks > MAX_BLOCKS {
            return Err(field("blocks", place.blocks.into()));
        }
        let body_len = header.body_len.get() as usize;
        let (body, padding) = rest
            .split_at_checked(body_len)
            .ok_or(FormatError::Short { what: WHAT, len: bytes.len() })?;
        if padding.iter().any(|&byte| byte != 0) {
            return Err(field("padding", padding.len() as u64));
        }
        let words = body::parse(header.body, body, place.blocks)?;
        let complete_to = Txg::new(complete_to).ok_or(field("complete_to", 0))?;
        let map = SpaceMap::new(place, complete_to, words);
        if map.allocated != header.allocated.get() {
            return Err(field("allocated", header.allocated.get().into()));
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(blocks: u32) -> MapRange {
        MapRange { device: DeviceId(3), index: 7, first_block: 7 * 4096, blocks }
    }

    fn map_of(blocks: u32, allocated: &[u32]) -> SpaceMap {
        let mut words = vec![0; blocks.div_ceil(64) as usize];
        for &block in allocated {
            words[block as usize / 64] |= 1 << (block % 64);
        }
        SpaceMap::new(place(blocks), Txg::new(9).unwrap(), words)
    }

    #[test]
    fn an_empty_and_a_full_map_take_a_header_and_a_few_bytes() {
        let empty = map_of(4096, &[]);
        assert_eq!(empty.encode().len(), 48);
        assert_eq!(empty.longest_free(), 4096);
        let full = map_of(4096, &(0..4096).collect::<Vec<_>>());
        assert_eq!(full.encode().len(), 51);
        assert_eq!(full.longest_free(), 0);
        assert_eq!(SpaceMap::parse(&full.encode()).unwrap(), full);
    }

    #[test]
    fn the_bytes_of_version_1_stay_as_they_are() {
        let mut golden = b"CHspcmap\x01\0\0\0\x03\0\0\0\x07\0\0\0\xe8\x03\0\0".to_vec();
        golden.extend([28672u64, 9].map(u64::to_le_bytes).as_flattened());
        golden.extend([5u32, 8].map(u32::to_le_bytes).as_flattened());
        // Blocks 1 to 3, 500, and 999: gap and length less one, each.
        golden.extend([1, 2, 0xef, 3, 0, 0xf1, 3, 0]);
        assert_eq!(map_of(1000, &[1, 2, 3, 500, 999]).encode(), golden);
    }

    #[test]
    fn a_scattered_map_becomes_a_bitmap() {
        let every_other = map_of(4096, &(0..4096).step_by(2).collect::<Vec<_>>());
        assert_eq!(every_other.encode().len(), 48 + 512);
        assert_eq!(SpaceMap::parse(&every_other.encode()).unwrap(), every_other);
    }

    #[test]
    fn a_map_is_refused_when_its_counts_are_wrong() {
        let good = map_of(1000, &[1, 2, 3, 500, 999]).encode();
        assert!(SpaceMap::parse(&good).is_ok());
        for (at, field) in [(8, "version"), (11, "reserved"), (20, "blocks"), (40, "allocated")] {
            let mut bad = good.clone();
            bad[at] ^= 0x80;
            assert!(SpaceMap::parse(&bad).is_err(), "{field}");
        }
    }

    #[test]
    fn a_run_that_leaves_the_metaslab_is_refused() {
        let mut bytes = map_of(1000, &[990]).encode();
        let last = bytes.len() - 1;
        bytes[last] = 10;
        bytes[40] = 11;
        assert!(matches!(SpaceMap::parse(&bytes), Err(FormatError::Order { .. })));
    }

    proptest! {
        #[test]
        fn every_map_comes_back(
            blocks in 1u32..3000,
            seeds in prop::collection::vec((0u32..3000, 1u32..80), 0..60),
            padding in 0usize..64,
        ) {
            let allocated: Vec<u32> = seeds
                .iter()
                .flat_map(|&(first, len)| first..first + len)
                .filter(|&block| block < blocks)
                .collect();
            let map = map_of(blocks, &allocated);
            let mut bytes = map.encode();
            prop_assert!(bytes.len() <= 48 + (blocks as usize).div_ceil(64) * 8);
            bytes.resize(bytes.len() + padding, 0);
            let back = SpaceMap::parse(&bytes).unwrap();
            let model: std::collections::BTreeSet<u32> = allocated.into_iter().collect();
            let listed: Vec<u32> = back.runs().flat_map(|(at, len)| at..at + len).collect();
            prop_assert_eq!(listed, model.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(back, map);
        }

        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SpaceMap::parse(&bytes);
        }

        #[test]
        fn a_damaged_map_gives_an_answer_that_holds_together(
            at in 8usize..80,
            with in any::<u8>(),
            allocated in prop::collection::btree_set(0u32..500, 0..40),
        ) {
            let mut bytes = map_of(500, &allocated.into_iter().collect::<Vec<_>>()).encode();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
            if let Ok(map) = SpaceMap::parse(&bytes) {
                let sum: u32 = map.runs().map(|(_, blocks)| blocks).sum();
                prop_assert_eq!(sum, map.allocated());
                prop_assert!(map.runs().all(|(at, len)| at + len <= map.place().blocks));
            }
        }
    }
}
