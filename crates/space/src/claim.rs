//! Claims: runs that are taken, but that no transaction has logged yet (R19).

use std::fmt;
use std::sync::Arc;

use copyhold_types::{Run, Txg};
use smallvec::SmallVec;

use crate::budget::Reservation;
use crate::layout::Piece;
use crate::space::Shared;

/// The claims of one call, nearly always one.
pub type Claims = SmallVec<[Claim; 2]>;

/// A free run that is taken; [`Space::log_alloc`](crate::Space::log_alloc) makes it an allocation,
/// dropping it frees the run. So does a crash: nothing of it is on disk. A run that is written
/// ([`Self::note_written`]) becomes free later.
#[must_use = "dropping a claim gives it back"]
pub struct Claim {
    /// `None` once it is logged.
    shared: Option<Arc<Shared>>,
    run: Run,
    piece: Piece,
    written: Option<Txg>,
}

impl Claim {
    pub(crate) fn new(shared: &Arc<Shared>, metaslab: usize, first: u32, blocks: u32) -> Claim {
        let run = shared.metaslabs[metaslab].run(first, blocks);
        let piece = Piece { metaslab, first, blocks };
        Claim { shared: Some(Arc::clone(shared)), run, piece, written: None }
    }

    pub fn run(&self) -> Run {
        self.run
    }

    /// Dropped from here on, the run is allocatable like the frees of `txg`, so no txg up to it
    /// writes the run again.
    pub fn note_written(&mut self, txg: Txg) {
        self.written = Some(txg);
    }

    /// Cuts the claim in two; the first keeps `blocks` blocks, both are non-empty.
    pub fn split(mut self, blocks: u32) -> (Claim, Claim) {
        let rest = self.run.blocks - blocks;
        let shared = self.shared.take().expect("a claim that is still held");
        let first = self.piece.first;
        let cut = |first, blocks| {
            let mut part = Claim::new(&shared, self.piece.metaslab, first, blocks);
            part.written = self.written;
            part
        };
        (cut(first, blocks), cut(first + blocks, rest))
    }

    /// Frees the run at once and keeps its blocks reserved, in `to`.
    pub fn cancel_into(mut self, to: &mut Reservation) {
        if let Some(shared) = self.shared.take() {
            shared.unclaim(self.piece);
            to.put(self.run.blocks.into());
        }
    }

    /// Releases the run, as dropping does.
    pub fn cancel(self) {}

    /// The claim is an allocation from now on.
    pub(crate) fn settle(mut self) -> Piece {
        self.shared = None;
        self.piece
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let Piece { metaslab, first, blocks } = self.piece;
        match self.written {
            Some(txg) => {
                // First the figures: the run may be released as soon as it is deferred.
                shared.budget.defer(blocks.into());
                shared.metaslabs[metaslab].defer(txg, first, blocks);
            }
            None => {
                shared.unclaim(self.piece);
                shared.budget.unreserve(u64::from(blocks));
            }
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?})", self.run)
    }
}
