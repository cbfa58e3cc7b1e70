//! Writes that wait until the host of a sparse pool file has space again (R32).
//!
//! While there is one, freed space may stay out of reach: a flush that waits for the host keeps the
//! log full, and the commits that would give the space back wait for the flush. A caller that needs
//! this space waits for the host, too, and is not refused (R22).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many writes wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostWaits(Arc<AtomicU64>);

/// One of them.
pub(crate) struct HostWait(Arc<AtomicU64>);

impl HostWaits {
    pub(crate) fn begin(&self) -> HostWait {
        self.0.fetch_add(1, Relaxed);
        HostWait(self.0.clone())
    }

    pub(crate) fn are_any(&self) -> bool {
        self.0.load(Relaxed) > 0
    }
}

impl Drop for HostWait {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
