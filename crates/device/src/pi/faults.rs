//! Faults of an emulated drive, and of the way between it and the host.
//!
//! The device below has faults of its own, which hit data or entries; a test damages both there to
//! make an old block, or a zeroed one. These are the faults that it cannot have: of a drive that
//! handles both halves alike, and of bytes on the way.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use copyhold_sync::{Mutex, of};
use copyhold_types::{Buf, Purpose};

use crate::Access;

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveFault {
    /// A bit of the data flips before the drive checks or makes the tuple of a write.
    FlipToDrive,
    /// A bit of the data flips after the drive has checked a read.
    FlipToHost,
    /// The drive acknowledges a write and stores neither half.
    LoseWrite,
    /// The drive stores both halves of a write at another block.
    MisdirectWrite { to: u64 },
    /// The drive reads both halves of another block.
    MisdirectRead { from: u64 },
    /// The drive reports the success of checks that it has not made at a read.
    SkipChecks,
}

impl DriveFault {
    fn access(self) -> Access {
        use DriveFault::*;
        match self {
            FlipToDrive | LoseWrite | MisdirectWrite { .. } => Access::Write,
            FlipToHost | MisdirectRead { .. } | SkipChecks => Access::Read,
        }
    }
}

/// Faults that wait for their request.
#[derive(Default)]
pub(super) struct Faults {
    /// Whether there are any: all that a request costs without them.
    any: AtomicBool,
    armed: Mutex<Vec<Armed>, of::DriveFaults>,
}

struct Armed {
    why: Purpose,
    /// Requests before the one that it hits.
    left: u64,
    fault: DriveFault,
}

impl Faults {
    /// Hits the `nth` request (from 0) with this purpose, in the direction of the fault.
    pub(super) fn arm(&self, why: Purpose, nth: u64, fault: DriveFault) {
        self.armed.lock().push(Armed { why, left: nth, fault });
        self.any.store(true, Relaxed);
    }

    /// Counts a request; the fault that it meets, if any.
    pub(super) fn trip(&self, why: Purpose, access: Access) -> Option<DriveFault> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let mut armed = self.armed.lock();
        let matching = |one: &Armed| one.why == why && one.fault.access() == access;
        let mut hit = None;
        for (at, one) in armed.iter_mut().enumerate().filter(|(_, one)| matching(one)) {
            match one.left.checked_sub(1) {
                Some(left) => one.left = left,
                None => hit = hit.or(Some(at)),
            }
        }
        let fault = hit.map(|at| armed.remove(at).fault);
        self.any.store(!armed.is_empty(), Relaxed);
        fault
    }
}

/// Flips a bit of the first block.
pub(super) fn flip(data: &mut [Buf]) {
    if let Some(byte) = data.first_mut().and_then(|buf| buf.make_mut().first_mut()) {
        *byte ^= 1;
    }
}
