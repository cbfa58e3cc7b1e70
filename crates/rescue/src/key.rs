//! Keys of tables, and the kinds of items (`docs/format.md`, 1 and 9).

use crate::bytes::Bytes;
use crate::damage::Parse;

/// In this order of significance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) object: u64,
    pub(crate) kind: u8,
    pub(crate) offset: u64,
}

pub(crate) const PARTITION: u8 = 2;
pub(crate) const LINEAGE: u8 = 5;
pub(crate) const INODE: u8 = 10;
pub(crate) const INLINE: u8 = 11;
pub(crate) const SYMLINK: u8 = 12;
pub(crate) const ENTRIES: u8 = 13;
pub(crate) const XATTRS: u8 = 14;
pub(crate) const XATTR_PIECE: u8 = 15;
pub(crate) const EXTENT: u8 = 16;
pub(crate) const SUBVOLUME: u8 = 20;

impl Key {
    pub(crate) const MAX: Key = Key { object: u64::MAX, kind: u8::MAX, offset: u64::MAX };

    pub(crate) fn new(object: u64, kind: u8, offset: u64) -> Key {
        Key { object, kind, offset }
    }

    /// As descriptors and rows of inner nodes have it: object, offset, kind.
    pub(crate) fn parse(bytes: &mut Bytes<'_>) -> Parse<Key> {
        let (object, offset) = (bytes.u64()?, bytes.u64()?);
        Ok(Key { object, kind: bytes.u8()?, offset })
    }

    /// The key behind this one, if there is any.
    pub(crate) fn next(self) -> Option<Key> {
        let Key { object, kind, offset } = self;
        match (offset.checked_add(1), kind.checked_add(1), object.checked_add(1)) {
            (Some(offset), _, _) => Some(Key { object, kind, offset }),
            (None, Some(kind), _) => Some(Key { object, kind, offset: 0 }),
            (None, None, Some(object)) => Some(Key { object, kind: 0, offset: 0 }),
            (None, None, None) => None,
        }
    }

    /// The key before this one, if there is any.
    pub(crate) fn before(self) -> Option<Key> {
        let Key { object, kind, offset } = self;
        match (offset.checked_sub(1), kind.checked_sub(1), object.checked_sub(1)) {
            (Some(offset), _, _) => Some(Key { object, kind, offset }),
            (None, Some(kind), _) => Some(Key { object, kind, offset: u64::MAX }),
            (None, None, Some(object)) => Some(Key { object, kind: u8::MAX, offset: u64::MAX }),
            (None, None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_one_behind_it_and_one_before_it() {
        let most = u64::MAX;
        let pairs = [
            (Key::new(1, 2, 3), Key::new(1, 2, 4)),
            (Key::new(1, 2, most), Key::new(1, 3, 0)),
            (Key::new(1, 255, most), Key::new(2, 0, 0)),
        ];
        for (key, next) in pairs {
            assert_eq!((key.next(), next.before()), (Some(next), Some(key)));
        }
        assert_eq!((Key::MAX.next(), Key::default().before()), (None, None));
    }
}
