//! The tests of this crate, in one program: the bodies of async functions are compiled in the crate
//! that polls them, so each program of tests compiles the engine again.

mod damage;
mod histories;
mod power;
mod tenants;
