//! Ctrl-C ends a tool, not the clean-up behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{HarnessError, On};

/// Whether a person, or the system, has asked for an end.
#[derive(Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From here on the signals only set a flag.
    pub fn watch() -> Result<Interrupt, HarnessError> {
        let interrupt = Interrupt::never();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.0)).on("signals")?;
        }
        Ok(interrupt)
    }

    /// Without a signal that sets it.
    pub fn never() -> Interrupt {
        Interrupt(Arc::default())
    }

    /// Asks for an end, as a signal does.
    pub fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub fn check(&self) -> Result<(), HarnessError> {
        if self.is_set() { Err(HarnessError::Interrupted) } else { Ok(()) }
    }
}
