//! Locks between tasks: a waiter does not block its executor. First come, first served.
//!
//! Problem.  A lock that lets newcomers overtake must prevent starvation. The usual way is to look
//!           by the clock for waiters that have waited too long; but then the order of things
//!           depends on how fast the machine is, and one seed is not one history any more.
//! Idea.     No waiter is overtaken, so none needs rescue: while a task waits, newcomers queue
//!           behind it, and a release passes the lock to the next waiters.
//! In core.  One word: the number of holders, and whether a task waits; the queue is touched only
//!           then, and the first waiter makes it. So a lock without contention costs one atomic
//!           operation to take and one to release, no allocation, and is three words.
//!
//! TASKLOCK-L1  While QUEUED is set, the fast way in is shut: only a holder that leaves, and the
//!              holder of the queue's mutex, change the word. QUEUED is set and cleared under that
//!              mutex.
//! TASKLOCK-L2  A waiter that is in the queue waits; one that is not holds the lock, whether it
//!              has noticed that or not. So a waiter that is dropped leaves the queue, or hands
//!              the lock on.
//! TASKLOCK-L3  The last holder that leaves while QUEUED is set admits from the front of the queue
//!              one writer, or all readers up to the next writer.
//! TASKLOCK-L4  No waker is called or dropped while the mutex is held: it may drop a task, which
//!              may hold this lock.
//!
//! They guard no value: the declaration of a lock names the state under it. A reader must not wait
//! for the same lock again: a writer may wait in between.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
#[cfg(not(shuttle))]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use copyhold_sync::{Mutex, of};
#[cfg(shuttle)]
use parking_lot::atomic::AtomicUsize; // of what stands for that crate there
use smallvec::SmallVec;

/// A waiter is in the queue.
const QUEUED: usize = 1;
/// Held by one that writes.
const WRITER: usize = 2;
/// Held by one that reads; counted.
const READER: usize = 4;

/// Held by many that read, or by one that writes.
#[derive(Debug, Default)]
pub struct FifoRwLock {
    state: AtomicUsize,
    queue: Mutex<WaitQueue, of::TaskQueue>,
}

/// Where the queue is. Once made it stays: tickets are not assigned twice.
#[derive(Debug, Default)]
struct WaitQueue(Option<Box<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    /// By ticket.
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    mode: Mode,
    waker: Waker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
}

impl WaitQueue {
    fn queue(&mut self) -> &mut Queue {
        self.0.get_or_insert_default()
    }
}

impl Mode {
    /// The addition of a holder to the word.
    fn weight(self) -> usize {
        match self {
            Mode::Read => READER,
            Mode::Write => WRITER,
        }
    }

    /// Whether one more holder fits beside the present ones.
    fn fits(self, state: usize) -> bool {
        match self {
            Mode::Read => state & WRITER == 0,
            Mode::Write => state & !QUEUED == 0,
        }
    }
}

/// The lock is held by one that reads, until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets go of the lock"]
pub struct ReadGuard<'a>(&'a FifoRwLock);

/// The lock is held by one that writes, until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets go of the lock"]
pub struct WriteGuard<'a>(&'a FifoRwLock);

impl FifoRwLock {
    pub fn new() -> FifoRwLock {
        FifoRwLock::default()
    }

    /// Waits until all writers that came before have released the lock.
    pub async fn read(&self) -> ReadGuard<'_> {
        self.enter(Mode::Read).await;
        ReadGuard(self)
    }

    /// Waits until all that came before have released the lock.
    pub async fn write(&self) -> WriteGuard<'_> {
        self.enter(Mode::Write).await;
        WriteGuard(self)
    }

    async fn enter(&self, mode: Mode) {
        if !self.enter_at_once(mode) {
            Wait { lock: self, mode, ticket: None }.await;
        }
    }

    fn enter_at_once(&self, mode: Mode) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & QUEUED == 0 && mode.fits(state) {
            let entered = state + mode.weight();
            let (taken, failed) = (Ordering::Acquire, Ordering::Relaxed);
            match self.state.compare_exchange_weak(state, entered, taken, failed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// A place in the queue; nothing, if the lock was released meanwhile and is now held.
    fn stand(&self, mode: Mode, cx: &Context<'_>) -> Option<u64> {
        let waker = cx.waker().clone();
        let mut place = self.queue.lock();
        let queue = place.queue();
        let state = self.state.fetch_or(QUEUED, Ordering::Acquire);
        if queue.waiters.is_empty() && mode.fits(state) {
            self.state.fetch_add(mode.weight(), Ordering::Relaxed);
            self.state.fetch_and(!QUEUED, Ordering::Relaxed);
            return None;
        }
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.waiters.push_back(Waiter { ticket, mode, waker });
        Some(ticket)
    }

    /// Whether the waiter is still in the queue (TASKLOCK-L2); then it will be woken.
    fn waits(&self, ticket: u64, cx: &Context<'_>) -> bool {
        let mut waker = cx.waker().clone();
        let mut place = self.queue.lock();
        let queue = place.queue();
        let Some(at) = queue.place_of(ticket) else { return false };
        std::mem::swap(&mut queue.waiters[at].waker, &mut waker);
        drop(place);
        true
    }

    /// A waiter is cancelled (TASKLOCK-L2).
    fn leave(&self, ticket: u64, mode: Mode) {
        let mut place = self.queue.lock();
        let queue = place.queue();
        let Some(at) = queue.place_of(ticket) else {
            drop(place);
            return self.let_go(mode);
        };
        let gone = queue.waiters.remove(at);
        // It may have stood between readers that hold the lock and others that wait.
        let admitted = self.admit(queue);
        drop(place);
        drop(gone);
        admitted.into_iter().for_each(Waker::wake);
    }

    fn let_go(&self, mode: Mode) {
        let left = self.state.fetch_sub(mode.weight(), Ordering::Release) - mode.weight();
        if left == QUEUED {
            let admitted = self.admit(self.queue.lock().queue());
            admitted.into_iter().for_each(Waker::wake);
        }
    }

    /// Passes the lock to those in front of the queue whom it fits (TASKLOCK-L3). They are to be
    /// woken (TASKLOCK-L4).
    fn admit(&self, queue: &mut Queue) -> SmallVec<[Waker; 2]> {
        let mut admitted = SmallVec::new();
        while let Some(first) = queue.waiters.front()
            && first.mode.fits(self.state.load(Ordering::Acquire))
        {
            self.state.fetch_add(first.mode.weight(), Ordering::Relaxed);
            admitted.extend(queue.waiters.pop_front().map(|first| first.waker));
        }
        if queue.waiters.is_empty() {
            self.state.fetch_and(!QUEUED, Ordering::Relaxed);
        }
        admitted
    }
}

impl Queue {
    fn place_of(&self, ticket: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.0.let_go(Mode::Read);
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.0.let_go(Mode::Write);
    }
}

/// In the queue from its first poll on.
struct Wait<'a> {
    lock: &'a FifoRwLock,
    mode: Mode,
    ticket: Option<u64>,
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.ticket = match self.ticket {
            None => self.lock.stand(self.mode, cx),
            Some(ticket) => self.lock.waits(ticket, cx).then_some(ticket),
        };
        if self.ticket.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.lock.leave(ticket, self.mode);
        }
    }
}

/// Held by one at a time.
#[derive(Debug, Default)]
pub struct FifoMutex(FifoRwLock);

/// The mutex is held until this is dropped.
pub type FifoMutexGuard<'a> = WriteGuard<'a>;

impl FifoMutex {
    pub fn new() -> FifoMutex {
        FifoMutex::default()
    }

    /// Waits until all that came before have released the lock.
    pub async fn lock(&self) -> FifoMutexGuard<'_> {
        self.0.write().await
    }

    /// Nothing, if it is held or waited for.
    pub fn try_lock(&self) -> Option<FifoMutexGuard<'_>> {
        self.0.enter_at_once(Mode::Write).then(|| WriteGuard(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::task::Wake;

    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{RngCore, SeedableRng};

    use super::*;
    use crate::executors::Config;
    use crate::{BoxFuture, Executors, ReactorKind, Runtime, yield_now};

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Either guard: dropping it is all that is done with it.
    trait Guard: Send {}
    impl Guard for ReadGuard<'_> {}
    impl Guard for WriteGuard<'_> {}
    type Held<'a> = Box<dyn Guard + 'a>;

    struct Asker<'a> {
        mode: Mode,
        future: Option<BoxFuture<'a, Held<'a>>>,
        held: Option<Held<'a>>,
        woken: Arc<Woken>,
    }

    impl<'a> Asker<'a> {
        fn new(lock: &'a FifoRwLock, mode: Mode) -> Asker<'a> {
            let future: BoxFuture<'a, Held<'a>> = Box::pin(async move {
                match mode {
                    Mode::Read => Box::new(lock.read().await) as Held<'a>,
                    Mode::Write => Box::new(lock.write().await),
                }
            });
            Asker { mode, future: Some(future), held: None, woken: Arc::default() }
        }

        /// Whether it holds the lock now.
        fn poll(&mut self) -> bool {
            if let Some(future) = &mut self.future {
                let waker = Waker::from(self.woken.clone());
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => return false,
                    Poll::Ready(guard) => {
                        self.held = Some(guard);
                        self.future = None;
                    }
                }
            }
            true
        }
    }

    /// The plainest lock: a line in order of arrival, and how many of its front hold it.
    #[derive(Default)]
    struct Model {
        holding: Vec<(usize, Mode)>,
        waiting: Vec<(usize, Mode)>,
    }

    impl Model {
        fn settle(&mut self) -> Vec<usize> {
            let mut admitted = Vec::new();
            while let Some((id, mode)) = self.waiting.first().copied() {
                let fits = match mode {
                    Mode::Read => self.holding.iter().all(|(_, held)| *held == Mode::Read),
                    Mode::Write => self.holding.is_empty(),
                };
                if !fits {
                    break;
                }
                self.holding.push(self.waiting.remove(0));
                admitted.push(id);
            }
            admitted
        }

        fn forget(&mut self, id: usize) {
            self.holding.retain(|(other, _)| *other != id);
            self.waiting.retain(|(other, _)| *other != id);
        }
    }

    #[test]
    fn it_serves_in_order_whoever_gives_up() {
        for seed in 0..300 {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let lock = FifoRwLock::new();
            let mut askers: Vec<Option<Asker<'_>>> = Vec::new();
            let mut model = Model::default();
            for _ in 0..200 {
                let alive: Vec<usize> =
                    (0..askers.len()).filter(|id| askers[*id].is_some()).collect();
                let waited = model.waiting.clone();
                if alive.is_empty() || (alive.len() < 8 && rng.next_u64() % 2 == 0) {
                    let mode = [Mode::Read, Mode::Write][(rng.next_u64() % 2) as usize];
                    let id = askers.len();
                    let mut asker = Asker::new(&lock, mode);
                    model.waiting.push((id, mode));
                    model.settle();
                    let holds = model.holding.iter().any(|(other, _)| *other == id);
                    assert_eq!(asker.poll(), holds, "seed {seed}");
                    askers.push(Some(asker));
                } else {
                    // Releases, or is cancelled, whether it has noticed being admitted or not.
                    let id = alive[rng.next_u64() as usize % alive.len()];
                    model.forget(id);
                    askers[id] = None;
                    model.settle();
                }
                for (id, asker) in askers.iter_mut().enumerate() {
                    let Some(asker) = asker else { continue };
                    let holds = model.holding.iter().any(|(other, _)| *other == id);
                    let admitted = holds && waited.iter().any(|(other, _)| *other == id);
                    if admitted {
                        assert_eq!(asker.woken.0.load(Ordering::Relaxed), 1, "seed {seed}");
                    }
                    // Some look at once, some when they are dropped.
                    if rng.next_u64() % 2 == 0 {
                        assert_eq!(asker.poll(), holds, "seed {seed}: {:?}", asker.mode);
                    }
                }
            }
            askers.clear();
            assert_eq!(lock.state.load(Ordering::Relaxed), 0);
            assert!(lock.queue.lock().queue().waiters.is_empty());
        }
    }

    #[test]
    fn nobody_overtakes_one_who_waits() {
        let lock = FifoRwLock::new();
        let [mut a, mut b, mut c] =
            [Mode::Read, Mode::Write, Mode::Read].map(|mode| Asker::new(&lock, mode));
        assert!(a.poll() && !b.poll() && !c.poll());
        drop(a);
        // It is b's, which has not looked yet.
        assert!(!Asker::new(&lock, Mode::Write).poll() && !c.poll() && b.poll());
    }

    #[test]
    fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
        let lock = FifoRwLock::new();
        let [mut a, mut b, mut c] =
            [Mode::Read, Mode::Write, Mode::Read].map(|mode| Asker::new(&lock, mode));
        assert!(a.poll() && !b.poll() && !c.poll());
        drop(b);
        assert_eq!(c.woken.0.load(Ordering::Relaxed), 1);
        assert!(c.poll());
    }

    #[test]
    fn what_is_held_is_not_to_be_had_at_once() {
        let mutex = FifoMutex::new();
        let held = mutex.try_lock();
        assert!(held.is_some() && mutex.try_lock().is_none());
        drop(held);
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn threads_exclude_each_other_and_lose_no_wake_up() {
        const TASKS: u64 = 8;
        const ROUNDS: u64 = 2000;
        let config = Config { cpus: Some(4), reactor: ReactorKind::Threads, ..Config::default() };
        let executors = Executors::start(config).expect("executors start");
        let lock = Arc::new(FifoRwLock::new());
        let (count, done) = (Arc::new(AtomicU64::new(0)), Arc::new(FifoMutex::new()));
        let (tell, told) = std::sync::mpsc::channel();
        for task in 0..TASKS {
            let (lock, count, done) = (lock.clone(), count.clone(), done.clone());
            let tell = tell.clone();
            executors.spawn(Box::pin(async move {
                for round in 0..ROUNDS {
                    let before = {
                        let _shared = lock.read().await;
                        count.load(Ordering::Relaxed)
                    };
                    if (round + task) % 3 == 0 {
                        // A waiter that is cancelled at once.
                        let mut wait = Box::pin(lock.write());
                        let mut cx = Context::from_waker(Waker::noop());
                        let _given_up: Poll<WriteGuard<'_>> = wait.as_mut().poll(&mut cx);
                    }
                    let _alone = lock.write().await;
                    let now = count.load(Ordering::Relaxed);
                    assert!(now >= before);
                    if round % 16 == 0 {
                        yield_now().await;
                    }
                    // Two steps: an increment by another task in between would be lost.
                    count.store(now + 1, Ordering::Relaxed);
                }
                let _one = done.lock().await;
                tell.send(()).expect("somebody waits");
            }));
        }
        (0..TASKS).for_each(|_| told.recv().expect("each is done"));
        assert_eq!(count.load(Ordering::Relaxed), TASKS * ROUNDS);
    }
}
