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
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::machine::atomic::{AtomicBool, Ordering::Relaxed};
use crate::machine::thread;
use crate::op::Flight;
use crate::sabotage::{Broken, Sabotage};
use crate::uring::{self, Completed, Entry, Uring};

/// Marks an entry that only wakes the executor.
const WAKE: u64 = 0;
/// How often the first use is tried where memory is short.
const TRIES: usize = 1000;

pub(crate) struct Ring {
    uring: Uring,
    in_flight_max: u32,
    submit: Mutex<Submit>,
    /// Completions taken from the queue; empty between calls.
    reap: Mutex<Vec<Completed>>,
    /// Entries were pushed that the kernel has not been told of. Only the executor uses it.
    deferred: AtomicBool,
    broken: Broken,
}

#[derive(Default)]
struct Submit {
    in_flight: u32,
    backlog: VecDeque<Arc<Flight>>,
    closed: bool,
}

impl Ring {
    /// `entries` operations can be handed over at once, four times as many be in flight. Fails
    /// where io_uring is refused or lacks what is needed here (Linux 5.18).
    pub(crate) fn new(entries: u32, broken: Broken) -> io::Result<Ring> {
        let uring = Uring::new(entries)?;
        let in_flight_max = (uring.completions_max() / 2).max(1);
        let ring = Ring {
            uring,
            in_flight_max,
            submit: Mutex::default(),
            reap: Mutex::default(),
            deferred: AtomicBool::new(false),
            broken,
        };
        ring.try_out()?;
        Ok(ring)
    }

    /// A filter may allow to make a ring but not to use it. That memory is short, or a signal
    /// came, is no refusal.
    fn try_out(&self) -> io::Result<()> {
        self.push(&mut self.submit.lock(), &uring::nothing(WAKE));
        for _ in 0..TRIES {
            let pushed = self.pushed(&mut self.submit.lock());
            match self.uring.enter(pushed, 1, None) {
                Ok(_) => {
                    if self.pushed(&mut self.submit.lock()) == 0 {
                        self.reap();
                        return Ok(());
                    }
                }
                Err(error) if is_passing(&error) && !self.broken.is(Sabotage::RefuseEarly) => {}
                Err(error) => return Err(error),
            }
            thread::yield_now();
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
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
        self.launch(&mut submit, flight, false);
        drop(submit);
        self.deferred.store(true, Relaxed);
    }

    /// Makes the executor's wait return, from another thread.
    pub(crate) fn wake(&self) {
        let mut submit = self.submit.lock();
        let pushed = self.push(&mut submit, &uring::nothing(WAKE));
        drop(submit);
        self.enter(pushed);
    }

    /// Submits what was deferred.
    pub(crate) fn flush(&self) {
        if self.deferred.swap(false, Relaxed) {
            let pushed = self.pushed(&mut self.submit.lock());
            self.enter(pushed);
        }
        #[cfg(shuttle)]
        assert!(!self.uring.awaits_operations(), "U4: an operation waits for the next sleep");
    }

    /// Submits what was deferred and waits until something completes or the time is over; may
    /// return early. Only for the ring's executor.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        self.deferred.store(false, Relaxed);
        let pushed = self.pushed(&mut self.submit.lock());
        match self.uring.enter(pushed, 1, timeout) {
            // What was not taken is still in the queue (U4).
            Ok(taken) if taken < pushed => self.defer_again(),
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {}
            Err(error) if is_passing(&error) => self.defer_again(),
            Err(error) => panic!("waiting on io_uring failed: {error}"),
        }
    }

    fn defer_again(&self) {
        if !self.broken.is(Sabotage::TrustSubmission) {
            self.deferred.store(true, Relaxed);
        }
    }

    /// Tells waiters about what has completed, and submits from the backlog.
    pub(crate) fn reap(&self) {
        let mut taken = {
            let mut taken = self.reap.lock();
            // SAFETY: U1, `reap` is locked and there is no other consumer.
            unsafe { self.uring.completions(&mut taken) };
            std::mem::take(&mut *taken)
        };
        let mut finished = 0;
        if self.broken.is(Sabotage::DropCompletion) {
            taken.pop_if(|completed| completed.token != WAKE);
        }
        for Completed { token, result } in taken.drain(..) {
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
        self.launch(&mut self.submit.lock(), flight, result == -libc::EAGAIN);
        self.deferred.store(true, Relaxed);
        false
    }

    fn refill(&self, finished: u32) {
        let mut submit = self.submit.lock();
        submit.in_flight -= finished;
        if self.broken.is(Sabotage::ForgetBacklog) {
            return;
        }
        while submit.in_flight < self.in_flight_max
            && let Some(flight) = submit.backlog.pop_front()
        {
            submit.in_flight += 1;
            self.launch(&mut submit, flight, false);
            self.deferred.store(true, Relaxed);
        }
    }

    /// Refuses further operations and waits for those in flight and in the backlog (U5).
    pub(crate) fn close(&self) {
        self.submit.lock().closed = true;
        if self.broken.is(Sabotage::CloseEarly) {
            return;
        }
        loop {
            self.reap();
            self.flush();
            if self.submit.lock().in_flight == 0 {
                return;
            }
            self.wait(None);
        }
    }

    /// Pushes the next entry of an operation. `blocks`: see [`uring::entry`].
    fn launch(&self, submit: &mut Submit, flight: Arc<Flight>, blocks: bool) {
        let token = Arc::as_ptr(&flight) as u64;
        let entry = uring::entry(&mut flight.work.lock(), token, blocks);
        let _counted_by_the_entry = Arc::into_raw(flight); // U2
        self.push(submit, &entry);
    }

    fn push(&self, submit: &mut Submit, entry: &Entry) -> u32 {
        // SAFETY: U1, `submit` is locked. U2, what the entry points to lives until it completes.
        while !unsafe { self.uring.push(entry) } {
            let pushed = self.pushed(submit);
            self.enter_once(pushed);
        }
        self.pushed(submit)
    }

    /// How many entries the kernel has not taken yet. `_submit`: the lock is held (U1).
    fn pushed(&self, _submit: &mut Submit) -> u32 {
        // SAFETY: U1.
        unsafe { self.uring.queued() }
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
        match self.uring.enter(pushed, 0, None) {
            Ok(taken) => taken,
            Err(error) if is_passing(&error) => {
                thread::yield_now();
                0
            }
            Err(error) => panic!("submitting to io_uring failed: {error}"),
        }
    }
}

/// Memory is short, or a signal came: nothing is wrong with the ring.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR))
}
