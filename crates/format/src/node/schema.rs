//! How the values of a kind are cut into columns.
//!
//! A value begins with fixed fields, little-endian, of one to eight bytes each; its tail follows.
//! A leaf gives each field a column of its own, where a field that hardly varies costs hardly
//! anything, and puts the tails on a heap. A leaf describes its own columns, so a schema may
//! change without a new format: it decides only how leaves are written from then on.

use copyhold_types::Kind;

use crate::item;

/// The fixed fields of a kind of item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema {
    /// Widths in bytes, 1 to 8 each.
    pub fields: &'static [u8],
}

/// A field more would make a column's header cost more than it saves.
pub const FIELDS_MAX: usize = 32;

/// Extents: where the blocks are (block number, device), how many less one, flags, epoch, how much
/// older the origin is, birth, and the checksum of the first block. The tail is the checksums of
/// the blocks behind it.
pub const EXTENT: Schema = Schema { fields: &[6, 2, 1, 1, 8, 8, 4, 4] };

/// Inodes: see `item::InodeItem` for the order. Much of it is the same in all inodes of a leaf.
pub const INODE: Schema =
    Schema { fields: &[2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 8, 4, 4] };

/// Directory buckets: index, type, length of the name and inode of the first entry, which is nearly
/// always the only one. The tail is its name and the other entries.
pub const DIRENT: Schema = Schema { fields: &[1, 1, 1, 1, 8] };

/// Deadlist segments: blocks, content, count, origin.
pub const DEAD: Schema = Schema { fields: &[1, 1, 4, 8] };

/// Shares: blocks, count.
pub const SHARE: Schema = Schema { fields: &[1, 4] };

const NONE: Schema = Schema { fields: &[] };

impl Schema {
    /// Kinds without an entry are all tail.
    pub fn of(kind: Kind) -> Schema {
        match kind {
            item::INODE => INODE,
            item::DIRENT => DIRENT,
            item::EXTENT => EXTENT,
            item::DEAD => DEAD,
            item::SHARE => SHARE,
            _ => NONE,
        }
    }

    /// How many leading fields a value of `len` bytes has in full, and how many bytes they are.
    pub(super) fn prefix(self, len: usize) -> (usize, usize) {
        let mut bytes = 0;
        for (n, &width) in self.fields.iter().enumerate() {
            if bytes + usize::from(width) > len {
                return (n, bytes);
            }
            bytes += usize::from(width);
        }
        (self.fields.len(), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_has_columns_that_a_leaf_can_hold() {
        for kind in 0..=u8::MAX {
            let schema = Schema::of(Kind(kind));
            assert!(schema.fields.len() <= FIELDS_MAX);
            assert!(schema.fields.iter().all(|width| (1..=8).contains(width)));
        }
    }

    #[test]
    fn fields_cover_what_the_items_have() {
        let bytes = |schema: Schema| schema.fields.iter().map(|&w| usize::from(w)).sum::<usize>();
        assert_eq!(bytes(INODE), item::InodeItem::BYTES);
        assert_eq!(bytes(DIRENT), 12);
        assert_eq!(bytes(EXTENT), 34);
        assert_eq!(bytes(DEAD), item::DeadItem::BYTES);
        assert_eq!(bytes(SHARE), item::ShareItem::BYTES);
    }

    #[test]
    fn a_short_value_has_fewer_fields() {
        assert_eq!(EXTENT.prefix(34), (8, 34));
        assert_eq!(EXTENT.prefix(33), (7, 30));
        assert_eq!(EXTENT.prefix(5), (0, 0));
    }
}
