//! The tests of this crate, in one program: the bodies of async functions are compiled in the crate
//! that polls them, so each program of tests compiles the engine again.

mod bounded_steps;
mod broken_rules;
mod damaged_modes;
mod each_rule;
mod emptied;
mod enumeration;
mod errors_told;
mod evicted;
mod faults;
mod handover;
mod in_place;
mod leftovers;
mod namespace;
mod old_uberblock;
mod protected;
mod retaken;
mod rotten_base;
mod seeds;
mod single_rules;
mod small_rings;
