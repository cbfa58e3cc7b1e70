//! Histories of the transport for shuttle (`shuttle/tests/transport.rs`): threads that wait, and
//! others that may come at any moment of it.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use copyhold_runtime::BoxFuture;
use parking_lot::atomic::AtomicUsize;
use parking_lot::thread::{self, JoinHandle, Thread};
use parking_lot::{Condvar, Mutex};

use crate::backlog::gate::Gate;
use crate::desk::Waits;
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

/// A kernel's queue, which wakes a reader for each request there, and the requests that readers
/// have moved into memory.
#[derive(Default)]
struct Requests {
    kernel: Mutex<Kernel>,
    arrived: Condvar,
    served: Condvar,
    memory: Mutex<usize>,
    gate: Gate,
    /// Readers in a read that waits.
    asleep: AtomicUsize,
}

#[derive(Default)]
struct Kernel {
    queue: usize,
    served: usize,
    has_ended: bool,
}

const READERS: usize = 3;

impl Requests {
    fn arrive(&self) {
        self.kernel.lock().queue += 1;
        self.arrived.notify_one();
    }

    /// A read that does not wait.
    fn read(&self) -> bool {
        let mut kernel = self.kernel.lock();
        let has_one = kernel.queue > 0;
        kernel.queue -= usize::from(has_one);
        has_one
    }

    /// A read that waits; `false`: there is no request any more.
    fn wait(&self) -> bool {
        let mut kernel = self.kernel.lock();
        while kernel.queue == 0 && !kernel.has_ended {
            self.arrived.wait(&mut kernel);
        }
        let has_one = kernel.queue > 0;
        kernel.queue -= usize::from(has_one);
        has_one
    }

    fn serve(&self) {
        self.kernel.lock().served += 1;
        self.served.notify_all();
    }

    /// BACKLOG-B4: one at most for each reader that is about to serve one.
    fn verify(&self, in_memory: usize) {
        let awake = READERS - self.asleep.load(Ordering::SeqCst);
        assert!(awake == READERS || in_memory <= awake, "BACKLOG-B4: {in_memory} for {awake}");
    }

    fn drain(&self) {
        while !self.gate.has_reading() && self.read() {
            let mut memory = self.memory.lock();
            *memory += 1;
            self.gate.add();
            self.verify(*memory);
        }
    }

    fn serve_next(&self) -> bool {
        if self.gate.is_empty() {
            return false;
        }
        let mut memory = self.memory.lock();
        let has_one = *memory > 0;
        if has_one {
            *memory -= 1;
            self.gate.take();
        }
        drop(memory);
        if has_one {
            self.serve();
        }
        has_one
    }

    /// The turns of a reader of `/dev/fuse` (`Reader::turn`).
    fn run(&self) {
        loop {
            self.drain();
            if self.serve_next() || !self.gate.begin_read() {
                continue;
            }
            self.asleep.fetch_add(1, Ordering::SeqCst);
            self.verify(*self.memory.lock());
            let has_one = self.wait();
            self.asleep.fetch_sub(1, Ordering::SeqCst);
            self.gate.end_read();
            if !has_one {
                return;
            }
            self.serve();
        }
    }
}

/// Readers that move the kernel's queue into memory: each request is served, though no other one
/// comes (BACKLOG-B2), and few are in memory while a reader sleeps (BACKLOG-B4).
pub fn drains() {
    const REQUESTS: usize = 5;
    let requests = Arc::new(Requests::default());
    let reader = |_| {
        let requests = requests.clone();
        thread::spawn(move || requests.run())
    };
    let readers: Vec<_> = (0..READERS).map(reader).collect();
    for _ in 0..REQUESTS {
        requests.arrive();
    }
    let mut kernel = requests.kernel.lock();
    while kernel.served < REQUESTS {
        requests.served.wait(&mut kernel);
    }
    kernel.has_ended = true;
    drop(kernel);
    requests.arrived.notify_all();
    join(readers);
    assert!(requests.gate.is_empty() && !requests.gate.has_reading());
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
    let (flight, done) = (Arc::new(Waits::default()), Arc::new(AtomicUsize::new(0)));
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
