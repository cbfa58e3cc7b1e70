//! Tenants: subvolumes and their epochs, the release of pointers, and the payers of space.
//!
//! `docs/tenants.md` is the theory. The crate knows tables and transactions, and of files only that
//! their tables have extents.
//!
//! The algebra, without I/O: [`family`] is the tree of epochs, [`segment`] the form of deadlists
//! and shares, [`release`] the effect of a dropped pointer. Over it, on a pool: [`Volumes`]:
//! transactions of files (`snapshot_guard`) and their reads (`read`), nodes (`nodes`), `birth`,
//! `place`, `rollback`, `deletion` and its `walk`, `reflink`, and work left for later (`pending`,
//! `aside`).
//! Looking, without changing anything: `scan` for items that differ or are new, `weigh` for the
//! space that a deletion would free, `at_rest` for the memory of subvolumes that are not used. The
//! payers: [`quota`], changed through `owners`.

#![forbid(unsafe_code)]

mod aside;
mod at_rest;
mod background;
mod birth;
mod deletion;
mod error;
pub mod family;
mod freeing;
mod index;
mod limits;
mod made_by;
mod makers;
mod memory;
mod nodes;
mod owners;
mod pace;
mod pending;
mod place;
mod queue;
pub mod quota;
mod read;
mod reflink;
pub mod release;
mod rollback;
mod sabotage;
mod scan;
pub mod segment;
mod snapshot_guard;
mod stored;
mod trees;
mod volumes;
mod walk;
mod weigh;

pub use at_rest::{AtRest, Slice, at_rest};
pub use birth::{NewSubvol, Numbers};
pub use deletion::Leaving;
pub use error::VolumeError;
pub use freeing::{freeing_behind, is_freeing};
pub use memory::{MemoryGroup, change_memory_limits};
pub use place::{living_inside, tenant_of};
pub use read::read_together;
pub use reflink::Unread;
pub use rollback::OldState;
pub use sabotage::Sabotage;
pub use scan::{Fresh, Scanned};
pub use snapshot_guard::{InodeChange, SnapshotGuard};
pub use volumes::{Subvol, Volumes, looks, residents};
pub use weigh::{SharedRun, Tally, WeighAt, Weighed, Weighing};

/// The most subvolumes of a chain in which each is inside the one before, without the root.
pub const NESTING_MAX: usize = 32;
