//! Leaves and inner nodes: every accessor of a view that parses ends.
//!
//! The input is tried as a node, and as changes to good ones: three bytes a change, where and what.

use copyhold_format::node::{
    Child, LeafBuilder, Node, NodeOrigin, encode_inner, is_whole, schema::Schema,
};
use copyhold_types::{BlockAddr, Buf, DeviceId, Digest, EpochId, Key, Kind, NodePtr, TableId, Txg};

const ORIGIN: NodeOrigin = NodeOrigin { table: TableId(3), birth: Txg::FIRST };

pub(crate) fn node(data: &[u8]) {
    if data.is_empty() {
        return;
    }
    exercise(Buf::from_bytes(data));
    for mut node in [leaf(), inner()] {
        let bytes = node.make_mut();
        for change in data.as_chunks::<3>().0.iter().take(64) {
            let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
            bytes[at] = change[2];
        }
        exercise(node);
    }
}

fn exercise(node: Buf) {
    let _ = is_whole(&node);
    let probes = [Key::MIN, Key::new(3, Kind(16), 40), Key::MAX];
    match Node::parse(node) {
        Ok(Node::Leaf(leaf)) => {
            assert_eq!(leaf.iter().count(), leaf.items());
            leaf.iter().for_each(|(_, value)| assert_eq!(value.to_vec().len(), value.len()));
            for key in probes {
                let _ = leaf.find(key).map(|place| leaf.value(&place).to_vec());
                let _ = leaf.lower_bound(key).map(|place| leaf.previous(&place));
            }
        }
        Ok(Node::Inner(inner)) => {
            assert_eq!(inner.iter().count(), inner.children());
            assert!(probes.iter().all(|key| inner.find(*key) < Some(inner.children())));
        }
        Err(_) => {}
    }
}

/// Values of kinds with and without columns.
fn leaf() -> Buf {
    let mut builder = LeafBuilder::new(8192);
    for object in 1..6 {
        for kind in [10, 13, 16, 99].map(Kind) {
            let fields = Schema::of(kind).fields.iter().map(|&width| usize::from(width));
            let len = fields.sum::<usize>() + object as usize;
            assert!(builder.push(Key::new(object, kind, object * 40), &vec![object as u8; len]));
            assert!(builder.push(Key::new(object, kind, object * 50), &vec![kind.0; len]));
        }
    }
    builder.finish(ORIGIN)
}

fn inner() -> Buf {
    let child = |n: u64| {
        let copies = [Some(BlockAddr::new(DeviceId(0), 100 + n)), None];
        let ptr = NodePtr {
            copies,
            blocks: 1,
            fragmented: false,
            epoch: EpochId(0),
            digest: Digest(n.into()),
        };
        Child { first: Key::new(n, Kind(16), n), ptr, items: 9 }
    };
    encode_inner(ORIGIN, &(1..9).map(child).collect::<Vec<_>>())
}
