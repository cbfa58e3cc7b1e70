//! One io_uring: operations in, completions out.
//!
//! Problem.  An executor submits many operations and waits for them; other threads wake it.
//! Idea.     What is submitted goes to the kernel with the executor's next wait or flush. The
//!           submission queue is behind a mutex for those who wake: they enter the kernel
//!           themselves.
//!
//! U1  The submission queue is touched only under `submit`, the completion queue only under `reap`.
//! U2  An operation's entry carries one strong count of its [`Flight`], which owns all memory that
//!     the entry points to; the completion gives it back. So memory outlives the kernel's use of
//!     it.
//! U3  At most `in_flight_max` operations are in the kernel, fewer than the completion queue holds;
//!     the others wait in `backlog` and are submitted as completions are reaped.
//! U4  Every entry pushed is taken by the kernel before its pusher goes away, or `deferred` is set
//!     and the executor sees to it before it sleeps or runs another task.
//! U5  The ring is closed only when nothing is in flight.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use parking_lot::Mutex;

use crate::op::{Flight, Op, Work};
use crate::threads::IOVECS_MAX;

/// Marks an entry that only wakes the executor.
const WAKE: u64 = 0;
/// Bytes that one entry moves at most.
const ENTRY_BYTES_MAX: usize = 1 << 30;

pub(crate) struct Ring {
    uring: IoUring,
    in_flight_max: u32,
    submit: Mutex<Submit>,
    /// Completions taken from the queue; empty between calls.
    reap: Mutex<Vec<(u64, i32)>>,
    /// Entries were pushed that the kernel has not been told of. Only the executor uses it.
    deferred: AtomicBool,
}

#[derive(Default)]
struct Submit {
    in_flight: u32,
    backlog: VecDeque<Arc<Flight>>,
    closed: bool,
}

/// Buffers in the kernel's form. They point into the [`Flight`] that holds them.
#[derive(Default)]
pub(crate) struct IoVecs(Vec<libc::iovec>);

// SAFETY: the pointers are only used by the kernel, and by `Work` with its buffers at hand.
unsafe impl Send for IoVecs {}

impl Ring {
    /// `entries` operations can be handed over at once, four times as many be in flight. Fails
    /// where io_uring is refused or lacks what is needed here (Linux 5.18).
    pub(crate) fn new(entries: u32) -> io::Result<Ring> {
        let uring = IoUring::builder()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(entries.saturating_mul(8).max(64))
            .build(entries.max(1))?;
        let params = uring.params();
        if !params.is_feature_nodrop() || !params.is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let in_flight_max = (params.cq_entries() / 2).max(1);
        let ring = Ring {
            uring,
            in_flight_max,
            submit: Mutex::default(),
            reap: Mutex::default(),
            deferred: AtomicBool::new(false),
        };
        ring.try_out()?;
        Ok(ring)
    }

    /// A filter may allow to make a ring but not to use it.
    fn try_out(&self) -> io::Result<()> {
        self.push(&mut self.submit.lock(), &opcode::Nop::new().build().user_data(WAKE));
        self.uring.submitter().submit_and_wait(1)?;
        self.reap();
        Ok(())
    }

    /// Begins an operation at the next flush or wait. Only for the ring's executor.
    pub(crate) fn carry(&self, flight: Arc<Flight>) {
        if flight.work.lock().is_empty() {
            return flight.finish(Ok(()));
        }
        let mut submit = self.submit.lock();
        if submit.closed {
            drop(submit);
            return flight.refuse();
        }
        if submit.in_flight >= self.in_flight_max {
            submit.backlog.push_back(flight); // U3
            return;
        }
        submit.in_flight += 1;
        self.launch(&mut submit, flight, Flags::empty());
        drop(submit);
        self.deferred.store(true, Relaxed);
    }

    /// Makes the executor's wait return, from another thread.
    pub(crate) fn wake(&self) {
        let mut submit = self.submit.lock();
        let pushed = self.push(&mut submit, &opcode::Nop::new().build().user_data(WAKE));
        drop(submit);
        self.enter(pushed);
    }

    /// Submits what was deferred.
    pub(crate) fn flush(&self) {
        if self.deferred.swap(false, Relaxed) {
            let pushed = self.pushed(&mut self.submit.lock());
            self.enter(pushed);
        }
    }

    /// Submits what was deferred and waits until something completes or the time is over; may
    /// return early. Only for the ring's executor.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        self.deferred.store(false, Relaxed);
        let submitter = self.uring.submitter();
        let result = match timeout {
            None => submitter.submit_and_wait(1),
            Some(timeout) => {
                let timeout = Timespec::from(timeout);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
            }
        };
        match result.map_err(|error| error.raw_os_error()) {
            Ok(_) | Err(Some(libc::ETIME | libc::EINTR)) => {}
            // Memory is short: what was not taken is still in the queue (U4).
            Err(Some(libc::EAGAIN | libc::EBUSY)) => self.deferred.store(true, Relaxed),
            Err(errno) => panic!("waiting on io_uring failed with errno {errno:?}"),
        }
    }

    /// Tells waiters about what has completed, and submits from the backlog.
    pub(crate) fn reap(&self) {
        let mut taken = {
            let mut taken = self.reap.lock();
            // SAFETY: U1, `reap` is locked and there is no other consumer.
            let completions = unsafe { self.uring.completion_shared() };
            taken.extend(completions.map(|entry| (entry.user_data(), entry.result())));
            std::mem::take(&mut *taken)
        };
        let mut finished = 0;
        for (token, result) in taken.drain(..) {
            if token != WAKE {
                // SAFETY: U2, the token came from `launch`, and each entry completes once.
                let flight = unsafe { Arc::from_raw(token as *const Flight) };
                finished += u32::from(self.complete(flight, result));
            }
        }
        if finished > 0 {
            self.refill(finished);
        }
        *self.reap.lock() = taken;
    }

    /// Takes in the end of an entry; whether the operation is done.
    fn complete(&self, flight: Arc<Flight>, result: i32) -> bool {
        let outcome = usize::try_from(result).map_err(|_| -result);
        let advanced = flight.work.lock().advance(outcome);
        if let Some(result) = advanced {
            flight.finish(result);
            return true;
        }
        let flags = if result == -libc::EAGAIN { Flags::ASYNC } else { Flags::empty() };
        self.launch(&mut self.submit.lock(), flight, flags);
        self.deferred.store(true, Relaxed);
        false
    }

    fn refill(&self, finished: u32) {
        let mut submit = self.submit.lock();
        submit.in_flight -= finished;
        while submit.in_flight < self.in_flight_max
            && let Some(flight) = submit.backlog.pop_front()
        {
            submit.in_flight += 1;
            self.launch(&mut submit, flight, Flags::empty());
            self.deferred.store(true, Relaxed);
        }
    }

    /// Refuses further operations and waits for those in flight and in the backlog (U5).
    pub(crate) fn close(&self) {
        self.submit.lock().closed = true;
        loop {
            self.reap();
            self.flush();
            if self.submit.lock().in_flight == 0 {
                return;
            }
            self.wait(None);
        }
    }

    /// Pushes the next entry of an operation.
    fn launch(&self, submit: &mut Submit, flight: Arc<Flight>, flags: Flags) {
        let entry = prepare(&mut flight.work.lock()).flags(flags);
        let token = Arc::into_raw(flight) as u64; // U2
        self.push(submit, &entry.user_data(token));
    }

    fn push(&self, submit: &mut Submit, entry: &Entry) -> u32 {
        loop {
            {
                // SAFETY: U1, `submit` is locked.
                let mut queue = unsafe { self.uring.submission_shared() };
                // SAFETY: U2, what the entry points to lives until it completes.
                if unsafe { queue.push(entry) }.is_ok() {
                    return queue.len() as u32;
                }
            }
            let pushed = self.pushed(submit);
            self.enter_once(pushed);
        }
    }

    /// How many entries the kernel has not taken yet. `_submit`: the lock is held (U1).
    fn pushed(&self, _submit: &mut Submit) -> u32 {
        // SAFETY: U1.
        unsafe { self.uring.submission_shared() }.len() as u32
    }

    /// Lets the kernel take all entries up to the one after which `pushed` were in the queue (U4).
    fn enter(&self, mut pushed: u32) {
        while pushed > 0 {
            if self.enter_once(pushed) >= pushed {
                return;
            }
            // Another thread has submitted some of them, or memory is short.
            pushed = self.pushed(&mut self.submit.lock());
        }
    }

    fn enter_once(&self, pushed: u32) -> u32 {
        // SAFETY: no argument is passed, and entries are sound when pushed.
        let result = unsafe { self.uring.submitter().enter::<libc::sigset_t>(pushed, 0, 0, None) };
        match result.map_err(|error| error.raw_os_error()) {
            Ok(taken) => taken as u32,
            Err(Some(libc::EINTR)) => 0,
            Err(Some(libc::EAGAIN | libc::EBUSY)) => {
                std::thread::yield_now();
                0
            }
            Err(errno) => panic!("submitting to io_uring failed with errno {errno:?}"),
        }
    }
}

/// The entry for what is left of an operation.
fn prepare(work: &mut Work) -> Entry {
    let done = work.done;
    let at = |offset: u64| offset + done as u64;
    match &mut work.op {
        Op::Read { fd, buf, offset } => {
            let rest = &mut buf.make_mut()[done..];
            let len = rest.len().min(ENTRY_BYTES_MAX) as u32;
            opcode::Read::new(Fd(fd.as_fd().as_raw_fd()), rest.as_mut_ptr(), len)
                .offset(at(*offset))
                .build()
        }
        Op::Write { fd, bufs, offset } if bufs.len() == 1 => {
            let rest = &bufs[0][done..];
            let len = rest.len().min(ENTRY_BYTES_MAX) as u32;
            opcode::Write::new(Fd(fd.as_fd().as_raw_fd()), rest.as_ptr(), len)
                .offset(at(*offset))
                .build()
        }
        Op::Write { fd, offset, .. } => {
            let (fd, offset) = (Fd(fd.as_fd().as_raw_fd()), at(*offset));
            let mut iovecs = std::mem::take(&mut work.iovecs.0);
            iovecs.clear();
            iovecs.extend(work.rest(IOVECS_MAX).map(|rest| libc::iovec {
                iov_base: rest.as_ptr().cast_mut().cast(),
                iov_len: rest.len(),
            }));
            work.iovecs.0 = iovecs;
            let iovecs = &work.iovecs.0;
            opcode::Writev::new(fd, iovecs.as_ptr(), iovecs.len() as u32).offset(offset).build()
        }
        Op::Fdatasync { fd } => {
            opcode::Fsync::new(Fd(fd.as_fd().as_raw_fd())).flags(FsyncFlags::DATASYNC).build()
        }
        Op::Fallocate { fd, mode, offset, len } => {
            opcode::Fallocate::new(Fd(fd.as_fd().as_raw_fd()), *len)
                .offset(*offset)
                .mode(*mode)
                .build()
        }
        Op::Blocking(_) => unreachable!("goes to a thread"),
    }
}
