//! The tests of the crate by its public functions, in one program: tenants that read pages through
//! one cache, and nothing that depends on a device or on time.

mod cache;
mod curve;
mod growth;
mod small;
mod threads;
