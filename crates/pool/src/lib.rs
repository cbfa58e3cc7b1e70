//! The pool: transactions over tables and space, made durable by one log.
//!
//! What a caller does (`fs`, later `volume`):
//!
//! ```text
//!   pin  = pool.pin()                              hold while using what was looked up (R3)
//!   look up:  pool.get / range / last_below        may read nodes, may wait
//!   space:    reserve(blocks, tier) → claim(…)     before any data is accepted / placed
//!   data:     pool.write(run, bufs)                completes before the transaction joins (R31)
//!   credit  = pool.admit(tier, edits, bytes)       log and metadata space; may wait or refuse
//!   txg     = pool.apply(credit, transaction)      joins last, never waits (R1), all or nothing
//!   pool.commit(txg)                               waits until that txg is durable (fsync)
//! ```
//!
//! Small synchronous data may travel with the transaction instead of being written before
//! (`Transaction::attach`): the commit writes it beside the batch, then flushes both once (P12).

#![forbid(unsafe_code)]

mod api_sketch;
pub use api_sketch::*;
