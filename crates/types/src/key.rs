//! The one key type of every table.

use std::fmt;

/// The type of an item. The number is its place in the order of keys and on disk; `format::item`
/// gives each its meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

/// Orders by object, then kind, then offset.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub object: u64,
    pub kind: Kind,
    pub offset: u64,
}

impl Key {
    /// Of a key on disk: object, kind, offset.
    pub const BYTES: usize = 17;
    pub const MIN: Key = Key { object: 0, kind: Kind(0), offset: 0 };
    pub const MAX: Key = Key { object: u64::MAX, kind: Kind(u8::MAX), offset: u64::MAX };

    pub fn new(object: u64, kind: Kind, offset: u64) -> Key {
        Key { object, kind, offset }
    }

    /// The next key in order, if there is one.
    pub fn successor(self) -> Option<Key> {
        let Key { object, kind, offset } = self;
        if let Some(offset) = offset.checked_add(1) {
            return Some(Key { object, kind, offset });
        }
        if let Some(kind) = kind.0.checked_add(1) {
            return Some(Key { object, kind: Kind(kind), offset: 0 });
        }
        object.checked_add(1).map(|object| Key { object, kind: Kind(0), offset: 0 })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {}, {})", self.object, self.kind.0, self.offset)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_successor_carries_over() {
        let last = Key::new(3, Kind(255), u64::MAX);
        assert_eq!(last.successor(), Some(Key::new(4, Kind(0), 0)));
        assert_eq!(Key::MAX.successor(), None);
        assert!(Key::new(3, Kind(4), 9) < Key::new(3, Kind(5), 0));
    }
}
