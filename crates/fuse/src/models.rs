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

use crate::Errno;
use crate::desk::Flight;
use crate::interrupt::{Interrupts, unless};
use crate::locks::Locks;
use crate::parking::FirstPoll;
use crate::protocol::{Handle, Lock, LockKind, LockOwner, NodeId};
use crate::spawn::Spawner;
pub use crate::uring::answers;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn join(threads: Vec<JoinHandle<()>>) {
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

/// Operations that wait after their first poll, and are woken during it, behind it, or later: each
/// goes on once, and is waited for.
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

fn lock(owner: u64, kind: LockKind, flock: bool) -> Lock {
    let (start, end) = (0, if flock { u64::MAX } else { 9 });
    let owner = LockOwner(owner);
    Lock { handle: Handle(0), owner, kind, start, end, pid: 1, flock }
}

/// Owners of file locks that wait for one another, and one that is cancelled.
pub fn file_locks() {
    const FILE: NodeId = NodeId(1);
    const WRITER: usize = 100;
    let (locks, inside) = (Arc::new(Locks::default()), Arc::new(AtomicUsize::new(0)));
    for flock in [false, true] {
        let owners = (1..=4).map(|owner| {
            let (locks, inside) = (locks.clone(), inside.clone());
            thread::spawn(move || {
                let kind = if owner % 2 == 0 { LockKind::Read } else { LockKind::Write };
                let weight = if owner % 2 == 0 { 1 } else { WRITER };
                let mut waiting = Box::pin(locks.wait(FILE, lock(owner, kind, flock)));
                let result = if owner == 4 {
                    let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    drop(waiting);
                    let Poll::Ready(result) = polled else { return };
                    result
                } else {
                    wait(waiting)
                };
                assert_eq!(result, Ok(()));
                let before = inside.fetch_add(weight, Ordering::SeqCst);
                assert!(before < WRITER && (weight == 1 || before == 0), "{before} are inside");
                thread::yield_now();
                inside.fetch_sub(weight, Ordering::SeqCst);
                match (flock, owner) {
                    (true, _) => locks.release_flock(FILE, LockOwner(owner)),
                    (false, 1) => locks.release_posix(FILE, LockOwner(owner)),
                    (false, _) => {
                        let unlock = lock(owner, LockKind::Unlock, false);
                        assert_eq!(locks.set(FILE, &unlock), Ok::<(), Errno>(()));
                    }
                }
            })
        });
        join(owners.collect());
    }
    assert!(locks.test(FILE, &lock(9, LockKind::Write, false)).is_none());
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
