//! Pools that tests and tools make with the program, mount, kill and remove.
//!
//! Problem.  The program's tests, the scenarios, the torture and the benchmarks all run `copyhold`
//!           and must leave no mount, loop device or file behind, also where they panic.
//! Idea.     Values own the resources. A `Place` is a directory; its drop detaches all mounts below
//!           it and removes it. A `Pool` is the program with a place. A `LoopDevice` and a
//!           `Mounted` release what they hold. Explicit calls (`Pool::unmount`,
//!           `LoopDevice::detach`) return the errors that a drop can only print. An `Interrupt`
//!           makes Ctrl-C an error, so drops run behind it as well.
//! Order.    `command` runs any program to its end within a time limit. `Program` runs `copyhold`.
//!           `Pool` creates, mounts, unmounts and checks. `Daemon` kills the process of a mount.
//!           `needs` checks the machine for root, FUSE and the transport that a mount test uses.
//!
//! It uses no other crate of the project: it sees pools as a user does.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it waits for other processes")]

mod command;
mod daemon;
mod error;
mod interrupt;
mod loop_device;
mod mounted;
mod place;
mod pool;
mod program;

pub mod mount_table;
pub mod needs;
pub mod transport;
pub mod wait;

pub use command::{output, run, show};
pub use daemon::Daemon;
pub use error::HarnessError;
pub use interrupt::Interrupt;
pub use loop_device::LoopDevice;
pub use mounted::{Mounted, detach};
pub use place::Place;
pub use pool::{Pool, is_closed};
pub use program::Program;
