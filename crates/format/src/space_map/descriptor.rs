//! The entry of each metaslab in the table of metaslabs: the place and the totals of its map.
//!
//! The map is a base and the deltas over it, the oldest first. The entry of a map without deltas
//! has the form that it had before there were any.

use copyhold_types::{DeviceId, Key, Kind, NodePtr, Txg};

use crate::FormatError;
use crate::node::{NODE_PTR_BYTES, decode_ptr, encode_ptr};
use crate::wire::Reader;

use super::{DELTAS_MAX, DELTAS_SMALL, MAP_BLOCKS_MAX};

/// Items of this kind are [`Descriptor`]s, in the table of metaslabs.
pub const METASLAB: Kind = Kind(3);

const WHAT: &str = "metaslab descriptor";
const LEN: usize = NODE_PTR_BYTES + 20;
const LOST: u32 = 1 << 0;

/// The item of one metaslab, under [`Descriptor::key`]. A metaslab without an item has never been
/// flushed: its map is empty and complete up to no txg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The base. `None`: nothing is allocated.
    pub map: Option<NodePtr>,
    /// The deltas over the base, the oldest first; at most [`DELTAS_MAX`]. Together they have at
    /// most as many blocks as the base, or [`DELTAS_SMALL`].
    pub deltas: Vec<NodePtr>,
    /// Blocks that the map with its deltas calls allocated.
    pub allocated: u32,
    /// Every edit of a txg up to this one is in the map or a delta.
    pub complete_to: Txg,
    /// Longest run of free blocks when the map was made: a hint.
    pub longest_free: u32,
    /// There was a map, and it is gone: nothing is known of its blocks. No program records this any
    /// more.
    pub is_lost: bool,
}

impl Descriptor {
    /// Where the descriptor of metaslab `index` of `device` is kept.
    pub fn key(device: DeviceId, index: u32) -> Key {
        Key::new(device.0.into(), METASLAB, index.into())
    }

    /// The reverse of [`Self::key`], for a key that was read from a table.
    pub fn parse_key(key: Key) -> Result<(DeviceId, u32), FormatError> {
        let bad = |field, value| FormatError::Field { what: WHAT, field, value };
        if key.kind != METASLAB {
            return Err(bad("kind", key.kind.0.into()));
        }
        let device = u16::try_from(key.object).map_err(|_| bad("device", key.object))?;
        let index = u32::try_from(key.offset).map_err(|_| bad("index", key.offset))?;
        Ok((DeviceId(device), index))
    }

    /// All that the map is: the base, then its deltas.
    pub fn parts(&self) -> impl Iterator<Item = NodePtr> + '_ {
        self.map.into_iter().chain(self.deltas.iter().copied())
    }

    /// The pointer (zeros for none), then `complete_to` u64, `allocated` u32, `longest_free` u32,
    /// flags u32, and the pointers of the deltas.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = vec![0; LEN];
        if let Some(map) = &self.map {
            value[..NODE_PTR_BYTES].copy_from_slice(&encode_ptr(map));
        }
        let rest = &mut value[NODE_PTR_BYTES..];
        rest[..8].copy_from_slice(&self.complete_to.get().to_le_bytes());
        rest[8..12].copy_from_slice(&self.allocated.to_le_bytes());
        rest[12..16].copy_from_slice(&self.longest_free.to_le_bytes());
        rest[16..].copy_from_slice(&if self.is_lost { LOST } else { 0 }.to_le_bytes());
        self.deltas.iter().for_each(|delta| value.extend(encode_ptr(delta)));
        value
    }

    pub fn parse(value: &[u8]) -> Result<Descriptor, FormatError> {
        let short = FormatError::Short { what: WHAT, len: value.len() };
        let (fixed, deltas) = value.split_at_checked(LEN).ok_or(short.clone())?;
        let (deltas, cut) = deltas.as_chunks::<NODE_PTR_BYTES>();
        if !cut.is_empty() || deltas.len() > DELTAS_MAX {
            return Err(short);
        }
        let map = decode_ptr(fixed)?;
        let mut rest = Reader::new(WHAT, &fixed[NODE_PTR_BYTES..]);
        let complete_to = Txg::new(rest.u64()?).ok_or(rest.bad("complete_to", 0))?;
        let (allocated, longest_free, flags) = (rest.u32()?, rest.u32()?, rest.u32()?);
        if map.is_some() != (allocated > 0) {
            return Err(rest.bad("allocated", allocated.into()));
        }
        let is_lost = flags & LOST != 0;
        if flags & !LOST != 0 || is_lost && map.is_some() {
            return Err(rest.bad("flags", flags.into()));
        }
        if map.is_none() && !deltas.is_empty() {
            return Err(rest.bad("deltas", deltas.len() as u64));
        }
        let deltas = deltas.iter().map(|delta| {
            decode_ptr(delta)?.ok_or(FormatError::Field { what: WHAT, field: "delta", value: 0 })
        });
        let deltas = deltas.collect::<Result<Vec<NodePtr>, FormatError>>()?;
        // All parts are read at once, so their sizes bound the memory of a mount.
        let base = map.map_or(0, |map| map.blocks);
        if base > MAP_BLOCKS_MAX {
            return Err(rest.bad("blocks", base.into()));
        }
        let together: u64 = deltas.iter().map(|delta| u64::from(delta.blocks)).sum();
        if together > base.max(DELTAS_SMALL).into() {
            return Err(rest.bad("blocks of deltas", together));
        }
        Ok(Descriptor { map, deltas, allocated, complete_to, longest_free, is_lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copyhold_types::{BlockAddr, Digest, EpochId};
    use proptest::prelude::*;

    fn ptr(block: u64) -> NodePtr {
        NodePtr {
            copies: [Some(BlockAddr::new(DeviceId(1), block)), None],
            blocks: 2,
            fragmented: false,
            epoch: EpochId::POOL,
            digest: Digest(0x1234),
        }
    }

    fn example() -> Descriptor {
        let (map, deltas) = (Some(ptr(77)), Vec::new());
        let complete_to = Txg::new(41).unwrap();
        Descriptor { map, deltas, allocated: 9, complete_to, longest_free: 300, is_lost: false }
    }

    #[test]
    fn a_descriptor_comes_back_with_and_without_a_map() {
        let with = example();
        assert_eq!(Descriptor::parse(&with.encode()), Ok(with.clone()));
        assert_eq!(with.encode().len(), 64, "as before there were deltas");
        let without = Descriptor { map: None, allocated: 0, ..with };
        assert_eq!(Descriptor::parse(&without.encode()), Ok(without));
    }

    #[test]
    fn parts_that_would_take_much_memory_are_refused() {
        let of = |base: u32, deltas: &[u32]| {
            let sized = |blocks| NodePtr { blocks, ..ptr(7) };
            let deltas = deltas.iter().map(|blocks| sized(*blocks)).collect();
            let descriptor = Descriptor { map: Some(sized(base)), deltas, ..example() };
            Descriptor::parse(&descriptor.encode()).is_ok()
        };
        assert!(of(MAP_BLOCKS_MAX, &[100, 29]) && !of(MAP_BLOCKS_MAX, &[100, 30]));
        assert!(!of(MAP_BLOCKS_MAX + 1, &[]));
        assert!(of(1, &[1, 3]) && !of(1, &[1, 4]));
    }

    #[test]
    fn a_descriptor_comes_back_with_its_deltas() {
        let deltas: Vec<NodePtr> = (0..DELTAS_MAX as u64).map(|n| ptr(100 + n)).collect();
        let map = Some(NodePtr { blocks: MAP_BLOCKS_MAX, ..ptr(77) });
        let with = Descriptor { map, deltas, ..example() };
        assert_eq!(Descriptor::parse(&with.encode()), Ok(with.clone()));
        assert_eq!(with.parts().count(), 1 + DELTAS_MAX);
        let without_base = Descriptor { map: None, allocated: 0, ..with.clone() };
        assert!(Descriptor::parse(&without_base.encode()).is_err());
        let mut more = with.clone();
        more.deltas.push(ptr(200));
        assert!(Descriptor::parse(&more.encode()).is_err(), "too many");
        let mut none = with.encode();
        none.truncate(64);
        none.extend([0; NODE_PTR_BYTES]);
        assert!(Descriptor::parse(&none).is_err(), "a delta that is nowhere");
        assert!(Descriptor::parse(&with.encode()[..100]).is_err());
    }

    #[test]
    fn a_map_that_is_lost_is_none() {
        let lost = Descriptor { map: None, allocated: 0, is_lost: true, ..example() };
        assert_eq!(Descriptor::parse(&lost.encode()), Ok(lost.clone()));
        assert!(Descriptor::parse(&Descriptor { is_lost: true, ..example() }.encode()).is_err());
        let mut more = lost.encode();
        more[LEN - 4] = 3;
        assert!(Descriptor::parse(&more).is_err());
    }

    #[test]
    fn a_map_without_blocks_or_blocks_without_a_map_are_refused() {
        let allocated_without_map = Descriptor { map: None, ..example() };
        assert!(Descriptor::parse(&allocated_without_map.encode()).is_err());
        let empty_map = Descriptor { allocated: 0, ..example() };
        assert!(Descriptor::parse(&empty_map.encode()).is_err());
    }

    #[test]
    fn a_key_names_device_and_metaslab() {
        let key = Descriptor::key(DeviceId(2), 199);
        assert_eq!(Descriptor::parse_key(key), Ok((DeviceId(2), 199)));
        assert!(Descriptor::parse_key(Key { object: 1 << 16, ..key }).is_err());
        assert!(Descriptor::parse_key(Key { kind: Kind(4), ..key }).is_err());
    }

    proptest! {
        #[test]
        fn any_value_gives_an_answer(
            mut bytes in prop::collection::vec(any::<u8>(), 63..66),
            small in any::<bool>(),
            deltas in 0usize..9,
        ) {
            if small {
                bytes[42..44].fill(0);
                bytes[52..56].fill(1);
                bytes[60..63].fill(0);
                bytes.truncate(64);
                bytes[63..].fill(0);
                let map = bytes[..NODE_PTR_BYTES].to_vec();
                (0..deltas).for_each(|_| bytes.extend(&map));
            }
            if let Ok(descriptor) = Descriptor::parse(&bytes) {
                prop_assert_eq!(&descriptor.encode()[..], &bytes[..]);
            }
        }
    }
}
