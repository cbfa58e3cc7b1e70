//! The engine under shuttle: its tasks run as if each had a thread, and at every lock another one
//! may go on, as a scheduler of shuttle's decides. So what the simulation cannot show, since it
//! runs a task from one await to the next, is tried here: two tasks in the midst of their polls.
//!
//! All locks of the engine are `copyhold_sync`'s, made of `parking_lot`; Cargo puts shuttle's in
//! place of that crate (`parking_lot/`), so nothing of this is in the program.
//!
//! Time is virtual. A task of its own moves the clock to the next timer whenever it is its turn:
//! timers fire in order, at any moment of others' work.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use copyhold_runtime::{BoxFuture, Runtime};
use copyhold_types::{Nanos, Timestamp};
use shuttle::future::{JoinHandle, block_on, spawn, yield_now};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

/// Deep enough for the engine's longest calls.
const STACK_BYTES: usize = 1 << 20;
/// An execution that has not ended by then never does.
const STEPS_MAX: usize = 3_000_000;
const CPUS: usize = 2;

/// The state is in a plain mutex: no task is ever stopped while it holds that.
pub struct ShuttleRuntime {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    now: Nanos,
    next_id: u64,
    timers: BTreeMap<(Nanos, u64), Waker>,
    /// The clock's own task, when there is no timer.
    clock: Option<Waker>,
    tasks: Vec<JoinHandle<()>>,
    /// By which each task is told of the end.
    bells: BTreeMap<u64, Waker>,
    has_ended: bool,
    random: u64,
}

impl ShuttleRuntime {
    /// With its clock running.
    fn start() -> Arc<ShuttleRuntime> {
        let rt = Arc::new(ShuttleRuntime { state: Arc::default() });
        let clock = rt.clone();
        rt.spawn(Box::pin(async move {
            loop {
                poll_fn(|cx| clock.tick(cx)).await;
                yield_now().await;
            }
        }));
        rt
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Fires the next timer.
    fn tick(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        let Some(((at, _), waker)) = state.timers.pop_first() else {
            state.clock = Some(cx.waker().clone());
            return Poll::Pending;
        };
        state.now = state.now.max(at);
        drop(state);
        waker.wake();
        Poll::Ready(())
    }

    /// Drops every task where it stands, each within itself: what dropping it unlocks is shuttle's.
    async fn end(&self) {
        let bells = {
            let mut state = self.state();
            state.has_ended = true;
            std::mem::take(&mut state.bells)
        };
        bells.into_values().for_each(Waker::wake);
        loop {
            // What is dropped may spawn, and that ends at once.
            let Some(task) = self.state().tasks.pop() else { return };
            let _ = task.await;
        }
    }
}

impl Runtime for ShuttleRuntime {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let id = {
            let mut state = self.state();
            state.next_id += 1;
            state.next_id
        };
        let handle = spawn(Task { state: self.state.clone(), id, task: Some(task) });
        self.state().tasks.push(handle);
    }

    fn now(&self) -> Nanos {
        self.state().now
    }

    fn wall_clock(&self) -> Timestamp {
        Timestamp { secs: 1_800_000_000 + (self.now() / 1_000_000_000) as i64, nanos: 0 }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let mut state = self.state();
        let at = state.now + duration.as_nanos() as u64;
        state.next_id += 1;
        let key = (at, state.next_id);
        drop(state);
        Box::pin(Sleep { state: self.state.clone(), key, is_set: false })
    }

    fn random(&self) -> u64 {
        let mut state = self.state();
        state.random = state.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state.random ^ (state.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    }

    fn cpus(&self) -> usize {
        CPUS
    }

    fn current_cpu(&self) -> usize {
        usize::from(shuttle::current::me()) % CPUS
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task that ends with its runtime.
struct Task {
    state: Arc<Mutex<State>>,
    id: u64,
    task: Option<BoxFuture<'static, ()>>,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let has_ended = {
            let mut state = lock(&self.state);
            state.bells.insert(self.id, cx.waker().clone());
            state.has_ended
        };
        if has_ended {
            self.task = None;
        }
        let Some(task) = &mut self.task else { return Poll::Ready(()) };
        let poll = task.as_mut().poll(cx);
        if poll.is_ready() {
            self.task = None;
            lock(&self.state).bells.remove(&self.id);
        }
        poll
    }
}

struct Sleep {
    state: Arc<Mutex<State>>,
    key: (Nanos, u64),
    is_set: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if self.is_set && state.now >= self.key.0 {
            return Poll::Ready(());
        }
        let replaced = state.timers.insert(self.key, cx.waker().clone());
        let clock = state.clock.take();
        drop(state);
        drop(replaced);
        if let Some(clock) = clock {
            clock.wake();
        }
        self.is_set = true;
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = lock(&self.state).timers.remove(&self.key);
        drop(waker);
    }
}

/// Who decides which task goes on.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Any, each time.
    Random,
    /// Priorities that change at a few moments: better at what needs one rare order.
    Priorities,
}

/// Runs `work` so many times, each in another order, which follows from `seed`. What fails prints
/// the order, and shuttle's `replay` has it again.
pub fn explore<F: Future<Output = ()> + 'static>(
    order: Order,
    seed: u64,
    times: usize,
    work: impl Fn(Arc<ShuttleRuntime>) -> F + Send + Sync + 'static,
) {
    explore_threads(order, seed, times, move || {
        let rt = ShuttleRuntime::start();
        block_on(async {
            work(rt.clone()).await;
            rt.end().await;
        });
    });
}

/// The same for what starts threads, as the runtime of production does.
pub fn explore_threads(
    order: Order,
    seed: u64,
    times: usize,
    run: impl Fn() + Send + Sync + 'static,
) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    match order {
        Order::Random => go(RandomScheduler::new_from_seed(seed, times), config, run),
        Order::Priorities => go(PctScheduler::new_from_seed(seed, 3, times), config, run),
    }
}

fn go(scheduler: impl Scheduler + 'static, config: Config, run: impl Fn() + Send + Sync + 'static) {
    Runner::new(scheduler, config).run(run);
}
