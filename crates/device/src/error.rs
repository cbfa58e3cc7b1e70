//! Errors of a device, grouped by the caller's reaction.

use std::fmt;

use copyhold_types::{DeviceId, Purpose};

use crate::nvme::IdentifyProblem;
use crate::pi::{HeaderProblem, Kind};

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
    /// Data does not match its protection information: at a read the medium answers, and its
    /// answer is wrong; at a write nothing was stored.
    #[error("{name}: {access} of {blocks} blocks at {block} for {why:?}: {by} finds {kind}")]
    Integrity {
        name: String,
        /// The first bad block.
        block: u64,
        /// One, unless the device does not say which.
        blocks: u32,
        why: Purpose,
        access: Access,
        kind: Kind,
        by: Verifier,
    },
    /// The tags of a request contradict the format of the device: a mistake of this program.
    #[error(
        "{name}: {access} of {blocks} blocks at {block} for {why:?} has tags that contradict the \
         format of the device; this is a mistake of the program: report it"
    )]
    Contradiction { name: String, block: u64, blocks: u32, why: Purpose, access: Access },
    #[error(
        "{name} has no protection information, which a request for it needs: give the original \
         file or device, with its tuples"
    )]
    Unprotected { name: String },
    /// There is a namespace with protection information that cannot be used.
    #[error("{name}: {problem}")]
    Namespace {
        name: String,
        #[source]
        problem: Box<HeaderProblem>,
    },
    /// A drive has a namespace that cannot be used.
    #[error("{name}: {problem}")]
    Identify {
        name: String,
        #[source]
        problem: Box<IdentifyProblem>,
    },
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
    #[error("{name} cannot be made {blocks} blocks of 4 KiB long: {source}")]
    Grow {
        name: String,
        blocks: u64,
        #[source]
        source: IoError,
    },
    #[error("{name} has {found} blocks of 4 KiB; make the device longer before the pool")]
    Short { name: String, found: u64 },
    #[error("{name} is a device that cannot become longer")]
    FixedSize { name: String },
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
    #[error("{name} is no regular file, block device or character device of an NVMe namespace")]
    NotADevice { name: String },
    #[error(
        "{name}: the namespace has a block device, and {node} is not its node; make that node \
         (udevadm trigger), so that no other program can use the namespace at the same time"
    )]
    NoBlockDevice { name: String, node: String },
    #[error("{name} has sectors of {bytes} bytes; more than 4096 are not supported")]
    SectorTooLarge { name: String, bytes: u32 },
    #[error("{name} ends before block {end}: it has become smaller since it was opened")]
    Shrunk { name: String, end: u64 },
    #[error("the pool has no device {}", .0.0)]
    Missing(DeviceId),
}

/// Each future of a request has room for one.
const _: () = assert!(size_of::<DeviceError>() <= 56);

impl DeviceError {
    /// Of a read of these blocks that the system has answered like this.
    pub fn of_read(
        name: String,
        (block, blocks): (u64, u32),
        why: Purpose,
        source: IoError,
    ) -> DeviceError {
        match source {
            IoError(libc::EILSEQ) => {
                DeviceError::unexplained(name, (block, blocks), why, Access::Read)
            }
            source => DeviceError::Read { name, block, blocks, why, source },
        }
    }

    /// Of a write of these blocks that the system has answered like this.
    pub fn of_write(
        name: String,
        (block, blocks): (u64, u32),
        why: Purpose,
        source: IoError,
    ) -> DeviceError {
        match source {
            IoError(libc::EILSEQ) => {
                DeviceError::unexplained(name, (block, blocks), why, Access::Write)
            }
            source => DeviceError::Write { name, block, blocks, why, source },
        }
    }

    /// A mismatch of which the system does not say the kind.
    fn unexplained(
        name: String,
        (block, blocks): (u64, u32),
        why: Purpose,
        access: Access,
    ) -> DeviceError {
        let (kind, by) = (Kind::Unknown, Verifier::Device);
        DeviceError::Integrity { name, block, blocks, why, access, kind, by }
    }

    /// Whether the device has refused the guards of a write. A refused tag is no such error: tags
    /// do not depend on the data.
    pub fn is_refused_guard(&self) -> bool {
        use Kind::{Guard, Unknown};
        let DeviceError::Integrity { access, kind, .. } = self else { return false };
        *access == Access::Write && matches!(kind, Guard | Unknown)
    }

    /// Whether the host had no space left for a sparse pool file (rule R32).
    pub fn is_host_full(&self) -> bool {
        let (DeviceError::Write { source, .. } | DeviceError::Grow { source, .. }) = self else {
            return false;
        };
        matches!(source, IoError(libc::ENOSPC | libc::EDQUOT))
    }

    /// Whether a block device had no space left for a write.
    pub fn is_thin_full(&self) -> bool {
        matches!(self, DeviceError::ThinFull { .. })
    }
}

/// Refuses a request that reaches past the end of a device with `size` blocks.
pub(crate) fn check_bounds(
    name: &str,
    size: u64,
    block: u64,
    blocks: u64,
) -> Result<(), DeviceError> {
    match block.checked_add(blocks) {
        Some(end) if end <= size => Ok(()),
        end => {
            let end = end.unwrap_or(u64::MAX);
            Err(DeviceError::OutOfBounds { name: name.into(), block, end, size })
        }
    }
}

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// The side that has found a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verifier {
    /// The device, or the kernel for it.
    Device,
    Host,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
        })
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verifier::Device => "the device",
            Verifier::Host => "the host",
        })
    }
}

/// An errno, with its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError(pub i32);

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for IoError {}
