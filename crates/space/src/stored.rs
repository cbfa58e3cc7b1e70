//! The map of a metaslab on disk, and whether the next flush adds a delta to it or writes it whole.
//!
//! Problem.  Scattered frees change a few bytes of each map of a large pool, and a whole map of a
//!           metaslab of 16 GiB is half a megabyte in each copy.
//! Idea.     A map on disk is a base, and up to fifteen deltas over it with what changed
//!           (`copyhold_format::space_map`). A flush writes a delta while that is less than the
//!           whole, and while all deltas together are no larger than the base, or than four blocks
//!           if that saves a read. So flushes write at most as much as with whole maps, and a read
//!           takes at most twice as much, or four blocks more, in up to sixteen requests at once.
//!
//! STORED-D1  Base, deltas in their order, and the edits of the log since the txg that they are
//!            complete up to, are the map in memory.
//! STORED-D2  A delta is written from memory alone. Of a map that is away it has the frees that are
//!            noted beside it; if other edits are, as after a recovery, the map is loaded first.
//! STORED-D3  A delta is complete up to a later txg than the map before. So the txg that a map is
//!            complete up to says which deltas it has, and a map that was read before a delta was
//!            added is not taken for the present one.
//! STORED-D4  A whole map replaces base and deltas, and is written of a loaded map only. So a map
//!            that is away becomes longer while it is read, but none of its parts is freed.
//! STORED-D5  No delta is added while users may write no more: it would take blocks of the reserve
//!            for long, and a whole map frees those of the deltas before (R21).

use copyhold_format::space_map::{DELTAS_MAX, DELTAS_SMALL, Descriptor};
use copyhold_types::NodePtr;

/// Where the parts of a map are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMap {
    base: NodePtr,
    /// The oldest first.
    deltas: Vec<NodePtr>,
}

impl StoredMap {
    /// A map that was written whole.
    pub fn whole(base: NodePtr) -> StoredMap {
        StoredMap { base, deltas: Vec::new() }
    }

    /// The map that a descriptor names, if there is one.
    pub fn of(descriptor: &Descriptor) -> Option<StoredMap> {
        Some(StoredMap { base: descriptor.map?, deltas: descriptor.deltas.clone() })
    }

    pub fn base(&self) -> NodePtr {
        self.base
    }

    /// The oldest first.
    pub fn deltas(&self) -> &[NodePtr] {
        &self.deltas
    }

    /// The base, then the deltas.
    pub fn parts(&self) -> impl Iterator<Item = NodePtr> + '_ {
        std::iter::once(self.base).chain(self.deltas.iter().copied())
    }

    pub(crate) fn with(mut self, delta: NodePtr) -> StoredMap {
        self.deltas.push(delta);
        self
    }

    pub(crate) fn has_room(&self) -> bool {
        self.deltas.len() < DELTAS_MAX
    }

    /// Whether a delta of so many blocks is worth less than the whole map. `saves_read`: the map is
    /// away, so that a delta as large as the map is worth less, too.
    pub(crate) fn admits(&self, blocks: u32, saves_read: bool) -> bool {
        let together: u32 = self.deltas.iter().map(|delta| delta.blocks).sum::<u32>() + blocks;
        let whole = self.base.blocks;
        self.has_room()
            && match saves_read {
                true => blocks <= whole && together <= whole.max(DELTAS_SMALL),
                false => together < whole,
            }
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{BlockAddr, DeviceId, Digest, EpochId};

    use super::*;

    fn ptr(blocks: u32) -> NodePtr {
        NodePtr {
            copies: [Some(BlockAddr::new(DeviceId(0), 77)), None],
            blocks,
            fragmented: false,
            epoch: EpochId::POOL,
            digest: Digest(0),
        }
    }

    /// How many deltas of so many blocks a map takes.
    fn deltas(base: u32, blocks: u32, saves_read: bool) -> usize {
        let mut map = StoredMap::whole(ptr(base));
        while map.admits(blocks, saves_read) {
            map = map.with(ptr(blocks));
        }
        map.deltas().len()
    }

    #[test]
    fn deltas_are_added_while_they_are_less_than_the_whole() {
        assert_eq!((deltas(128, 2, false), deltas(128, 2, true)), (15, 15));
        assert_eq!((deltas(128, 30, false), deltas(128, 30, true)), (4, 4));
        assert_eq!((deltas(128, 127, false), deltas(128, 128, false)), (1, 0));
        assert_eq!((deltas(1, 1, false), deltas(1, 1, true), deltas(1, 2, true)), (0, 4, 0));
    }
}
