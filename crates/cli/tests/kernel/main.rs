//! A mounted pool through the kernel's calls: what programs expect of a Linux filesystem.
//!
//! One mount for each test, as in `mount.rs`; they need root and /dev/fuse, and say so and pass
//! where there is none, except under CI.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod callers;
mod containers;
mod data;
mod names;
mod observer;
mod permissions;
mod rights;
#[path = "../site/mod.rs"]
mod site;
