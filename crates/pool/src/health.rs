//! Whether the pool may still write.
//!
//! A failed flush, or a failed write of the log, is final for this mount (rule R12): acknowledged
//! data may be lost, and no later success disproves that. From then on every operation that would
//! write returns [`PoolError::Stopped`]; reads continue.
//!
//! HEALTH-H1  One flush at a time. If two overlapped, the failure of one could lose data that the
//!            success of the other then acknowledges; so each begins when the one before is known
//!            to have succeeded.

use std::sync::OnceLock;

use copyhold_runtime::FifoMutex;

use crate::PoolError;
use crate::devices::Devices;

#[derive(Debug, Default)]
pub(crate) struct Health {
    stopped: OnceLock<String>,
    flushing: FifoMutex,
}

impl Health {
    /// The first reason stays.
    pub(crate) fn stop(&self, why: &str) {
        if self.stopped.set(why.to_owned()).is_ok() {
            tracing::error!("the pool stops writing: {why}");
        }
    }

    /// An end that nothing is wrong with.
    pub(crate) fn close(&self) {
        let _stopped_before = self.stopped.set("it is closed".into());
    }

    /// Flushes all devices (HEALTH-H1). `again`: a failed flush is tried again and trusted, which
    /// breaks rule R12.
    pub(crate) async fn flush(&self, devices: &Devices, again: bool) -> Result<(), PoolError> {
        let _one = self.flushing.lock().await;
        self.check()?;
        let mut flushed = devices.flush().await;
        if again && flushed.is_err() {
            flushed = devices.flush().await;
        }
        flushed.map_err(|error| {
            self.stop(&error.to_string());
            PoolError::Device(error)
        })
    }

    pub(crate) fn check(&self) -> Result<(), PoolError> {
        match self.stopped.get() {
            None => Ok(()),
            Some(why) => Err(PoolError::Stopped { why: why.clone() }),
        }
    }
}
