//! Space: metaslabs, the allocator, the reserve, and their edits for the log. No I/O.
//!
//! The calls of a caller (the pool), in the order of a block's life:
//!
//! ```text
//!   open     restore = Restore::new(layouts, fixed, cpus, config)      labels, log rings: fixed
//!            restore.replay_alloc(txg, run) / replay_free(txg, run)    before any map is read (R5)
//!            restore.load(id, descriptor, map) / set_aside(id, …)      per item of the table
//!            space = restore.finish(durable)                           or Space::new: a new pool
//!   accept   r = space.reserve(blocks, tier)?                          no reservation, no data
//!   place    claims = space.claim(lane, blocks, &mut r)?               runs; dropped = released
//!            claim = space.claim_run(lane, blocks, &mut r)?            nodes: one run
//!   apply    run = space.log_alloc(txg, claim)                         with the pointer (R19)
//!            space.log_free(txg, run)?                                 with the pointer's end
//!   commit   space.release_deferred(txg)                               when R3 allows
//!   maps     best_cold → cold_map → load, evict                        see `away`
//!   flush    pins → freeze → write → transaction → installed           see `flush`, `stored`
//!   repair   set_aside → missing_map → supply, supply_runs             see `aside`
//!   discard  take_discardable → discard → discard_done                 see `discard` (R15)
//!   grow     grow                                                     see `grow`
//!   look     figures, metaslab, allocated_runs                         statfs, debug, check
//! ```
//!
//! Of all this, only the two `log_…` calls happen inside a transaction, and neither waits.
//!
//! `copyhold_format::space_map` defines the format on disk. In memory a loaded metaslab is two
//! bitmaps (`metaslab`), a few bytes per 1 MiB chunk (`free`), and the runs that wait to be
//! allocatable; any other is its counts and the edits that its map does not have (`away`).
//! Each module states its invariants; [`Space::check`] asserts them all.
//!
//! Locks, in order: `scarce` (one allocation at a time when little is left), a lane, a metaslab.
//! A thread holds at most one of each, never across anything that waits. Totals are atomics.

#![forbid(unsafe_code)]

mod append_list;
mod aside;
mod away;
mod bits;
mod budget;
mod changed;
mod changes;
mod check;
mod chunk;
mod claim;
mod discard;
mod error;
mod flush;
mod fragmentation;
mod free;
mod grouped;
mod grow;
mod index_set;
mod info;
mod lane;
mod layout;
mod metaslab;
mod noted;
mod range_set;
mod restore;
mod space;
mod stored;
mod view;
mod worth;

pub use aside::Carried;
pub use budget::{Figures, Loading, NoSpace, Reservation, Stock, Tier, Wanted};
pub use claim::{Claim, Claims};
pub use discard::{DISCARD_BLOCKS_MAX, Discard, Discardable};
pub use error::SpaceError;
pub use flush::{MapJob, Pin};
pub use fragmentation::FreeRuns;
pub use info::MetaslabInfo;
pub use lane::{Lane, LaneClass};
pub use layout::{CHUNK_BLOCKS, MetaslabId, MetaslabLayout};
pub use range_set::RangeSet;
pub use restore::Restore;
pub use space::{Config, Space};
pub use stored::StoredMap;
pub use view::MapView;
