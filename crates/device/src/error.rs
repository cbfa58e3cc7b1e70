//! Errors of a device, grouped by the caller's reaction.

use copyhold_types::{DeviceId, Purpose};

/// A failed request. `Clone`, since many waiters may receive one failure.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    #[error("{name}: reading {blocks} blocks at {block} for {why:?} failed: {source}")]
    Read {
        name: String,
        block: u64,
        blocks: u32,
        why: Purpose,
        #[source]
        source: IoError,
    },
    /// The stored data does not match its protection information, as the device or the kernel
    /// reports (EILSEQ): the medium answers, and its answer is wrong.
    #[error(
        "{name}: {blocks} blocks at {block}, read for {why:?}, do not match their protection \
         information"
    )]
    Integrity { name: String, block: u64, blocks: u32, why: Purpose },
    #[error("{name}: writing {blocks} blocks at {block} for {why:?} failed: {source}")]
    Write {
        name: String,
        block: u64,
        blocks: u32,
        why: Purpose,
        #[source]
        source: IoError,
    },
    #[error(
        "{name}: writing {blocks} blocks at {block} for {why:?} failed: {source}; the device is \
         thin, and the storage below it is full; add storage there"
    )]
    ThinFull {
        name: String,
        block: u64,
        blocks: u32,
        why: Purpose,
        #[source]
        source: IoError,
    },
    #[error("{name}: flush failed: {source}; writes since the last flush may be lost")]
    Flush {
        name: String,
        #[source]
        source: IoError,
    },
    #[error("{name}: discarding {blocks} blocks at {block} failed: {source}")]
    Discard {
        name: String,
        block: u64,
        blocks: u64,
        #[source]
        source: IoError,
    },
    #[error("{name}: request for blocks {block}..{end} of a device with {size}")]
    OutOfBounds { name: String, block: u64, end: u64, size: u64 },
    #[error("{name} is in use by another process; unmount it there first")]
    Locked { name: String },
    #[error("cannot open {name}: {source}")]
    Open {
        name: String,
        #[source]
        source: IoError,
    },
    #[error("{name} holds {found}; choose another path, or force the creation and lose it")]
    Occupied { name: String, found: &'static str },
    #[error("{name} is neither a regular file nor a block device")]
    NotADevice { name: String },
    #[error("{name} has sectors of {bytes} bytes; more than 4096 are not supported")]
    SectorTooLarge { name: String, bytes: u32 },
    #[error("{name} ends before block {end}: it has become smaller since it was opened")]
    Shrunk { name: String, end: u64 },
    #[error("the pool has no device {}", .0.0)]
    Missing(DeviceId),
}

impl DeviceError {
    /// Of a read of these blocks that the system has answered like this.
    pub fn of_read(
        name: String,
        (block, blocks): (u64, u32),
        why: Purpose,
        source: IoError,
    ) -> DeviceError {
        match source {
            IoError(libc::EILSEQ) => DeviceError::Integrity { name, block, blocks, why },
            source => DeviceError::Read { name, block, blocks, why, source },
        }
    }

    /// Whether the host had no space left for a sparse pool file (rule R32).
    pub fn is_host_full(&self) -> bool {
        matches!(self, DeviceError::Write { source: IoError(libc::ENOSPC | libc::EDQUOT), .. })
    }

    /// Whether a block device had no space left for a write.
    pub fn is_thin_full(&self) -> bool {
        matches!(self, DeviceError::ThinFull { .. })
    }
}

/// An errno, with its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError(pub i32);

impl std::fmt::Display for IoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for IoError {}
