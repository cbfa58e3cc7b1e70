//! Threads, atomics and the clock, as the executors use them. Under shuttle they are shuttle's, so
//! at each of them another thread may run, and time is virtual.

#[cfg(not(shuttle))]
mod real {
    pub(crate) use std::sync::atomic;
    pub(crate) use std::thread;
    pub(crate) use std::thread::park_timeout;
    pub(crate) use std::thread_local;
    use std::time::{Duration, Instant};

    pub(crate) use rustix::thread::sched_getcpu as cpu;

    /// Monotonic, from its making.
    pub(crate) struct Clock(Instant);

    impl Clock {
        pub(crate) fn new() -> Clock {
            Clock(Instant::now())
        }

        pub(crate) fn elapsed(&self) -> Duration {
            self.0.elapsed()
        }
    }
}

#[cfg(shuttle)]
mod modelled {
    use std::cell::Cell;
    use std::time::Duration;

    pub(crate) use parking_lot::{atomic, thread, thread_local};

    // An execution, with all of its threads, is one thread of the machine's.
    std::thread_local! {
        static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Moves when somebody's sleep ends.
    pub(crate) struct Clock(Duration);

    impl Clock {
        pub(crate) fn new() -> Clock {
            Clock(NOW.get())
        }

        pub(crate) fn elapsed(&self) -> Duration {
            NOW.get() - self.0
        }

        /// A sleep of so long from now on is over.
        pub(crate) fn pass(time: Duration) {
            NOW.set(NOW.get() + time);
        }
    }

    /// Others may run first, or not.
    pub(crate) fn park_timeout(time: Duration) {
        thread::yield_now();
        Clock::pass(time);
    }

    /// A thread that is not an executor has any CPU.
    pub(crate) fn cpu() -> usize {
        use parking_lot::rand::Rng;
        parking_lot::rand::thread_rng().gen_range(0..2)
    }
}

#[cfg(shuttle)]
pub(crate) use modelled::*;
#[cfg(not(shuttle))]
pub(crate) use real::*;
