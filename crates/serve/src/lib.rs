//! Serving a filesystem at a mount point: requests of the kernel, questions of programs, and the
//! budget of memory.
//!
//! ```text
//!   kernel ── fuse ── adapter ── fs          requests: each method translates values
//!   program ─ ioctl ─ adapter ── tenants     questions about subvolumes, quotas, the pool (`wire`)
//!   budget ── options of pool, fs, fuse      shares of one number
//! ```
//!
//! [`open`] opens a pool within a budget, [`Serving::start`] serves it at a mount that the caller
//! made, until it is unmounted. The program `copyhold` and the library `copyhold` are the callers:
//! neither arguments of a command line nor forks of a daemon are known here.

#![deny(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "this crate asks the machine and passes its answers in"
)]

mod adapter;
pub mod budget;
mod cgroup;
pub mod control;
pub mod describe;
mod errno;
mod error;
mod moment;
mod names;
mod namespaces;
mod serving;
mod tenants;
pub mod wire;

pub use copyhold_memory::Arm as ReclaimArm;
pub use copyhold_pool::{FlushPolicy, ReplayTime};
pub use errno::{errno_of, errno_of_device, errno_of_mount, errno_of_pool, errno_of_serving};
pub use error::{ServeError, chain};
pub use moment::rfc3339;
pub use names::NamesLimit;
pub use namespaces::Namespaces;
pub use serving::{Opened, Options, Serving, open, open_filesystem, operations, settings};
