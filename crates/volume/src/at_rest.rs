//! The memory that subvolumes take at rest, by kind.
//!
//! Problem.  Each subvolume is in memory with its epochs and tables from the mount on, whether it
//!           is used or not, and no share of the budget has them.
//! Idea.     The sizes of the types, times counts that the maps keep anyway. So a look costs the
//!           same with few subvolumes and with many, and no family is locked.
//!
//! Edits, files and histories of memory groups come with use, and have their charges; quotas have
//! accounts and rows, as long as they are on. None of these is here.

use copyhold_memory::MemoryOwner;
use copyhold_pool::table_figures;
use copyhold_types::{EpochId, SubvolId, TableId};

use crate::family::Epoch;
use crate::volumes::{FamilyCell, Map, Subvol, Volumes};

/// Most entries of a node of a [`std::collections::BTreeMap`].
const NODE_ENTRIES: usize = 11;
/// The two counts of an `Arc`.
const COUNTS_BYTES: usize = 2 * size_of::<usize>();

/// A number of things in memory, and the bytes that they take together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    pub count: u64,
    pub bytes: u64,
}

/// See [`at_rest`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtRest {
    /// Live and being deleted.
    pub subvols: Slice,
    /// Of the memory of subvolumes.
    pub owners: Slice,
    /// With the families that they are in.
    pub epochs: Slice,
    /// All of the pool's, those without a subvolume included.
    pub tables: Slice,
}

impl AtRest {
    pub fn bytes(&self) -> u64 {
        [self.subvols, self.owners, self.epochs, self.tables].iter().map(|slice| slice.bytes).sum()
    }
}

/// The memory that subvolumes, epochs and tables take without being used.
pub fn at_rest(volumes: &Volumes) -> AtRest {
    let tables = table_figures(&volumes.pool);
    let map = volumes.state.map.read();
    let (subvols, epochs, inside) = (map.subvols.len(), map.epochs.len(), map.subvols.held());
    let each = COUNTS_BYTES + size_of::<Subvol>() + entry_bytes::<SubvolId, usize>();
    let of_inside = inside * entry_bytes::<(SubvolId, SubvolId), ()>();
    let of_owners = subvols * MemoryOwner::BYTES + inside * MemoryOwner::INSIDE_BYTES;
    AtRest {
        subvols: slice(subvols, subvols * each + of_inside),
        owners: slice(subvols, of_owners),
        epochs: slice(epochs, epoch_bytes(&map)),
        tables: Slice { count: tables.tables as u64, bytes: tables.bytes },
    }
}

fn slice(count: usize, bytes: usize) -> Slice {
    Slice { count: count as u64, bytes: bytes as u64 }
}

/// Of epochs and families, and of the leaves in these.
fn epoch_bytes(map: &Map) -> usize {
    let (subvols, epochs) = (map.subvols.len(), map.epochs.len());
    // RECOUNT-E3: a family of n subvolumes has 2n - 1 epochs.
    let families = (2 * subvols).saturating_sub(epochs);
    let of_index = entry_bytes::<EpochId, usize>() + entry_bytes::<TableId, (usize, EpochId)>();
    let of_family = COUNTS_BYTES + size_of::<FamilyCell>();
    epochs * of_index
        + families * of_family
        + maps_bytes::<EpochId, Epoch>(families, epochs)
        + maps_bytes::<SubvolId, EpochId>(families, subvols)
}

/// A map that grows has nodes that are half to two thirds full, and one that is collected at once
/// has full ones.
const fn entry_bytes<K, V>() -> usize {
    (size_of::<K>() + size_of::<V>()) * 4 / 3
}

/// So many maps with so many entries together: each has one node at least, which has room for
/// several.
fn maps_bytes<K, V>(maps: usize, entries: usize) -> usize {
    let node = NODE_ENTRIES * (size_of::<K>() + size_of::<V>()) + 2 * size_of::<usize>();
    maps * node + entries.saturating_sub(maps) * entry_bytes::<K, V>()
}
