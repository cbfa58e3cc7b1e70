//! Answers on their way to the thread that commits them.
//!
//! An entry contains its answer; the mailbox has only the number of the entry. An eventfd wakes a
//! sleeping thread. A thread that finds no answer notes, under the lock, that it sleeps; the thread
//! of the next answer clears that note and wakes it. So no answer is left behind, and many answers
//! wake it once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use copyhold_sync::{Mutex, of};
use rustix::event::{EventfdFlags, eventfd};

/// An entry whose answer is to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) index: u32,
    pub(super) commit_id: u64,
    /// Request or answer had many pages.
    pub(super) was_large: bool,
}

#[derive(Debug)]
pub(super) struct Mailbox {
    state: Mutex<MailboxState, of::Mailbox>,
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct MailboxState {
    answered: Vec<Answered>,
    asleep: bool,
    closed: bool,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Mailbox> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { state: Mutex::default(), bell })
    }

    /// Readable when the thread is wanted.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(super) fn post(&self, answered: Answered) {
        let mut state = self.state.lock();
        state.answered.push(answered);
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.ring();
        }
    }

    /// The connection is gone.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.ring();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// The answers that came since, into `taken`, which is empty.
    pub(super) fn take(&self, taken: &mut Vec<Answered>) {
        debug_assert!(taken.is_empty());
        std::mem::swap(&mut self.state.lock().answered, taken);
    }

    /// Whether the thread may sleep: nothing is there, and the bell will be rung.
    pub(super) fn may_sleep(&self) -> bool {
        let mut state = self.state.lock();
        state.asleep = state.answered.is_empty();
        state.asleep
    }

    pub(super) fn is_awake(&self) {
        self.state.lock().asleep = false;
    }

    fn ring(&self) {
        // Full after 2^64 rings without a read: then it is readable anyway.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Makes the bell quiet.
    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }
}

/// A history for shuttle: answers come to a thread that sleeps whenever it may. A thread with a
/// lost wakeup waits for ever.
#[cfg(shuttle)]
pub fn answers() {
    use std::sync::Arc;

    use parking_lot::thread;

    const EACH: u32 = 2;
    let mailbox = Arc::new(Mailbox::new().expect("an eventfd"));
    let posters = [0, 1].map(|poster| {
        let mailbox = mailbox.clone();
        thread::spawn(move || {
            for index in poster * EACH..(poster + 1) * EACH {
                mailbox.post(Answered { index, commit_id: 1, was_large: false });
            }
            if poster == 0 {
                mailbox.close();
            }
        })
    });
    let (mut taken, mut seen) = (Vec::new(), Vec::new());
    while seen.len() < 2 * EACH as usize || !mailbox.is_closed() {
        mailbox.take(&mut taken);
        seen.extend(taken.drain(..).map(|answered| answered.index));
        if mailbox.may_sleep() {
            let is_done = seen.len() == 2 * EACH as usize && mailbox.is_closed();
            while !is_done && rustix::io::read(&mailbox.bell, &mut [0u8; 8]).is_err() {
                thread::yield_now();
            }
        }
        mailbox.is_awake();
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3], "each once");
    for poster in posters {
        poster.join().expect("what panics ends the history");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(mailbox: &Mailbox) -> bool {
        rustix::io::read(&mailbox.bell, &mut [0u8; 8]).is_ok()
    }

    #[test]
    fn who_sleeps_is_woken_once_and_who_is_awake_never() {
        let mailbox = Mailbox::new().unwrap();
        let answered = Answered { index: 1, commit_id: 2, was_large: false };
        mailbox.post(answered);
        assert!(!rung(&mailbox));
        assert!(!mailbox.may_sleep(), "there is something");
        let mut taken = Vec::new();
        mailbox.take(&mut taken);
        assert_eq!(taken, [answered]);
        assert!(mailbox.may_sleep());
        mailbox.post(answered);
        assert!(rung(&mailbox));
        mailbox.post(answered);
        assert!(!rung(&mailbox));
    }
}
