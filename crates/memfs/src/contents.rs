//! Whether file data is kept.

/// The treatment of file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    Kept,
    /// Counted only; reads give zeros.
    Dropped,
}
