//! The locks that block a thread, and the one order in which threads take them.
//!
//! Problem.  Two threads that take two locks in opposite orders wait for each other for ever, and
//!           soon every request of the mount waits for them. Tests seldom meet the moment.
//! Idea.     Each lock has a [`Rank`] in its type. A thread waits only for a lock whose rank comes
//!           behind the ranks of all locks that it holds, so no circle of waiting threads exists.
//!           Debug builds assert this on every acquisition: a wrong order fails in the first test
//!           that takes both locks, whether or not another thread is there.
//!
//! L1  A thread that holds a lock of rank `r` waits for locks of later ranks only, or for locks of
//!     rank `r` with a greater key ([`Mutex::lock_at`]).
//! L2  `try_lock` never waits, so it may come in any order. What it locks counts as held.
//!
//! In release builds these are the locks of `parking_lot` and nothing else. All of them come from
//! here, so a concurrency checker can stand in for them (`shuttle/parking_lot`).
//!
//! Locks that suspend a task instead of a thread are `copyhold_runtime`'s; a task never keeps a
//! guard of these across an await, since the guards are not `Send`.

#![forbid(unsafe_code)]

mod held;
mod mutex;
mod rank;
mod rwlock;

pub use mutex::{Condvar, Mutex, MutexGuard};
pub use rank::{Rank, Ranked, of};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
