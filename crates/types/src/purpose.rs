//! Why a device request is made. Every request carries one and is counted by it.

/// Purposes in the order in which counters list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// File contents.
    Data,
    /// Batches and pieces of the log.
    Log,
    /// Lowest nodes of a table.
    Leaf,
    /// Nodes above leaves.
    Inner,
    /// Sorted runs between delta and base.
    Layer,
    /// Space maps.
    Map,
    /// Labels and uberblocks.
    Label,
    /// Tuples that a device keeps beside the blocks of the others.
    Guard,
}

impl Purpose {
    /// Those of the engine's own requests.
    pub const OF_ENGINE: [Purpose; 7] = [
        Purpose::Data,
        Purpose::Log,
        Purpose::Leaf,
        Purpose::Inner,
        Purpose::Layer,
        Purpose::Map,
        Purpose::Label,
    ];

    pub const ALL: [Purpose; 8] = [
        Purpose::Data,
        Purpose::Log,
        Purpose::Leaf,
        Purpose::Inner,
        Purpose::Layer,
        Purpose::Map,
        Purpose::Label,
        Purpose::Guard,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Purpose::Data => "data",
            Purpose::Log => "log",
            Purpose::Leaf => "leaf",
            Purpose::Inner => "inner",
            Purpose::Layer => "layer",
            Purpose::Map => "map",
            Purpose::Label => "label",
            Purpose::Guard => "tuples",
        }
    }
}
