//! The reactor for where io_uring is refused: threads that block.
//!
//! A thread is started when an operation finds no idle one, up to a limit; then operations queue.
//! Threads stay until the reactor is closed, which waits for operations in flight.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use copyhold_sync::{Condvar, Mutex, of};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{pread, pwritev};

use crate::machine::thread::{self, JoinHandle};
use crate::op::{Completion, Flight, Op, Reactor, Work};
use crate::worker;

/// Most buffers of one system call (the kernel's UIO_MAXIOV).
pub(crate) const IOVECS_MAX: usize = 1024;

/// Performs each operation with blocking system calls on a pool of threads.
pub struct ThreadReactor {
    pool: Arc<Pool>,
}

struct Pool {
    threads_max: usize,
    state: Mutex<ReactorState, of::ThreadReactor>,
    arrived: Condvar,
}

#[derive(Default)]
struct ReactorState {
    queue: VecDeque<Arc<Flight>>,
    /// Threads that wait for an operation; some of them may already be meant for one in the queue.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

impl ThreadReactor {
    /// At most `threads_max` operations run at once. Starts no thread yet.
    pub fn new(threads_max: usize) -> ThreadReactor {
        assert!(threads_max > 0, "operations need a thread");
        let pool = Pool { threads_max, state: Mutex::default(), arrived: Condvar::new() };
        ThreadReactor { pool: Arc::new(pool) }
    }

    /// Refuses further operations with ESHUTDOWN and waits for those in flight.
    pub fn close(&self) {
        let mut state = self.pool.state.lock();
        state.closed = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.pool.arrived.notify_all();
        let me = thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != me) {
            thread.join().expect("operations do not panic");
        }
    }

    pub(crate) fn carry(&self, flight: Arc<Flight>) {
        if flight.work.lock().is_empty() {
            return flight.finish(Ok(()));
        }
        let mut state = self.pool.state.lock();
        if state.closed {
            drop(state);
            return flight.refuse();
        }
        state.queue.push_back(flight);
        if state.queue.len() <= state.idle {
            drop(state);
            self.pool.arrived.notify_one();
            return;
        }
        if state.threads.len() < self.pool.threads_max
            && let Err(error) = state.start_thread(&self.pool)
            && state.threads.is_empty()
        {
            let flight = state.queue.pop_back().expect("just queued");
            drop(state);
            flight.finish(Err(error));
        }
    }
}

impl Reactor for ThreadReactor {
    fn submit(&self, op: Op) -> Completion {
        let (flight, completion) = Flight::new(op);
        self.carry(flight);
        completion
    }
}

impl Drop for ThreadReactor {
    fn drop(&mut self) {
        if worker::is_worker() {
            self.pool.state.lock().closed = true;
            self.pool.arrived.notify_all();
        } else {
            self.close();
        }
    }
}

impl ReactorState {
    fn start_thread(&mut self, pool: &Arc<Pool>) -> io::Result<()> {
        let pool = pool.clone();
        let thread = thread::Builder::new().name("copyhold-io".into()).spawn(move || {
            worker::enter(None);
            pool.serve();
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Pool {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(flight) = state.queue.pop_front() {
                drop(state);
                let result = perform(&mut flight.work.lock());
                flight.finish(result);
                drop(flight);
                state = self.state.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                self.arrived.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

/// Does all of an operation.
fn perform(work: &mut Work) -> io::Result<()> {
    if let Op::Blocking(call) = &mut work.op {
        let call = std::mem::replace(call, Box::new(|| Ok(())));
        return call();
    }
    loop {
        let result = system_call(work).map_err(rustix::io::Errno::raw_os_error);
        if let Some(result) = work.advance(result) {
            return result;
        }
    }
}

fn system_call(work: &mut Work) -> rustix::io::Result<usize> {
    let done = work.done;
    match &mut work.op {
        Op::Read { fd, buf, offset } => {
            pread(fd.as_fd(), &mut buf.make_mut()[done..], *offset + done as u64)
        }
        Op::Write { fd, offset, .. } => {
            let (fd, at) = (fd.clone(), *offset + done as u64);
            let slices: Vec<IoSlice<'_>> = work.rest(IOVECS_MAX).map(IoSlice::new).collect();
            pwritev(fd.as_fd(), &slices, at)
        }
        Op::Fdatasync { fd } => fdatasync(fd.as_fd()).map(|()| 0),
        Op::Fallocate { fd, mode, offset, len } => {
            let mode = FallocateFlags::from_bits_retain(*mode as u32);
            fallocate(fd.as_fd(), mode, *offset, *len).map(|()| 0)
        }
        Op::Blocking(_) => unreachable!("done by perform"),
    }
}
