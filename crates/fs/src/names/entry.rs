//! One name that does not exist, and the memory of all those of a shard.
//!
//! An entry takes one line of a processor's cache, with names of up to 30 bytes; longer ones are
//! on the heap. Entries are in pieces of [`PIECE`], so that growth copies nothing, and free ones
//! form a chain. A place that is used again has another stamp: so a reference from before is
//! recognised.

use copyhold_memory::Slot;

/// No entry.
pub(super) const NONE: u32 = u32::MAX;
/// Bytes of a name that need no heap.
const SHORT: usize = 30;
/// Entries that are allocated at a time: 16 KiB.
const PIECE: usize = 256;

/// Charged for an entry: with its part of the shard's hash table, at its worst fill.
pub(super) const ENTRY_BYTES: u64 = copyhold_memory::NAME_BYTES;

/// Asked for since the last look.
pub(super) const REF: u8 = 1;
/// The entry is in the hot list: look-ups found it again.
pub(super) const HOT: u8 = 2;
/// The front end believes it for long, so it hides later requests.
pub(super) const LONG: u8 = 4;
/// The front end is being made to forget it: in no list.
pub(super) const DOOMED: u8 = 8;
/// It is doomed, and the front end is being notified now.
pub(super) const FLIES: u8 = 16;

/// A name that does not exist.
pub(super) struct Entry {
    /// The directory's node.
    pub(super) dir: u64,
    pub(super) hash: u32,
    /// The next in the same bucket, or the next that is free.
    pub(super) chain: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) slot: Slot,
    pub(super) stamp: u16,
    /// Look-ups of the name, up to a bound.
    pub(super) level: u8,
    pub(super) flags: u8,
    name: Stored,
}

const _: () = assert!(size_of::<Entry>() == 64);

enum Stored {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl Stored {
    const EMPTY: Stored = Stored::Short(0, [0; SHORT]);

    fn new(name: &[u8]) -> Stored {
        if name.len() > SHORT {
            return Stored::Long(name.into());
        }
        let mut bytes = [0; SHORT];
        bytes[..name.len()].copy_from_slice(name);
        Stored::Short(name.len() as u8, bytes)
    }
}

impl Entry {
    pub(super) fn name(&self) -> &[u8] {
        match &self.name {
            Stored::Short(len, bytes) => &bytes[..usize::from(*len)],
            Stored::Long(bytes) => bytes,
        }
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn is(&self, dir: u64, hash: u32, name: &[u8]) -> bool {
        self.hash == hash && self.dir == dir && self.name() == name
    }

    /// Bytes to charge.
    pub(super) fn bytes(&self) -> u64 {
        cost(self.name().len())
    }
}

/// The charge of a name of so many bytes.
pub(super) fn cost(len: usize) -> u64 {
    ENTRY_BYTES + if len > SHORT { len as u64 } else { 0 }
}

/// The entries of a shard.
pub(super) struct Slab {
    pieces: Vec<Vec<Entry>>,
    free: u32,
    count: usize,
    /// Of places that were never used.
    stamp: u16,
}

impl Default for Slab {
    fn default() -> Slab {
        Slab { pieces: Vec::new(), free: NONE, count: 0, stamp: 0 }
    }
}

impl Slab {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Frees the memory of all places. No entry is left.
    pub(super) fn clear(&mut self) {
        debug_assert_eq!(self.count, 0);
        let stamp = self.stamp.wrapping_add(1 << 12);
        *self = Slab { stamp, ..Slab::default() };
    }

    /// The entry of a reference that may be old.
    pub(super) fn find(&self, at: u32, stamp: u16) -> Option<&Entry> {
        let entry = self.pieces.get(at as usize / PIECE)?.get(at as usize % PIECE)?;
        (entry.stamp == stamp).then_some(entry)
    }

    pub(super) fn get(&self, at: u32) -> &Entry {
        &self.pieces[at as usize / PIECE][at as usize % PIECE]
    }

    pub(super) fn get_mut(&mut self, at: u32) -> &mut Entry {
        &mut self.pieces[at as usize / PIECE][at as usize % PIECE]
    }

    /// A new entry, in no list.
    pub(super) fn add(&mut self, dir: u64, hash: u32, chain: u32, slot: Slot, name: &[u8]) -> u32 {
        self.count += 1;
        let name = Stored::new(name);
        let (prev, next, level, flags) = (NONE, NONE, 0, 0);
        if self.free != NONE {
            let at = self.free;
            let entry = self.get_mut(at);
            let (free, stamp) = (entry.chain, entry.stamp);
            *entry = Entry { dir, hash, chain, prev, next, slot, stamp, level, flags, name };
            self.free = free;
            return at;
        }
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let at = (self.pieces.len() - 1) * PIECE;
        let piece = self.pieces.last_mut().expect("there is one with room");
        let (at, stamp) = (at + piece.len(), self.stamp);
        piece.push(Entry { dir, hash, chain, prev, next, slot, stamp, level, flags, name });
        at as u32
    }

    /// Frees the entry, of which the bytes are returned.
    pub(super) fn remove(&mut self, at: u32) -> u64 {
        let free = self.free;
        let entry = self.get_mut(at);
        let bytes = entry.bytes();
        entry.stamp = entry.stamp.wrapping_add(1);
        entry.name = Stored::EMPTY;
        (entry.flags, entry.chain) = (0, free);
        self.free = at;
        self.count -= 1;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_with_another_stamp() {
        let mut slab = Slab::default();
        let long = [b'x'; 255];
        let at = slab.add(1, 2, NONE, Slot::SHARED, &long);
        assert_eq!((slab.get(at).name(), slab.get(at).bytes()), (&long[..], 72 + 255));
        let stamp = slab.get(at).stamp;
        assert_eq!(slab.remove(at), 72 + 255);
        let again = slab.add(1, 2, NONE, Slot::SHARED, &long[..SHORT]);
        assert_eq!((again, slab.get(again).bytes()), (at, 72));
        assert_ne!(slab.get(again).stamp, stamp);
        let places: Vec<u32> =
            (0..2 * PIECE).map(|_| slab.add(1, 2, NONE, Slot::SHARED, b"y")).collect();
        assert_eq!(places, (1..=2 * PIECE as u32).collect::<Vec<_>>());
        assert_eq!(slab.count(), 2 * PIECE + 1);
    }
}
