//! Every byte that Copyhold keeps on a device: the only crate that knows offsets.
//!
//! Each structure has a raw twin (zerocopy, little-endian, no padding) and a parsed type with no
//! unchecked field. Bytes from a device are untrusted: parsing returns a value or a
//! [`FormatError`], never panics. `docs/format.md` describes the same format for other readers.

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

/// The checksum of a block of file data: CRC-32C.
pub fn block_checksum(block: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, block) as u32
}

/// The digest that nodes, log frames and labels are verified with.
pub fn digest(bytes: &[u8]) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_128(bytes))
}
