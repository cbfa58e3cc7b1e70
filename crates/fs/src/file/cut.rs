//! Extents in a file's table that do not count: behind a cut, or behind the logged size.
//!
//! A truncation only notes where the file was cut; the extents behind it leave the table with the
//! next installation, or, if they are many, in steps. So that no crash brings them back, a TRUNCATE
//! item announces the extents still to be removed.
//!
//! CUT-D5  From the first whole block behind the cut on, extents in the table belong to no content
//!         (R35). Its last transaction is not refused for space (DIRTY-D10). While it
//!         `wants_steps` before, nothing is accepted for the file: steps may be refused, and data
//!         already accepted may not.
//! CUT-D6  Blocks that are logged behind the logged size are announced as a cut: after a crash they
//!         belong to no content, and must not show when the file grows (R36).

use copyhold_types::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

#[derive(Default)]
pub(crate) struct Cut {
    size: Option<u64>,
    /// Extents from the cut up to this block are removed already.
    removed_to: u64,
    announced: bool,
    /// There may be more to remove than one transaction can.
    wants_steps: bool,
    /// Where the blocks end that were logged behind the logged size, and the block from which on a
    /// TRUNCATE item announces them (CUT-D6).
    ahead: u64,
    ahead_announced: Option<u64>,
}

impl Cut {
    pub(super) const NOTHING: Cut = Cut {
        size: None,
        removed_to: 0,
        announced: false,
        wants_steps: false,
        ahead: 0,
        ahead_announced: None,
    };

    pub(super) fn is_nothing(&self) -> bool {
        !self.is_pending() && self.ahead == 0 && self.ahead_announced.is_none()
    }

    /// Something is to be removed, or it is announced that it was.
    pub(super) fn is_pending(&self) -> bool {
        self.size.is_some() || self.announced
    }

    /// Where the file was cut.
    pub(crate) fn size(&self) -> Option<u64> {
        self.size
    }

    /// A TRUNCATE item announces the removal.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced
    }

    pub(crate) fn wants_steps(&self) -> bool {
        self.size.is_some() && self.wants_steps
    }

    /// One transaction removes the rest.
    pub(crate) fn wants_no_steps(&mut self) {
        self.wants_steps = false;
    }

    /// First block of which the table knows nothing that counts (CUT-D5).
    pub(crate) fn block(&self) -> u64 {
        self.size.map_or(u64::MAX, |size| size.div_ceil(BLOCK))
    }

    /// The position at which the removal in steps continues.
    pub(crate) fn from(&self) -> u64 {
        self.block().max(self.removed_to)
    }

    /// The file is cut to `size`: of several cuts the lowest counts.
    pub(super) fn lower(&mut self, size: u64) {
        if self.size.is_none_or(|cut| size < cut) {
            self.size = Some(size);
            self.removed_to = 0;
            self.wants_steps = true;
        }
    }

    /// Takes up a cut that an earlier use of the pool has announced.
    pub(crate) fn resume(&mut self, size: u64) {
        self.size = Some(size);
        self.announced = true;
        self.wants_steps = true;
    }

    /// A step has removed the extents before `block`, and announced the rest.
    pub(crate) fn is_removed_to(&mut self, block: u64) {
        self.removed_to = block;
        self.announced = true;
        self.ahead_announced = None;
    }

    /// All of it goes with the transaction being logged, and so do the blocks ahead.
    pub(crate) fn goes(&mut self) {
        self.ahead = 0;
        if self.announced {
            self.ahead_announced = None;
        }
    }

    pub(super) fn is_logged(&mut self) {
        self.size = None;
        self.removed_to = 0;
        self.announced = false;
        self.wants_steps = false;
    }

    /// The new content of a TRUNCATE item now that `blocks` are logged together with `size`, if it
    /// is news: from which block on there is nothing, or that there is none (CUT-D6).
    pub(crate) fn announce(&mut self, size: u64, blocks: &[u64]) -> Option<Option<u64>> {
        let end = blocks.last().map_or(0, |last| (last + 1) * BLOCK);
        let first = size.div_ceil(BLOCK);
        let ahead = self.ahead.max(end);
        self.ahead = if ahead > first * BLOCK { ahead } else { 0 };
        let wanted = (self.ahead > 0).then_some(first);
        let was = std::mem::replace(&mut self.ahead_announced, wanted);
        (was != wanted).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_cuts_the_lowest_counts_and_is_removed_from_its_beginning() {
        let mut cut = Cut::default();
        assert_eq!((cut.block(), cut.is_nothing()), (u64::MAX, true));
        cut.lower(10 * BLOCK + 1);
        cut.is_removed_to(20);
        assert_eq!((cut.block(), cut.from(), cut.is_announced()), (11, 20, true));
        cut.lower(12 * BLOCK);
        assert_eq!(cut.from(), 20, "a higher one says nothing new");
        cut.lower(3 * BLOCK);
        assert_eq!((cut.block(), cut.from()), (3, 3));
        cut.is_logged();
        assert!(cut.is_nothing());
    }

    #[test]
    fn what_is_ahead_of_the_size_is_announced_once_and_taken_back() {
        let mut cut = Cut::default();
        assert_eq!(cut.announce(BLOCK, &[0]), None);
        assert_eq!(cut.announce(BLOCK, &[4]), Some(Some(1)));
        assert_eq!(cut.announce(BLOCK, &[2]), None, "as far as before");
        assert_eq!(cut.announce(5 * BLOCK, &[3]), Some(None), "the size has reached it");
        assert!(cut.is_nothing());
    }
}
