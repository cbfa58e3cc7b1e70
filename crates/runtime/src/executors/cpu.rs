//! One executor: a thread, its queue of ready tasks, its timers, and the place where it sleeps.
//!
//! EXEC-E1  No wake is lost. The executor notes that it goes to sleep under the queue's lock,
//!          having found the queue empty; a thread that queues a task takes the note under the
//!          same lock and wakes it. A timer that becomes the first is added before the note is
//!          looked at, and the executor looks for the first timer after it wrote the note.
//! EXEC-E2  No lock is held while a task runs, is dropped, or is woken.
//! EXEC-E3  Operations that a task submits go to the kernel when its poll ends, or with the wait
//!          that follows.
//! EXEC-E4  Only the executor uses its ring. Operations of other threads are queued like tasks,
//!          and submitted together.
//! EXEC-E5  Completions are looked for after each turn of tasks, however many are ready.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_task::Runnable;
use copyhold_sync::{Mutex, of};
use copyhold_types::Nanos;

use super::timers::Timers;
use crate::machine;
use crate::machine::atomic::{AtomicBool, Ordering};
use crate::machine::thread::{self, Thread};
use crate::op::Flight;
use crate::ring::Ring;
use crate::sabotage::{Broken, Sabotage};

/// Tasks run between two looks at completions and timers.
const TURN: usize = 32;
/// Longest sleep at a time; the kernel's sums of time overflow with the largest ones.
const NAP: Duration = Duration::from_secs(3600);

pub(super) struct Cpu {
    queue: Mutex<Queue, of::ExecutorQueue>,
    pub(super) timers: Timers,
    parked: Mutex<Parked, of::ExecutorParked>,
    bed: Bed,
    stopping: AtomicBool,
    /// A task is being polled.
    polling: AtomicBool,
    broken: Broken,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Runnable>,
    /// Operations that other threads brought (EXEC-E4).
    brought: Vec<Arc<Flight>>,
    asleep: bool,
    /// The executor has ended.
    closed: bool,
}

/// Wakers of tasks that wait, so that shutting down can find them.
#[derive(Default)]
struct Parked {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// The place where an executor sleeps: in its ring, or parked.
pub(super) enum Bed {
    Ring(Box<Ring>),
    Park(OnceLock<Thread>),
}

impl Bed {
    pub(super) fn ring(&self) -> Option<&Ring> {
        match self {
            Bed::Ring(ring) => Some(ring),
            Bed::Park(_) => None,
        }
    }
}

impl Cpu {
    pub(super) fn new(bed: Bed, broken: Broken) -> Cpu {
        Cpu {
            queue: Mutex::default(),
            timers: Timers::default(),
            parked: Mutex::default(),
            bed,
            stopping: AtomicBool::new(false),
            polling: AtomicBool::new(false),
            broken,
        }
    }

    pub(super) fn ring(&self) -> Option<&Ring> {
        self.bed.ring()
    }

    /// Makes a task ready.
    pub(super) fn push(&self, runnable: Runnable) {
        let mut queue = self.queue.lock();
        queue.ready.push_back(runnable);
        let asleep = std::mem::take(&mut queue.asleep);
        drop(queue);
        if asleep && !self.broken.is(Sabotage::ForgetToWake) {
            self.wake();
        }
    }

    /// Has the executor submit an operation; refused once it has ended.
    pub(super) fn bring(&self, flight: Arc<Flight>) {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            return flight.refuse();
        }
        queue.brought.push(flight);
        let asleep = std::mem::take(&mut queue.asleep);
        drop(queue);
        if asleep && !self.broken.is(Sabotage::ForgetToCarry) {
            self.wake();
        }
    }

    /// Whether an operation that another thread brings now has to wait for the end of a task's
    /// poll.
    pub(super) fn is_polling(&self) -> bool {
        self.polling.load(Ordering::Relaxed)
    }

    /// A timer has become the first.
    pub(super) fn hurry(&self) {
        if !self.broken.is(Sabotage::ForgetTimer) {
            self.notify();
        }
    }

    /// Lets the executor look at its timers and at whether it should stop.
    fn notify(&self) {
        if std::mem::take(&mut self.queue.lock().asleep) {
            self.wake();
        }
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        if !self.broken.is(Sabotage::ForgetToStop) {
            self.notify();
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn wake(&self) {
        match &self.bed {
            Bed::Ring(ring) => ring.wake(),
            Bed::Park(thread) => thread.get().expect("only a started thread sleeps").unpark(),
        }
    }

    /// The executor's life, until [`Cpu::stop`]; then waits for the operations in flight in its
    /// ring.
    pub(super) fn run(&self, now: impl Fn() -> Nanos) {
        match &self.bed {
            Bed::Ring(ring) => ring.begin(),
            Bed::Park(parked) => {
                parked.set(thread::current()).expect("an executor is started once");
            }
        }
        let (mut batch, mut brought) = (VecDeque::new(), Vec::new());
        while !self.is_stopping() {
            self.run_some(&mut batch);
            if let Some(ring) = self.ring() {
                ring.reap();
            }
            self.timers.fire(now());
            if batch.is_empty() && !self.refill(&mut batch, &mut brought) {
                self.sleep(&now);
            }
        }
        let mut queue = self.queue.lock();
        queue.ready.extend(batch);
        queue.closed = true;
        let brought = std::mem::take(&mut queue.brought);
        drop(queue);
        if let Some(ring) = self.ring() {
            brought.into_iter().for_each(|flight| ring.carry(flight));
            ring.close();
        }
    }

    fn run_some(&self, batch: &mut VecDeque<Runnable>) {
        for _ in 0..TURN {
            let Some(runnable) = batch.pop_front() else { return };
            if let Some(ring) = self.ring() {
                ring.flush(); // EXEC-E3
            }
            self.polling.store(true, Ordering::Relaxed);
            runnable.run();
            self.polling.store(false, Ordering::Relaxed);
        }
    }

    /// Takes the ready tasks, and submits the operations of other threads. If there is nothing,
    /// notes that the executor goes to sleep (EXEC-E1).
    fn refill(&self, batch: &mut VecDeque<Runnable>, brought: &mut Vec<Arc<Flight>>) -> bool {
        let mut queue = self.queue.lock();
        if queue.ready.is_empty() && queue.brought.is_empty() {
            if self.broken.is(Sabotage::SleepBlindly) {
                drop(queue);
                queue = self.queue.lock();
            }
            queue.asleep = !self.is_stopping();
            return !queue.asleep;
        }
        std::mem::swap(&mut queue.ready, batch);
        std::mem::swap(&mut queue.brought, brought);
        drop(queue);
        for flight in brought.drain(..) {
            self.ring().expect("brought to where there is one").carry(flight);
        }
        true
    }

    fn sleep(&self, now: &impl Fn() -> Nanos) {
        let left = |at: Nanos| Duration::from_nanos(at.saturating_sub(now())).min(NAP);
        let timeout = self.timers.first().map(left);
        match (&self.bed, timeout) {
            (Bed::Ring(ring), timeout) => ring.wait(timeout),
            (Bed::Park(_), None) => thread::park(),
            (Bed::Park(_), Some(timeout)) => machine::park_timeout(timeout),
        }
        self.queue.lock().asleep = false;
    }

    /// Drops ready tasks and makes waiting ones ready; whether there were any. Only when the
    /// executor has ended.
    pub(super) fn drain(&self) -> bool {
        let ready = std::mem::take(&mut self.queue.lock().ready);
        let mut wakers = self.timers.take();
        wakers.extend(self.parked.lock().wakers.iter_mut().filter_map(Option::take));
        let any = !ready.is_empty() || !wakers.is_empty();
        drop(ready); // EXEC-E2
        wakers.into_iter().for_each(Waker::wake);
        any
    }
}

pin_project_lite::pin_project! {
    /// A task that its executor knows of while it waits.
    pub(super) struct Tracked<F> {
        #[pin]
        future: F,
        place: TaskRegistration,
    }
}

struct TaskRegistration {
    cpu: Arc<Cpu>,
    slot: Option<usize>,
}

impl<F> Tracked<F> {
    pub(super) fn new(future: F, cpu: Arc<Cpu>) -> Tracked<F> {
        Tracked { future, place: TaskRegistration { cpu, slot: None } }
    }
}

impl<F: Future<Output = ()>> Future for Tracked<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let poll = this.future.poll(cx);
        if poll.is_pending() {
            this.place.park(cx.waker());
        }
        poll
    }
}

impl TaskRegistration {
    fn park(&mut self, waker: &Waker) {
        if self.slot.is_some() {
            return; // A task has the same waker all its life.
        }
        let mut parked = self.cpu.parked.lock();
        let slot = parked.free.pop().unwrap_or(parked.wakers.len());
        if slot == parked.wakers.len() {
            parked.wakers.push(None);
        }
        parked.wakers[slot] = Some(waker.clone());
        self.slot = Some(slot);
    }
}

impl Drop for TaskRegistration {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let mut parked = self.cpu.parked.lock();
        let waker = parked.wakers[slot].take();
        parked.free.push(slot);
        drop(parked);
        drop(waker);
    }
}
