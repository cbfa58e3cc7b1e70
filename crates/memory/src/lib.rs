//! The memory of a daemon: its budget, and the bytes of each owner.
//!
//! Problem.  Tenants share the caches and buffers of one process. A total says that memory is
//!           short, but not which tenant has it.
//! Idea.     Each object in memory belongs to an *owner*, mostly a subvolume, which has a counter
//!           for each class of objects. The object carries its charge, so that the counter falls
//!           when the object goes, on whatever path. The budget is one number, cut into shares by
//!           class ([`Shares`]).
//!
//! A cache keeps its objects in [`Rings`], which evict by these figures. Nothing here reads a file
//! or waits for anything.

#![forbid(unsafe_code)]

mod at_limit;
mod brake;
mod delay;
mod drawing;
mod drawn;
mod events;
mod figures;
mod fit;
mod ghosts;
mod group;
mod history;
mod inside;
mod ledger;
mod limit;
mod listed;
mod over;
mod own;
mod owner;
mod parts;
mod picture;
mod place;
mod pressure;
mod protection;
mod reclaim;
mod rings;
mod scan;
mod scarce;
mod shares;
mod stall;
mod tree;
mod users;
mod walk;

pub use at_limit::{AtLimit, Need};
pub use brake::Brake;
pub use delay::{OwedDelay, delay_above_high};
pub use events::{Counts, Event, Stat};
pub use figures::Figures;
pub use fit::LimitsError;
pub use ghosts::Ghosts;
pub use limit::{Limit, OverLimit};
pub use owner::{LookupCharge, Memory, MemoryCharge, MemoryClass, MemoryOwner};
pub use parts::fit_parts;
pub use picture::Picture;
pub use place::{GroupLimits, Slot};
pub use pressure::Pressure;
pub use protection::{GroupUse, Promise, protections};
pub use reclaim::{Lists, Reclaimed, reclaim};
pub use rings::{AsIs, Entry, Evicted, Kind as RingKind, Rings};
pub use scan::{Arm, Carry, Look, Pass, Scan};
pub use scarce::{Admission, Parts, Scarce};
pub use shares::{
    AvailableMemory, INODE_BYTES, LOOKUP_BYTES, NAME_BYTES, PoolSize, Shares, SharesError,
};
pub use stall::{Stall, stalled};
pub use walk::{Cause, OwnerLists};
