//! The pool: transactions over tables and space, made durable by one log.
//!
//! The steps of a caller (`fs`, later `volume`):
//!
//! ```text
//!   pin  = pool.pin()                              hold while using what was looked up (R3)
//!   look up:  pool.get / range / last_below        may read nodes, may wait
//!   space:    reserve(blocks, tier) → claim(…)     before any data is accepted / placed
//!   data:     pool.write(run, bufs, mode)          completes before the transaction joins (R31)
//!   credit  = pool.admit(tier, edits, bytes)       log and metadata space; may wait or refuse
//!   txg     = pool.apply(credit, transaction)      joins last, never waits (R1), all or nothing
//!   pool.commit(txg)                               waits until that txg is durable (fsync)
//! ```
//!
//! Small synchronous data may travel with the transaction instead of being written before
//! ([`Transaction::attach`]): the commit writes it beside the batch, then flushes both once (P12).
//! Reads find it in memory until then (`attached`).
//!
//! Inside, from the transaction down: it joins `open_txg`, `commit` makes that durable, `journal`
//! is the log, `flush` settles tables and metaslabs behind it, `open` brings all of it back after
//! a crash. Locks, in order: the gate of the open txg (shared by transactions), pins, the
//! journal's state, a table's partition, a metaslab (`sync::rank` has all). None is held across an
//! await.

#![forbid(unsafe_code)]

mod admission;
mod attached;
mod balance;
mod before_full;
mod births;
mod busy;
mod clean;
mod commit;
mod config;
mod copies;
mod create;
mod cut;
mod data;
mod devices;
mod discard;
mod edit_parts;
mod erase;
mod error;
mod failures;
mod features;
mod flush;
mod flush_figures;
mod fork;
mod fragments;
mod group;
mod grow;
mod guards;
mod health;
mod ids;
mod join_wait;
mod journal;
mod kept;
mod labels;
mod loads;
mod log_room;
mod maps;
mod marker;
mod node_writer;
mod nodes;
mod open;
mod open_txg;
mod opened;
mod pace;
mod patient;
mod pins;
mod plan;
mod pool;
mod protection;
mod replay_limit;
mod requests;
mod round;
mod sabotage;
mod stock;
mod tables;
mod tail;
mod tenancy;
mod together;
mod transaction;
mod uberblocks;
mod units;
mod verified;

pub use births::{BlockMode, birth_of, block_mode, cancel_written, leave_trace};
pub use clean::{CleanData, CleanStats};
pub use config::{CreateOptions, FlushPolicy, Limits, OpenOptions};
pub use copyhold_space::{Claim, Figures, Lane, LaneClass, Reservation, Tier, Wanted};
pub use copyhold_table::{Cached, Edit, Value, Weight};
pub use devices::Devices;
pub use edit_parts::{is_edit_part_used_up, wait_for_edit_part};
pub use erase::erase_pools;
pub use error::PoolError;
pub use failures::{Failure, Failures};
pub use features::{features_of, use_features};
pub use flush_figures::{FlushFigures, FlushRow, flush_figures};
pub use fork::FORK_DEPTH_MAX;
pub use grow::{GrowProblem, Grown, NewSize, grow};
pub use ids::{ID_MARK, IdSpace};
pub use join_wait::JoinWait;
pub use journal::LogUse;
pub use kept::KeptNodes;
pub use labels::{Labels, find_labels, read_labels};
pub use loads::{MapUse, expect_room, map_use, metaslab_view};
pub use nodes::{CachePart, cache_parts, cached_node_bytes, reclaim_nodes};
pub use opened::TableFigures;
pub use pins::Pin;
pub use pool::Pool;
pub use protection::ProtectionProblem;
pub use replay_limit::{Replay, ReplayTime};
pub use sabotage::{Sabotage, Scribble, ScribbleFn};
pub use stock::{StockFigures, end_txg};
pub use tables::{find_table, own_table, table_figures, unflushed};
pub use tenancy::{EDITS_PER_RELEASE, NodeTurnover, RELEASE_EDIT_BYTES, Tenancy, free_node};
pub use together::read_together;
pub use transaction::{Credit, Transaction};
pub use uberblocks::{newest_uberblock, read_uberblocks};
pub use verified::{Cause, Condition, Problem};
