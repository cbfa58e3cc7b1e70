//! Pending releases that are set aside: a node that they need cannot be read, or records contradict
//! each other.
//!
//! They stay in the table of pending releases. A read error may pass, and looks to a table like
//! damage that does not; so all are tried again later, and where that fails twice as late again.
//! Numbers of pending releases grow, and are taken up in that order; so one number for each holder
//! says which of its releases were tried.
//!
//! RETRY-A1  A release that is set aside is not tried again until a pause is over, or its holder
//!           takes the place of its parent: the deadlists that it needs are others then.
//! RETRY-A2  The log names the first failure of each holder of a mount.
//! RETRY-A3  Of an error that lasts, the tries become ever fewer: each pause is twice the one
//!           before, up to [`PAUSE_MAX`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use copyhold_format::item::{PENDING, pending_key};
use copyhold_types::{EpochId, Key, Nanos};

/// Before the first further try; each that fails is followed by a pause of twice the length.
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(10 << 9);

#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// The last number that was tried of each holder that has releases aside.
    tried: BTreeMap<EpochId, u64>,
    /// A node of the table of pending releases cannot be read.
    is_partly_unreadable: bool,
    /// Holders that the log has named.
    named: BTreeSet<EpochId>,
    pause: Pause,
}

/// When all is tried again.
#[derive(Debug, Default)]
struct Pause {
    /// `None`: nothing has failed since the last try.
    ends: Option<Nanos>,
    /// When it ended last, and how long it was.
    ended: Nanos,
    length: Duration,
}

impl Pause {
    fn begin(&mut self, now: Nanos) {
        if self.ends.is_some() {
            return;
        }
        let is_same_error = now < self.ended + 2 * nanos(self.length);
        let length = if is_same_error { self.length * 2 } else { PAUSE };
        self.length = length.clamp(PAUSE, PAUSE_MAX);
        self.ends = Some(now + nanos(self.length));
    }

    /// Whether it is over, for the first who asks.
    fn end(&mut self, now: Nanos) -> bool {
        let is_over = self.ends.is_some_and(|ends| ends <= now);
        if is_over {
            self.ends = None;
            self.ended = now;
        }
        is_over
    }
}

fn nanos(duration: Duration) -> Nanos {
    duration.as_nanos() as Nanos
}

impl Aside {
    /// Something failed that may be tried again.
    pub(crate) fn note_failure(&mut self, now: Nanos) {
        self.pause.begin(now);
    }

    /// Whether everything is to be tried again now. Then nothing is aside any more.
    pub(crate) fn try_again(&mut self, now: Nanos) -> bool {
        let is_due = self.pause.end(now);
        if is_due {
            self.tried.clear();
            self.is_partly_unreadable = false;
        }
        is_due
    }

    /// Sets aside the release under this key; those of its holder before it were tried. Whether its
    /// holder is to be named.
    pub(crate) fn set(&mut self, key: Key, now: Nanos) -> bool {
        self.note_failure(now);
        self.tried.insert(EpochId(key.object), key.offset);
        self.named.insert(EpochId(key.object))
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

    pub(crate) fn set_partly_unreadable(&mut self, now: Nanos) {
        self.note_failure(now);
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
        assert!(aside.set(pending_key(three, 5), 0), "the first of its holder");
        assert!(!aside.set(pending_key(three, 8), 0));
        assert!(aside.set(pending_key(seven, u64::MAX), 0));
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

    /// How often it is tried until then, when each try fails.
    fn tries(aside: &mut Aside, from: Duration, until: Duration) -> usize {
        let mut tries = 0;
        for second in from.as_secs()..until.as_secs() {
            let now = nanos(Duration::from_secs(second));
            tries += usize::from(aside.try_again(now));
            aside.set(pending_key(EpochId(3), 5), now);
        }
        tries
    }

    #[test]
    fn an_error_that_lasts_is_looked_at_ever_less_and_the_next_one_as_soon_as_the_first() {
        let day = Duration::from_secs(86400);
        let mut aside = Aside::default();
        assert_eq!(tries(&mut aside, Duration::ZERO, day), 9 + 15);
        assert!(aside.has(EpochId(3)));
        assert!(aside.try_again(nanos(2 * day)));
        assert!(!aside.has(EpochId(3)) && !aside.try_again(nanos(3 * day)), "once");
        assert!(!aside.set(pending_key(EpochId(3), 5), nanos(3 * day)), "it is named already");
        assert!(aside.try_again(nanos(3 * day + PAUSE)));
    }
}
