//! The kernel's side of a [`crate::ring::Ring`]: its calls, and entries in its form.
//!
//! Under shuttle a simulated one stands for it (`simulated`), which completes operations in any
//! order, takes as many as it likes, and is interrupted: all that the kernel may do.

#![allow(unsafe_code)]

#[cfg(not(shuttle))]
mod real;
#[cfg(shuttle)]
mod simulated;

#[cfg(not(shuttle))]
pub(crate) use real::*;
#[cfg(shuttle)]
pub(crate) use simulated::*;

/// What the kernel says of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) token: u64,
    pub(crate) result: i32,
    /// The entry goes on.
    pub(crate) has_more: bool,
}

/// Whose a ring is, and who does what the kernel has to do at an operation's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The thread's that enables it, and it does that when it enters (Linux 6.1).
    Own,
    /// Anybody's; the kernel interrupts whoever submitted the operation.
    Plain,
}
