//! Histories of a pool: several clients change a few thousand keys and the data behind them, with
//! every kind of fault.
//!
//! The model is a map and the list of transactions. After each recovery the pool must be what the
//! map was after some transaction not older than the last synced one, with all data in place, and
//! space must be exactly what items, nodes and maps refer to. That state is then final: a later
//! recovery that finds more has travelled through time (rule R13).

mod client;
mod life;
mod model;
mod shape;
mod verify;

pub use life::history;
pub use shape::Shape;
