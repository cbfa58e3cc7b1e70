//! A kernel for shuttle: all that io_uring may do, at any moment, and nothing it may not.
//!
//! It takes fewer entries than it was asked to, or none (memory is short); a wait is interrupted;
//! reads and writes are short, or to be tried again; operations end in any order, and it stops to
//! listen. An operation under way ends when a thread waits, at the latest: so a thread that waits
//! for ever waits for an event that no thread causes. Data does not move.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use parking_lot::rand::{Rng, thread_rng};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Completed, Manner};
use crate::machine::Clock;
use crate::machine::thread::{self, ThreadId};
use crate::op::Work;

/// Completions that fit, at least.
const COMPLETIONS: u32 = 4;

pub(crate) struct Uring {
    entries: u32,
    manner: Manner,
    state: Mutex<RingState>,
    changed: Condvar,
}

#[derive(Default)]
struct RingState {
    /// Whose it is.
    owner: Option<ThreadId>,
    submitted: VecDeque<Entry>,
    under_way: Vec<Entry>,
    has_rung: bool,
    /// The operation that listens to the bell.
    listener: Option<u64>,
    /// Ends that are left to the owner.
    deferred: Vec<Completed>,
    completed: VecDeque<Completed>,
    /// Completions that did not fit.
    overflowed: VecDeque<Completed>,
}

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    token: u64,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Trial,
    Listen,
    Work { bytes: usize, blocks: bool },
}

#[derive(Default)]
pub(crate) struct IoVecs;

/// One time in so many.
fn once_in(times: u32) -> bool {
    thread_rng().gen_range(0..times) == 0
}

fn errno(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Uring {
    pub(crate) fn new(entries: u32, manner: Manner) -> io::Result<Uring> {
        Ok(Uring { entries, manner, state: Mutex::default(), changed: Condvar::new() })
    }

    pub(crate) fn enable(&self) -> io::Result<()> {
        let owner = self.state.lock().owner.replace(thread::current().id());
        assert!(owner.is_none(), "enabled once");
        Ok(())
    }

    /// RING-U1.
    fn own(&self) -> MutexGuard<'_, RingState> {
        let state = self.state.lock();
        assert_eq!(state.owner, Some(thread::current().id()), "RING-U1: used by another thread");
        state
    }

    pub(crate) fn ring_bell(&self) {
        let mut state = self.state.lock();
        state.has_rung = true;
        self.hear(&mut state);
    }

    pub(crate) fn has_more(&self) -> bool {
        let mut state = self.own();
        self.go_on(&mut state);
        !state.deferred.is_empty() || !state.overflowed.is_empty()
    }

    pub(crate) fn completions_max(&self) -> u32 {
        (2 * self.entries).max(COMPLETIONS)
    }

    /// # Safety
    ///
    /// None: it is the same signature as the machine's.
    pub(crate) unsafe fn push(&self, entry: &Entry) -> bool {
        let mut state = self.own();
        let fits = state.submitted.len() < self.entries as usize;
        if fits {
            state.submitted.push_back(*entry);
        }
        fits
    }

    /// # Safety
    ///
    /// None.
    pub(crate) unsafe fn queued(&self) -> u32 {
        self.own().submitted.len() as u32
    }

    pub(crate) fn enter(
        &self,
        submit: u32,
        completions: u32,
        timeout: Option<Duration>,
    ) -> io::Result<u32> {
        let mut state = self.own();
        if submit > 0 && once_in(8) {
            let short = [libc::EAGAIN, libc::EBUSY, libc::ENOMEM];
            return Err(errno(short[thread_rng().gen_range(0..short.len())]));
        }
        if let Some(Entry { kind: Kind::Trial, .. }) = state.submitted.front()
            && self.manner == Manner::Own
            && once_in(2)
        {
            // As a kernel would at the making of it; half of them are old.
            state.submitted.clear();
            return Err(errno(libc::EINVAL));
        }
        let taken = if submit > 1 && once_in(8) { submit - 1 } else { submit };
        let taken = taken.min(state.submitted.len() as u32);
        for _ in 0..taken {
            let entry = state.submitted.pop_front().expect("counted");
            self.begin(&mut state, entry);
        }
        if taken < submit {
            return Ok(taken);
        }
        let waited = self.wait(state, completions as usize, timeout);
        // The number of taken entries is returned rather than the early end of the wait.
        if taken > 0 { Ok(taken) } else { waited.map(|()| 0) }
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, RingState>,
        completions: usize,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        loop {
            let mut left = std::mem::take(&mut state.overflowed);
            left.extend(state.deferred.drain(..));
            left.into_iter().for_each(|one| self.show(&mut state, one));
            if state.completed.len() >= completions {
                return Ok(());
            }
            if once_in(8) {
                return Err(errno(libc::EINTR));
            }
            if !state.under_way.is_empty() {
                self.end_some(&mut state);
            } else if let Some(time) = timeout {
                drop(state);
                thread::yield_now();
                state = self.state.lock();
                if state.deferred.is_empty() && state.completed.is_empty() {
                    Clock::pass(time);
                    return Err(errno(libc::ETIME));
                }
            } else {
                self.changed.wait(&mut state);
            }
        }
    }

    /// # Safety
    ///
    /// None.
    pub(crate) unsafe fn completions(&self, taken: &mut Vec<Completed>) {
        let mut state = self.own();
        self.go_on(&mut state);
        taken.extend(state.completed.drain(..));
    }

    fn begin(&self, state: &mut RingState, entry: Entry) {
        let Entry { token, kind } = entry;
        match kind {
            Kind::Trial => self.end(state, Completed { token, result: 0, has_more: false }),
            Kind::Work { .. } => state.under_way.push(entry),
            Kind::Listen => {
                assert!(state.listener.replace(token).is_none(), "RING-U6: it listens once");
                if state.has_rung {
                    self.hear(state);
                }
            }
        }
    }

    /// The bell is rung. Several rings before a completion may count as one.
    fn hear(&self, state: &mut RingState) {
        let Some(token) = state.listener else { return };
        if state.deferred.iter().any(|one| one.token == token) && once_in(2) {
            return;
        }
        let has_more = !once_in(4);
        if !has_more {
            state.listener = None;
        }
        self.end(state, Completed { token, result: 1, has_more });
    }

    /// Operations end by themselves.
    fn go_on(&self, state: &mut RingState) {
        if !state.under_way.is_empty() && once_in(2) {
            self.end_some(state);
        }
    }

    /// One of the operations under way ends, or more.
    fn end_some(&self, state: &mut RingState) {
        for _ in 0..thread_rng().gen_range(1..=state.under_way.len()) {
            let one = thread_rng().gen_range(0..state.under_way.len());
            let Entry { token, kind } = state.under_way.swap_remove(one);
            let Kind::Work { bytes, blocks } = kind else { unreachable!("not under way") };
            let result = match thread_rng().gen_range(0..12) {
                0 if !blocks => -libc::EAGAIN,
                1 => -libc::EINTR,
                2 => bytes.div_ceil(2) as i32,
                _ => bytes as i32,
            };
            self.end(state, Completed { token, result, has_more: false });
        }
    }

    fn end(&self, state: &mut RingState, completed: Completed) {
        match self.manner {
            Manner::Own => state.deferred.push(completed),
            Manner::Plain => self.show(state, completed),
        }
        self.changed.notify_all();
    }

    fn show(&self, state: &mut RingState, completed: Completed) {
        if state.completed.len() < self.completions_max() as usize {
            state.completed.push_back(completed);
        } else {
            state.overflowed.push_back(completed);
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let is_idle = state.under_way.is_empty() && state.submitted.is_empty();
        assert!(
            is_idle || std::thread::panicking(),
            "RING-U5: closed while something is in flight"
        );
    }
}

pub(crate) fn trial() -> Entry {
    Entry { token: 0, kind: Kind::Trial }
}

pub(crate) fn listening(_: &Uring, token: u64) -> Entry {
    Entry { token, kind: Kind::Listen }
}

pub(crate) fn entry(work: &mut Work, token: u64, blocks: bool) -> Entry {
    Entry { token, kind: Kind::Work { bytes: work.len() - work.done, blocks } }
}
