//! The runs of one metaslab, for checks and debug views.

use copyhold_types::Run;

use crate::bits::Bits;
use crate::metaslab::{Metaslab, MetaslabState};

/// The runs of one metaslab, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapView {
    pub allocated: Vec<Run>,
    /// Those that can be allocated now: without blocks that lanes hold, that are freed but not yet
    /// allocatable, or that are being discarded.
    pub free: Vec<Run>,
    /// Those that can be allocated now or when the txgs that freed their blocks permit it: for
    /// figures of fragmentation.
    pub free_and_freeing: Vec<Run>,
}

impl MapView {
    /// `allocated`, `free`: the blocks of a metaslab in this state.
    pub(crate) fn of(
        metaslab: &Metaslab,
        state: &MetaslabState,
        allocated: &Bits,
        free: &Bits,
    ) -> MapView {
        let mut to_be = free.clone();
        let deferred = state.deferred.values().flatten();
        deferred.for_each(|&(first, blocks)| to_be.set(first, blocks));
        let runs = |bits: &Bits| {
            bits.runs().map(|(first, blocks)| metaslab.run(first, blocks)).collect::<Vec<_>>()
        };
        let [allocated, free, free_and_freeing] = [allocated, free, &to_be].map(runs);
        MapView { allocated, free, free_and_freeing }
    }
}
