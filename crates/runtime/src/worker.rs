//! A thread's record about itself: whether a runtime owns it, and as which CPU.

use std::cell::Cell;

use crate::machine::thread_local;

thread_local! {
    static WORKER: Cell<Option<Worker>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Worker {
    /// The executors and the place among them, for an executor's thread.
    executor: Option<(usize, usize)>,
}

/// Marks this thread permanently as one of a runtime. `executor`: an identity of the executors, and
/// the number of this one.
pub(crate) fn enter(executor: Option<(usize, usize)>) {
    WORKER.with(|worker| worker.set(Some(Worker { executor })));
}

/// Whether this thread belongs to a runtime. Such a thread never waits for another to end.
pub(crate) fn is_worker() -> bool {
    WORKER.with(Cell::get).is_some()
}

/// Which of the executors `owner` this thread is, if any.
pub(crate) fn executor_of(owner: usize) -> Option<usize> {
    let (of, place) = WORKER.with(Cell::get)?.executor?;
    (of == owner).then_some(place)
}
