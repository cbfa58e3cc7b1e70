//! Notes of a front end that caches a file: whether it was opened for writing, and whether content
//! went through the cache.
//!
//! The front end makes the notes. The engine keeps them beside the count of opens, and drops them
//! when the file is no longer open.
//!
//! Problem.  One program that reads a file through the cache, and then no more, must not slow down
//!           another that writes it past the cache for hours.
//! Idea.     A write past the cache drops the written range from it. After some such writes with
//!           nothing through the cache between them, it drops the whole file, once.
//!
//! USES-N1  Content in the cache was noted as cached, or as leaving, before it came there.
//! USES-N2  A note is removed when all that the cache held since it was made leaving is dropped.
//!          Content that came meanwhile was noted again.

/// A set of uses of a file since it was not open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses(u8);

/// The part that a cache drops of a file that was written past it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// There is nothing in it.
    Nothing,
    /// The written range.
    Written,
    /// The whole file; then the front end calls [`crate::Filesystem::cache_dropped`].
    All,
}

/// The known uses of a file, and how many writes have gone past the cache since the last note of
/// something in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notes {
    uses: Uses,
    past: u8,
}

impl Uses {
    /// It was opened for writing.
    pub const WRITER: Uses = Uses(1);
    /// Content was requested, or came, through a cache that may keep it.
    pub const CACHED: Uses = Uses(2);
    /// The cached content is being dropped.
    const LEAVING: Uses = Uses(4);
    /// It was emptied, and nothing was written since (DIRTY-D8): the engine's own note, which stays
    /// when the inode leaves memory.
    pub(crate) const EMPTIED: Uses = Uses(8);

    /// Whether all of `uses` are among them.
    pub fn has(self, uses: Uses) -> bool {
        self.0 & uses.0 == uses.0
    }
}

impl Notes {
    /// Writes past the cache before it drops the whole file.
    const PAST_MAX: u8 = 32;

    pub(crate) fn uses(self) -> Uses {
        self.uses
    }

    pub(crate) fn add(&mut self, more: Uses) {
        self.uses.0 |= more.0;
        if more.has(Uses::CACHED) {
            self.past = 0;
        }
    }

    pub(crate) fn take_back(&mut self, uses: Uses) {
        self.uses.0 &= !uses.0;
    }

    /// A write has gone past the cache.
    pub(crate) fn write_past(&mut self) -> Stale {
        let (cached, leaving) = (self.uses.has(Uses::CACHED), self.uses.has(Uses::LEAVING));
        if !cached && !leaving {
            return Stale::Nothing;
        }
        self.past = self.past.saturating_add(1);
        if leaving || self.past < Notes::PAST_MAX {
            return Stale::Written;
        }
        self.past = 0;
        self.uses.0 ^= Uses::CACHED.0 | Uses::LEAVING.0;
        Stale::All
    }

    /// The cache has dropped the whole file, or could not (USES-N2).
    pub(crate) fn end_leaving(&mut self, dropped: bool) {
        let was_leaving = self.uses.has(Uses::LEAVING);
        self.take_back(Uses::LEAVING);
        if was_leaving && !dropped {
            self.add(Uses::CACHED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(notes: &mut Notes, writes: u8) -> Vec<Stale> {
        (0..writes).map(|_| notes.write_past()).collect()
    }

    #[test]
    fn writes_past_a_cache_that_nothing_goes_through_any_more_cost_nothing() {
        let mut notes = Notes::default();
        assert_eq!(notes.write_past(), Stale::Nothing);
        notes.add(Uses::CACHED);
        let before = past(&mut notes, Notes::PAST_MAX - 1);
        assert!(before.iter().all(|stale| *stale == Stale::Written));
        assert_eq!(notes.write_past(), Stale::All);
        assert_eq!(notes.write_past(), Stale::Written, "while it is being dropped");
        notes.end_leaving(true);
        assert_eq!((notes.write_past(), notes.uses()), (Stale::Nothing, Uses::default()));
    }

    #[test]
    fn what_comes_into_the_cache_while_it_is_being_dropped_stays_noted() {
        let mut notes = Notes::default();
        notes.add(Uses::CACHED);
        past(&mut notes, Notes::PAST_MAX);
        notes.add(Uses::CACHED);
        notes.end_leaving(true);
        assert_eq!(notes.write_past(), Stale::Written);
        past(&mut notes, Notes::PAST_MAX - 1);
        notes.end_leaving(false);
        assert_eq!(notes.write_past(), Stale::Written, "it could not be dropped");
    }
}
