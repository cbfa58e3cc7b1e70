//! Ctrl-C ends the suite, not the cleaning up behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{On, SuiteError};

/// Whether a person, or the system, wants an end.
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From here on the signals only set a flag.
    pub(crate) fn watch() -> Result<Interrupt, SuiteError> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag)).on("signals")?;
        }
        Ok(Interrupt(flag))
    }

    pub(crate) fn check(&self) -> Result<(), SuiteError> {
        if self.0.load(Relaxed) { Err(SuiteError::Interrupted) } else { Ok(()) }
    }

    #[cfg(test)]
    pub(crate) fn never() -> Interrupt {
        Interrupt(Arc::default())
    }
}
