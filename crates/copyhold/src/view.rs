//! The calls on a subvolume, as futures: each exists once here, and the blocking interface
//! ([`crate::Volume`]) and the one of futures ([`crate::nonblocking`]) run it.
//!
//! A path starts at the root of the subvolume. Its bytes are those of the name on the disk.

mod attributes;
mod content;
mod names;
mod open;
mod tenants;
mod walk;

use std::sync::Arc;

use copyhold_fs::{Filesystem, NodeId};

/// A subvolume, from its root.
pub(crate) struct View {
    pub(crate) fs: Arc<Filesystem>,
    pub(crate) root: NodeId,
}
