//! The runtime of the simulation: one thread, a virtual clock, every choice by a seed.
//!
//! Problem.  A crash found once must be found again: the next task, the time at which a timer
//!           fires and all randomness must follow from one number.
//! Idea.     Ready tasks are in one list, and the seed chooses. Each poll costs a little virtual
//!           time, so timers also fire in the midst of work; when nothing is ready, the clock
//!           jumps to the next timer.
//!
//! SEEDED-S1  All state changes in one thread, in the order of turns; a turn polls one task or
//!            moves the clock. So one seed and one program give one history
//!            ([`SeededRuntime::history`]).
//! SEEDED-S2  No lock is held while a future is polled or dropped or a waker is called.
//! SEEDED-S3  A task is in the ready list at most once.
//!
//! Losing power is [`SeededRuntime::drop_tasks`]: every task is dropped at its present await.
//!
//! Tasks usually hold the runtime, and it holds them: call `drop_tasks` when done with it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use copyhold_sync::{Mutex, of};
use copyhold_types::{Nanos, Timestamp};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::{BoxFuture, Runtime};

/// Where the virtual wall clock starts: 2026-01-01 00:00 UTC.
const WALL_CLOCK_START_SECS: i64 = 1_767_225_600;

/// The properties of a simulated machine.
#[derive(Clone, Debug)]
pub struct SeededConfig {
    /// How many CPUs it claims to have. Tasks still run one at a time.
    pub cpus: usize,
    /// A poll takes up to this much virtual time.
    pub poll_cost_max: Nanos,
}

impl Default for SeededConfig {
    fn default() -> SeededConfig {
        SeededConfig { cpus: 2, poll_cost_max: 1_000 }
    }
}

/// A deterministic runtime. `Send` and `Sync` by type, but meant for one thread.
pub struct SeededRuntime {
    inner: Arc<Inner>,
}

struct Inner {
    config: SeededConfig,
    state: Mutex<SeededState, of::SeededState>,
    ready: Arc<Ready>,
}

struct SeededState {
    /// Decides the order of things.
    schedule: Xoshiro256PlusPlus,
    /// The source of [`Runtime::random`]: apart, so that one more draw does not reorder tasks.
    random: Xoshiro256PlusPlus,
    now: Nanos,
    tasks: BTreeMap<TaskId, Task>,
    timers: BTreeMap<(Nanos, u64), Waker>,
    next_id: u64,
    /// The future that `block_on` drives: no task, so it survives losing power.
    root: Option<(TaskId, Waker)>,
    /// The task being polled, with its CPU.
    running: Option<(TaskId, usize)>,
    /// Counts [`SeededRuntime::drop_tasks`]; a task polled across one is not put back.
    generation: u64,
    history: u64,
}

type TaskId = u64;

struct Task {
    future: BoxFuture<'static, ()>,
    waker: Arc<TaskWaker>,
    cpu: usize,
    polls: u64,
}

#[derive(Default)]
struct Ready(Mutex<Vec<TaskId>, of::SeededReady>);

struct TaskWaker {
    id: TaskId,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl TaskWaker {
    /// A waker whose task is in the ready list already.
    fn queued(id: TaskId, ready: &Arc<Ready>) -> Arc<TaskWaker> {
        ready.0.lock().push(id);
        Arc::new(TaskWaker { id, queued: AtomicBool::new(true), ready: ready.clone() })
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // SEEDED-S3
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.0.lock().push(self.id);
        }
    }
}

enum Turn {
    Poll(TaskId),
    Clock,
    Nothing,
}

impl SeededRuntime {
    pub fn new(seed: u64) -> Arc<SeededRuntime> {
        SeededRuntime::with_config(seed, SeededConfig::default())
    }

    pub fn with_config(seed: u64, config: SeededConfig) -> Arc<SeededRuntime> {
        assert!(config.cpus > 0, "a machine has a CPU");
        let mut schedule = Xoshiro256PlusPlus::seed_from_u64(seed);
        let random = Xoshiro256PlusPlus::seed_from_u64(schedule.next_u64());
        let state = SeededState {
            schedule,
            random,
            now: 0,
            tasks: BTreeMap::new(),
            timers: BTreeMap::new(),
            next_id: 1,
            root: None,
            running: None,
            generation: 0,
            history: seed,
        };
        let inner = Inner { config, state: Mutex::new(state), ready: Arc::default() };
        Arc::new(SeededRuntime { inner: Arc::new(inner) })
    }

    /// Drives all tasks until `future` is done. Panics with "deadlock" when no task can continue.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.block_on_within(u64::MAX, future).expect("more turns than there can be")
    }

    /// As [`Self::block_on`], but stops after so many turns, dropping the future.
    pub fn block_on_within<T>(&self, turns: u64, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let id = self.inner.state.lock().new_id();
        let waker = TaskWaker::queued(id, &self.inner.ready);
        self.inner.state.lock().root = Some((id, Waker::from(waker.clone())));
        for _ in 0..turns {
            match self.inner.turn() {
                Turn::Poll(turn) if turn == id => {
                    if let Poll::Ready(value) = self.inner.poll(id, 0, &waker, future.as_mut()) {
                        return Some(value);
                    }
                }
                Turn::Poll(id) => self.inner.poll_task(id),
                Turn::Clock => {}
                Turn::Nothing => panic!("{}", self.inner.deadlock()),
            }
        }
        None
    }

    /// Polls one task or moves the clock to the next timer; false when there is neither.
    pub fn step(&self) -> bool {
        match self.inner.turn() {
            Turn::Poll(id) => self.inner.poll_task(id),
            Turn::Clock => {}
            Turn::Nothing => return false,
        }
        true
    }

    /// Runs tasks until all of them wait, for others or for a timer; the clock does not jump.
    pub fn run_until_idle(&self) {
        while !self.inner.ready.0.lock().is_empty() {
            self.step();
        }
    }

    /// Runs all that happens within the next `duration`, then stops the clock at its end.
    pub fn run_for(&self, duration: Duration) {
        let end = self.now().saturating_add(nanos(duration));
        while self.now() < end {
            let idle = self.inner.ready.0.lock().is_empty();
            let mut state = self.inner.state.lock();
            if idle && state.timers.first_key_value().is_none_or(|((at, _), _)| *at > end) {
                state.now = end;
                return;
            }
            drop(state);
            self.step();
        }
    }

    /// Drops every task and timer, as a machine does that loses power; not the future that
    /// `block_on` drives. A task may call it too.
    pub fn drop_tasks(&self) {
        self.inner.drop_tasks();
    }

    /// Tasks that are not done.
    pub fn tasks(&self) -> usize {
        let state = self.inner.state.lock();
        state.tasks.len() + usize::from(state.running.is_some())
    }

    pub fn now(&self) -> Nanos {
        self.inner.state.lock().now
    }

    /// A digest of all turns so far: equal for equal histories.
    pub fn history(&self) -> u64 {
        self.inner.state.lock().history
    }
}

impl Drop for SeededRuntime {
    fn drop(&mut self) {
        self.inner.drop_tasks();
    }
}

impl Runtime for SeededRuntime {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        let mut state = self.inner.state.lock();
        let id = state.new_id();
        let cpu = state.below(self.inner.config.cpus as u64) as usize;
        let waker = TaskWaker::queued(id, &self.inner.ready);
        state.tasks.insert(id, Task { future, waker, cpu, polls: 0 });
    }

    fn now(&self) -> Nanos {
        SeededRuntime::now(self)
    }

    fn wall_clock(&self) -> Timestamp {
        let now = self.now();
        let secs = WALL_CLOCK_START_SECS + (now / 1_000_000_000) as i64;
        Timestamp { secs, nanos: (now % 1_000_000_000) as u32 }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let mut state = self.inner.state.lock();
        let key = (state.now.saturating_add(nanos(duration)), state.new_id());
        Box::pin(Sleep { inner: self.inner.clone(), key, polled: false })
    }

    fn random(&self) -> u64 {
        self.inner.state.lock().random.next_u64()
    }

    fn cpus(&self) -> usize {
        self.inner.config.cpus
    }

    fn current_cpu(&self) -> usize {
        self.inner.state.lock().running.map_or(0, |(_, cpu)| cpu)
    }
}

impl SeededState {
    fn new_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    fn below(&mut self, end: u64) -> u64 {
        self.schedule.next_u64() % end
    }

    fn remember(&mut self, event: u64) {
        for word in [event, self.now] {
            self.history =
                (self.history ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }

    /// Takes the timers that are due.
    fn due(&mut self) -> Vec<Waker> {
        let later = self.timers.split_off(&(self.now.saturating_add(1), 0));
        std::mem::replace(&mut self.timers, later).into_values().collect()
    }
}

impl Inner {
    fn turn(&self) -> Turn {
        let mut state = self.state.lock();
        assert!(state.running.is_none(), "SEEDED-S1: a task may not drive the runtime");
        let due = state.due();
        drop(state);
        due.into_iter().for_each(Waker::wake);

        let mut state = self.state.lock();
        let mut ready = self.ready.0.lock();
        if !ready.is_empty() {
            let place = state.below(ready.len() as u64) as usize;
            let id = ready.swap_remove(place);
            state.remember(id);
            return Turn::Poll(id);
        }
        let Some((&(at, _), _)) = state.timers.first_key_value() else { return Turn::Nothing };
        state.now = state.now.max(at);
        state.remember(0);
        Turn::Clock
    }

    /// Polls a task, if it still exists.
    fn poll_task(&self, id: TaskId) {
        let (mut task, generation) = {
            let mut state = self.state.lock();
            let Some(task) = state.tasks.remove(&id) else { return };
            (task, state.generation)
        };
        task.polls += 1;
        let done = self.poll(id, task.cpu, &task.waker, task.future.as_mut()).is_ready();
        let mut state = self.state.lock();
        if !done && state.generation == generation {
            state.tasks.insert(id, task);
        } else {
            drop(state);
            drop(task); // SEEDED-S2
        }
    }

    fn poll<T>(
        &self,
        id: TaskId,
        cpu: usize,
        waker: &Arc<TaskWaker>,
        future: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> Poll<T> {
        {
            let mut state = self.state.lock();
            let cost = state.below(self.config.poll_cost_max.saturating_add(1));
            state.now += cost;
            state.running = Some((id, cpu));
        }
        waker.queued.store(false, Ordering::Relaxed);
        let running = Running(self);
        let poll = future.poll(&mut Context::from_waker(&Waker::from(waker.clone())));
        drop(running);
        poll
    }

    fn drop_tasks(&self) {
        loop {
            let mut state = self.state.lock();
            state.generation += 1;
            let tasks = std::mem::take(&mut state.tasks);
            let root = state.root.clone();
            let of_root = |waker: &Waker| root.as_ref().is_some_and(|(_, w)| w.will_wake(waker));
            let (kept, timers) = std::mem::take(&mut state.timers)
                .into_iter()
                .partition::<BTreeMap<_, _>, _>(|(_, waker)| of_root(waker));
            state.timers = kept;
            self.ready.0.lock().retain(|id| root.as_ref().is_some_and(|(root, _)| root == id));
            drop(state);
            if tasks.is_empty() && timers.is_empty() {
                return;
            }
            drop((tasks, timers)); // SEEDED-S2; what they spawn while dropping goes in the next round
        }
    }

    fn deadlock(&self) -> String {
        const LISTED_MAX: usize = 20;
        let state = self.state.lock();
        let mut text = format!(
            "deadlock: at {} ns nothing is ready and no timer is set; {} tasks wait:",
            state.now,
            state.tasks.len()
        );
        for (id, task) in state.tasks.iter().take(LISTED_MAX) {
            write!(text, " {id} (cpu {}, {} polls)", task.cpu, task.polls).expect("a String grows");
        }
        text
    }
}

/// While it lives, a task is being polled; also when that ends in a panic.
struct Running<'a>(&'a Inner);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running = None;
    }
}

struct Sleep {
    inner: Arc<Inner>,
    key: (Nanos, u64),
    polled: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.inner.state.lock();
        // Even a sleep of no time lets other tasks run once.
        if self.polled && state.now >= self.key.0 {
            return Poll::Ready(());
        }
        let replaced = state.timers.insert(self.key, cx.waker().clone());
        drop(state);
        drop(replaced);
        self.polled = true;
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = self.inner.state.lock().timers.remove(&self.key);
        drop(waker);
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::yield_now;

    #[test]
    fn what_does_not_end_is_given_up() {
        let rt = SeededRuntime::new(1);
        let endless = async {
            loop {
                yield_now().await;
            }
        };
        assert_eq!(rt.block_on_within(100, endless), None::<()>);
        assert_eq!(rt.block_on_within(100, async { 5 }), Some(5));
    }

    /// Five tasks that note when they run, yielding and sleeping in between.
    fn trace(seed: u64) -> (Vec<(u64, Nanos)>, u64) {
        let rt = SeededRuntime::new(seed);
        let notes = Arc::new(Mutex::new(Vec::new()));
        for task in 0..5 {
            let (rt2, notes) = (rt.clone(), notes.clone());
            rt.spawn(Box::pin(async move {
                for round in 0..4 {
                    notes.lock().push((task, rt2.now()));
                    yield_now().await;
                    rt2.sleep(Duration::from_micros(rt2.random() % 10 * round)).await;
                }
            }));
        }
        while rt.step() {}
        let notes = notes.lock().clone();
        (notes, rt.history())
    }

    #[test]
    fn one_seed_is_one_history() {
        for seed in 0..20 {
            assert_eq!(trace(seed), trace(seed));
        }
    }

    #[test]
    fn different_seeds_differ() {
        let traces: Vec<_> = (0..20).map(|seed| trace(seed).1).collect();
        let mut distinct = traces.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), traces.len());
    }

    #[test]
    fn sleepers_wake_in_the_order_of_their_deadlines() {
        let rt = SeededRuntime::new(3);
        let woken = Arc::new(Mutex::new(Vec::new()));
        for ms in [50, 10, 40, 20, 30] {
            let (rt2, woken) = (rt.clone(), woken.clone());
            rt.spawn(Box::pin(async move {
                rt2.sleep(Duration::from_millis(ms)).await;
                woken.lock().push((ms, rt2.now() >= ms * 1_000_000));
            }));
        }
        rt.block_on(rt.sleep(Duration::from_millis(60)));
        assert_eq!(*woken.lock(), [10, 20, 30, 40, 50].map(|ms| (ms, true)));
    }

    #[test]
    fn an_hour_passes_at_once_when_nothing_is_ready() {
        let rt = SeededRuntime::new(1);
        rt.block_on(rt.sleep(Duration::from_secs(3600)));
        assert!((3_600_000_000_000..3_600_000_100_000).contains(&rt.now()));
        assert_eq!({ rt.wall_clock().secs }, WALL_CLOCK_START_SECS + 3600);
    }

    #[test]
    #[should_panic(expected = "deadlock: at")]
    fn waiting_for_nobody_is_a_deadlock() {
        let rt = SeededRuntime::new(1);
        rt.spawn(Box::pin(std::future::pending()));
        rt.block_on(std::future::pending())
    }

    #[test]
    fn losing_power_drops_every_task_also_the_running_one() {
        struct Dropped(Arc<Mutex<u32>>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                *self.0.lock() += 1;
            }
        }
        let rt = SeededRuntime::new(9);
        let drops = Arc::new(Mutex::new(0));
        for _ in 0..4 {
            let (rt2, held) = (rt.clone(), Dropped(drops.clone()));
            rt.spawn(Box::pin(async move {
                let _held = held;
                rt2.sleep(Duration::from_millis(5)).await;
                rt2.drop_tasks();
                yield_now().await;
                unreachable!("a dropped task is not polled again");
            }));
        }
        while rt.step() {}
        assert_eq!((*drops.lock(), rt.tasks()), (4, 0));
    }

    #[test]
    fn who_drives_the_tasks_survives_losing_power() {
        let rt = SeededRuntime::new(6);
        let rt2 = rt.clone();
        rt.spawn(Box::pin(async move { rt2.drop_tasks() }));
        rt.block_on(async {
            rt.sleep(Duration::from_millis(1)).await;
            yield_now().await;
            rt.drop_tasks();
            yield_now().await;
        });
        assert_eq!(rt.tasks(), 0);
    }

    #[test]
    fn a_dropped_sleep_leaves_no_timer() {
        let rt = SeededRuntime::new(2);
        let mut sleep = rt.sleep(Duration::from_secs(1));
        rt.block_on(async {
            assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        });
        drop(sleep);
        assert!(!rt.step());
    }

    #[test]
    fn running_for_a_while_fires_the_timers_within_it() {
        let rt = SeededRuntime::new(5);
        let ticks = Arc::new(Mutex::new(0));
        let (rt2, ticks2) = (rt.clone(), ticks.clone());
        rt.spawn(Box::pin(async move {
            loop {
                rt2.sleep(Duration::from_millis(10)).await;
                *ticks2.lock() += 1;
            }
        }));
        rt.run_for(Duration::from_millis(95));
        assert_eq!(*ticks.lock(), 9);
        rt.drop_tasks();
    }

    #[test]
    fn tasks_see_every_cpu_of_the_machine() {
        let rt = SeededRuntime::with_config(4, SeededConfig { cpus: 3, ..Default::default() });
        let seen = Arc::new(Mutex::new([false; 3]));
        for _ in 0..50 {
            let (rt2, seen) = (rt.clone(), seen.clone());
            rt.spawn(Box::pin(async move { seen.lock()[rt2.current_cpu()] = true }));
        }
        rt.run_until_idle();
        assert_eq!(*seen.lock(), [true; 3]);
    }
}
