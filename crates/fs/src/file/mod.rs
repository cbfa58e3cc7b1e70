//! File data: dirty blocks, the extents of the rest, and the way from one to the other.
//!
//! ```text
//!   write.rs, truncate.rs  →  dirty.rs  →  batch.rs  →  install.rs  →  extents.rs (the table)
//!   read.rs, seek.rs       ←  dirty.rs first, then extents.rs
//!   fallocate.rs           →  extents.rs, in steps of its own
//!   together.rs            many small batches in one request
//!   in_place.rs            writing into preallocated space of a full pool
//!   cut.rs                 extents in the table that do not count
//!   sync.rs                drives batches to their end, and commits
//! ```

mod batch;
mod copy;
mod copy_hole;
mod cut;
mod dirty;
mod extent_map;
mod extents;
mod fallocate;
mod in_place;
mod install;
mod read;
mod seek;
mod slot;
mod sync;
mod together;
mod truncate;
mod write;

pub use copy::copy_paced;
pub(crate) use dirty::FileData;
pub use fallocate::FallocateMode;
pub use read::{ReadData, ReadFlags};
pub use seek::Seek;
pub(crate) use sync::WriteReason;
pub use write::{WriteData, WriteFlags, write_paced};
