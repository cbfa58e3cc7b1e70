//! Packing directory entries into a READDIR or READDIRPLUS answer.
//!
//! An entry is whole in the answer or not there at all: [`Entries::push`] says no when the next one
//! would go beyond the kernel's room, and the kernel comes again with the last cookie it has seen.
//!
//! DIRENT-D1  The bytes never exceed `room`, and end on a multiple of 8.
//! DIRENT-D2  An entry with a node in READDIRPLUS counts as a lookup once it is pushed; one that
//!            was refused does not.

use zerocopy::IntoBytes;

use super::reply::{self, Data, Entry};
use super::wire;

/// A directory entry that is about to be packed.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    pub ino: u64,
    /// The position after this entry: passed back as `offset`. Below 2⁶³, not 0.
    pub cookie: u64,
    /// Type bits of the mode, `S_IFMT`.
    pub mode: u32,
    pub name: &'a [u8],
}

/// The answer being filled.
#[derive(Debug)]
pub struct Entries {
    bytes: Vec<u8>,
    room: usize,
    plus: bool,
}

impl Entries {
    pub(crate) fn new(room: u32, plus: bool) -> Entries {
        // Rooms of a page are usual; larger ones are filled only by large directories.
        let capacity = (room as usize).min(4096);
        Entries { bytes: Vec::with_capacity(capacity), room: room as usize, plus }
    }

    /// Whether entries should come with [`Entries::push_plus`].
    pub fn wants_attributes(&self) -> bool {
        self.plus
    }

    /// Room that is left, in bytes.
    pub fn left(&self) -> usize {
        self.room - self.bytes.len()
    }

    /// Whether an entry with a name of `len` bytes still has a place.
    pub fn has_room(&self, len: usize) -> bool {
        let plus = if self.plus { size_of::<wire::EntryOut>() } else { 0 };
        (plus + size_of::<wire::Dirent>() + len).next_multiple_of(8) <= self.left()
    }

    /// Adds an entry without attributes (in READDIRPLUS: "." and "..", or when they are dear).
    /// `false`: no room, nothing added.
    #[must_use]
    pub fn push(&mut self, entry: DirEntry<'_>) -> bool {
        self.add(None, entry)
    }

    /// Adds an entry with attributes, which counts as a lookup of its node, if `true` is returned.
    #[must_use]
    pub fn push_plus(&mut self, found: &Entry, entry: DirEntry<'_>) -> bool {
        self.add(Some(found), entry)
    }

    fn add(&mut self, found: Option<&Entry>, entry: DirEntry<'_>) -> bool {
        if !self.has_room(entry.name.len()) {
            return false;
        }
        if self.plus {
            let out = found.map(reply::entry_out).unwrap_or_default();
            self.bytes.extend_from_slice(out.as_bytes());
        }
        let dirent = wire::Dirent {
            ino: entry.ino,
            off: entry.cookie,
            namelen: entry.name.len() as u32,
            kind: (entry.mode & libc::S_IFMT) >> 12,
        };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        assert!(self.bytes.len() <= self.room, "DIRENT-D1: {} of {}", self.bytes.len(), self.room);
        true
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn into_data(self) -> Data {
        self.bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::NodeId;
    use crate::protocol::tests::entry;

    fn plain(name: &[u8]) -> DirEntry<'_> {
        DirEntry { ino: 9, cookie: 1, mode: libc::S_IFDIR | 0o755, name }
    }

    #[test]
    fn an_entry_fits_exactly_or_not_at_all() {
        // 24 bytes and a name of 8: 32 bytes each.
        let mut entries = Entries::new(95, false);
        assert!(entries.push(plain(b"12345678")));
        assert!(entries.push(plain(b"1234567")));
        assert!(!entries.push(plain(b"1")), "31 bytes are left, 32 needed");
        assert_eq!(entries.into_data().len(), 64);
    }

    #[test]
    fn a_plus_entry_has_its_attributes_in_front() {
        let mut entries = Entries::new(4096, true);
        assert!(entries.push_plus(&entry(NodeId(5), libc::S_IFREG), plain(b"a")));
        assert!(entries.push(plain(b"..")));
        let bytes = entries.into_data().to_vec();
        assert_eq!(bytes.len(), 2 * (128 + 32));
        assert_eq!(bytes[..8], 5u64.to_ne_bytes());
        assert_eq!(bytes[160..168], 0u64.to_ne_bytes(), "no node, so no lookup");
        assert_eq!(bytes[128 + 20..128 + 24], 4u32.to_ne_bytes(), "DT_DIR");
    }

    proptest! {
        #[test]
        fn no_names_ever_exceed_the_room(
            room in 0u32..5000,
            plus: bool,
            lengths in prop::collection::vec(1usize..=255, 0..60),
        ) {
            let mut entries = Entries::new(room, plus);
            let mut expected = 0;
            for len in lengths {
                let size = (if plus { 152 } else { 24 } + len).next_multiple_of(8);
                let fits = expected + size <= room as usize;
                prop_assert_eq!(entries.push(plain(&vec![b'x'; len])), fits);
                expected += if fits { size } else { 0 };
            }
            prop_assert_eq!(entries.into_data().len(), expected);
        }
    }
}
