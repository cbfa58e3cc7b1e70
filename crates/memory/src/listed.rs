//! Lists of owners by class, and the marks of those that are on them. `users` has the theory.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, fence};

use copyhold_sync::{Mutex, of};

use crate::place::Slot;

/// One for each class of memory.
#[derive(Debug, Default)]
pub(crate) struct Lists([Mutex<Vec<Slot>, of::MemoryUsers>; 8]);

/// The lists on which an owner is: a bit for each class.
#[derive(Debug, Default)]
pub(crate) struct Listed(AtomicU8);

impl Listed {
    pub(crate) fn is_on(&self, class: usize) -> bool {
        self.0.load(Relaxed) & (1 << class) != 0
    }

    /// Whether it was not on the list.
    fn enter(&self, class: usize) -> bool {
        self.0.fetch_or(1 << class, Relaxed) & (1 << class) == 0
    }

    /// Takes an owner off the list, unless it `is_charged` meanwhile. Whether it stays.
    pub(crate) fn leave(&self, class: usize, is_charged: impl Fn() -> bool) -> bool {
        self.0.fetch_and(!(1 << class), Relaxed);
        fence(SeqCst);
        is_charged() && self.enter(class)
    }
}

impl Lists {
    /// The charge of the owner in this slot has risen from nothing.
    pub(crate) fn note(&self, class: usize, slot: Slot, listed: &Listed) {
        // This thread sees that a reader has taken the owner out, or the reader sees the charge.
        fence(SeqCst);
        if !listed.is_on(class) && listed.enter(class) {
            self.0[class].lock().push(slot);
        }
    }

    /// Replaces the list by those of its slots, each once, that `stay` returns.
    pub(crate) fn read<T>(&self, class: usize, stay: impl FnOnce(&[Slot]) -> (Vec<Slot>, T)) -> T {
        let mut list = self.0[class].lock();
        let mut slots = std::mem::take(&mut *list);
        slots.sort();
        slots.dedup();
        let (left, result) = stay(&slots);
        *list = left;
        result
    }

    #[cfg(test)]
    pub(crate) fn len(&self, class: usize) -> usize {
        self.0[class].lock().len()
    }
}
