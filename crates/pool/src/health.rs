//! Whether the pool may still write.
//!
//! A failed flush, or a failed write of the log, is final for this incarnation (rule R12): what was
//! acknowledged may not be there, and no later success says otherwise. From then on every
//! operation that would write answers [`PoolError::Stopped`]; reading goes on.

use std::sync::OnceLock;

use crate::PoolError;

#[derive(Debug, Default)]
pub(crate) struct Health {
    stopped: OnceLock<String>,
}

impl Health {
    /// The first reason stays.
    pub(crate) fn stop(&self, why: &str) {
        if self.stopped.set(why.to_owned()).is_ok() {
            tracing::error!("the pool stops writing: {why}");
        }
    }

    pub(crate) fn check(&self) -> Result<(), PoolError> {
        match self.stopped.get() {
            None => Ok(()),
            Some(why) => Err(PoolError::Stopped { why: why.clone() }),
        }
    }
}
