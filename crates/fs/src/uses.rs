//! How a front end with a cache of its own uses a file: what it may have of it that is not here, or
//! is no more.
//!
//! The engine only keeps the notes, beside the count of opens: they are made by the front end, and
//! are gone when the file is not open any more.

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
