//! Inner nodes: the first key, item count and pointer of each child, in rows of 64 bytes.
//!
//! Rows are fixed, so a search touches the encoded bytes only. 254 rows and the header are 16 KiB.
//! A child holds the keys from its own first key (the first child: from minus infinity) up to the
//! next child's.

use copyhold_types::{BLOCK_BYTES, Buf, Key, Kind, NodePtr};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::pointer::NodePtrDisk;
use super::{HEADER_BYTES, Header, ITEMS_MAX, Level, NodeOrigin, disorder, field};
use crate::FormatError;

const ROW_BYTES: usize = 64;

/// One row of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// First key in the child.
    pub first: Key,
    pub ptr: NodePtr,
    /// Items in the child, 1 to [`ITEMS_MAX`].
    pub items: u32,
}

/// An inner node as it is on disk, validated.
#[derive(Debug)]
pub struct InnerView {
    buf: Buf,
    header: Header,
}

impl InnerView {
    pub fn parse(buf: Buf) -> Result<InnerView, FormatError> {
        let header = Header::parse(&buf)?;
        if header.level != Level::Inner {
            return Err(field("level", 0));
        }
        if header.used != HEADER_BYTES + header.items * ROW_BYTES {
            return Err(field("used", header.used as u64));
        }
        let view = InnerView { buf, header };
        let mut before = None;
        for row in view.rows() {
            row.ptr.parse()?;
            if row.items.get() == 0 {
                return Err(field("items of a child", 0));
            }
            let first = row.first();
            if before.is_some_and(|before| before >= first) {
                return Err(disorder(format!("child {first} stands behind {before:?}")));
            }
            before = Some(first);
        }
        if view.child(0).first != view.header.first || before != Some(view.header.last) {
            return Err(disorder("its header names other keys than its rows"));
        }
        Ok(view)
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn children(&self) -> usize {
        self.header.items
    }

    /// The `n`th child, below [`Self::children`].
    pub fn child(&self, n: usize) -> Child {
        let row = &self.rows()[n];
        Child { first: row.first(), ptr: row.ptr.assume_parsed(), items: row.items.get().into() }
    }

    /// The child that would hold `key`; `None` when `key` is before all that is here.
    pub fn find(&self, key: Key) -> Option<usize> {
        self.rows().partition_point(|row| row.first() <= key).checked_sub(1)
    }

    pub fn iter(&self) -> impl Iterator<Item = Child> + '_ {
        (0..self.children()).map(|n| self.child(n))
    }

    pub fn bytes(&self) -> &Buf {
        &self.buf
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<InnerView>() + self.buf.len()
    }

    fn rows(&self) -> &[RowDisk] {
        let bytes = &self.buf[HEADER_BYTES..self.header.used];
        <[RowDisk]>::ref_from_bytes(bytes).unwrap_or(&[])
    }
}

/// The node over `children`, which are in order and at least one.
pub fn encode_inner(origin: NodeOrigin, children: &[Child]) -> Buf {
    assert!(children.is_sorted_by(|a, b| a.first < b.first), "NODE-N1: children out of order");
    assert!(children.len() <= ITEMS_MAX, "{} children", children.len());
    let (Some(first), Some(last)) = (children.first(), children.last()) else {
        panic!("NODE-N1: an inner node without children");
    };
    let used = HEADER_BYTES + children.len() * ROW_BYTES;
    let mut buf = Buf::zeroed(used.div_ceil(BLOCK_BYTES));
    let bytes = buf.make_mut();
    for (child, at) in children.iter().zip((HEADER_BYTES..).step_by(ROW_BYTES)) {
        bytes[at..at + ROW_BYTES].copy_from_slice(RowDisk::from(child).as_bytes());
    }
    let header = Header {
        level: Level::Inner,
        birth: origin.birth,
        table: origin.table,
        used,
        items: children.len(),
        first: first.first,
        last: last.first,
        groups: 0,
        sections: 0,
    };
    header.write(bytes);
    buf
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RowDisk {
    object: U64,
    offset: U64,
    kind: u8,
    zero: u8,
    items: U16,
    ptr: NodePtrDisk,
}
const _: () = assert!(size_of::<RowDisk>() == ROW_BYTES);

impl RowDisk {
    fn first(&self) -> Key {
        Key::new(self.object.get(), Kind(self.kind), self.offset.get())
    }
}

impl From<&Child> for RowDisk {
    fn from(child: &Child) -> RowDisk {
        let items = u16::try_from(child.items).expect("a leaf is bounded by ITEMS_MAX");
        assert!(items > 0, "NODE-N1: an empty child");
        RowDisk {
            object: child.first.object.into(),
            offset: child.first.offset.into(),
            kind: child.first.kind.0,
            zero: 0,
            items: items.into(),
            ptr: NodePtrDisk::from(&child.ptr),
        }
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{BlockAddr, DeviceId, Digest, EpochId, TableId, Txg};
    use proptest::prelude::*;

    use super::*;

    fn child(n: u64) -> Child {
        let addr = |base| Some(BlockAddr::new(DeviceId(0), base + n * 8));
        let ptr = NodePtr {
            copies: [addr(100), addr(90_000)],
            blocks: 8,
            fragmented: false,
            epoch: EpochId(n),
            digest: Digest(u128::from(n) << 70),
        };
        Child { first: Key::new(n / 3, Kind(16), n * 10), ptr, items: 1 + n as u32 }
    }

    fn node(children: u64) -> Buf {
        let origin = NodeOrigin { table: TableId(4), birth: Txg::FIRST };
        encode_inner(origin, &(0..children).map(child).collect::<Vec<_>>())
    }

    #[test]
    fn a_search_finds_the_child_that_covers_the_key() {
        let buf = node(254);
        assert_eq!(buf.len(), 16 * 1024);
        let view = InnerView::parse(buf).unwrap();
        assert_eq!(view.children(), 254);
        for n in 0..254 {
            let c = child(n as u64);
            assert_eq!(view.child(n), c);
            assert_eq!(view.find(c.first), Some(n));
            assert_eq!(view.find(c.first.successor().unwrap()), Some(n));
        }
        assert_eq!(view.find(Key::MAX), Some(253));
        assert_eq!(view.find(Key::MIN), None);
    }

    proptest! {
        #[test]
        fn changed_bytes_give_an_answer_or_an_error(
            changes in proptest::collection::vec((0..700usize, any::<u8>()), 1..6),
            key: u64,
        ) {
            let mut buf = node(9);
            for (at, byte) in changes {
                buf.make_mut()[at] = byte;
            }
            if let Ok(view) = InnerView::parse(buf) {
                let _ = view.find(Key::new(key % 5, Kind(16), key));
                let _ = view.iter().count();
            }
        }
    }
}
