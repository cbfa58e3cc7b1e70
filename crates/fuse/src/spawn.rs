//! Where an operation goes that could not be answered at once.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use copyhold_runtime::{BoxFuture, Executors, Rt};

/// Drives futures to their end. Each one may have been polled before, with another waker, and must
/// be polled again at once.
pub trait Spawner: Send + Sync + 'static {
    fn run(&self, task: BoxFuture<'static, ()>);

    /// The same, on another CPU than this one, if there is one.
    fn run_elsewhere(&self, task: BoxFuture<'static, ()>) {
        self.run(task);
    }
}

/// Operations continue where they were woken.
impl Spawner for Arc<Executors> {
    fn run(&self, task: BoxFuture<'static, ()>) {
        self.spawn_here(task);
    }

    fn run_elsewhere(&self, task: BoxFuture<'static, ()>) {
        self.spawn_beside(task);
    }
}

impl Spawner for Rt {
    fn run(&self, task: BoxFuture<'static, ()>) {
        self.spawn(task);
    }
}

/// A thread for each task: for tests and small programs, without an engine's executors.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadPerTask;

impl Spawner for ThreadPerTask {
    fn run(&self, task: BoxFuture<'static, ()>) {
        thread::spawn(move || block_on(task));
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// Waits on this thread for `future`.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
