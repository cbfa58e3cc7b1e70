//! Every byte that Copyhold keeps on a device: the only crate that knows offsets.
//!
//! Each structure has a raw twin (zerocopy, little-endian, no padding) and a parsed type with no
//! unchecked field. Bytes from a device are untrusted: any bytes give an answer or a
//! [`FormatError`], never a panic. `docs/format.md` describes what is here for other readers.

#![forbid(unsafe_code)]

mod error;
pub mod item;
pub mod label;
pub mod log;
pub mod node;
pub mod space_map;
pub mod uberblock;
pub mod wire;

pub use error::FormatError;

use copyhold_types::Digest;

/// The digest that nodes, log frames and labels are verified with.
pub fn digest(bytes: &[u8]) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_128(bytes))
}
