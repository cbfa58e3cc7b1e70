//! Deltas of space maps: the blocks of one metaslab whose state differs from the map before.
//!
//! Problem.  A few scattered frees change a map of half a megabyte, and nothing else of it.
//! Idea.     A map on disk is a *base*, which is a whole map, and up to [`DELTAS_MAX`] deltas over
//!           it, the oldest first. The descriptor names all of them.
//! On disk.  A header of 56 bytes, the body, zeros to the end of the last block. All integers are
//!           little-endian. The digest is in the `NodePtr` of the metaslab's descriptor.
//!
//! ```text
//!    0  magic        "CHmapdlt"
//!    8  version u16 · 0 u16
//!   12  device u16 · 0 u16
//!   16  index u32           number of the metaslab on its device
//!   20  blocks u32          size of the metaslab; the map before may have fewer
//!   24  first_block u64     where on the device it begins
//!   32  follows u64         the map before is complete up to this txg
//!   40  complete_to u64     base and deltas up to this one are complete up to this txg
//!   48  allocated u32       blocks, after this delta
//!   52  body_len u32        bytes
//! ```
//!
//! MAPDELTA-D1  The body is (gap, change) pairs: `gap` blocks since the end of the run before, then
//!              twice the run's length less one, plus one if its blocks became allocated. A run
//!              that continues the one before has the other state.
//! MAPDELTA-D2  A run changes each of its blocks: it allocates free blocks, or frees allocated
//!              ones. So a delta over any other map than the one it was made for is noticed.
//! MAPDELTA-D3  `allocated` is the count after it, `follows` is `complete_to` of the map before,
//!              and its own `complete_to` is a later txg.

use std::ops::Deref;

use copyhold_types::{DeviceId, Txg};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;
use crate::wire::{Reader, put_varint};

use super::{MAX_BLOCKS, MapRange, SpaceMap, body};

const WHAT: &str = "delta of a space map";
const MAGIC: [u8; 8] = *b"CHmapdlt";
const VERSION: u16 = 1;

/// Deltas that a map has at most.
pub const DELTAS_MAX: usize = 15;

/// Blocks that the deltas over a base may take together where the base takes fewer.
pub const DELTAS_SMALL: u32 = 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderDisk {
    magic: [u8; 8],
    version: U16,
    reserved_a: U16,
    device: U16,
    reserved_b: U16,
    index: U32,
    blocks: U32,
    first_block: U64,
    follows: U64,
    complete_to: U64,
    allocated: U32,
    body_len: U32,
}
const _: () = assert!(size_of::<HeaderDisk>() == 56);

/// A run of blocks that have another state than in the map before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Block of the metaslab.
    pub first: u32,
    pub blocks: u32,
    /// Their state now.
    pub allocated: bool,
}

/// The changes of one metaslab since the map before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDelta {
    place: MapRange,
    follows: Txg,
    complete_to: Txg,
    allocated: u32,
    changes: Vec<Change>,
}

impl MapDelta {
    /// Bytes that a run of changes takes at least.
    pub const RUN_BYTES_MIN: usize = 2;

    /// `follows`: the map before is complete up to it. `allocated`: blocks after the changes, which
    /// are in order and disjoint.
    pub fn new(
        place: MapRange,
        follows: Txg,
        complete_to: Txg,
        allocated: u32,
        changes: Vec<Change>,
    ) -> MapDelta {
        assert!(place.blocks <= MAX_BLOCKS, "{place:?} is larger than a map can describe");
        assert!(follows < complete_to, "MAPDELTA-D3: {follows} is not before {complete_to}");
        let mut before: Option<Change> = None;
        for change in &changes {
            assert!(is_next(before, *change), "MAPDELTA-D1: {change:?} behind {before:?}");
            before = Some(*change);
        }
        let end = before.map_or(0, |last| last.first + last.blocks);
        assert!(end <= place.blocks, "MAPDELTA-D1: changes beyond {place:?}");
        MapDelta { place, follows, complete_to, allocated, changes }
    }

    pub fn place(&self) -> MapRange {
        self.place
    }

    /// As of [`SpaceMap::complete_to`], of the map with this delta.
    pub fn complete_to(&self) -> Txg {
        self.complete_to
    }

    /// Allocated blocks of the map with this delta.
    pub fn allocated(&self) -> u32 {
        self.allocated
    }

    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The bytes to be stored, without the zeros that fill up the last block.
    pub fn encode(&self) -> Vec<u8> {
        let body = encode_body(&self.changes);
        let header = HeaderDisk {
            magic: MAGIC,
            version: VERSION.into(),
            reserved_a: 0.into(),
            device: self.place.device.0.into(),
            reserved_b: 0.into(),
            index: self.place.index.into(),
            blocks: self.place.blocks.into(),
            first_block: self.place.first_block.into(),
            follows: self.follows.get().into(),
            complete_to: self.complete_to.get().into(),
            allocated: self.allocated.into(),
            body_len: (body.len() as u32).into(),
        };
        [header.as_bytes(), &body].concat()
    }

    /// `bytes`: the whole blocks that a descriptor's pointer names, digest verified.
    pub fn parse(bytes: &[u8]) -> Result<MapDelta, FormatError> {
        let short = FormatError::Short { what: WHAT, len: bytes.len() };
        let (header, rest) = HeaderDisk::read_from_prefix(bytes).map_err(|_| short.clone())?;
        if header.magic != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        if header.version.get() != VERSION {
            let found = header.version.get().into();
            return Err(FormatError::Version { found, supported: VERSION.into() });
        }
        if header.reserved_a.get() != 0 || header.reserved_b.get() != 0 {
            return Err(field("reserved", header.reserved_b.get().into()));
        }
        let place = MapRange {
            device: DeviceId(header.device.get()),
            index: header.index.get(),
            first_block: header.first_block.get(),
            blocks: header.blocks.get(),
        };
        if place.blocks == 0 || place.blocks > MAX_BLOCKS {
            return Err(field("blocks", place.blocks.into()));
        }
        let (follows, complete_to) = (header.follows.get(), header.complete_to.get());
        let follows = Txg::new(follows).ok_or(field("follows", follows))?;
        let complete_to = Txg::new(complete_to).filter(|txg| *txg > follows);
        let complete_to = complete_to.ok_or(field("complete_to", header.complete_to.get()))?;
        let body_len = header.body_len.get() as usize;
        let (body, padding) = rest.split_at_checked(body_len).ok_or(short)?;
        if padding.iter().any(|&byte| byte != 0) {
            return Err(field("padding", padding.len() as u64));
        }
        let changes = parse_body(body, place.blocks)?;
        let allocated = header.allocated.get();
        Ok(MapDelta { place, follows, complete_to, allocated, changes })
    }
}

impl SpaceMap {
    /// The map of a base and the deltas over it, the oldest first; each as [`SpaceMap::parse`] and
    /// [`MapDelta::parse`] take it.
    pub fn parse_parts<B: Deref<Target = [u8]>>(
        base: &B,
        deltas: &[B],
    ) -> Result<SpaceMap, FormatError> {
        let base = SpaceMap::parse(base)?;
        deltas.iter().try_fold(base, |map, delta| map.with(&MapDelta::parse(delta)?))
    }

    /// The map with the changes of the delta that follows it.
    ///
    /// # Errors
    /// The delta was made for another map (MAPDELTA-D2, MAPDELTA-D3).
    pub fn with(mut self, delta: &MapDelta) -> Result<SpaceMap, FormatError> {
        let blocks = self.place.blocks.max(delta.place.blocks);
        // A map that was written before the device grew has fewer blocks.
        if (MapRange { blocks, ..self.place }) != delta.place {
            return Err(field("index", delta.place.index.into()));
        }
        if delta.follows != self.complete_to {
            return Err(field("follows", delta.follows.get()));
        }
        self.words.resize(blocks.div_ceil(64) as usize, 0);
        for &Change { first, blocks, allocated } in &delta.changes {
            for (word, mask) in body::masks(first, blocks) {
                let is_new = self.words[word] & mask == if allocated { 0 } else { mask };
                if !is_new {
                    return Err(field("change", first.into()));
                }
                self.words[word] ^= mask;
            }
        }
        let map = SpaceMap::new(delta.place, delta.complete_to, self.words);
        match map.allocated == delta.allocated {
            true => Ok(map),
            false => Err(field("allocated", delta.allocated.into())),
        }
    }
}

fn field(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: WHAT, field, value }
}

/// MAPDELTA-D1
fn is_next(before: Option<Change>, change: Change) -> bool {
    let is_behind = before.is_none_or(|before| {
        let end = before.first + before.blocks;
        end < change.first || end == change.first && before.allocated != change.allocated
    });
    change.blocks > 0 && is_behind
}

fn encode_body(changes: &[Change]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut end = 0;
    for &Change { first, blocks, allocated } in changes {
        put_varint(&mut body, (first - end).into());
        put_varint(&mut body, u64::from(blocks - 1) << 1 | u64::from(allocated));
        end = first + blocks;
    }
    body
}

fn parse_body(body: &[u8], blocks: u32) -> Result<Vec<Change>, FormatError> {
    let mut changes: Vec<Change> = Vec::new();
    let mut reader = Reader::new(WHAT, body);
    let mut end = 0;
    while !reader.is_empty() {
        let first = end + reader.bounded("gap", (blocks - end).into())? as u32;
        let change = reader.bounded("length", u64::from(blocks) << 1 | 1)?;
        let (length, allocated) = ((change >> 1) as u32 + 1, change & 1 != 0);
        if length > blocks - first {
            let detail = format!("a run goes beyond the {blocks} blocks of the metaslab");
            return Err(FormatError::Order { what: WHAT, detail });
        }
        let change = Change { first, blocks: length, allocated };
        if !is_next(changes.last().copied(), change) {
            let detail = format!("two runs at block {first} are one");
            return Err(FormatError::Order { what: WHAT, detail });
        }
        end = first + length;
        changes.push(change);
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn txg(n: u64) -> Txg {
        Txg::new(n).unwrap()
    }

    fn place(blocks: u32) -> MapRange {
        MapRange { device: DeviceId(3), index: 7, first_block: 7 * 4096, blocks }
    }

    fn map_of(flags: &[bool]) -> SpaceMap {
        let mut words = vec![0; flags.len().div_ceil(64)];
        let set = flags.iter().enumerate().filter(|(_, set)| **set);
        set.for_each(|(block, _)| words[block / 64] |= 1 << (block % 64));
        SpaceMap::new(place(flags.len() as u32), txg(9), words)
    }

    fn change(first: u32, blocks: u32, allocated: bool) -> Change {
        Change { first, blocks, allocated }
    }

    fn example() -> MapDelta {
        let changes = vec![change(1, 3, false), change(4, 1, true), change(500, 200, true)];
        MapDelta::new(place(1000), txg(9), txg(12), 201, changes)
    }

    fn flags(set: std::ops::Range<usize>) -> Vec<bool> {
        (0..1000).map(|block| set.contains(&block)).collect()
    }

    #[test]
    fn the_bytes_of_version_1_stay_as_they_are() {
        let mut golden = b"CHmapdlt\x01\0\0\0\x03\0\0\0\x07\0\0\0\xe8\x03\0\0".to_vec();
        golden.extend([28672u64, 9, 12].map(u64::to_le_bytes).as_flattened());
        golden.extend([201u32, 8].map(u32::to_le_bytes).as_flattened());
        golden.extend([1, 4, 0, 1, 0xef, 3, 0x8f, 3]);
        assert_eq!(example().encode(), golden);
        assert_eq!(MapDelta::parse(&golden), Ok(example()));
    }

    #[test]
    fn a_delta_is_refused_over_any_other_map_than_its_own() {
        let before = map_of(&flags(1..4));
        let after = before.clone().with(&example()).unwrap();
        assert_eq!((after.allocated(), after.complete_to()), (201, txg(12)));
        assert_eq!(after.runs().collect::<Vec<_>>(), [(4, 1), (500, 200)]);
        assert!(after.with(&example()).is_err(), "MAPDELTA-D3: it follows another txg");
        for (set, why) in [(1..3, "frees a free block"), (1..5, "allocates an allocated one")] {
            assert!(map_of(&flags(set)).with(&example()).is_err(), "MAPDELTA-D2: {why}");
        }
        let longer = map_of(&(0..1001).map(|block| (1..4).contains(&block)).collect::<Vec<_>>());
        assert!(longer.with(&example()).is_err(), "no metaslab becomes smaller");
        let mut wrong = example();
        wrong.allocated += 1;
        assert!(before.with(&wrong).is_err(), "MAPDELTA-D3");
    }

    #[test]
    fn a_map_of_a_shorter_metaslab_gets_the_length_of_the_delta() {
        let changes = vec![change(60, 40, true)];
        let delta = MapDelta::new(place(100), txg(9), txg(10), 42, changes);
        let map = map_of(&[true, true, false]).with(&delta).unwrap();
        assert_eq!(map.runs().collect::<Vec<_>>(), [(0, 2), (60, 40)]);
        assert_eq!(map.place().blocks, 100);
    }

    #[test]
    fn a_delta_is_refused_when_its_fields_are_wrong() {
        let good = example().encode();
        for (at, field) in
            [(8, "version"), (10, "reserved"), (14, "reserved"), (23, "blocks"), (39, "follows")]
        {
            let mut bad = good.clone();
            bad[at] ^= 0x80;
            assert!(MapDelta::parse(&bad).is_err(), "{field}");
        }
        // The second run, behind the first, has its state.
        let mut bad = good.clone();
        bad[59] = 0;
        assert!(matches!(MapDelta::parse(&bad), Err(FormatError::Order { .. })));
        let mut bad = good.clone();
        bad[60] = 0xff;
        bad[61] = 0x7f;
        assert!(MapDelta::parse(&bad).is_err(), "a gap beyond the metaslab");
        assert!(MapDelta::parse(&good[..55]).is_err());
    }

    proptest! {
        #[test]
        fn a_map_with_the_delta_to_another_is_the_other(
            before in prop::collection::vec(any::<bool>(), 1..300),
            sparse in 1usize..40,
            more in 0usize..100,
            padding in 0usize..64,
        ) {
            let mut after = before.clone();
            after.resize(before.len() + more, false);
            after.iter_mut().step_by(sparse).for_each(|flag| *flag = !*flag);
            let mut changes: Vec<Change> = Vec::new();
            for (block, allocated) in after.iter().copied().enumerate() {
                if before.get(block).copied().unwrap_or_default() == allocated {
                    continue;
                }
                match changes.last_mut() {
                    Some(last) if last.first + last.blocks == block as u32
                        && last.allocated == allocated => last.blocks += 1,
                    _ => changes.push(change(block as u32, 1, allocated)),
                }
            }
            let allocated = after.iter().filter(|flag| **flag).count() as u32;
            let delta = MapDelta::new(
                place(after.len() as u32), txg(9), txg(11), allocated, changes);
            let mut bytes = delta.encode();
            bytes.resize(bytes.len() + padding, 0);
            let back = MapDelta::parse(&bytes).unwrap();
            prop_assert_eq!(&back, &delta);
            let map = map_of(&before).with(&back).unwrap();
            let wanted = map_of(&after);
            prop_assert_eq!(map.words(), wanted.words());
        }

        #[test]
        fn any_bytes_give_an_answer(
            at in 8usize..80,
            with in any::<u8>(),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = MapDelta::parse(&bytes);
            let mut bytes = example().encode();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
            if let Ok(delta) = MapDelta::parse(&bytes) {
                prop_assert_eq!(MapDelta::parse(&delta.encode()), Ok(delta.clone()));
                let _ = map_of(&flags(1..4)).with(&delta);
            }
        }
    }
}
