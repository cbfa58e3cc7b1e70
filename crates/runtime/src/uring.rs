//! The kernel's side of a [`crate::ring::Ring`]: its calls, and entries in its form.
//!
//! Under shuttle a simulated one replaces it (`simulated`), which completes operations in any
//! order, accepts any number of them, and is interrupted, as the kernel may do.

#![allow(unsafe_code)]

#[cfg(not(shuttle))]
mod real;
#[cfg(shuttle)]
mod simulated;

#[cfg(not(shuttle))]
pub(crate) use real::*;
#[cfg(shuttle)]
pub(crate) use simulated::*;

/// The kernel's result for an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) token: u64,
    pub(crate) result: i32,
    /// The entry stays active.
    pub(crate) has_more: bool,
}

/// The owner of a ring, and the thread that does the kernel's work at an operation's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The thread's that enables it, and it does that when it enters (Linux 6.1).
    Own,
    /// For any thread; the kernel interrupts the thread that submitted the operation.
    Plain,
}
