//! A second reader of the format: the content of a pool, from `docs/format.md` alone.
//!
//! Problem.  The engine and `check` share the code that replays, merges and parses. A fault of
//!           that code, made always in the same way, looks right to both. And a pool that the
//!           engine does not open gives nothing at all, however much of it is good.
//! Idea.     A small reader, written from the page, that shares no code with the engine. The
//!           simulation compares the two after crashes; `copyhold debug export` copies with it
//!           the readable part. Where page and engine disagree one of them is wrong.
//!
//! ```text
//!   label → uberblock → frames → chain → replay ┐
//!                                               ├ tables → subvolumes → walk → content
//!                 nodes, partitions (base, layers) ┘               tuples ┘
//! ```
//!
//! It only reads, and decides for itself nothing that the page does not say. Space, quotas,
//! deadlists and shares are no concern of it: they do not change a file's content.
//!
//! RESCUE-S1  Any bytes give an answer or an error: nothing is asserted of the bytes of a
//!            device.
//! RESCUE-S2  Memory is for the edits of the log, a bounded cache of nodes, and what a caller
//!            keeps; never for as much as a pool holds.
//! RESCUE-S3  No byte is given that does not match its checksum in an item, or in a tuple beside
//!            the block, where tuples are found. If those of a pool that uses them are not found,
//!            [`Pool::damage`] is not empty, and data with checksums there is given unverified.
//!            Data of the mode `none` has no checksum.
//! RESCUE-S4  A loss is reported with its place. If [`Pool::damage`] is not empty, files may also
//!            be older than reported.

#![forbid(unsafe_code)]

mod batch;
mod bytes;
mod chain;
mod content;
mod damage;
mod directory;
mod extent;
mod files;
mod frames;
mod guard;
mod inode;
mod key;
mod label;
mod lineage;
mod mixed;
mod namespace;
mod node;
mod partition;
mod pool;
mod records;
mod replay;
mod source;
mod subvolume;
mod tables;
mod tail;
mod tuples;
mod walk;

pub use content::{Chunk, ContentDigest, Run};
pub use damage::Damage;
pub use directory::Attribute;
pub use files::Files;
pub use inode::{FileKind, Inode, ROOT_INODE, Time};
pub use label::Label;
pub use pool::Pool;
pub use source::{BLOCK, Seekable, Source};
pub use subvolume::{ROOT_SUBVOLUME, Subvolume};
pub use walk::{Place, Step};
