//! The operation of each thread and its start, so that one which never ends is noticed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Longer than any operation takes while deletions, kills of other processes or a busy machine go
/// on; an operation that waits for space which never comes waits for ever.
pub(crate) const STALL: Duration = Duration::from_secs(300);

pub(crate) struct Watch {
    over: AtomicBool,
    doing: Vec<Mutex<Option<(Instant, String)>>>,
}

impl Watch {
    pub(crate) fn new(threads: usize) -> Watch {
        Watch {
            over: AtomicBool::new(false),
            doing: (0..threads).map(|_| Mutex::default()).collect(),
        }
    }

    pub(crate) fn begin(&self, thread: usize, what: &str) {
        *self.doing[thread].lock().unwrap() = Some((Instant::now(), what.to_owned()));
    }

    pub(crate) fn end(&self, thread: usize) {
        *self.doing[thread].lock().unwrap() = None;
    }

    /// Errors are expected from here on: the daemon is about to be killed.
    pub(crate) fn end_round(&self) {
        self.over.store(true, SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    /// An operation that has gone on for `STALL` at `now`.
    pub(crate) fn stalled(&self, now: Instant) -> Option<String> {
        self.doing.iter().enumerate().find_map(|(thread, doing)| {
            let doing = doing.lock().unwrap();
            let (since, what) = doing.as_ref()?;
            let took = now.saturating_duration_since(*since);
            (took >= STALL)
                .then(|| format!("thread {thread}: {what} has not ended after {took:.0?}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_goes_on_is_found_and_one_that_ended_is_not() {
        let watch = Watch::new(2);
        watch.begin(0, "Fsync");
        watch.begin(1, "Overwrite");
        watch.end(0);
        let now = Instant::now();
        assert_eq!(watch.stalled(now), None);
        let found = watch.stalled(now + STALL).unwrap();
        assert!(found.contains("thread 1: Overwrite"), "{found}");
    }
}
