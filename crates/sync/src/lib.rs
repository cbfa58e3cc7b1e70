//! The locks that block a thread, and the one order in which threads take them.
//!
//! Problem.  Two threads that take two locks in opposite orders wait for each other for ever, and
//!           soon every request of the mount waits for them. Tests seldom meet the moment.
//! Idea.     Each lock has a [`Rank`] in its type. A thread waits only for a lock whose rank comes
//!           behind the ranks of all locks that it holds. Debug builds assert this on every
//!           acquisition: a wrong order fails in the first test that takes both locks, whether or
//!           not another thread is there. So no deadlock on these locks is possible where the
//!           assertions hold.
//!
//! RANK-L1  A thread that holds a lock of rank `r` waits for locks of later ranks only, or for
//!          locks of rank `r` with a greater key ([`Mutex::lock_at`]).
//! RANK-L2  `try_lock` never waits, so it may come in any order. Its lock counts as held with key
//!          0.
//!
//! In release builds these are the locks of `parking_lot` and nothing else. All blocking locks of
//! the engine come from here, so a concurrency checker can replace them (`shuttle/parking_lot`).
//! The one exception is the lock of `types::spare`, which never takes another.
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
