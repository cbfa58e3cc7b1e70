//! One name that does not exist, and the memory of all those of a shard.
//!
//! An entry takes one line of a processor's cache, with names of up to 30 bytes; longer ones are
//! on the heap. Entries are in pieces of [`PIECE`], so that growth copies nothing, and the free
//! places of a piece form a chain. A place that is used again has another stamp: so a reference
//! from before is recognised.

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
    /// The next in the same bucket, or the next of the piece that is free.
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
///
/// Pieces without entries give their memory back, but one.
#[derive(Default)]
pub(super) struct Slab {
    pieces: Vec<Piece>,
    /// Pieces with free places, and with memory.
    open: Vec<u32>,
    /// Pieces without memory.
    bare: Vec<u32>,
    count: usize,
}

/// The places of [`PIECE`] entries.
struct Piece {
    entries: Vec<Entry>,
    /// The first place that was used before.
    free: u32,
    used: u32,
    /// The place among the open ones.
    open_at: u32,
    /// Of places that were never used since the piece has memory.
    stamp: u16,
}

impl Piece {
    fn new(stamp: u16) -> Piece {
        Piece { entries: Vec::new(), free: NONE, used: 0, open_at: NONE, stamp }
    }
}

impl Slab {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The entry of a reference that may be old.
    pub(super) fn find(&self, at: u32, stamp: u16) -> Option<&Entry> {
        let entry = self.pieces.get(at as usize / PIECE)?.entries.get(at as usize % PIECE)?;
        (entry.stamp == stamp).then_some(entry)
    }

    pub(super) fn get(&self, at: u32) -> &Entry {
        &self.pieces[at as usize / PIECE].entries[at as usize % PIECE]
    }

    pub(super) fn get_mut(&mut self, at: u32) -> &mut Entry {
        &mut self.pieces[at as usize / PIECE].entries[at as usize % PIECE]
    }

    /// A new entry, in no list.
    pub(super) fn add(&mut self, dir: u64, hash: u32, chain: u32, slot: Slot, name: &[u8]) -> u32 {
        self.count += 1;
        let number = self.open.last().copied().unwrap_or_else(|| self.open_another());
        let piece = &mut self.pieces[number as usize];
        let (name, prev, next, level, flags) = (Stored::new(name), NONE, NONE, 0, 0);
        let stamp = piece.stamp;
        let mut entry = Entry { dir, hash, chain, prev, next, slot, stamp, level, flags, name };
        let place = match piece.free {
            NONE => {
                piece.entries.push(entry);
                piece.entries.len() as u32 - 1
            }
            place => {
                let old = &mut piece.entries[place as usize];
                piece.free = old.chain;
                entry.stamp = old.stamp;
                *old = entry;
                place
            }
        };
        piece.used += 1;
        if piece.used as usize == PIECE {
            self.close(number);
        }
        number * PIECE as u32 + place
    }

    fn open_another(&mut self) -> u32 {
        let number = self.bare.pop().unwrap_or_else(|| {
            self.pieces.push(Piece::new(0));
            self.pieces.len() as u32 - 1
        });
        self.pieces[number as usize].entries.reserve_exact(PIECE);
        self.open(number);
        number
    }

    fn open(&mut self, number: u32) {
        self.pieces[number as usize].open_at = self.open.len() as u32;
        self.open.push(number);
    }

    fn close(&mut self, number: u32) {
        let at = std::mem::replace(&mut self.pieces[number as usize].open_at, NONE);
        self.open.swap_remove(at as usize);
        if let Some(moved) = self.open.get(at as usize) {
            self.pieces[*moved as usize].open_at = at;
        }
    }

    /// Frees the entry, of which the bytes are returned.
    pub(super) fn remove(&mut self, at: u32) -> u64 {
        let number = at / PIECE as u32;
        let piece = &mut self.pieces[number as usize];
        let entry = &mut piece.entries[at as usize % PIECE];
        let bytes = entry.bytes();
        entry.stamp = entry.stamp.wrapping_add(1);
        entry.name = Stored::EMPTY;
        (entry.flags, entry.chain) = (0, piece.free);
        piece.free = at % PIECE as u32;
        piece.used -= 1;
        self.count -= 1;
        let (is_closed, is_empty) = (piece.open_at == NONE, piece.used == 0);
        if is_closed {
            self.open(number);
        }
        // One is kept, for the next entry.
        if is_empty && self.open.len() > 1 {
            self.close(number);
            self.bare.push(number);
            let piece = &mut self.pieces[number as usize];
            // References to its entries are old.
            *piece = Piece::new(piece.stamp.wrapping_add(1 << 12));
        }
        bytes
    }

    /// Bytes of places, used or free.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.pieces.iter().map(|piece| piece.entries.capacity() * size_of::<Entry>()).sum()
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

    #[test]
    fn pieces_without_entries_give_their_memory_back() {
        let mut slab = Slab::default();
        let add = |slab: &mut Slab| slab.add(1, 2, NONE, Slot::SHARED, b"y");
        let places: Vec<u32> = (0..10 * PIECE).map(|_| add(&mut slab)).collect();
        let piece = PIECE * size_of::<Entry>();
        assert_eq!(slab.room(), 10 * piece);
        let (old, stamp) = (places[PIECE], slab.get(places[PIECE]).stamp);
        for at in &places[..7 * PIECE + 1] {
            slab.remove(*at);
        }
        assert_eq!((slab.count(), slab.room()), (3 * PIECE - 1, 4 * piece));
        assert!(slab.find(old, stamp).is_none());
        for _ in 0..8 * PIECE {
            add(&mut slab);
        }
        assert_eq!((slab.count(), slab.room()), (11 * PIECE - 1, 11 * piece));
        assert!(slab.find(old, stamp).is_none(), "the place is used again");
    }
}
