//! Verifies a whole pool, and explains each damage.
//!
//! Problem.  A filesystem verifies what it reads, but it reads one copy of a node, and only what is
//!           asked for. An item that it wrote wrongly itself has a right digest.
//! Idea.     Follow every pointer from the uberblock on, in every copy, and judge the findings by
//!           the rules between structures: parents and children, names and inodes, maps of space
//!           and references to it. Everything is read, nothing is changed. Only
//!           `repair_device` writes: it makes space maps anew, for which it opens the pool as a
//!           mount does, which also repairs a bad copy of a label or of the log. Before it,
//!           `repair_headers` writes headers of protection information again.
//!
//! ```text
//!   device    labels · uberblocks · log, in both copies        check_device
//!   pool      space maps → trees by pointer → subvolumes       check
//!   files     items in order → names and links → contents
//!   families  held blocks → deadlists, shares, usage
//! ```
//!
//! A finding is a [`Problem`] put in words: the damage, how bad that is, which files it affects
//! and what to do. Invariants are numbered where they are checked (B, E, S, Y, I, L).
//!
//! Memory: three bits a block of the device, 32 bytes a file of one subvolume at a time; where
//! something is shared, 48 bytes a shared run (`families`); findings are bounded.

#![forbid(unsafe_code)]

mod checker;
mod copies;
pub mod debug;
mod device;
mod families;
mod files;
mod headers;
mod items;
mod labels;
mod log;
mod maps;
mod meaning;
mod options;
mod owners;
mod problem;
mod reach;
mod refs;
mod repair;
mod report;
mod role;
mod system;
mod tree;

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_pool::{Pool, PoolError};
use copyhold_runtime::Rt;

pub use headers::repair_headers;
pub use options::Options;
pub use problem::{End, FileId, Owner, Problem, Severity};
pub use repair::{Repaired, repair_device};
pub use report::{AffectedFile, Finding, Report, Verified};

/// Checks an open pool: one that is open read-only, or to which no other task writes meanwhile.
/// Labels and log are not looked at: an open pool has repaired them.
pub async fn check(pool: &Arc<Pool>, options: Options) -> Report {
    checker::Checker::run(pool, options, report::Draft::default()).await
}

/// Checks a pool that is not open, from its labels on; opens it read-only. That it cannot be opened
/// is a finding, when damage is the reason.
///
/// # Errors
/// There is no pool, a newer program made it, the device has shrunk or cannot be read at all.
pub async fn check_device(
    rt: Rt,
    device: DynDevice,
    options: Options,
) -> Result<Report, PoolError> {
    device::check(rt, device, options).await
}
