//! Histories of the transport for shuttle (`shuttle/tests/transport.rs`): threads that wait, and
//! others that may come at any moment of it.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use copyhold_runtime::BoxFuture;
use parking_lot::Mutex;
use parking_lot::thread::{self, JoinHandle, Thread};

use crate::desk::Flight;
use crate::interrupt::{Interrupts, unless};
use crate::parking::FirstPoll;
use crate::spawn::Spawner;
pub use crate::uring::answers;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// Parks the thread until `future` is ready.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Waits for the end of all `threads`.
pub fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("what panics ends the history");
    }
}

struct Threads;

impl Spawner for Threads {
    fn run(&self, task: BoxFuture<'static, ()>) {
        thread::spawn(move || wait(task));
    }
}

/// Operations that wait after their first poll, and are woken during it, after it, or later: each
/// continues once, and is waited for.
pub fn first_polls() {
    const OPERATIONS: usize = 3;
    let spawner: Arc<dyn Spawner> = Arc::new(Threads);
    let (flight, done) = (Arc::new(Flight::default()), Arc::new(AtomicUsize::new(0)));
    let mut first = FirstPoll::new(&spawner);
    let mut openers = Vec::new();
    for _ in 0..OPERATIONS {
        let gate = Arc::new(Mutex::new((false, None::<Waker>)));
        let (opened, done) = (gate.clone(), done.clone());
        openers.push(thread::spawn(move || {
            let waker = {
                let mut gate = opened.lock();
                gate.0 = true;
                gate.1.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }));
        let mut operation: BoxFuture<'static, ()> = Box::pin(async move {
            poll_fn(|cx| {
                let mut gate = gate.lock();
                if gate.0 {
                    return Poll::Ready(());
                }
                gate.1 = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            done.fetch_add(1, Ordering::SeqCst);
        });
        if operation.as_mut().poll(&mut Context::from_waker(&first.waker)).is_pending() {
            flight.start();
            let flight = flight.clone();
            let parked = std::mem::replace(&mut first, FirstPoll::new(&spawner));
            parked.bell.park(Box::pin(async move {
                operation.await;
                flight.land();
            }));
        }
    }
    flight.drain();
    assert_eq!(done.load(Ordering::SeqCst), OPERATIONS);
    join(openers);
}

/// Requests that are interrupted, and some whose connection ends.
pub fn interrupts() {
    let interrupts = Arc::new(Interrupts::default());
    let listen = |unique: u64| {
        let interrupts = interrupts.clone();
        thread::spawn(move || {
            let stopped = wait(unless(interrupts.listen(unique), pending::<()>()));
            assert!(stopped.is_none());
        })
    };
    let interrupt = |unique: u64| {
        let interrupts = interrupts.clone();
        thread::spawn(move || interrupts.interrupt(unique))
    };
    join(vec![listen(2), interrupt(4), listen(4), interrupt(2)]);
    let left = listen(6);
    interrupts.end();
    join(vec![left, listen(8)]);
}
