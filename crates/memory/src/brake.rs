//! Pauses between walks of reclaim.
//!
//! BRAKE-B1  A walk in vain is not repeated before objects of as many bytes came as a walk frees,
//!           and [`LOOK_BYTES`] for each list that it looked at but one; or a limit has changed.
//! BRAKE-B2  A walk frees a batch ([`batch`]). So each object pays for a few looks only, however
//!           many lists or groups there are.

use crate::drawn::LOOK_BYTES;
use crate::owner::Memory;

/// A batch is one in so many bytes of the lists;
const PART: u64 = 64;
/// but so many bytes at least, or one in so many.
const LEAST: (u64, u64) = (128 << 10, 16);

/// The bytes to free at once of so many bytes in so many lists.
pub(crate) fn batch(bytes: u64, lists: usize) -> u64 {
    let (least, part) = LEAST;
    (bytes / PART).max(least).max(lists as u64 * LOOK_BYTES).min(bytes / part)
}

/// The pause after a walk in vain.
#[derive(Debug)]
pub struct Brake {
    /// Bytes of objects that come before the pause ends.
    left: u64,
    /// Changes of limits when it began.
    changes: u64,
}

impl Brake {
    /// After a walk over so many lists with so many bytes.
    pub(crate) fn new(memory: &Memory, bytes: u64, lists: usize) -> Brake {
        let left = batch(bytes, lists).max((lists as u64).saturating_sub(1) * LOOK_BYTES);
        Brake { left, changes: memory.changes() }
    }

    /// Whether the pause goes on when an object of so many bytes comes.
    pub(crate) fn holds(&self, memory: &Memory, bytes: u64) -> bool {
        self.left > bytes && self.changes == memory.changes()
    }

    /// An object of so many bytes came during the pause.
    pub(crate) fn count(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }
}
