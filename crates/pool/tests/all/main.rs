//! The tests of this crate, in one program: the bodies of async functions are compiled in the crate
//! that polls them, so each program of tests compiles the engine again.

mod creation;
mod damaged_log;
mod dropping;
mod extents;
mod features;
mod flush_policy;
mod forks;
mod fragment_lists;
mod given_up;
mod growth;
mod killed;
mod layers;
mod machine;
mod map_deltas;
mod maps_on_demand;
mod promises;
mod protected;
mod short_runs;
mod smaller;
mod stock;
mod trims;
mod uberblocks;
mod unreadable;
mod unreadable_maps;
