//! Pins: the readers of each txg (rule R3).
//!
//! A reader takes a pin before it looks anything up and drops it when it is done with the device.
//! Blocks freed in the pinned txg or later are not allocatable until then, so a slow read can
//! neither return another tenant's bytes nor repair them away.

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_sync::{Mutex, of};
use copyhold_types::Txg;

#[derive(Clone, Debug, Default)]
pub(crate) struct Pins {
    held: Arc<Mutex<BTreeMap<Txg, usize>, of::Pins>>,
}

/// While held, nothing that was referenced when it was taken is reused.
#[derive(Debug)]
#[must_use]
pub struct Pin {
    txg: Txg,
    held: Arc<Mutex<BTreeMap<Txg, usize>, of::Pins>>,
}

impl Pins {
    /// `open`: the txg that is open now, or was a moment ago.
    pub(crate) fn pin(&self, open: Txg) -> Pin {
        *self.held.lock().entry(open).or_default() += 1;
        Pin { txg: open, held: self.held.clone() }
    }

    /// One more pin of the oldest pinned txg; `None`, if there is no pin.
    pub(crate) fn pin_oldest(&self) -> Option<Pin> {
        let mut held = self.held.lock();
        let (txg, count) = held.iter_mut().next()?;
        *count += 1;
        Some(Pin { txg: *txg, held: self.held.clone() })
    }

    /// The oldest txg that is pinned.
    pub(crate) fn oldest(&self) -> Option<Txg> {
        self.held.lock().keys().next().copied()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        let count = held.get_mut(&self.txg).expect("a pin is counted until it is dropped");
        *count -= 1;
        if *count == 0 {
            held.remove(&self.txg);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_pin_counts_until_its_last_holder_is_gone() {
        let pins = Pins::default();
        let (two, three) = (Txg::FIRST.plus(1), Txg::FIRST.plus(2));
        let (a, b, c) = (pins.pin(two), pins.pin(two), pins.pin(three));
        assert_eq!(pins.oldest(), Some(two));
        drop(a);
        assert_eq!(pins.oldest(), Some(two));
        drop(b);
        assert_eq!(pins.oldest(), Some(three));
        drop(c);
        assert_eq!(pins.oldest(), None);
    }
}
