//! Damage: the unreadable parts, and the reasons.

use thiserror::Error;

/// A structure or a range that no copy on the device gives.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}: {why}")]
pub struct Damage {
    /// The structure, with its place.
    pub what: String,
    pub why: String,
}

impl Damage {
    pub(crate) fn new(what: impl Into<String>, why: impl ToString) -> Damage {
        Damage { what: what.into(), why: why.to_string() }
    }
}

/// Bytes that differ from the page; a caller that knows where they are makes a [`Damage`] of it.
pub(crate) type Parse<T> = Result<T, String>;

/// Fails with `why` unless `holds`.
pub(crate) fn demand(holds: bool, why: &str) -> Parse<()> {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}
