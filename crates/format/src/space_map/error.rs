//! Errors of space maps.

use crate::FormatError;

pub(super) const WHAT: &str = "space map";

pub(super) fn field(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: WHAT, field, value }
}
