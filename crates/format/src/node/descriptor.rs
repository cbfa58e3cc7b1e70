//! A partition as an item of the table of tables: "keys [start, next start) of table T: this
//! subtree, complete to that txg".
//!
//! The item's key is (table, [`PARTITION`], partition id). Layers are sorted runs of edits that lie
//! over the base, each a tree like it; the values in their leaves are edits (`layer`).
//!
//! ```text
//!   0 start key: object u64, offset u64, kind u8
//!  17 height u8 · has root u8 · layers u8
//!  20 items u64 · complete to u64 (0: nothing was flushed yet)
//!  36 root 44 bytes, if it has one
//!     per layer: run 44 bytes · height u8 · 0 0 0 · items u64 · first txg u64 · last txg u64
//! ```

use copyhold_types::{Key, Kind, NodePtr, TableId, Txg};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::pointer::NodePtrDisk;
use crate::FormatError;

/// The kind of a partition's item in the table of tables.
pub const PARTITION: Kind = Kind(2);

/// Layers that one partition may have.
pub const LAYERS_MAX: usize = 8;

const WHAT: &str = "partition descriptor";
const HEIGHT_MAX: u8 = 1;

/// The description of a partition on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDescriptor {
    /// First key of its range; the range ends where the table's next partition starts.
    pub start: Key,
    /// `None`: no items.
    pub root: Option<NodePtr>,
    /// 0: the root is a leaf; 1: an inner node above leaves.
    pub height: u8,
    /// Items in the base.
    pub items: u64,
    /// Edits of txgs up to this one are all in the base or in a layer.
    pub complete_to: Option<Txg>,
    /// Newest first.
    pub layers: Vec<LayerDescriptor>,
}

/// An immutable sorted run of edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerDescriptor {
    pub root: NodePtr,
    pub height: u8,
    /// Edits, at least one.
    pub items: u64,
    /// No edit is of an older txg.
    pub first_txg: Txg,
    /// No edit is of a younger one; that of an older layer is not younger.
    pub last_txg: Txg,
}

impl PartitionDescriptor {
    /// A partition that starts at `start` and has nothing.
    pub fn empty(start: Key) -> PartitionDescriptor {
        let layers = Vec::new();
        PartitionDescriptor { start, root: None, height: 0, items: 0, complete_to: None, layers }
    }

    /// The key of the item in the table of tables.
    pub fn key(table: TableId, partition: u64) -> Key {
        Key::new(table.0, PARTITION, partition)
    }

    pub fn encode(&self) -> Vec<u8> {
        assert!(self.layers.len() <= LAYERS_MAX, "{} layers", self.layers.len());
        let head = DescriptorDisk {
            object: self.start.object.into(),
            offset: self.start.offset.into(),
            kind: self.start.kind.0,
            height: self.height,
            has_root: u8::from(self.root.is_some()),
            layers: self.layers.len() as u8,
            items: self.items.into(),
            complete_to: self.complete_to.map_or(0, Txg::get).into(),
        };
        let mut bytes = head.as_bytes().to_vec();
        if let Some(root) = &self.root {
            bytes.extend_from_slice(NodePtrDisk::from(root).as_bytes());
        }
        for layer in &self.layers {
            bytes.extend_from_slice(LayerDisk::from(layer).as_bytes());
        }
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<PartitionDescriptor, FormatError> {
        let short = || FormatError::Short { what: WHAT, len: bytes.len() };
        let (head, mut rest) = DescriptorDisk::ref_from_prefix(bytes).map_err(|_| short())?;
        let root = match head.has_root {
            0 => None,
            1 => {
                let (ptr, behind) = NodePtrDisk::ref_from_prefix(rest).map_err(|_| short())?;
                rest = behind;
                Some(ptr.parse()?)
            }
            other => return Err(field("has root", other.into())),
        };
        let mut layers = Vec::new();
        if usize::from(head.layers) > LAYERS_MAX {
            return Err(field("layers", head.layers.into()));
        }
        for _ in 0..head.layers {
            let (layer, behind) = LayerDisk::ref_from_prefix(rest).map_err(|_| short())?;
            rest = behind;
            layers.push(layer.parse()?);
        }
        if !layers.is_sorted_by(|newer, older| newer.last_txg >= older.last_txg) {
            return Err(field("order of layers", layers.len() as u64));
        }
        if !rest.is_empty() {
            return Err(field("bytes behind its end", rest.len() as u64));
        }
        let items = head.items.get();
        if root.is_some() != (items > 0) {
            return Err(field("items", items));
        }
        Ok(PartitionDescriptor {
            start: Key::new(head.object.get(), Kind(head.kind), head.offset.get()),
            root,
            height: checked_height(head.height)?,
            items,
            complete_to: Txg::new(head.complete_to.get()),
            layers,
        })
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DescriptorDisk {
    object: U64,
    offset: U64,
    kind: u8,
    height: u8,
    has_root: u8,
    layers: u8,
    items: U64,
    complete_to: U64,
}
const _: () = assert!(size_of::<DescriptorDisk>() == 36);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LayerDisk {
    root: NodePtrDisk,
    height: u8,
    zero: [u8; 3],
    items: U64,
    first_txg: U64,
    last_txg: U64,
}
const _: () = assert!(size_of::<LayerDisk>() == 72);

impl From<&LayerDescriptor> for LayerDisk {
    fn from(layer: &LayerDescriptor) -> LayerDisk {
        LayerDisk {
            root: NodePtrDisk::from(&layer.root),
            height: layer.height,
            zero: [0; 3],
            items: layer.items.into(),
            first_txg: layer.first_txg.get().into(),
            last_txg: layer.last_txg.get().into(),
        }
    }
}

impl LayerDisk {
    fn parse(&self) -> Result<LayerDescriptor, FormatError> {
        let txg = |raw: U64| Txg::new(raw.get()).ok_or_else(|| field("txg of a layer", 0));
        let (first_txg, last_txg) = (txg(self.first_txg)?, txg(self.last_txg)?);
        if first_txg > last_txg {
            return Err(field("first txg of a layer", first_txg.get()));
        }
        if self.items.get() == 0 {
            return Err(field("items of a layer", 0));
        }
        Ok(LayerDescriptor {
            root: self.root.parse()?,
            height: checked_height(self.height)?,
            items: self.items.get(),
            first_txg,
            last_txg,
        })
    }
}

fn checked_height(height: u8) -> Result<u8, FormatError> {
    if height > HEIGHT_MAX { Err(field("height", height.into())) } else { Ok(height) }
}

fn field(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: WHAT, field, value }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{BlockAddr, DeviceId, Digest, EpochId};
    use proptest::prelude::*;

    use super::*;

    fn root() -> NodePtr {
        let at = |block| Some(BlockAddr::new(DeviceId(1), block));
        NodePtr {
            copies: [at(5), at(90)],
            blocks: 5,
            fragmented: false,
            epoch: EpochId(2),
            digest: Digest(77),
        }
    }

    fn descriptor() -> PartitionDescriptor {
        PartitionDescriptor {
            start: Key::new(9, Kind(16), 4096),
            root: Some(root()),
            height: 1,
            items: 700_000,
            complete_to: Txg::new(12),
            layers: Vec::new(),
        }
    }

    #[test]
    fn a_descriptor_comes_back_as_it_was() {
        let mut d = descriptor();
        assert_eq!(PartitionDescriptor::parse(&d.encode()), Ok(d.clone()));
        let txg = |n| Txg::new(n).unwrap();
        let layer = LayerDescriptor {
            root: root(),
            height: 0,
            items: 3,
            first_txg: txg(13),
            last_txg: txg(15),
        };
        d.layers = vec![layer; LAYERS_MAX];
        assert_eq!(PartitionDescriptor::parse(&d.encode()), Ok(d.clone()));
        assert!(d.encode().len() <= crate::uberblock::TABLES_MAX);
        d.layers[1].last_txg = txg(16);
        assert!(PartitionDescriptor::parse(&d.encode()).is_err(), "the newest is first");
        d.layers = vec![LayerDescriptor { items: 0, ..layer }];
        assert!(PartitionDescriptor::parse(&d.encode()).is_err(), "a layer has an edit");
        let empty = PartitionDescriptor::empty(Key::MIN);
        assert_eq!(PartitionDescriptor::parse(&empty.encode()), Ok(empty));
    }

    #[test]
    fn a_descriptor_that_is_cut_or_too_long_is_refused() {
        let bytes = descriptor().encode();
        for len in 0..bytes.len() {
            assert!(PartitionDescriptor::parse(&bytes[..len]).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(PartitionDescriptor::parse(&longer).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
            at in 0..80usize,
            byte: u8,
        ) {
            let _ = PartitionDescriptor::parse(&bytes);
            let mut near = descriptor().encode();
            near[at] = byte;
            let _ = PartitionDescriptor::parse(&near);
        }
    }
}
