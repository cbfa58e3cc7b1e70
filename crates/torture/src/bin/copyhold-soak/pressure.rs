//! How full the pool is kept: between 85 and 99 %, from one end to the other and back.
//!
//! PRESSURE-P1  While the pool shrinks, threads only do what frees, or replaces what is there.
//! PRESSURE-P2  A refusal for lack of space turns growth round, however full statfs says the pool
//!              is.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Where growth ends, and where shrinking does, in percent.
const FULL: f64 = 99.0;
const ROOMY: f64 = 86.0;

#[derive(Debug, Default)]
pub(crate) struct Pressure {
    shrinks: AtomicBool,
}

impl Pressure {
    pub(crate) fn shrinks(&self) -> bool {
        self.shrinks.load(Relaxed)
    }

    /// PRESSURE-P2.
    pub(crate) fn refused(&self) {
        self.shrinks.store(true, Relaxed);
    }

    pub(crate) fn note(&self, used_percent: f64) {
        if used_percent >= FULL {
            self.shrinks.store(true, Relaxed);
        } else if used_percent <= ROOMY {
            self.shrinks.store(false, Relaxed);
        }
    }
}

/// Of the pool mounted at `root`, as df(1) counts.
pub(crate) fn used_percent(root: &Path) -> io::Result<f64> {
    let figures = rustix::fs::statvfs(root)?;
    let total = figures.f_blocks.max(1) as f64;
    Ok(100.0 * (1.0 - figures.f_bavail as f64 / total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_from_one_end_to_the_other_and_turns_when_refused() {
        let pressure = Pressure::default();
        let turns = [(90.0, false), (99.0, true), (90.0, true), (86.0, false), (98.9, false)];
        for (used, shrinks) in turns {
            pressure.note(used);
            assert_eq!(pressure.shrinks(), shrinks, "at {used} %");
        }
        pressure.refused();
        assert!(pressure.shrinks());
    }
}
