//! A filesystem in memory behind the transport.
//!
//! [`MemoryFs`] implements [`Operations`](copyhold_fuse::Operations) with a tree of inodes behind
//! one mutex and with POSIX and flock locks of its own. Tests of the transport mount it as the
//! reference; benchmarks mount it with [`Contents::Dropped`] as the ceiling.

#![forbid(unsafe_code)]

mod contents;
mod filesystem;
mod locks;
#[cfg(shuttle)]
pub mod models;
mod tree;

pub use contents::Contents;
pub use filesystem::MemoryFs;
