//! The executors and both ways to files, through one suite.

#![allow(clippy::disallowed_methods, reason = "tests of the machine's own runtime")]

use std::collections::BTreeSet;
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use copyhold_runtime::executors::Config;
use copyhold_runtime::{Executors, Op, Outcome, ReactorKind, Runtime, yield_now};
use copyhold_types::{Buf, Bufs};
use parking_lot::Mutex;

/// Runs a test with rings (where the machine has them) and with threads.
fn on_each(test: impl Fn(Arc<Executors>)) {
    for reactor in [ReactorKind::Auto, ReactorKind::Threads] {
        let config = Config { cpus: Some(2), reactor, ring_entries: 1, ..Config::default() };
        let executors = Executors::start(config).unwrap();
        test(executors.clone());
        executors.shutdown();
    }
}

/// A gate that opens after a number of arrivals.
#[derive(Clone)]
struct Gate(Arc<Mutex<(usize, Vec<Waker>)>>);

impl Gate {
    fn after(arrivals: usize) -> Gate {
        Gate(Arc::new(Mutex::new((arrivals, Vec::new()))))
    }

    fn arrive(&self) {
        let mut state = self.0.lock();
        state.0 -= 1;
        if state.0 == 0 {
            let wakers = std::mem::take(&mut state.1);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn open(&self) -> impl Future<Output = ()> + use<> {
        let gate = self.clone();
        poll_fn(move |cx| {
            let mut state = gate.0.lock();
            if state.0 == 0 {
                return Poll::Ready(());
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        })
    }
}

fn file() -> (File, Arc<OwnedFd>) {
    let file = tempfile::tempfile().unwrap();
    let fd = Arc::new(OwnedFd::from(file.try_clone().unwrap()));
    (file, fd)
}

fn write(fd: &Arc<OwnedFd>, byte: u8, offset: u64) -> Op {
    Op::Write { fd: fd.clone(), bufs: Buf::from_bytes(&[byte; 4096]).into(), offset }
}

fn read(fd: &Arc<OwnedFd>, blocks: usize, offset: u64) -> Op {
    Op::Read { fd: fd.clone(), buf: Buf::zeroed(blocks), offset }
}

fn ok(outcome: Outcome) -> Option<Buf> {
    outcome.result.unwrap();
    outcome.buf
}

#[test]
fn thousands_of_tasks_run_to_their_end() {
    on_each(|executors| {
        let gate = Gate::after(5_000);
        for _ in 0..5_000 {
            let gate = gate.clone();
            executors.spawn(Box::pin(async move {
                for _ in 0..5 {
                    yield_now().await;
                }
                gate.arrive();
            }));
        }
        executors.block_on(gate.open());
    });
}

#[test]
fn a_task_spawned_here_stays_on_the_executor_of_its_maker() {
    on_each(|executors| {
        let gate = Gate::after(20);
        for _ in 0..20 {
            let (gate, executors2) = (gate.clone(), executors.clone());
            executors.spawn(Box::pin(async move {
                let (maker, executors3) = (executors2.current_cpu(), executors2.clone());
                executors2.spawn_here(Box::pin(async move {
                    assert_eq!(executors3.current_cpu(), maker);
                    gate.arrive();
                }));
            }));
        }
        executors.block_on(gate.open());
    });
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    on_each(|executors| {
        let (gate, woken) = (Gate::after(4), Arc::new(Mutex::new(Vec::new())));
        // All on one executor, from one start.
        let (executors2, gate2, woken2) = (executors.clone(), gate.clone(), woken.clone());
        executors.spawn(Box::pin(async move {
            let sleeps = [40, 10, 30, 20]
                .map(|ms| (ms, executors2.sleep(Duration::from_millis(ms)), executors2.now()));
            for (ms, sleep, start) in sleeps {
                let (executors, gate, woken) = (executors2.clone(), gate2.clone(), woken2.clone());
                executors2.spawn_inline(async move {
                    sleep.await;
                    assert!(executors.now() - start >= ms * 1_000_000);
                    woken.lock().push(ms);
                    gate.arrive();
                });
            }
        }));
        executors.block_on(gate.open());
        assert_eq!(*woken.lock(), [10, 20, 30, 40]);
    });
}

#[test]
fn a_sleep_of_a_foreign_thread_wakes_a_sleeping_executor() {
    on_each(|executors| {
        executors.block_on(executors.sleep(Duration::from_millis(5)));
        drop(executors.sleep(Duration::from_secs(3600)));
        let slow = executors.sleep(Duration::from_secs(3600));
        let gate = Gate::after(1);
        let gate2 = gate.clone();
        executors.spawn_inline(async move {
            slow.await;
            unreachable!("an hour has not passed");
        });
        let fast = executors.sleep(Duration::from_millis(1));
        executors.spawn_inline(async move {
            fast.await;
            gate2.arrive();
        });
        executors.block_on(gate.open());
    });
}

#[test]
fn the_longest_sleep_is_no_error() {
    on_each(|executors| {
        let forever = executors.sleep(Duration::MAX);
        executors.spawn(Box::pin(forever));
        executors.block_on(executors.sleep(Duration::from_millis(3)));
    });
}

#[test]
fn a_task_that_comes_after_the_end_is_dropped() {
    on_each(|executors| {
        executors.shutdown();
        let held = Arc::new(());
        let held2 = held.clone();
        executors.spawn(Box::pin(async move { drop(held2) }));
        assert_eq!(Arc::strong_count(&held), 1);
    });
}

#[test]
fn no_wake_is_lost_between_executors_and_foreign_threads() {
    on_each(|executors| {
        const ROUNDS: usize = 3_000;
        // Two tasks and a thread hand a turn round; each may be asleep when it gets it.
        let turn = Arc::new(Mutex::new((0, Vec::<Waker>::new())));
        let pass = |turn: &Mutex<(usize, Vec<Waker>)>| {
            let mut state = turn.lock();
            state.0 += 1;
            let wakers = std::mem::take(&mut state.1);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        };
        let wait = |turn: Arc<Mutex<(usize, Vec<Waker>)>>, me: usize| {
            poll_fn(move |cx| {
                let mut state = turn.lock();
                if state.0 % 3 == me {
                    return Poll::Ready(());
                }
                state.1.push(cx.waker().clone());
                Poll::Pending
            })
        };
        for me in [0, 1] {
            let turn = turn.clone();
            executors.spawn(Box::pin(async move {
                for _ in 0..ROUNDS {
                    wait(turn.clone(), me).await;
                    pass(&turn);
                }
            }));
        }
        for _ in 0..ROUNDS {
            executors.block_on(wait(turn.clone(), 2));
            pass(&turn);
        }
        assert_eq!(turn.lock().0, 3 * ROUNDS);
    });
}

#[test]
fn an_inline_task_runs_here_and_goes_on_elsewhere() {
    on_each(|executors| {
        let here = std::thread::current().id();
        let ids = Arc::new(Mutex::new(Vec::new()));
        let (gate, done) = (Gate::after(1), Gate::after(1));
        let (ids2, gate2, done2) = (ids.clone(), gate.clone(), done.clone());
        executors.spawn_inline(async move {
            ids2.lock().push(std::thread::current().id());
            gate2.open().await;
            ids2.lock().push(std::thread::current().id());
            done2.arrive();
        });
        assert_eq!(*ids.lock(), [here]);
        gate.arrive();
        executors.block_on(done.open());
        assert_ne!(ids.lock()[1], here);
    });
}

#[test]
fn what_is_written_is_read() {
    on_each(|executors| {
        let (file, fd) = file();
        let reactor = executors.reactor();
        executors.block_on(async {
            let bufs = (0..5).map(|i| Buf::from_bytes(&[i; 4096])).collect();
            ok(reactor.submit(Op::Write { fd: fd.clone(), bufs, offset: 4096 }).await);
            ok(reactor.submit(Op::Fdatasync { fd: fd.clone() }).await);
            let buf = ok(reactor.submit(read(&fd, 6, 0)).await).unwrap();
            let firsts: Vec<u8> = buf.chunks(4096).map(|block| block[0]).collect();
            assert_eq!(firsts, [0, 0, 1, 2, 3, 4]);
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let punch = Op::Fallocate { fd: fd.clone(), mode, offset: 8192, len: 4096 };
            ok(reactor.submit(punch).await);
            let buf = ok(reactor.submit(read(&fd, 1, 8192)).await).unwrap();
            assert!(buf.iter().all(|byte| *byte == 0));
        });
        assert_eq!(file.metadata().unwrap().len(), 6 * 4096);
    });
}

#[test]
fn more_operations_than_a_ring_holds_all_complete() {
    on_each(|executors| {
        let (_, fd) = file();
        let reactor = executors.reactor();
        let seen = executors.block_on(async {
            let writes: Vec<_> =
                (0..500).map(|i| reactor.submit(write(&fd, i as u8, i * 4096))).collect();
            for write in writes {
                ok(write.await);
            }
            let reads: Vec<_> = (0..500).map(|i| reactor.submit(read(&fd, 1, i * 4096))).collect();
            let mut seen = Vec::new();
            for read in reads {
                seen.push(ok(read.await).unwrap()[9]);
            }
            seen
        });
        assert!(seen.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    });
}

#[test]
fn tasks_of_all_executors_do_input_and_output() {
    on_each(|executors| {
        let (_, fd) = file();
        let gate = Gate::after(200);
        for i in 0..200 {
            let (reactor, fd, gate) = (executors.reactor(), fd.clone(), gate.clone());
            executors.spawn(Box::pin(async move {
                for round in 0..10 {
                    let byte = (i + round) as u8;
                    ok(reactor.submit(write(&fd, byte, i * 4096)).await);
                    let buf = ok(reactor.submit(read(&fd, 1, i * 4096)).await).unwrap();
                    assert!(buf.iter().all(|found| *found == byte));
                }
                gate.arrive();
            }));
        }
        executors.block_on(gate.open());
    });
}

#[test]
fn a_task_that_is_always_ready_keeps_no_completion_away() {
    on_each(|executors| {
        let (_, fd) = file();
        let gate = Gate::after(2);
        for i in 0..2 {
            let (gate, fd, executors2) = (gate.clone(), fd.clone(), executors.clone());
            executors.spawn(Box::pin(async move {
                let (ended, reactor) = (Arc::new(AtomicUsize::new(0)), executors2.reactor());
                let ended2 = ended.clone();
                executors2.spawn_here(Box::pin(async move {
                    for round in 0..50 {
                        ok(reactor.submit(write(&fd, 1, (50 * i + round) * 4096)).await);
                        ok(reactor.submit(Op::Fdatasync { fd: fd.clone() }).await);
                    }
                    ended2.store(1, Ordering::SeqCst);
                }));
                while ended.load(Ordering::SeqCst) == 0 {
                    yield_now().await;
                }
                gate.arrive();
            }));
        }
        executors.block_on(gate.open());
    });
}

#[test]
fn a_write_of_more_buffers_than_one_call_takes_is_continued() {
    on_each(|executors| {
        let (file, fd) = file();
        let bufs = (0..3000_u32).map(|i| Buf::from_bytes(&i.to_le_bytes())).collect();
        let op = Op::Write { fd, bufs, offset: 0 };
        ok(executors.block_on(executors.reactor().submit(op)));
        let mut last = [0; 4];
        file.read_exact_at(&mut last, 2999 * 4096).unwrap();
        assert_eq!(u32::from_le_bytes(last), 2999);
    });
}

#[test]
fn a_file_that_ends_early_is_an_error() {
    on_each(|executors| {
        let (file, fd) = file();
        file.set_len(3 * 4096 + 100).unwrap();
        let outcome = executors.block_on(executors.reactor().submit(read(&fd, 4, 0)));
        assert_eq!(outcome.result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn an_error_is_told_with_its_errno() {
    on_each(|executors| {
        let fd = Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()));
        let outcome = executors.block_on(executors.reactor().submit(write(&fd, 1, 0)));
        assert_eq!(outcome.result.unwrap_err().raw_os_error(), Some(libc::EBADF));
    });
}

#[test]
fn an_operation_of_nothing_completes() {
    on_each(|executors| {
        let (_, fd) = file();
        ok(executors.block_on(executors.reactor().submit(read(&fd, 0, 0))));
        let op = Op::Write { fd, bufs: Bufs::new(), offset: 0 };
        ok(executors.block_on(executors.reactor().submit(op)));
    });
}

#[test]
fn a_blocking_call_runs_on_a_thread_of_its_own() {
    on_each(|executors| {
        let here = std::thread::current().id();
        let call = move || {
            assert_ne!(std::thread::current().id(), here);
            Err(io::Error::from_raw_os_error(libc::ENOTTY))
        };
        let op = Op::Blocking(Box::new(call));
        let outcome = executors.block_on(executors.reactor().submit(op));
        assert_eq!(outcome.result.unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    });
}

#[test]
fn an_operation_goes_on_when_nobody_waits_and_shutdown_waits_for_it() {
    on_each(|executors| {
        let (file, fd) = file();
        let reactor = executors.reactor();
        for i in 0..300 {
            drop(reactor.submit(write(&fd, 7, i * 4096)));
        }
        executors.shutdown();
        let mut found = vec![0; 300 * 4096];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 7));
        let mut late = Box::pin(reactor.submit(write(&fd, 7, 0)));
        let Poll::Ready(late) =
            late.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop()))
        else {
            panic!("a closed reactor answers at once");
        };
        assert_eq!(late.result.unwrap_err().raw_os_error(), Some(libc::ESHUTDOWN));
    });
}

#[test]
fn an_operation_survives_the_thread_that_submitted_it() {
    on_each(|executors| {
        let (_, fd) = file();
        for round in 0..20 {
            let (reactor, fd) = (executors.reactor(), fd.clone());
            let submitted = std::thread::spawn(move || {
                let write = reactor.submit(write(&fd, 1, round * 4096));
                (write, reactor.submit(Op::Fdatasync { fd }))
            });
            let (write, sync) = submitted.join().unwrap();
            ok(executors.block_on(write));
            ok(executors.block_on(sync));
        }
    });
}

#[test]
fn shutdown_drops_tasks_that_wait() {
    struct Held(Arc<AtomicUsize>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    on_each(|executors| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let gate = Gate::after(1);
        for i in 0..30 {
            let (held, gate, executors2) = (Held(dropped.clone()), gate.clone(), executors.clone());
            executors.spawn(Box::pin(async move {
                let _held = held;
                match i % 3 {
                    0 => std::future::pending().await,
                    // Waits for what it holds itself, as a closed loop of tasks does.
                    1 => gate.open().await,
                    _ => executors2.sleep(Duration::from_secs(3600)).await,
                }
            }));
        }
        executors.shutdown();
        assert_eq!(dropped.load(Ordering::SeqCst), 30);
    });
}

#[test]
fn the_last_holder_may_be_a_task() {
    let (sender, receiver) = std::sync::mpsc::channel();
    on_each(|executors| {
        let gate = Gate::after(1);
        let (gate2, sender) = (gate.clone(), sender.clone());
        let config = Config { cpus: Some(2), ..Config::default() };
        let inner = Executors::start(config).unwrap();
        let inner2 = inner.clone();
        inner.spawn(Box::pin(async move {
            gate2.open().await;
            drop(inner2);
            sender.send(()).unwrap();
        }));
        drop(inner);
        gate.arrive();
        receiver.recv().unwrap();
        drop(executors);
    });
}

#[test]
fn every_cpu_is_used_and_named() {
    on_each(|executors| {
        let (gate, seen) = (Gate::after(8), Arc::new(Mutex::new(BTreeSet::new())));
        for _ in 0..8 {
            let (executors2, gate, seen) = (executors.clone(), gate.clone(), seen.clone());
            executors.spawn(Box::pin(async move {
                let name = std::thread::current().name().map(str::to_owned);
                let cpu = executors2.current_cpu();
                assert_eq!(name, Some(format!("copyhold-cpu{cpu}")));
                seen.lock().insert(cpu);
                gate.arrive();
            }));
        }
        executors.block_on(gate.open());
        assert_eq!(*seen.lock(), BTreeSet::from([0, 1]));
        assert!(executors.current_cpu() < executors.cpus());
    });
}
