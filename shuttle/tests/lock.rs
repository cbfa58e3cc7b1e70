//! The FIFO lock, with another task at each of its atomic operations: nobody is in it beside one
//! that writes, nobody waits for ever, whoever gives up.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use copyhold_runtime::{FifoRwLock, Runtime};
use copyhold_shuttle::{Order, ShuttleRuntime, explore};
use shuttle::future::yield_now;

const ROUNDS: usize = 3;
const WRITER: usize = 1000;

/// Who is inside.
#[derive(Default)]
struct Room {
    lock: FifoRwLock,
    inside: AtomicUsize,
    served: AtomicUsize,
}

impl Room {
    async fn enter(&self, weight: usize) {
        let before = self.inside.fetch_add(weight, Ordering::Relaxed);
        let _leaves = Leaves(self, weight);
        assert!(before < WRITER && (weight == 1 || before == 0), "{before} are inside");
        yield_now().await;
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    async fn read(&self) {
        let _guard = self.lock.read().await;
        self.enter(1).await;
    }

    async fn write(&self) {
        let _guard = self.lock.write().await;
        self.enter(WRITER).await;
    }
}

/// Also when it is dropped while it waits inside.
struct Leaves<'a>(&'a Room, usize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Polls `future` so often, then drops it.
async fn impatiently(polls: usize, future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        if future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn all(rt: Arc<ShuttleRuntime>) {
    let room = Arc::new(Room::default());
    let done = Arc::new(AtomicUsize::new(0));
    for client in 0..4 {
        let (room, done) = (room.clone(), done.clone());
        rt.spawn(Box::pin(async move {
            for round in 0..ROUNDS {
                match (client + round) % 4 {
                    0 | 1 => room.read().await,
                    2 => room.write().await,
                    _ if round == 1 => impatiently(1 + client % 2, room.read()).await,
                    _ => impatiently(1 + round, room.write()).await,
                }
            }
            done.fetch_add(1, Ordering::Relaxed);
        }));
    }
    while done.load(Ordering::Relaxed) < 4 {
        yield_now().await;
    }
    // Free again, and nobody stands in its way.
    room.write().await;
    assert_eq!(room.inside.load(Ordering::Relaxed), 0);
    assert!(room.served.load(Ordering::Relaxed) > ROUNDS);
}

#[test]
fn nobody_is_inside_with_one_that_writes_and_nobody_is_forgotten() {
    explore(Order::Random, 1, 3000, all);
    explore(Order::Priorities, 2, 3000, all);
}
