//! Errors of bytes from a device.

/// The field `what` names the structure in the words of `docs/format.md`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    #[error("{what} is cut short: {len} bytes")]
    Short { what: &'static str, len: usize },
    #[error("{what} does not start with its magic number")]
    Magic { what: &'static str },
    #[error("{what} does not match its digest")]
    Digest { what: &'static str },
    #[error("{what} has {field} = {value}, which is invalid")]
    Field { what: &'static str, field: &'static str, value: u64 },
    #[error("{what} is not in order: {detail}")]
    Order { what: &'static str, detail: String },
    #[error(
        "the pool has format version {found}, this program reads {supported}; use a program of \
         that version, or copy the files to a new pool"
    )]
    Version { found: u32, supported: u32 },
    #[error("the pool uses features that this program does not know ({bits:#x}); use a newer one")]
    Features { bits: u64 },
}
