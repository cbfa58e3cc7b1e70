//! Histories of a filesystem: several clients work in the same directories, each with names of its
//! own, and what can go wrong does.
//!
//! Each client knows what it did and in which order; between clients only what ended before
//! something began has an order. So after a recovery there must be a number of operations for each
//! client such that together they give exactly what is found, contain everything that was synced,
//! and contain whatever had ended before one of them began.
//!
//! A subvolume is a directory that can be copied at once: a snapshot is one operation that gives
//! each object a second one, with the data that the first had when it began.
//!
//! After a recovery another reader of the image, which shares no code with the engine, must find
//! the engine's state (`second_opinion`).
//!
//! In some histories all content is whole blocks that no two writes make alike: then it is known to
//! the byte what each subvolume pays for (`usage`), which is compared when nothing is on its way.
//!
//! Data is no part of that order. Each block of a file must be what it was at some moment not
//! before the file's last fsync, whole; and what was renamed over another name is there.

mod client;
pub mod collisions;
pub(crate) mod content;
mod counts;
mod drive;
mod eras;
mod goes_on;
mod life;
pub mod modes;
mod promises;
pub(crate) mod rights;
pub(crate) mod second_opinion;
mod settings;
pub(crate) mod span;
pub(crate) mod tree;
pub(crate) mod usage;
pub(crate) mod verify;
mod visit;
pub(crate) mod world;

pub use life::history;
