//! The requests at the device that all calls which read ahead share (AHEAD-A3).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Enough for a fast device.
const REQUESTS: usize = 32;

/// The requests that are under way.
#[derive(Debug, Default)]
pub(crate) struct Requests(AtomicUsize);

/// Requests that a call may have under way, until it is dropped.
pub(crate) struct Granted<'a> {
    of: &'a Requests,
    pub(crate) count: usize,
}

impl Requests {
    pub(crate) fn grant(&self) -> Option<Granted<'_>> {
        let mut count = 0;
        let grant = |used: usize| {
            count = (REQUESTS - used).min(REQUESTS / 2);
            (count > 0).then_some(used + count)
        };
        self.0.fetch_update(Relaxed, Relaxed, grant).ok()?;
        Some(Granted { of: self, count })
    }
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.count, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AHEAD-A3.
    #[test]
    fn calls_share_the_requests() {
        let requests = Requests::default();
        let (first, second) = (requests.grant(), requests.grant());
        let counts = [&first, &second].map(|of| of.as_ref().map(|of| of.count));
        assert_eq!(counts, [Some(REQUESTS / 2); 2]);
        assert!(requests.grant().is_none());
        drop(first);
        assert_eq!(requests.grant().map(|of| of.count), Some(REQUESTS / 2));
        drop(second);
        assert_eq!(requests.0.load(Relaxed), 0);
    }
}
