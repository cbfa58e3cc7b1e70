//! Lists of owners by class, and the marks of those that are on them. `users` has the theory.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, fence};

use copyhold_sync::{Mutex, of};

use crate::place::Slot;

/// One for each class of memory: as many as [`Listed`] has bits.
#[derive(Debug, Default)]
pub(crate) struct Lists([Mutex<List, of::MemoryUsers>; u8::BITS as usize]);

#[derive(Debug, Default)]
struct List {
    /// More than once, if owners that had the slot one after the other were on the list.
    slots: Vec<Slot>,
    /// How many there were when each was on the list once.
    distinct: usize,
}

impl List {
    fn compact(&mut self) {
        self.slots.sort_unstable();
        self.slots.dedup();
        self.distinct = self.slots.len();
    }
}

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
            let list = &mut *self.0[class].lock();
            list.slots.push(slot);
            if list.slots.len() > 2 * list.distinct + 64 {
                list.compact();
            }
        }
    }

    /// Replaces the list by those of its slots, each once, that `stay` returns.
    pub(crate) fn read<T>(&self, class: usize, stay: impl FnOnce(&[Slot]) -> (Vec<Slot>, T)) -> T {
        let list = &mut *self.0[class].lock();
        list.compact();
        let (left, result) = stay(&list.slots);
        (list.distinct, list.slots) = (left.len(), left);
        result
    }

    #[cfg(test)]
    pub(crate) fn len(&self, class: usize) -> usize {
        self.0[class].lock().slots.len()
    }
}
