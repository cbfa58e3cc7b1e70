//! The one seam between the engine and the machine: tasks, clocks, randomness, file I/O.
//!
//! Problem.  The same engine must run on many CPUs with real devices, and in one deterministic
//!           thread in which a seed decides every interleaving.
//! Idea.     Everything that is not a value computed from values comes from a [`Runtime`] that is
//!           passed in. `Executors` is the machine (one thread and one io_uring per CPU, or a
//!           thread pool where io_uring is refused); `SeededRuntime` is the simulation.
//!
//! Futures are `Send`: a mutex guard held across an await does not compile.

#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "this is where the machine is asked")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use copyhold_types::{Nanos, Timestamp};

pub mod executors;
mod finishing;
mod lock;
mod machine;
mod op;
mod ring;
mod sabotage;
pub mod seeded;
mod threads;
mod uring;
mod worker;
mod yielding;

pub use executors::{Executors, ReactorKind};
pub use finishing::{Finishing, finishing};
pub use lock::{FifoMutex, FifoMutexGuard, FifoRwLock, ReadGuard, WriteGuard};
pub use op::{Completion, Op, Outcome, Reactor, SharedFd};
pub use ring::is_shortage;
#[cfg(shuttle)]
pub use sabotage::Sabotage;
pub use seeded::{SeededConfig, SeededRuntime};
pub use threads::ThreadReactor;
pub use yielding::{YieldNow, yield_now};

/// A boxed future of the engine.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The interface of the engine to the machine.
pub trait Runtime: Send + Sync + 'static {
    /// Runs `task` to its end in the background. A task that panics takes the process down.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Monotonic nanoseconds.
    fn now(&self) -> Nanos;

    /// Wall-clock time, for the times that files show.
    fn wall_clock(&self) -> Timestamp;

    /// Completes `duration` later.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// 64 random bits: identities, hash keys. Seeded in simulation.
    fn random(&self) -> u64;

    /// How many tasks can run at once; lanes and shards are cut by it.
    fn cpus(&self) -> usize;

    /// The caller's CPU, below [`Self::cpus`].
    fn current_cpu(&self) -> usize;
}

/// How the engine holds its runtime.
pub type Rt = Arc<dyn Runtime>;
