//! The runtime of production: one executor thread per CPU, one io_uring each.
//!
//! Problem.  An operation that waits for a device must hold no thread, and one that does not wait
//!           must cost no hop from thread to thread (performance rule P1).
//! Idea.     A task belongs to one executor and always runs there, but the spawning thread may
//!           poll it the first time itself ([`Executors::spawn_inline`]); most then are done.
//!           Executors submit I/O, each to its ring; I/O of another thread is passed to one that
//!           is free. An executor waits for tasks, completions and timers at one place, and sleeps
//!           when there is nothing.
//!
//! Where io_uring is refused (containers often do), executors park, and a pool of threads does the
//! I/O; the layers above notice only the lower speed.
//!
//! Start it after forking, not before: threads and rings do not survive a fork.

mod cpu;
mod timers;

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_task::Runnable;
use copyhold_sync::{Mutex, of};
use copyhold_types::{Nanos, Timestamp};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use self::cpu::{Bed, Cpu, Tracked};
use self::timers::TimerKey;
use crate::machine::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::machine::thread::{self, JoinHandle, Thread};
use crate::machine::{self, Clock};
use crate::op::{Completion, Flight, Op, Reactor};
use crate::ring::{self, Ring};
use crate::sabotage::Broken;
use crate::threads::ThreadReactor;
use crate::{BoxFuture, Runtime, worker};

/// Threads for blocking operations at most, for any number of CPUs.
const IO_THREADS_MAX: usize = 64;

/// How to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of executors; as many as CPUs may be used, if not given.
    pub cpus: Option<usize>,
    pub reactor: ReactorKind,
    /// Binds each executor to its CPU.
    pub pin: bool,
    /// Submission entries of each ring; four times as many operations can be in flight.
    pub ring_entries: u32,
    #[cfg(shuttle)]
    pub sabotage: Option<crate::Sabotage>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cpus: None,
            reactor: ReactorKind::Auto,
            pin: false,
            ring_entries: 256,
            #[cfg(shuttle)]
            sabotage: None,
        }
    }
}

impl Config {
    fn broken(&self) -> Broken {
        Broken {
            #[cfg(shuttle)]
            rule: self.sabotage,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReactorKind {
    /// io_uring, or threads where it is refused.
    Auto,
    /// io_uring or an error.
    Ring,
    Threads,
}

/// See the module's text. Dropping it shuts it down.
pub struct Executors {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>, of::ExecutorThreads>,
    /// Why there is no io_uring, if it was wanted.
    refusal: Option<io::Error>,
}

struct Shared {
    cpus: Vec<Arc<Cpu>>,
    /// Does all I/O where there are no rings, and always the operations that can only block.
    io_threads: ThreadReactor,
    start: Clock,
    next_spawn: AtomicUsize,
    /// Executors that have not ended.
    running: AtomicUsize,
}

impl Executors {
    /// Fails if threads cannot be started, or if rings are demanded and refused.
    pub fn start(config: Config) -> io::Result<Arc<Executors>> {
        let usable = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = config.cpus.unwrap_or_else(usable).max(1);
        let (beds, refusal) = make_beds(&config, count)?;
        let shared = Arc::new(Shared {
            cpus: beds.into_iter().map(|bed| Arc::new(Cpu::new(bed, config.broken()))).collect(),
            io_threads: ThreadReactor::new(IO_THREADS_MAX),
            start: Clock::new(),
            next_spawn: AtomicUsize::new(0),
            running: AtomicUsize::new(count),
        });
        let executors = Executors { shared, threads: Mutex::default(), refusal };
        let pins = if config.pin { cpu_sets(count)? } else { vec![None; count] };
        for (place, pin) in pins.into_iter().enumerate() {
            let shared = executors.shared.clone();
            let thread = thread::Builder::new()
                .name(format!("copyhold-cpu{place}"))
                .spawn(move || shared.run(place, pin));
            match thread {
                Ok(thread) => executors.threads.lock().push(thread),
                Err(error) => {
                    executors.shared.running.fetch_sub(count - place, Ordering::AcqRel);
                    return Err(error);
                }
            }
        }
        Ok(Arc::new(executors))
    }

    /// Polls `future` on this thread now; only if it has to wait, it continues in the background.
    /// A panic takes the process down, as in any task.
    pub fn spawn_inline(&self, future: impl Future<Output = ()> + Send + 'static) {
        let runnable = self.shared.task(self.shared.here(), future);
        let bomb = AbortOnPanic;
        runnable.run();
        std::mem::forget(bomb);
    }

    /// Runs `task` in the background on the executor that is closest to this thread; called by a
    /// task, on its own one. A task that continues where it was woken costs no other wake.
    pub fn spawn_here(&self, task: BoxFuture<'static, ()>) {
        let place = self.shared.here();
        if !self.shared.cpus[place].is_stopping() {
            self.shared.task(place, task).schedule();
        }
    }

    /// Runs `task` in the background on another executor than the one that is closest to this
    /// thread, if there is another: work that should not wait behind the tasks here, nor delay
    /// them.
    pub fn spawn_beside(&self, task: BoxFuture<'static, ()>) {
        let place = (self.shared.here() + 1) % self.shared.cpus.len();
        if !self.shared.cpus[place].is_stopping() {
            self.shared.task(place, task).schedule();
        }
    }

    /// Drives `future` on this thread, which must not be one of the runtime's.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        assert!(!worker::is_worker(), "a task may not block its executor");
        let mut future = pin!(future);
        let parker = Arc::new(Parker::new());
        let waker = Waker::from(parker.clone());
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return value;
            }
            parker.park();
        }
    }

    /// The way to files. It works as long as the executors run; then it refuses with ESHUTDOWN.
    pub fn reactor(&self) -> Arc<dyn Reactor> {
        if self.has_rings() {
            Arc::new(RingReactor { shared: self.shared.clone() })
        } else {
            Arc::new(PoolReactor { shared: self.shared.clone() })
        }
    }

    pub fn has_rings(&self) -> bool {
        self.shared.cpus[0].ring().is_some()
    }

    /// Why there are no rings although [`ReactorKind::Auto`] would have had them.
    pub fn refusal(&self) -> Option<&io::Error> {
        self.refusal.as_ref()
    }

    /// Ends: waits for the I/O submitted to files, then drops every task at its present await and
    /// joins the threads. On a thread of the runtime itself only the first part of this is begun.
    pub fn shutdown(&self) {
        self.shared.cpus.iter().for_each(|cpu| cpu.stop());
        if worker::is_worker() {
            return;
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            thread.join().expect("a panic in an executor aborts");
        }
    }
}

impl Drop for Executors {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Runtime for Executors {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        let place = self.shared.next_spawn.fetch_add(1, Ordering::Relaxed);
        let place = place % self.shared.cpus.len();
        if !self.shared.cpus[place].is_stopping() {
            self.shared.task(place, future).schedule();
        }
    }

    fn now(&self) -> Nanos {
        self.shared.now()
    }

    fn wall_clock(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp { secs: after.as_secs() as i64, nanos: after.subsec_nanos() },
            // A clock before 1970 is wrong anyway.
            Err(_) => Timestamp::default(),
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let deadline = self.shared.now().saturating_add(nanos);
        Box::pin(Sleep { shared: self.shared.clone(), deadline, timer: None })
    }

    fn random(&self) -> u64 {
        getrandom::u64().expect("the kernel gives random numbers")
    }

    fn cpus(&self) -> usize {
        self.shared.cpus.len()
    }

    fn current_cpu(&self) -> usize {
        self.shared.here()
    }
}

impl Shared {
    fn now(&self) -> Nanos {
        self.start.elapsed().as_nanos() as u64
    }

    /// Distinguishes these executors from others.
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The executor that is closest to this thread.
    fn here(&self) -> usize {
        worker::executor_of(self.identity()).unwrap_or_else(|| machine::cpu() % self.cpus.len())
    }

    /// The executor closest to this thread, or one that polls no task while that does.
    fn free_cpu(&self) -> &Cpu {
        let here = &self.cpus[self.here()];
        let free = || self.cpus.iter().find(|cpu| !cpu.is_polling());
        if here.is_polling() { free().unwrap_or(here) } else { here }
    }

    fn task(&self, place: usize, future: impl Future<Output = ()> + Send + 'static) -> Runnable {
        let cpu = self.cpus[place].clone();
        let tracked = Tracked::new(future, cpu.clone());
        let (runnable, task) = async_task::spawn(tracked, move |runnable| cpu.push(runnable));
        task.detach();
        runnable
    }

    /// An executor's thread.
    fn run(&self, place: usize, pin: Option<CpuSet>) {
        let bomb = AbortOnPanic;
        worker::enter(Some((self.identity(), place)));
        if let Some(cpus) = pin {
            // Only speed is lost where it is not allowed.
            let _unpinned = sched_setaffinity(None, &cpus);
        }
        self.cpus[place].run(|| self.now());
        if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.io_threads.close();
            self.drop_tasks();
        }
        std::mem::forget(bomb);
    }

    /// When all executors have ended: drops ready tasks, wakes waiting ones, until none is left.
    fn drop_tasks(&self) {
        while self.cpus.iter().fold(false, |any, cpu| cpu.drain() | any) {}
    }
}

/// Rings where io_uring is allowed, else parked threads and the reason.
fn make_beds(config: &Config, count: usize) -> io::Result<(Vec<Bed>, Option<io::Error>)> {
    let parks = || (0..count).map(|_| Bed::Park(Default::default())).collect();
    if config.reactor == ReactorKind::Threads {
        return Ok((parks(), None));
    }
    match make_rings(config, count) {
        Ok(rings) => Ok((rings, None)),
        Err(refusal) if config.reactor == ReactorKind::Auto => Ok((parks(), Some(refusal))),
        Err(refusal) => Err(refusal),
    }
}

fn make_rings(config: &Config, count: usize) -> io::Result<Vec<Bed>> {
    let manner = ring::try_out(config.broken())?;
    let ring = || Ring::new(config.ring_entries, manner, config.broken());
    (0..count).map(|_| ring().map(Box::new).map(Bed::Ring)).collect()
}

/// For each executor one of the CPUs that this process may use.
fn cpu_sets(count: usize) -> io::Result<Vec<Option<CpuSet>>> {
    let allowed = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let set = |place: usize| {
        let mut set = CpuSet::new();
        set.set(*cpus.get(place % cpus.len().max(1))?);
        Some(set)
    };
    Ok((0..count).map(set).collect())
}

struct RingReactor {
    shared: Arc<Shared>,
}

impl Reactor for RingReactor {
    fn submit(&self, op: Op) -> Completion {
        let shared = &self.shared;
        let blocking = matches!(op, Op::Blocking(_));
        let (flight, completion) = Flight::new(op);
        if blocking {
            shared.io_threads.carry(flight);
            return completion;
        }
        match worker::executor_of(shared.identity()) {
            Some(own) => shared.cpus[own].ring().expect("all have rings, or none").carry(flight),
            None => shared.free_cpu().bring(flight),
        }
        completion
    }
}

struct PoolReactor {
    shared: Arc<Shared>,
}

impl Reactor for PoolReactor {
    fn submit(&self, op: Op) -> Completion {
        self.shared.io_threads.submit(op)
    }
}

struct Sleep {
    shared: Arc<Shared>,
    deadline: Nanos,
    timer: Option<(usize, TimerKey)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.now() >= self.deadline {
            return Poll::Ready(());
        }
        if let Some((place, key)) = self.timer
            && self.shared.cpus[place].timers.rewake(key, cx.waker())
        {
            return Poll::Pending;
        }
        let own = worker::executor_of(self.shared.identity());
        let place = own.unwrap_or_else(|| self.shared.here());
        let cpu = &self.shared.cpus[place];
        let (key, first) = cpu.timers.add(self.deadline, cx.waker().clone());
        if first && own.is_none() {
            cpu.hurry();
        }
        self.timer = Some((place, key));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((place, key)) = self.timer {
            self.shared.cpus[place].timers.remove(key);
        }
    }
}

/// Wakes a thread in [`Executors::block_on`].
struct Parker {
    thread: Thread,
    /// A wake since the last park; the future may use up the thread's own token.
    woken: AtomicBool,
}

impl Parker {
    fn new() -> Parker {
        Parker { thread: thread::current(), woken: AtomicBool::new(false) }
    }

    fn park(&self) {
        while !self.woken.swap(false, Ordering::AcqRel) {
            thread::park();
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// A panicked task may have left inconsistent state: better no process than a wrong one.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if cfg!(shuttle) {
            return; // It is shuttle who tells of it.
        }
        std::process::abort();
    }
}
