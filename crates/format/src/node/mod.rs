//! Nodes of tables: leaves of packed columns, inner nodes, pointers, partition descriptors.
//!
//! Problem.  An extent of 4 KiB must cost about eleven bytes on disk and in the cache, and a lookup
//!           must not decode a node first.
//! Idea.     A leaf holds columns of fixed bit width that are searched in place; the cache keeps
//!           nodes as they are on disk. A node is parsed and validated once, when it was read.
//! On disk.  Whole blocks: a header of 128 bytes, then the body of its level (`leaf`, `inner`),
//!           then zeros. A node does not contain its own address, so that its copies are
//!           identical; the 128-bit digest in the pointer, over all its blocks, verifies it.
//!
//! ```text
//!   0 magic u32 · version u16 · level u8 · 0
//!   8 check u64      xxh3-64 over [16, used): for salvage, when no pointer is at hand
//!  16 birth u64      txg that was open when the node was written
//!  24 table u64      the table that it was written for
//!  32 used u32 · items u32
//!  40 first key · last key    24 bytes each: object u64, offset u64, kind u8, 0
//!  88 groups u32 · sections u32    of a leaf, else 0
//!  96 zeros
//! ```
//!
//! NODE-N1  Keys of a node are strictly ascending. A node is never empty.
//! NODE-N2  Any bytes parse to a view or an error; no accessor of a view panics.

mod builder;
mod column;
mod descriptor;
mod fragments;
mod inner;
mod layer;
mod leaf;
mod lineage;
mod pointer;
pub mod schema;

pub use builder::{ITEMS_MAX, LeafBuilder, NodeOrigin};
pub use descriptor::{LAYERS_MAX, LayerDescriptor, PARTITION, PartitionDescriptor};
pub use fragments::{FRAGMENTS_MAX, Fragment, encode_fragments, parse_fragments, pieces_of};
pub use inner::{Child, InnerView, encode_inner};
pub use layer::{encode_edit, parse_edit};
pub use leaf::{LeafPosition, LeafView, ValueRef};
pub use lineage::{LINEAGE, Lineage};
pub use pointer::{NODE_BLOCKS_MAX, NODE_PTR_BYTES, decode_ptr, encode_ptr};

use copyhold_types::{Buf, Key, Kind, Purpose, TableId, Txg};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;

/// Bytes of the header that every node begins with.
pub const HEADER_BYTES: usize = 128;

const WHAT: &str = "node";
const MAGIC: u32 = u32::from_le_bytes(*b"CHnd");
const VERSION: u16 = 1;

/// Where in a partition's subtree a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    Leaf,
    Inner,
}

impl Level {
    /// The purpose with which device requests for such a node are counted.
    pub fn purpose(self) -> Purpose {
        match self {
            Level::Leaf => Purpose::Leaf,
            Level::Inner => Purpose::Inner,
        }
    }

    /// The root of a subtree of this height is at this level.
    pub fn of_height(height: u8) -> Level {
        if height == 0 { Level::Leaf } else { Level::Inner }
    }
}

/// A parsed node, as in the node cache.
#[derive(Debug)]
pub enum Node {
    Leaf(LeafView),
    Inner(InnerView),
}

impl Node {
    /// `buf`: the whole node, its digest already compared with the pointer's.
    pub fn parse(buf: Buf) -> Result<Node, FormatError> {
        match Header::parse(&buf)?.level {
            Level::Leaf => LeafView::parse(buf).map(Node::Leaf),
            Level::Inner => InnerView::parse(buf).map(Node::Inner),
        }
    }

    pub fn level(&self) -> Level {
        match self {
            Node::Leaf(_) => Level::Leaf,
            Node::Inner(_) => Level::Inner,
        }
    }

    pub fn as_leaf(&self) -> Option<&LeafView> {
        match self {
            Node::Leaf(leaf) => Some(leaf),
            Node::Inner(_) => None,
        }
    }

    pub fn as_inner(&self) -> Option<&InnerView> {
        match self {
            Node::Leaf(_) => None,
            Node::Inner(inner) => Some(inner),
        }
    }

    pub fn header(&self) -> &Header {
        match self {
            Node::Leaf(leaf) => leaf.header(),
            Node::Inner(inner) => inner.header(),
        }
    }

    /// Memory that the node holds, for accounts.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.memory_bytes(),
            Node::Inner(inner) => inner.memory_bytes(),
        }
    }
}

/// The content of a node's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub level: Level,
    /// The txg that was open when the node was written.
    pub birth: Txg,
    /// The table that it was written for; a snapshot shares it with others.
    pub table: TableId,
    /// Bytes in use, this header included; the rest of the last block is zeros.
    pub used: usize,
    /// Items of a leaf, children of an inner node; never 0.
    pub items: usize,
    pub first: Key,
    pub last: Key,
    groups: usize,
    sections: usize,
}

impl Header {
    pub fn parse(bytes: &[u8]) -> Result<Header, FormatError> {
        let (disk, _) = HeaderDisk::ref_from_prefix(bytes)
            .map_err(|_| FormatError::Short { what: WHAT, len: bytes.len() })?;
        if disk.magic.get() != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let version = disk.version.get();
        if version != VERSION {
            return Err(field("version", version.into()));
        }
        let level = match disk.level {
            0 => Level::Leaf,
            1 => Level::Inner,
            other => return Err(field("level", other.into())),
        };
        let used = disk.used.get() as usize;
        if used < HEADER_BYTES || used > bytes.len() {
            return Err(field("used", used as u64));
        }
        let items = disk.items.get() as usize;
        if items == 0 || items > ITEMS_MAX {
            return Err(field("items", items as u64));
        }
        Ok(Header {
            level,
            birth: Txg::new(disk.birth.get()).ok_or_else(|| field("birth", 0))?,
            table: TableId(disk.table.get()),
            used,
            items,
            first: disk.first.key(),
            last: disk.last.key(),
            groups: disk.groups.get() as usize,
            sections: disk.sections.get() as usize,
        })
    }

    /// Writes the header over the first bytes of `node`, whose content is complete.
    fn write(&self, node: &mut [u8]) {
        let mut disk = HeaderDisk {
            magic: MAGIC.into(),
            version: VERSION.into(),
            level: u8::from(self.level == Level::Inner),
            zero: 0,
            check: 0.into(),
            birth: self.birth.get().into(),
            table: self.table.0.into(),
            used: (self.used as u32).into(),
            items: (self.items as u32).into(),
            first: self.first.into(),
            last: self.last.into(),
            groups: (self.groups as u32).into(),
            sections: (self.sections as u32).into(),
            zeros: [0; 32],
        };
        node[..HEADER_BYTES].copy_from_slice(disk.as_bytes());
        disk.check = check_of(&node[..self.used]).into();
        node[..HEADER_BYTES].copy_from_slice(disk.as_bytes());
    }
}

/// Whether `bytes` begin with a node that is whole, for tools that look for nodes without pointers.
/// Where a pointer is at hand, its digest is compared instead.
pub fn is_whole(bytes: &[u8]) -> bool {
    let stored = |disk: &HeaderDisk| disk.check.get();
    Header::parse(bytes).is_ok_and(|header| {
        HeaderDisk::ref_from_prefix(bytes)
            .is_ok_and(|(disk, _)| stored(disk) == check_of(&bytes[..header.used]))
    })
}

fn check_of(used: &[u8]) -> u64 {
    xxh3_64(&used[CHECKED_FROM..])
}

fn field(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: WHAT, field, value }
}

fn disorder(detail: impl Into<String>) -> FormatError {
    FormatError::Order { what: WHAT, detail: detail.into() }
}

/// First 128 bytes of every node.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderDisk {
    magic: U32,
    version: U16,
    level: u8,
    zero: u8,
    check: U64,
    birth: U64,
    table: U64,
    used: U32,
    items: U32,
    first: KeyDisk,
    last: KeyDisk,
    groups: U32,
    sections: U32,
    zeros: [u8; 32],
}
const _: () = assert!(size_of::<HeaderDisk>() == HEADER_BYTES);

/// The check begins after its own field.
const CHECKED_FROM: usize = std::mem::offset_of!(HeaderDisk, birth);
const _: () = assert!(CHECKED_FROM == 16);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct KeyDisk {
    object: U64,
    offset: U64,
    kind: u8,
    zero: [u8; 7],
}

impl KeyDisk {
    fn key(&self) -> Key {
        Key::new(self.object.get(), Kind(self.kind), self.offset.get())
    }
}

impl From<Key> for KeyDisk {
    fn from(key: Key) -> KeyDisk {
        KeyDisk {
            object: key.object.into(),
            offset: key.offset.into(),
            kind: key.kind.0,
            zero: [0; 7],
        }
    }
}
