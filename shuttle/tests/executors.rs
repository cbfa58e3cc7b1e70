//! The runtime of production under shuttle: executors, their rings on a simulated kernel, and the
//! pool of threads. Whoever is forgotten makes all wait, and shuttle says so.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use copyhold_runtime::executors::Config;
use copyhold_runtime::{Executors, Op, Outcome, ReactorKind, Runtime, Sabotage, yield_now};
use copyhold_shuttle::{Order, explore_threads};
use copyhold_types::Buf;
use shuttle::sync::Mutex;
use shuttle::thread;

type History = fn(&Arc<Executors>);

const ALL: [History; 5] = [turns, operations, sleeps, brought, stop];

fn start(reactor: ReactorKind, sabotage: Option<Sabotage>) -> Arc<Executors> {
    let config = Config { cpus: Some(2), reactor, ring_entries: 1, sabotage, ..Config::default() };
    Executors::start(config).expect("a ring is not refused because memory is short")
}

fn explore(
    times: usize,
    history: History,
    reactor: ReactorKind,
    sabotage: impl Into<Option<Sabotage>>,
) {
    let sabotage = sabotage.into();
    let run = move || {
        let executors = start(reactor, sabotage);
        history(&executors);
        executors.shutdown();
    };
    explore_threads(Order::Random, 1, times, run);
    explore_threads(Order::Priorities, 2, times, run);
}

fn times(usual: usize) -> usize {
    std::env::var("TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Opens after a number of arrivals.
#[derive(Clone)]
struct Gate(Arc<Mutex<(usize, Vec<Waker>)>>);

impl Gate {
    fn after(arrivals: usize) -> Gate {
        Gate(Arc::new(Mutex::new((arrivals, Vec::new()))))
    }

    fn arrive(&self) {
        let wakers = {
            let mut state = self.0.lock().unwrap();
            state.0 -= 1;
            if state.0 > 0 {
                return;
            }
            std::mem::take(&mut state.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn open(&self) -> impl Future<Output = ()> + use<> {
        let gate = self.clone();
        poll_fn(move |cx| {
            let mut state = gate.0.lock().unwrap();
            if state.0 == 0 {
                return Poll::Ready(());
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        })
    }
}

fn file() -> Arc<File> {
    Arc::new(File::options().write(true).open("/dev/null").expect("it is always there"))
}

fn write(fd: &Arc<File>) -> Op {
    Op::Write { fd: fd.clone(), bufs: vec![Buf::zeroed(1)].into(), offset: 0 }
}

fn ok(outcome: Outcome) {
    outcome.result.expect("nothing fails");
}

/// Two tasks and a thread hand a turn round; each may be asleep when it gets it.
fn turns(executors: &Arc<Executors>) {
    let gates: Vec<Gate> = (0..6).map(|_| Gate::after(1)).collect();
    for me in 0..2 {
        let gates = gates.clone();
        executors.spawn(Box::pin(async move {
            for round in 0..2 {
                gates[3 * round + me].open().await;
                yield_now().await;
                gates[3 * round + me + 1].arrive();
            }
        }));
    }
    let last = Gate::after(1);
    gates[0].arrive();
    executors.block_on(gates[2].open());
    gates[3].arrive();
    executors.block_on(gates[5].open());
    last.arrive();
    executors.block_on(last.open());
}

/// Tasks do more at once than a ring holds.
fn operations(executors: &Arc<Executors>) {
    let (gate, fd) = (Gate::after(3), file());
    for task in 0..3 {
        let (gate, fd, reactor) = (gate.clone(), fd.clone(), executors.reactor());
        executors.spawn(Box::pin(async move {
            let many: Vec<_> = (0..=task).map(|_| reactor.submit(write(&fd))).collect();
            for one in many {
                ok(one.await);
            }
            ok(reactor.submit(Op::Blocking(Box::new(|| Ok(())))).await);
            gate.arrive();
        }));
    }
    executors.block_on(gate.open());
}

/// A task runs again and again until another one's operations are done.
fn busy(executors: &Arc<Executors>) {
    let (gate, fd) = (Gate::after(1), file());
    let (gate2, executors2) = (gate.clone(), executors.clone());
    executors.spawn(Box::pin(async move {
        let done = Arc::new(AtomicUsize::new(0));
        let (done2, reactor) = (done.clone(), executors2.reactor());
        executors2.spawn_here(Box::pin(async move {
            ok(reactor.submit(write(&fd)).await);
            ok(reactor.submit(write(&fd)).await);
            done2.store(1, Ordering::SeqCst);
        }));
        while done.load(Ordering::SeqCst) == 0 {
            yield_now().await;
        }
        gate2.arrive();
    }));
    executors.block_on(gate.open());
}

/// A thread sleeps, and tasks do.
fn sleeps(executors: &Arc<Executors>) {
    executors.block_on(executors.sleep(Duration::from_nanos(20)));
    let gate = Gate::after(2);
    for nanos in [30, 10] {
        let (gate, executors2) = (gate.clone(), executors.clone());
        executors.spawn(Box::pin(async move {
            let start = executors2.now();
            executors2.sleep(Duration::from_nanos(nanos)).await;
            assert!(executors2.now() >= start + nanos);
            gate.arrive();
        }));
    }
    executors.block_on(gate.open());
}

/// Operations of threads that are no executors.
fn brought(executors: &Arc<Executors>) {
    let fd = file();
    let others: Vec<_> = (0..2)
        .map(|_| {
            let (executors, fd) = (executors.clone(), fd.clone());
            thread::spawn(move || {
                let two = [(); 2].map(|()| executors.reactor().submit(write(&fd)));
                for one in two {
                    ok(executors.block_on(one));
                }
            })
        })
        .collect();
    for other in others {
        other.join().expect("shuttle ends it all otherwise");
    }
}

/// The end comes while tasks wait, sleep, and submit: all are dropped, and what was submitted is
/// done.
fn stop(executors: &Arc<Executors>) {
    struct Held(Arc<AtomicUsize>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let (fd, gate) = (file(), Gate::after(1));
    for task in 0..4 {
        let (held, gate, executors2) = (Held(dropped.clone()), gate.clone(), executors.clone());
        let (fd, reactor) = (fd.clone(), executors.reactor());
        executors.spawn(Box::pin(async move {
            let _held = held;
            match task {
                0 => gate.open().await,
                1 => executors2.sleep(Duration::from_secs(3600)).await,
                _ => drop(reactor.submit(write(&fd)).await),
            }
        }));
    }
    let brought = executors.reactor().submit(write(&fd));
    executors.shutdown();
    assert_eq!(dropped.load(Ordering::SeqCst), 4);
    // Done or refused, but answered; no executor is left to do it.
    drop(executors.block_on(brought));
    let late = executors.block_on(executors.reactor().submit(write(&fd))).result;
    assert_eq!(late.expect_err("it comes too late").raw_os_error(), Some(108));
    assert_eq!(Arc::strong_count(&fd), 1, "an operation holds its file");
}

#[test]
fn nobody_is_forgotten_with_rings() {
    for history in ALL {
        explore(times(1000), history, ReactorKind::Ring, None);
    }
    // With threads one that has priority would run for ever.
    explore(times(1000), busy, ReactorKind::Ring, None);
}

#[test]
fn nobody_is_forgotten_with_threads() {
    for history in ALL {
        explore(times(500), history, ReactorKind::Threads, None);
    }
}

/// Each rule broken on purpose, and a history that shows it.
#[test]
fn a_broken_rule_is_noticed() {
    let cases: [(Sabotage, History); 13] = [
        (Sabotage::ForgetToWake, turns),
        (Sabotage::SleepBlindly, turns),
        (Sabotage::ForgetTimer, sleeps),
        (Sabotage::ForgetToCarry, brought),
        (Sabotage::ForgetToStop, turns),
        (Sabotage::DropCompletion, operations),
        (Sabotage::ForgetBacklog, operations),
        (Sabotage::TrustSubmission, operations),
        (Sabotage::RefuseEarly, turns),
        (Sabotage::FailWhenShort, turns),
        (Sabotage::CloseEarly, stop),
        (Sabotage::ListenOnce, turns),
        (Sabotage::LeaveDeferred, busy),
    ];
    for (rule, history) in cases {
        let broken = || explore(times(1000), history, ReactorKind::Ring, rule);
        assert!(catch_unwind(AssertUnwindSafe(broken)).is_err(), "{rule:?}: nobody noticed");
    }
}
