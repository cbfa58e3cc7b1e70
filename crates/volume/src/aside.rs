//! Pending releases that are set aside: a node that they need cannot be read, or records contradict
//! each other.
//!
//! Such a release stays in the table of pending releases. A table cannot distinguish a transient
//! read error from lasting damage. So all of them are retried after a pause, and the pause doubles
//! each time a retry fails. Numbers of pending releases grow, and are taken up in that order; so
//! one number for each holder says which of its releases were tried.
//!
//! RETRY-A1  A release that is set aside is retried when the pause is over, or when its holder
//!           takes the place of its parent, because it then needs other deadlists.
//! RETRY-A2  For each holder, the log reports the first failure of a mount.
//! RETRY-A3  Pauses double from [`PAUSE`] to [`PAUSE_MAX`] while retries fail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use copyhold_format::item::{PENDING, pending_key};
use copyhold_types::{EpochId, Key, Nanos};

/// First pause before a retry, and the longest: 11 minutes.
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(10 << 6);

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

/// The time of the next retry.
#[derive(Debug, Default)]
struct Pause {
    /// `None`: nothing has failed since the last retry.
    ends: Option<Nanos>,
    /// The first failure since the last retry.
    began: Nanos,
    /// The end of the last pause.
    ended: Nanos,
    /// The length of the last pause.
    length: Duration,
}

impl Pause {
    fn begin(&mut self, now: Nanos) {
        if self.ends.is_some() {
            // A pass over all failures may take a while, and does not begin within itself; but new
            // failures do not postpone the retry for ever.
            let latest = self.began + 2 * nanos(self.length);
            self.ends = Some(latest.min(now + nanos(self.length)));
            return;
        }
        // A failure within twice the last pause counts as a failed retry.
        let retry_failed = now < self.ended + 2 * nanos(self.length);
        let length = if retry_failed { self.length * 2 } else { PAUSE };
        self.length = length.clamp(PAUSE, PAUSE_MAX);
        self.ends = Some(now + nanos(self.length));
        self.began = now;
    }

    /// Ends the pause if it is over. True for the first caller only.
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
    /// Something failed that is to be retried.
    pub(crate) fn note_failure(&mut self, now: Nanos) {
        self.pause.begin(now);
    }

    /// Whether everything is to be retried now. Then nothing is aside any more.
    pub(crate) fn take_retry(&mut self, now: Nanos) -> bool {
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
            tries += usize::from(aside.take_retry(now));
            aside.set(pending_key(EpochId(3), 5), now);
        }
        tries
    }

    #[test]
    fn pauses_double_while_retries_fail_and_begin_anew_after_a_success() {
        let day = Duration::from_secs(86400);
        let mut aside = Aside::default();
        // With a failure each second all pauses are twice as long: 6 of 20 to 640 seconds, then 66
        // of 1,280.
        assert_eq!(tries(&mut aside, Duration::ZERO, day), 6 + 66);
        assert!(aside.has(EpochId(3)));
        assert!(aside.take_retry(nanos(2 * day)));
        assert!(!aside.has(EpochId(3)) && !aside.take_retry(nanos(3 * day)), "once");
        assert!(!aside.set(pending_key(EpochId(3), 5), nanos(3 * day)), "it is named already");
        assert!(aside.take_retry(nanos(3 * day + PAUSE)));
    }
}
