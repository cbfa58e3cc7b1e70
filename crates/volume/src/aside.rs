//! Pending releases that are set aside: a node that they need cannot be read, or records contradict
//! each other.
//!
//! They stay in the table of pending releases, and the next mount tries them again. Numbers of
//! pending releases grow, and are taken up in that order; so one number for each holder says which
//! of its releases were tried.
//!
//! A1  A release that is set aside is not tried again before the next mount, or until its holder
//!     takes the place of its parent: the deadlists that it needs are others then.
//! A2  The log names the first failure of each holder.

use std::collections::BTreeMap;

use copyhold_format::item::{PENDING, pending_key};
use copyhold_types::{EpochId, Key};

#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// The last number that was tried of each holder that has releases aside.
    tried: BTreeMap<EpochId, u64>,
    /// A node of the table of pending releases cannot be read.
    is_partly_unreadable: bool,
}

impl Aside {
    /// Sets aside the release under this key; those of its holder before it were tried. Whether it
    /// is the first of its holder.
    pub(crate) fn set(&mut self, key: Key) -> bool {
        self.tried.insert(EpochId(key.object), key.offset).is_none()
    }

    /// Whether releases of this holder are aside.
    pub(crate) fn has(&self, holder: EpochId) -> bool {
        self.tried.contains_key(&holder)
    }

    /// All releases of this holder are tried again.
    pub(crate) fn forget(&mut self, holder: EpochId) {
        self.tried.remove(&holder);
    }

    pub(crate) fn is_partly_unreadable(&self) -> bool {
        self.is_partly_unreadable
    }

    pub(crate) fn set_partly_unreadable(&mut self) {
        self.is_partly_unreadable = true;
    }

    /// Where releases lie that are not aside: from each first key up to the second.
    pub(crate) fn others(&self) -> Vec<(Key, Key)> {
        let mut from = Key::MIN;
        let mut others = Vec::with_capacity(self.tried.len() + 1);
        for holder in self.tried.keys() {
            others.push((from, pending_key(*holder, 0)));
            from = self.rest_of(*holder).0;
        }
        others.push((from, Key::MAX));
        others
    }

    /// Where those of one holder lie.
    pub(crate) fn rest_of(&self, holder: EpochId) -> (Key, Key) {
        let end = pending_key(holder, u64::MAX);
        let from = match self.tried.get(&holder) {
            None => pending_key(holder, 0),
            Some(tried) => Key::new(holder.0, PENDING, tried.saturating_add(1)),
        };
        (from, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_behind_those_that_are_aside_are_looked_at() {
        let mut aside = Aside::default();
        let [three, seven] = [EpochId(3), EpochId(7)];
        assert!(aside.set(pending_key(three, 5)), "the first of its holder");
        assert!(!aside.set(pending_key(three, 8)));
        assert!(aside.set(pending_key(seven, u64::MAX)));
        let others = aside.others();
        let is_looked_at = |key: Key| others.iter().any(|(from, to)| *from <= key && key < *to);
        let looked_at = [(2, 1), (3, 9), (4, 0), (6, 1), (8, 0)];
        assert!(looked_at.iter().all(|(of, n)| is_looked_at(pending_key(EpochId(*of), *n))));
        let aside_now = [(3, 0), (3, 5), (3, 8), (7, 0), (7, 9)];
        assert!(!aside_now.iter().any(|(of, n)| is_looked_at(pending_key(EpochId(*of), *n))));
        aside.forget(three);
        assert!(!aside.has(three) && aside.has(seven));
        assert_eq!(aside.rest_of(three).0, pending_key(three, 0));
        assert_eq!(aside.rest_of(seven).0, aside.rest_of(seven).1, "none");
    }
}
