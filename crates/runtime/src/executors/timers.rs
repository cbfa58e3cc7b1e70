//! The timers of one executor.

use std::collections::BTreeMap;
use std::task::Waker;

use copyhold_sync::{Mutex, of};
use copyhold_types::Nanos;

/// Deadline and a number that distinguishes timers with the same deadline.
pub(super) type TimerKey = (Nanos, u64);

#[derive(Default)]
pub(super) struct Timers(Mutex<Pending, of::Timers>);

#[derive(Default)]
struct Pending {
    wakers: BTreeMap<TimerKey, Waker>,
    next: u64,
}

impl Timers {
    /// Adds a timer; whether it is now the first to fire.
    pub(super) fn add(&self, deadline: Nanos, waker: Waker) -> (TimerKey, bool) {
        let mut pending = self.0.lock();
        let key = (deadline, pending.next);
        pending.next += 1;
        pending.wakers.insert(key, waker);
        let first = pending.wakers.first_key_value().is_some_and(|(first, _)| *first == key);
        (key, first)
    }

    /// Changes the waker; false if it has fired.
    pub(super) fn rewake(&self, key: TimerKey, waker: &Waker) -> bool {
        let mut pending = self.0.lock();
        let Some(held) = pending.wakers.get_mut(&key) else { return false };
        if !held.will_wake(waker) {
            let replaced = std::mem::replace(held, waker.clone());
            drop(pending);
            drop(replaced);
        }
        true
    }

    pub(super) fn remove(&self, key: TimerKey) {
        let waker = self.0.lock().wakers.remove(&key);
        drop(waker);
    }

    pub(super) fn first(&self) -> Option<Nanos> {
        self.0.lock().wakers.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Wakes the tasks whose timers are due.
    pub(super) fn fire(&self, now: Nanos) {
        let due = {
            let mut pending = self.0.lock();
            match pending.wakers.first_key_value() {
                Some(((deadline, _), _)) if *deadline <= now => {}
                _ => return,
            }
            let later = pending.wakers.split_off(&(now.saturating_add(1), 0));
            std::mem::replace(&mut pending.wakers, later)
        };
        due.into_values().for_each(Waker::wake);
    }

    /// Takes all timers, unfired.
    pub(super) fn take(&self) -> Vec<Waker> {
        std::mem::take(&mut self.0.lock().wakers).into_values().collect()
    }
}
