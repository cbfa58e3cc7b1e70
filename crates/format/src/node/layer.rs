//! Edits as values of a layer: a put is its value and a byte 0, a delete any bytes and a byte 1.
//!
//! The mark follows the value, so that a layer's leaves pack in the same columns as a base's. The
//! bytes of a delete before its mark are ignored; bytes like those of the puts around it pack best.

use super::{ValueRef, field};
use crate::FormatError;

const PUT: u8 = 0;
const DELETE: u8 = 1;

/// Makes the value of an edit in `out`, which has that of the edit before it if that is of the same
/// kind, and else nothing.
pub fn encode_edit(put: Option<&[u8]>, out: &mut Vec<u8>) {
    match put {
        Some(value) => {
            out.clear();
            out.extend_from_slice(value);
            out.push(PUT);
        }
        None => {
            out.pop();
            out.push(DELETE);
        }
    }
}

/// The edit that a value of a layer encodes: the value that is put, or `None` for a delete.
pub fn parse_edit(value: ValueRef<'_>) -> Result<Option<ValueRef<'_>>, FormatError> {
    match value.split_last() {
        Some((put, PUT)) => Ok(Some(put)),
        Some((_, DELETE)) => Ok(None),
        Some((_, other)) => Err(field("mark of an edit", other.into())),
        None => Err(field("length of an edit", 0)),
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{Key, Kind, TableId, Txg};

    use super::*;
    use crate::item::{DIRENT, EXTENT};
    use crate::node::{LeafBuilder, LeafView, NodeOrigin};

    fn leaf(values: &[(Key, Vec<u8>)]) -> LeafView {
        let mut builder = LeafBuilder::new(1 << 20);
        for (key, value) in values {
            assert!(builder.push(*key, value));
        }
        let origin = NodeOrigin { table: TableId(1), birth: Txg::FIRST };
        LeafView::parse(builder.finish(origin)).unwrap()
    }

    #[test]
    fn edits_come_back_from_columns_and_tails() {
        for kind in [EXTENT, DIRENT, Kind(99)] {
            let edits = [Some(34), None, Some(0), Some(11), None, Some(70), Some(34)];
            let value = |len| -> Vec<u8> { (1..=len).collect() };
            let mut bytes = Vec::new();
            for alike in [false, true] {
                let edits = edits.map(|len| if alike { len.and(Some(34)) } else { len });
                let values: Vec<(Key, Vec<u8>)> = (0..)
                    .zip(edits)
                    .map(|(n, len)| {
                        encode_edit(len.map(value).as_deref(), &mut bytes);
                        (Key::new(1, kind, n), bytes.clone())
                    })
                    .collect();
                let leaf = leaf(&values);
                let found = leaf.iter().map(|(_, value)| parse_edit(value).unwrap());
                let found: Vec<_> = found.map(|put| put.map(|value| value.to_vec())).collect();
                assert_eq!(found, edits.map(|len| len.map(value)));
            }
        }
    }

    #[test]
    fn a_delete_packs_like_the_puts_around_it() {
        let mut bytes = Vec::new();
        let mut values = |deleted: u64| -> Vec<(Key, Vec<u8>)> {
            let edit = |n: u64| {
                let put = vec![n as u8 / 64; 34];
                encode_edit((n % deleted != 1).then_some(&put), &mut bytes);
                (Key::new(1, EXTENT, n), bytes.clone())
            };
            (0..256).map(edit).collect()
        };
        let size = |values| leaf(values).header().used;
        assert_eq!(size(&values(2)), size(&values(1000)));
    }

    #[test]
    fn what_is_no_edit_is_refused() {
        let leaf = leaf(&[(Key::MIN, vec![]), (Key::new(1, Kind(1), 1), vec![7, 2])]);
        assert!(leaf.iter().all(|(_, value)| parse_edit(value).is_err()));
    }
}
