//! Lists of owners by class, and the marks of those that are on them. `users` has the theory.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU16, AtomicU64, fence};

use copyhold_sync::{Mutex, of};

use crate::place::Slot;

/// As many as `Listed` has bits.
pub(crate) const LISTS: usize = u16::BITS as usize;

/// One for each class of memory, and one for all (`owner`).
#[derive(Debug, Default)]
pub(crate) struct Lists {
    lists: [Mutex<List, of::MemoryUsers>; LISTS],
    /// Owners that readers found on lists, or above these, so far.
    looks: AtomicU64,
}

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

/// The lists on which an owner is: a bit for each.
#[derive(Debug, Default)]
pub(crate) struct Listed(AtomicU16);

impl Listed {
    pub(crate) fn is_on(&self, list: usize) -> bool {
        self.0.load(Relaxed) & (1 << list) != 0
    }

    /// Whether it was not on the list.
    fn enter(&self, list: usize) -> bool {
        self.0.fetch_or(1 << list, Relaxed) & (1 << list) == 0
    }

    /// Whether an owner whose charge has risen from nothing is on these lists.
    pub(crate) fn is_on_each(&self, lists: &[usize]) -> bool {
        // This thread sees that a reader has taken the owner out, or the reader sees the charge.
        fence(SeqCst);
        lists.iter().all(|list| self.is_on(*list))
    }

    /// Takes an owner off the list, unless it `is_charged` meanwhile. Whether it stays.
    pub(crate) fn leave(&self, list: usize, is_charged: impl Fn() -> bool) -> bool {
        self.0.fetch_and(!(1 << list), Relaxed);
        fence(SeqCst);
        is_charged() && self.enter(list)
    }
}

impl Lists {
    /// The owner in this slot is to be on a list.
    pub(crate) fn enter(&self, list: usize, slot: Slot, listed: &Listed) {
        if listed.enter(list) {
            let list = &mut *self.lists[list].lock();
            list.slots.push(slot);
            if list.slots.len() > 2 * list.distinct + 64 {
                list.compact();
            }
        }
    }

    /// Replaces the list by those of its slots, each once, that `stay` returns.
    pub(crate) fn read<T>(&self, list: usize, stay: impl FnOnce(&[Slot]) -> (Vec<Slot>, T)) -> T {
        let list = &mut *self.lists[list].lock();
        list.compact();
        let (left, result) = stay(&list.slots);
        (list.distinct, list.slots) = (left.len(), left);
        result
    }

    pub(crate) fn looked_at(&self, owners: usize) {
        self.looks.fetch_add(owners as u64, Relaxed);
    }

    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn len(&self, list: usize) -> usize {
        self.lists[list].lock().slots.len()
    }
}
