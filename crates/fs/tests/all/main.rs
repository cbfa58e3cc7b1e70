//! The tests of this crate, in one program: the bodies of async functions are compiled in the crate
//! that polls them, so each program of tests compiles the engine again.

mod before_full;
mod changes;
mod clients;
mod common;
mod costs;
mod cuts;
mod damaged;
mod data;
mod deletions;
mod fragments;
mod fresh_snapshots;
mod full;
mod given_up;
mod idle;
mod in_memory;
mod leftovers;
mod lookups;
mod model;
mod names;
mod owners;
mod quotas;
mod random;
mod read_only;
mod reaping;
mod rights;
mod rogue;
mod rollback;
mod tenants;
mod truncated;
mod turning;
mod under_way;
mod unreadable;
mod waiting;
mod walls;
mod whole;
