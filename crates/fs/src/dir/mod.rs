//! Directories.

use crate::{Attr, FileKind, NodeId};

/// One entry, as a listing shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    pub name: &'a [u8],
    pub node: NodeId,
    pub kind: FileKind,
    /// Go on behind this entry with it; below 2^63. 0 is the start (R41).
    pub cookie: u64,
    /// In `readdirplus`, for all but "." and "..".
    pub attr: Option<Attr>,
}

/// Flags of rename, as `renameat2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    pub no_replace: bool,
    pub exchange: bool,
    pub whiteout: bool,
}
