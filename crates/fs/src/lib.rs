//! The filesystem of a subvolume: inodes, directories, file data. Knows nothing of FUSE.
//!
//! Problem.  A kernel's request must be answered without waiting where it can be, its effect must
//!           reach the log in the order in which it was seen, and an accepted write must survive
//!           any event between the reply and the device.
//! Idea.     Every change of metadata is one transaction of absolute items, built and applied while
//!           the mutexes of its inodes are held: so the order of the log is the order in memory.
//!           File data gathers in memory and is installed by transactions of its own, with the
//!           size and the times that belong to it.
//! In core.  `Inode`: the file's visible and logged state, and its dirty blocks.
//!
//! FILES-F1  An inode item in the log never describes data that is not in the log: the logged size
//!           covers only installed blocks, a pending truncate is logged with what follows it (R35,
//!           R36).
//! FILES-F2  A block of a file is read from the dirty blocks first, then from the extents: a block
//!           leaves the dirty ones only when its extent is applied. From then on `Pool::read`
//!           returns its bytes, also those that a commit has still to write: to this file, and to
//!           snapshots of it.
//! FILES-F3  Dirty blocks own a reservation; an accepted write is never refused later (R22).
//! FILES-F4  Items are looked up before, and computed within, the section that applies them (R1,
//!           R4).
//!
//! Locks, outermost first; no task takes them in another order (a task that logs access times,
//! `atimes`, or turns a subvolume read-only or writable, `read_only`, holds none of these when its
//! turn comes):
//!   1. the lock of moves (async), by a call that takes an entry of a subvolume to another
//!      subvolume, or the subvolume's rename lock (async), by renames between its directories;
//!   2. directories' entry locks (async), by inode number;
//!   3. a file's data lock (async): shared by reads and by writes of whole blocks within the file,
//!      exclusive for other writes, truncates, fallocate;
//!   4. a subvolume's lock of preallocated space (async), see `Subvol::in_place`;
//!   5. a file's map lock (async): its extent items are looked up and changed under it;
//!   6. the reading of a subvolume's leftovers (async), then the loading of an inode (async): see
//!      `leftovers`;
//!   7. credit of the pool (`Pool::admit`), always last of what may wait;
//!   8. locks that block a thread, in the order of `copyhold_sync::Rank`: inodes' states, by
//!      number, then those of the caches. Never held across an await; `Pool::apply` runs under
//!      them.

#![forbid(unsafe_code)]

mod acl;
mod atimes;
mod attr;
mod cache;
mod caller;
mod changes;
mod checksum_mode;
mod clean;
mod dir;
mod dirty_files;
mod dirty_pace;
mod dirty_room;
mod entry_names;
mod error;
mod evict;
mod file;
mod filesystem;
mod find_name;
mod flight;
mod foreground;
mod handles;
mod inode;
mod item_bytes;
mod leftovers;
mod name_bytes;
mod names;
mod node;
mod options;
mod permit;
mod privileges;
mod promise;
mod read_only;
mod reaper;
mod refusal;
mod refusal_pace;
mod right;
mod rollback;
mod room;
mod sabotage;
mod setattr;
mod subvol;
mod tenants;
#[cfg(test)]
mod testing;
mod throttle;
mod uses;
mod walks;
mod writeback;
mod writers;
mod xattr;
mod xattr_edit;
mod xattr_list;

pub use attr::{Attr, Entry, FileFlags, FileKind, OpenFlags, SetAttr, SetTime, StatFs};
pub use caller::Caller;
pub use changes::{Brief, Change, Changes, Fact, Named, Names, Places, Side, Target, What};
pub use checksum_mode::{checksum_mode_of, set_checksum_mode};
pub use clean::DataCache;
pub use dir::{DirEntry, ListFlags, RenameFlags};
pub use dirty_pace::Paced;
pub use entry_names::EntryNames;
pub use error::{FsError, Result};
pub use evict::evict;
pub use file::{FallocateMode, ReadData, ReadFlags, Seek, WriteData, WriteFlags};
pub use file::{copy_paced, write_paced};
pub use filesystem::Filesystem;
pub use find_name::{kept_name, names_in};
pub use names::{Absent, AbsentNames, Looked, NameCounts, NameEvent, NameFigures, Victim};
pub use node::NodeId;
pub use options::{Atime, Options};
pub use right::{Right, SubvolumeCalls};
pub use rollback::RolledBack;
pub use sabotage::Sabotage;
pub use tenants::{Deleted, SubvolInfo};
pub use throttle::{Delays, owed_delay};
pub use uses::{Stale, Uses};
pub use xattr::XattrSet;
