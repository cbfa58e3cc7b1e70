//! A kernel for shuttle: whatever io_uring may do, at any moment, and nothing it may not.
//!
//! It takes fewer entries than it was asked to, or none (memory is short); a wait is interrupted;
//! reads and writes are short, or to be tried again; and operations end in any order. An operation
//! under way ends when somebody waits, at the latest: so who waits for ever waits for something
//! that nobody brings. Data does not move.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use parking_lot::rand::{Rng, thread_rng};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Completed;
use crate::machine::{Clock, thread};
use crate::op::Work;

/// Completions that fit, at least.
const COMPLETIONS: u32 = 4;

pub(crate) struct Uring {
    entries: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    submitted: VecDeque<Entry>,
    under_way: Vec<Entry>,
    completed: VecDeque<Completed>,
    /// What did not fit.
    overflowed: VecDeque<Completed>,
}

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    token: u64,
    /// What to move; nothing ends at once.
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Nothing,
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
    pub(crate) fn new(entries: u32) -> io::Result<Uring> {
        Ok(Uring { entries, state: Mutex::default(), changed: Condvar::new() })
    }

    pub(crate) fn completions_max(&self) -> u32 {
        (2 * self.entries).max(COMPLETIONS)
    }

    /// # Safety
    ///
    /// None: it is the same signature as the machine's.
    pub(crate) unsafe fn push(&self, entry: &Entry) -> bool {
        let mut state = self.state.lock();
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
        self.state.lock().submitted.len() as u32
    }

    /// Whether operations were pushed that it has not taken.
    pub(crate) fn awaits_operations(&self) -> bool {
        let state = self.state.lock();
        state.submitted.iter().any(|entry| matches!(entry.kind, Kind::Work { .. }))
    }

    pub(crate) fn enter(
        &self,
        submit: u32,
        completions: u32,
        timeout: Option<Duration>,
    ) -> io::Result<u32> {
        let mut state = self.state.lock();
        if submit > 0 && once_in(8) {
            return Err(errno(libc::EAGAIN));
        }
        let taken = if submit > 1 && once_in(8) { submit - 1 } else { submit };
        let taken = taken.min(state.submitted.len() as u32);
        for _ in 0..taken {
            let entry = state.submitted.pop_front().expect("counted");
            self.begin(&mut state, entry);
        }
        if taken < submit || completions == 0 {
            return Ok(taken);
        }
        let waited = self.wait(state, completions as usize, timeout);
        // What was taken is told rather than that the wait ended early.
        if taken > 0 { Ok(taken) } else { waited.map(|()| 0) }
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        completions: usize,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        loop {
            let overflowed = std::mem::take(&mut state.overflowed);
            overflowed.into_iter().for_each(|one| self.complete(&mut state, one));
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
                if state.completed.len() < completions {
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
        let mut state = self.state.lock();
        if !state.under_way.is_empty() && once_in(2) {
            self.end_some(&mut state);
        }
        taken.extend(state.completed.drain(..));
    }

    fn begin(&self, state: &mut State, entry: Entry) {
        match entry.kind {
            Kind::Nothing => self.complete(state, Completed { token: entry.token, result: 0 }),
            Kind::Work { .. } => state.under_way.push(entry),
        }
    }

    /// One of the operations under way ends, or more.
    fn end_some(&self, state: &mut State) {
        for _ in 0..thread_rng().gen_range(1..=state.under_way.len()) {
            let one = thread_rng().gen_range(0..state.under_way.len());
            let Entry { token, kind } = state.under_way.swap_remove(one);
            let Kind::Work { bytes, blocks } = kind else { unreachable!("ended at once") };
            let result = match thread_rng().gen_range(0..12) {
                0 if !blocks => -libc::EAGAIN,
                1 => -libc::EINTR,
                2 => bytes.div_ceil(2) as i32,
                _ => bytes as i32,
            };
            self.complete(state, Completed { token, result });
        }
    }

    fn complete(&self, state: &mut State, completed: Completed) {
        if state.completed.len() < self.completions_max() as usize {
            state.completed.push_back(completed);
        } else {
            state.overflowed.push_back(completed);
        }
        self.changed.notify_all();
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let is_idle = state.under_way.is_empty() && state.submitted.is_empty();
        assert!(is_idle || std::thread::panicking(), "U5: closed while something is in flight");
    }
}

pub(crate) fn nothing(token: u64) -> Entry {
    Entry { token, kind: Kind::Nothing }
}

pub(crate) fn entry(work: &mut Work, token: u64, blocks: bool) -> Entry {
    Entry { token, kind: Kind::Work { bytes: work.len() - work.done, blocks } }
}
