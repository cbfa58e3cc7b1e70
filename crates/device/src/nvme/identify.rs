//! Identify: a drive's words about itself and about one namespace.
//!
//! Problem.  These pages come from firmware, which may be wrong, and decide the places of tuples
//!           and the bytes under each guard. A misread format looks like damage of all data.
//! Idea.     The pages are untrusted bytes. Each field that matters is compared with those that
//!           it must agree with, and each namespace that cannot be used has a message of its own.
//!
//! NVMEID-I1  An [`Identity`] has a format that exists, at least one block of 4 KiB, and a limit
//!            of a command between one of them and [`MOST_BLOCKS`]. Any other bytes are an error.

use copyhold_types::BLOCK_BYTES;

pub use super::command::PAGE_BYTES;
use super::unique;
use crate::IoError;
use crate::pi::{Format, FormatError, Guard, Place, Type};

/// Blocks of 4 KiB in one command, at most, where kernel and drive allow more. The kernel gives
/// each page of a caller's memory a segment of its own, of which its driver has 127.
pub const MOST_BLOCKS: u32 = 64;
/// Bytes of metadata in one command, at most: older drives read them from one page only.
const MOST_METADATA: usize = 4096;

/// The pages of a drive that describe a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'p> {
    /// Of the controller (CNS 01h).
    pub controller: &'p [u8; PAGE_BYTES],
    /// Of the namespace (CNS 00h).
    pub namespace: &'p [u8; PAGE_BYTES],
    /// Of the namespace, by the NVM command set (CNS 05h); none from drives that have no guards
    /// of more than 16 bits, see [`has_wide_guards`].
    pub extended: Option<&'p [u8; PAGE_BYTES]>,
}

/// A namespace that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub format: Format,
    /// Size in blocks of 4 KiB; a rest is not used.
    pub blocks: u64,
    /// Size in blocks of the drive.
    pub drive_blocks: u64,
    /// Blocks of 4 KiB in one command, at most.
    pub most_blocks: u32,
    /// Whether the drive can deallocate.
    pub can_discard: bool,
    /// The number that this namespace has and no other, if the drive gives one: of 16 bytes, or of
    /// 8 with zeros behind them.
    pub unique: Option<[u8; 16]>,
    /// Whether the drive refuses all writes to the namespace at present.
    pub is_write_protected: bool,
}

/// The cause why a namespace cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentifyProblem {
    #[error("the drive has no such namespace, or it is not attached")]
    Absent,
    #[error(
        "the namespace has no metadata, and so no protection information; use its block device, \
         or format the namespace with metadata (nvme format --lbaf=N --pi=2 --ms=0; all data is \
         lost)"
    )]
    NoMetadata,
    #[error(
        "the namespace has {0} bytes of metadata beside each block, but no protection information \
         in them; enable it (nvme format --lbaf=N --pi=2 --ms=0; all data is lost)"
    )]
    NoProtection(u32),
    #[error(
        "the namespace transfers metadata behind the data of each block (extended blocks), which \
         is not supported; format it with separate metadata (nvme format --ms=0; all data is lost)"
    )]
    Interleaved,
    #[error("the format of the namespace cannot be used: {0}")]
    Format(#[from] FormatError),
    #[error("the guard of the namespace has the number {0}, which is not known here")]
    Guard(u32),
    #[error("the namespace has {blocks} blocks of {bytes} bytes, less than 4096 bytes in all")]
    Small { blocks: u64, bytes: u32 },
    #[error(
        "the namespace is write-protected; mount it read-only (-o ro), or remove the protection \
         (nvme set-feature --feature-id=0x84 --value=0)"
    )]
    WriteProtected,
    #[error(
        "no metadata can be read from the namespace ({0}): the drive, or the kernel's driver of it, \
         does not transfer them; use the block device of the namespace instead"
    )]
    NoTransfer(IoError),
    #[error("the drive contradicts itself: {0}; its firmware is broken, do not use it")]
    Lie(Lie),
    #[error(
        "the drive has {drive} bytes in this namespace, its block device {kernel}; if the \
         namespace was resized or formatted, let the kernel read it again (nvme ns-rescan)"
    )]
    Size { drive: u64, kernel: u64 },
}

/// Two statements of a drive that cannot both be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lie {
    #[error("the namespace has {size} blocks, and room for {capacity}")]
    Capacity { size: u64, capacity: u64 },
    #[error("{used} blocks are in use, of {capacity}")]
    Use { used: u64, capacity: u64 },
    #[error("the namespace has format {index}, of {formats}")]
    Index { index: usize, formats: usize },
    #[error("its blocks have 2^{0} bytes, which no format has")]
    BlockBytes(u8),
    #[error("the namespace has metadata apart from data, which the drive cannot have")]
    Separate,
    #[error("protection information has type {0}")]
    Type(u8),
    #[error("protection information has type {0}, which the drive does not support")]
    Unsupported(u8),
    #[error("tuples are the {0} part of metadata, which the drive does not support")]
    Place(&'static str),
    #[error("the namespace has {0} blocks, more bytes than can be counted")]
    Size(u64),
}

/// Whether a drive has the page of the NVM command set: guards of 32 and 64 bits, storage tags.
pub fn has_wide_guards(controller: &[u8; PAGE_BYTES]) -> bool {
    number(controller, 96, 4) & 1 << 15 != 0
}

impl Identity {
    /// Reads the pages.
    pub fn parse(pages: &Pages<'_>) -> Result<Identity, IdentifyProblem> {
        let drive_blocks = parse_size(pages.namespace)?;
        let format = parse_format(pages)?;
        let bytes = drive_blocks.checked_mul(format.data_bytes() as u64);
        let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or(IdentifyProblem::Lie(Lie::Size(drive_blocks)))?;
        let blocks = bytes / BLOCK_BYTES as u64;
        if blocks == 0 {
            let bytes = format.data_bytes() as u32;
            return Err(IdentifyProblem::Small { blocks: drive_blocks, bytes });
        }
        let most_blocks = most_blocks(&format, pages.controller[77]);
        let can_discard = number(pages.controller, 520, 2) & 1 << 2 != 0;
        let unique = unique::of_page(pages.namespace);
        let is_write_protected = pages.namespace[99] & 1 != 0;
        Ok(Identity {
            format,
            blocks,
            drive_blocks,
            most_blocks,
            can_discard,
            unique,
            is_write_protected,
        })
    }

    /// Refuses a namespace that cannot be written now.
    pub fn expect_writable(&self) -> Result<(), IdentifyProblem> {
        match self.is_write_protected {
            true => Err(IdentifyProblem::WriteProtected),
            false => Ok(()),
        }
    }

    /// Limits the blocks of a command to those that the kernel accepts, which are at least one.
    pub fn limit_blocks(&mut self, most: u32) {
        assert!(most > 0, "NVMEID-I1: a command of no blocks");
        self.most_blocks = self.most_blocks.min(most);
    }

    /// Compares the size with that of the namespace's block device. The kernel gives a size of 0
    /// to namespaces that it cannot serve as a block device.
    pub fn expect_size(&self, kernel: u64) -> Result<(), IdentifyProblem> {
        let drive = self.drive_blocks * self.format.data_bytes() as u64;
        match kernel {
            0 => Ok(()),
            kernel if kernel == drive => Ok(()),
            kernel => Err(IdentifyProblem::Size { drive, kernel }),
        }
    }
}

/// Blocks of the drive in the namespace.
fn parse_size(namespace: &[u8; PAGE_BYTES]) -> Result<u64, IdentifyProblem> {
    let field = |nth: usize| number(namespace, nth * 8, 8);
    let (size, capacity, used) = (field(0), field(1), field(2));
    match () {
        () if size == 0 => Err(IdentifyProblem::Absent),
        () if capacity > size => Err(IdentifyProblem::Lie(Lie::Capacity { size, capacity })),
        () if used > capacity => Err(IdentifyProblem::Lie(Lie::Use { used, capacity })),
        () => Ok(size),
    }
}

fn parse_format(pages: &Pages<'_>) -> Result<Format, IdentifyProblem> {
    let namespace = pages.namespace;
    // Those of all namespaces of the drive, and then those of this one.
    let formats = usize::from(namespace[25]) + 1 + usize::from(namespace[100]);
    let current = namespace[26];
    let index = usize::from(current & 0xf | current >> 5 << 4 & 0x30);
    if index >= formats {
        return Err(IdentifyProblem::Lie(Lie::Index { index, formats }));
    }
    let metadata = number(namespace, 128 + 4 * index, 2) as u32;
    let data = match namespace[128 + 4 * index + 2] {
        bits @ 9..=31 => 1 << bits,
        bits => return Err(IdentifyProblem::Lie(Lie::BlockBytes(bits))),
    };
    if metadata == 0 {
        return Err(IdentifyProblem::NoMetadata);
    }
    let (kind, place) = parse_protection(namespace, metadata)?;
    if current & 1 << 4 != 0 {
        return Err(IdentifyProblem::Interleaved);
    }
    if namespace[27] & 1 << 1 == 0 {
        return Err(IdentifyProblem::Lie(Lie::Separate));
    }
    let (guard, storage_bits) = match pages.extended {
        Some(extended) => parse_guard(number(extended, 12 + 4 * index, 4) as u32)?,
        None => (Guard::Crc16, 0),
    };
    Ok(Format::new((data, metadata), guard, kind, place, storage_bits)?)
}

/// The type of the protection information, and the place of the tuple.
fn parse_protection(
    namespace: &[u8; PAGE_BYTES],
    metadata: u32,
) -> Result<(Type, Place), IdentifyProblem> {
    let (possible, set) = (namespace[28], namespace[29]);
    let number = set & 7;
    if number == 0 {
        return Err(IdentifyProblem::NoProtection(metadata));
    }
    let kind = Type::of_number(number.into());
    let kind = kind.map_err(|_| IdentifyProblem::Lie(Lie::Type(number)))?;
    if possible & 1 << (number - 1) == 0 {
        return Err(IdentifyProblem::Lie(Lie::Unsupported(number)));
    }
    let (place, bit, words) = match set & 1 << 3 {
        0 => (Place::Last, 1 << 4, "last"),
        _ => (Place::First, 1 << 3, "first"),
    };
    match possible & bit {
        0 => Err(IdentifyProblem::Lie(Lie::Place(words))),
        _ => Ok((kind, place)),
    }
}

/// The guard and the bits of the storage tag.
fn parse_guard(format: u32) -> Result<(Guard, u32), IdentifyProblem> {
    /// The number that refers to another one, of four bits.
    const QUALIFIED: u32 = 3;
    let (storage_bits, guard) = (format & 0x7f, format >> 7 & 3);
    let guard = if guard == QUALIFIED { format >> 9 & 0xf } else { guard };
    let guard = match guard {
        0 => Guard::Crc16,
        1 => Guard::Crc32,
        2 => Guard::Crc64,
        other => return Err(IdentifyProblem::Guard(other)),
    };
    Ok((guard, storage_bits))
}

/// Blocks of 4 KiB in a command. `limit` is the drive's, for data and metadata together: a power of
/// two of pages of at least 4 KiB, or none.
fn most_blocks(format: &Format, limit: u8) -> u32 {
    let metadata = format.entry_bytes();
    let by_drive = match limit {
        0 | 20.. => usize::MAX,
        limit => (4096 << limit) / (BLOCK_BYTES + metadata),
    };
    let most = by_drive.min(MOST_METADATA / metadata).min(MOST_BLOCKS as usize);
    most as u32
}

/// A little-endian number of up to eight bytes.
fn number(page: &[u8; PAGE_BYTES], at: usize, bytes: usize) -> u64 {
    page[at..at + bytes].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
pub(super) mod tests;
