//! The executors of a pool's calls, and the end of the pool.
//!
//! ENGINE-E1  A call keeps the pool open as long as it lasts: the end waits for calls, and those
//!            that come later answer [`FsError::ShutDown`].
//! ENGINE-E2  Behind the end nothing is left of the pool: the device is closed and unlocked, and
//!            executors that were started for this pool alone are shut down, with their threads and
//!            descriptors.

use std::sync::Arc;

use copyhold_fs::{Filesystem, FsError};
use copyhold_runtime::executors::Executors;
use copyhold_sync::{RwLock, of};

use crate::Error;

pub(crate) struct Engine {
    /// None behind the end. Held by each call (ENGINE-E1).
    open: RwLock<Option<Open>, of::OpenPool>,
}

/// An open pool, and its executors.
pub(crate) struct Open {
    pub(crate) executors: Arc<Executors>,
    pub(crate) filesystem: Arc<Filesystem>,
    /// The executors have no other user.
    pub(crate) is_alone: bool,
}

impl Engine {
    pub(crate) fn new(open: Open) -> Arc<Engine> {
        Arc::new(Engine { open: RwLock::new(Some(open)) })
    }

    /// Runs `work` on the filesystem, if it is still open.
    pub(crate) fn run<T>(
        &self,
        work: impl AsyncFnOnce(&Arc<Filesystem>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let open = self.open.read();
        let open = open.as_ref().ok_or(FsError::ShutDown)?;
        open.executors.block_on(work(&open.filesystem))
    }

    /// Waits for calls under way (ENGINE-E1). None, if it has ended before.
    pub(crate) fn take(&self) -> Option<Open> {
        self.open.write().take()
    }
}

/// ENGINE-E2.
impl Drop for Open {
    fn drop(&mut self) {
        if self.is_alone {
            self.executors.shutdown();
        } else {
            self.executors.block_on(self.filesystem.pool().abandon());
        }
        self.filesystem.pool().device().release();
    }
}
