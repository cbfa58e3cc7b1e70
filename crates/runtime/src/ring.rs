//! One io_uring: operations in, completions out. Its thread's alone.
//!
//! Problem.  An executor submits operations, and waits for their ends and for work of other
//!           threads. A ring that any thread may enter costs more: the kernel interrupts the
//!           submitting thread at the end of an operation, at any moment.
//! Idea.     The ring belongs to one thread: it alone submits, and the kernel leaves the ends of
//!           operations to when that thread enters (`DEFER_TASKRUN`). Others ring a bell, an
//!           eventfd that the ring listens to. Where the kernel refuses that (before Linux 6.1),
//!           the ring is a plain one, and the rest is the same.
//!
//! RING-U1  Only the ring's thread touches it: the locks here are free whenever they are taken.
//!          Others may ring the bell, nothing else.
//! RING-U2  An operation's entry carries one strong count of its [`Flight`], which owns all memory
//!          that the entry points to; the completion returns it. So memory outlives the kernel's
//!          use of it.
//! RING-U3  At most `in_flight_max` operations are in the kernel, fewer than the completion queue
//!          holds; the others wait in `backlog` and are submitted as completions are reaped.
//! RING-U4  Entries that the kernel has not taken are in the submission queue, and noted nowhere
//!          else: a flush ends when that is empty, and a wait begins only then (the kernel does
//!          not wait when it has taken less than it was given).
//! RING-U5  The ring is closed only when nothing is in flight but the listening.
//! RING-U6  The ring listens whenever it waits. The kernel may end that at any completion, and
//!          reports it; then it is begun again before the next wait. A bell that rang before is
//!          heard at once, since no thread resets it: the ring listens for new rings, not for the
//!          state of the bell.
//! RING-U7  Ends that were left to the thread, and completions that did not fit, are fetched at
//!          each reap: the kernel flags them.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use copyhold_sync::{Mutex, of};

use crate::machine::thread;
use crate::op::Flight;
use crate::sabotage::{Broken, Sabotage};
use crate::uring::{self, Completed, Entry, Manner, Uring};

/// Marks the entry that listens to the bell.
const BELL: u64 = 0;
/// How often the first use is tried where memory is short, and how long apart.
const TRIES: usize = 1000;
const PAUSE: Duration = Duration::from_millis(1);

pub(crate) struct Ring {
    uring: Uring,
    in_flight_max: u32,
    submit: Mutex<Submit, of::RingSubmit>,
    /// Completions taken from the queue; empty between calls.
    reap: Mutex<Vec<Completed>, of::RingReap>,
    broken: Broken,
}

#[derive(Default)]
struct Submit {
    in_flight: u32,
    backlog: VecDeque<Arc<Flight>>,
    /// An entry that listens to the bell was pushed, and has not ended.
    listens: bool,
    closed: bool,
}

/// How rings can be had and used here; an error where they are refused. A filter may allow to make
/// a ring but not to use it, so one is used.
pub(crate) fn try_out(broken: Broken) -> io::Result<Manner> {
    try_out_in(Manner::Own, broken).or_else(|_before_6_1| try_out_in(Manner::Plain, broken))
}

fn try_out_in(manner: Manner, broken: Broken) -> io::Result<Manner> {
    let uring = Uring::new(1, manner)?;
    uring.enable()?;
    // SAFETY: RING-U1, this thread has made it; the entry points to nothing.
    assert!(unsafe { uring.push(&uring::trial()) }, "the queue is empty");
    let mut taken = Vec::new();
    for _ in 0..TRIES {
        // SAFETY: RING-U1.
        match uring.enter(unsafe { uring.queued() }, 1, None) {
            Ok(_) => {
                // SAFETY: RING-U1.
                unsafe { uring.completions(&mut taken) };
                if !taken.is_empty() {
                    return Ok(manner);
                }
            }
            // That memory is short, or a signal came, is no refusal.
            Err(error) if is_shortage(&error) && !broken.is(Sabotage::RefuseEarly) => {}
            Err(error) => return Err(error),
        }
        thread::sleep(PAUSE);
    }
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

impl Ring {
    /// `entries` operations can be handed over at once, four times as many be in flight. `manner`:
    /// see [`try_out`]. The thread that it is for calls [`Ring::begin`].
    pub(crate) fn new(entries: u32, manner: Manner, broken: Broken) -> io::Result<Ring> {
        let uring = Uring::new(entries, manner)?;
        let in_flight_max = (uring.completions_max() / 2).max(1);
        let (submit, reap) = (Mutex::default(), Mutex::default());
        Ok(Ring { uring, in_flight_max, submit, reap, broken })
    }

    /// From here on it is this thread's.
    pub(crate) fn begin(&self) {
        self.uring.enable().expect("a ring of this kind was tried out");
    }

    /// Begins an operation at the next flush or wait.
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
            submit.backlog.push_back(flight); // RING-U3
            return;
        }
        submit.in_flight += 1;
        self.launch(flight, false);
    }

    /// Makes the wait of the ring's thread return, from any thread.
    pub(crate) fn wake(&self) {
        self.uring.ring_bell();
    }

    /// Submits the pushed entries.
    pub(crate) fn flush(&self) {
        while self.queued() > 0 {
            self.enter();
            if self.broken.is(Sabotage::TrustSubmission) {
                break;
            }
        }
        #[cfg(shuttle)]
        assert_eq!(self.queued(), 0, "RING-U4: an operation waits for the next sleep");
    }

    /// Submits the pushed entries and waits until an operation completes, the bell is rung, or the
    /// time is over; may return early.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        self.listen();
        match self.uring.enter(self.queued(), 1, timeout) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {}
            Err(error) if self.passes(&error) => thread::yield_now(),
            Err(error) => panic!("waiting on io_uring failed: {error}"),
        }
    }

    /// RING-U6.
    fn listen(&self) {
        let mut submit = self.submit.lock();
        if !submit.listens {
            submit.listens = true;
            self.push(&uring::listening(&self.uring, BELL));
        }
    }

    /// Wakes waiters with their completions, and begins operations from the backlog.
    pub(crate) fn reap(&self) {
        if self.uring.has_more() && !self.broken.is(Sabotage::LeaveDeferred) {
            self.enter(); // RING-U7
        }
        let mut taken = {
            let mut taken = self.reap.lock();
            // SAFETY: RING-U1.
            unsafe { self.uring.completions(&mut taken) };
            std::mem::take(&mut *taken)
        };
        if self.broken.is(Sabotage::DropCompletion) {
            taken.pop_if(|completed| completed.token != BELL);
        }
        let mut finished = 0;
        for Completed { token, result, has_more } in taken.drain(..) {
            if token == BELL {
                self.submit.lock().listens = has_more || self.broken.is(Sabotage::ListenOnce);
                continue;
            }
            // SAFETY: RING-U2, the token came from `launch`, and each entry completes once.
            let flight = unsafe { Arc::from_raw(token as *const Flight) };
            finished += u32::from(self.complete(flight, result));
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
        self.launch(flight, result == -libc::EAGAIN);
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
            self.launch(flight, false);
        }
    }

    /// Refuses further operations and waits for those in flight and in the backlog (RING-U5).
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
    fn launch(&self, flight: Arc<Flight>, blocks: bool) {
        let token = Arc::as_ptr(&flight) as u64;
        let entry = uring::entry(&mut flight.work.lock(), token, blocks);
        let _counted_by_the_entry = Arc::into_raw(flight); // RING-U2
        self.push(&entry);
    }

    fn push(&self, entry: &Entry) {
        // SAFETY: RING-U1. RING-U2, the memory behind the entry lives until it completes.
        while !unsafe { self.uring.push(entry) } {
            self.enter();
        }
    }

    /// How many entries the kernel has not taken yet.
    fn queued(&self) -> u32 {
        // SAFETY: RING-U1.
        unsafe { self.uring.queued() }
    }

    fn passes(&self, error: &io::Error) -> bool {
        let is_fatal = error.raw_os_error() == Some(libc::ENOMEM);
        is_shortage(error) && !(is_fatal && self.broken.is(Sabotage::FailWhenShort))
    }

    /// Lets the kernel take as many entries as it will, and runs the work that it left to this
    /// thread.
    fn enter(&self) {
        match self.uring.enter(self.queued(), 0, None) {
            Ok(_) => {}
            Err(error) if self.passes(&error) => thread::yield_now(),
            Err(error) => panic!("submitting to io_uring failed: {error}"),
        }
    }
}

/// Whether `io_uring_enter` failed because memory is short, or a signal came: the ring is as it
/// was, and the call can be made again.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::EINTR))
}
