//! Notes of a front end that caches a file: whether it was opened for writing, and whether content
//! went through the cache.
//!
//! The front end makes the notes. The engine keeps them beside the count of opens, and drops them
//! when the file is no longer open.

/// A set of uses of a file since it was not open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses(u8);

impl Uses {
    /// It was opened for writing.
    pub const WRITER: Uses = Uses(1);
    /// Content was asked for, or came, through a cache that may keep it.
    pub const CACHED: Uses = Uses(2);

    pub(crate) fn add(&mut self, more: Uses) {
        self.0 |= more.0;
    }

    /// Whether all of `uses` are among them.
    pub fn has(self, uses: Uses) -> bool {
        self.0 & uses.0 == uses.0
    }
}
