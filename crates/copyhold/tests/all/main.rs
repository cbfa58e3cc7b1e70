//! The tests of this crate, in one program: the bodies of async functions are compiled in the crate
//! that polls them, so each program of tests compiles the engine again.

mod files;
mod full_btrfs;
mod futures;
mod mounts;
mod pools;
mod shared_executors;
mod threads;
