//! Information about a space: for `copyhold debug space`, for checking.

use std::ops::Range;

use copyhold_types::{Run, Txg};

use crate::layout::MetaslabId;
use crate::metaslab::{Loaded, Metaslab};
use crate::space::Space;
use crate::stored::StoredMap;
use crate::view::MapView;

/// One metaslab as it is now; figures are blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaslabInfo {
    pub id: MetaslabId,
    pub first_block: u64,
    pub blocks: u32,
    pub allocated: u32,
    /// Allocatable, without the chunks of lanes.
    pub free: u32,
    /// Freed, but not yet allocatable.
    pub freeing: u64,
    /// Chunks of 1 MiB with a free run of 64 KiB.
    pub good_chunks: u32,
    /// The installed map; `None` while there is none, or nothing was allocated in it.
    pub map: Option<StoredMap>,
    /// The txg that the installed map is complete up to.
    pub complete_to: Option<Txg>,
    /// The oldest txg with an edit that is not in the installed map.
    pub oldest_pin: Option<Txg>,
    /// The map cannot be read.
    pub set_aside: bool,
    /// The map is in memory; of any other `allocated` and `free` are as AWAY-A4 says.
    pub is_loaded: bool,
}

impl Space {
    /// All metaslabs of the pool, in order.
    pub fn metaslabs(&self) -> impl Iterator<Item = MetaslabId> + '_ {
        self.shared.metaslabs.iter().map(|metaslab| metaslab.id)
    }

    /// The metaslabs with blocks in `range`, by block number on each device, and those blocks.
    pub fn parts_of(&self, range: Range<u64>) -> Vec<(MetaslabId, Range<u64>)> {
        let part = |metaslab: &Metaslab| {
            let end = metaslab.first_block + u64::from(metaslab.blocks());
            let part = metaslab.first_block.max(range.start)..end.min(range.end);
            (!part.is_empty()).then_some((metaslab.id, part))
        };
        self.shared.metaslabs.iter().filter_map(part).collect()
    }

    /// `None`: there is no such metaslab.
    pub fn metaslab(&self, id: MetaslabId) -> Option<MetaslabInfo> {
        let metaslab = &self.shared.metaslabs[self.shared.geometry.index_of(id)?];
        let state = metaslab.lock();
        let is_aside = state.map.is_aside();
        Some(MetaslabInfo {
            id,
            first_block: metaslab.first_block,
            blocks: metaslab.blocks(),
            allocated: if is_aside { 0 } else { state.allocated.max(0) as u32 },
            free: match state.map.loaded() {
                Some(map) => map.free.free_blocks(),
                None => metaslab.cold_free(),
            },
            freeing: state.deferred_blocks,
            good_chunks: metaslab.good_chunks() as u32,
            map: state.installed.clone(),
            complete_to: state.complete_to,
            oldest_pin: state.oldest_pin(),
            set_aside: is_aside,
            is_loaded: state.map.loaded().is_some(),
        })
    }

    /// The allocated and free runs of a metaslab; none if it does not exist or its map is not in
    /// memory ([`Self::view_with`]).
    pub fn view(&self, id: MetaslabId) -> MapView {
        let Some(index) = self.shared.geometry.index_of(id) else { return MapView::default() };
        let metaslab = &self.shared.metaslabs[index];
        let state = metaslab.lock();
        let view = |map: &Loaded| MapView::of(metaslab, &state, &map.logged, map.free.bits());
        state.map.loaded().map_or(MapView::default(), view)
    }

    /// The allocated runs of [`Self::view`].
    pub fn allocated_runs(&self, id: MetaslabId) -> Vec<Run> {
        self.view(id).allocated
    }
}
