//! Information about a space: for `copyhold debug space`, for checking.

use copyhold_types::{NodePtr, Run, Txg};

use crate::bits::Bits;
use crate::layout::MetaslabId;
use crate::space::Space;

/// One metaslab as it is now; figures are blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub map: Option<NodePtr>,
    /// The txg that the installed map is complete up to.
    pub complete_to: Option<Txg>,
    /// The oldest txg with an edit that is not in the installed map.
    pub oldest_pin: Option<Txg>,
    /// The map cannot be read.
    pub set_aside: bool,
}

impl Space {
    /// All metaslabs of the pool, in order.
    pub fn metaslabs(&self) -> impl Iterator<Item = MetaslabId> + '_ {
        self.shared.metaslabs.iter().map(|metaslab| metaslab.id)
    }

    /// `None`: there is no such metaslab. Counts the allocated blocks, so it is not for hot paths.
    pub fn metaslab(&self, id: MetaslabId) -> Option<MetaslabInfo> {
        let metaslab = &self.shared.metaslabs[self.shared.geometry.index_of(id)?];
        let state = metaslab.lock();
        Some(MetaslabInfo {
            id,
            first_block: metaslab.first_block,
            blocks: metaslab.blocks(),
            allocated: state.logged.count(),
            free: state.free.free_blocks(),
            freeing: state.deferred.values().flatten().map(|run| u64::from(run.1)).sum(),
            good_chunks: metaslab.good_chunks() as u32,
            map: state.map,
            complete_to: state.complete_to,
            oldest_pin: state.oldest_pin(),
            set_aside: state.aside.is_some(),
        })
    }

    /// The allocated runs of a metaslab, in order; none if it does not exist or is set aside.
    pub fn allocated_runs(&self, id: MetaslabId) -> Vec<Run> {
        let Some(index) = self.shared.geometry.index_of(id) else { return Vec::new() };
        let metaslab = &self.shared.metaslabs[index];
        let state = metaslab.lock();
        state.logged.runs().map(|(first, blocks)| metaslab.run(first, blocks)).collect()
    }

    /// The runs of a metaslab that can be allocated now or when the txgs that freed their blocks
    /// permit it, in order: for figures of fragmentation.
    pub fn free_and_freeing_runs(&self, id: MetaslabId) -> Vec<Run> {
        let Some(index) = self.shared.geometry.index_of(id) else { return Vec::new() };
        let metaslab = &self.shared.metaslabs[index];
        let state = metaslab.lock();
        let mut bits = Bits::new(metaslab.blocks());
        let freeing = state.deferred.values().flatten().map(|run| (run.0, run.1));
        state.free.runs().chain(freeing).for_each(|(first, blocks)| bits.set(first, blocks));
        bits.runs().map(|(first, blocks)| metaslab.run(first, blocks)).collect()
    }

    /// The runs of a metaslab that can be allocated now, in order: without blocks that lanes hold,
    /// that are freed but not yet allocatable, or that are being discarded.
    pub fn free_runs(&self, id: MetaslabId) -> Vec<Run> {
        let Some(index) = self.shared.geometry.index_of(id) else { return Vec::new() };
        let metaslab = &self.shared.metaslabs[index];
        let state = metaslab.lock();
        state.free.runs().map(|(first, blocks)| metaslab.run(first, blocks)).collect()
    }
}
