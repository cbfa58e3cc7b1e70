//! Tenants: subvolumes and their epochs, what a released pointer means, and who pays.
//!
//! `docs/tenants.md` is the theory. The crate knows tables and transactions, nothing of files.

#![forbid(unsafe_code)]

pub mod family;
pub mod quota;
pub mod release;
pub mod segment;
