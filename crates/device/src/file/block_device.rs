//! Requests that only a block device supports, by ioctl.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Size in bytes.
pub(crate) fn size(fd: impl AsFd) -> io::Result<u64> {
    // SAFETY: BLKGETSIZE64 writes one u64, even if its opcode names another size (linux/fs.h).
    Ok(unsafe { ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) }?)
}

/// Smallest write in bytes.
pub(super) fn sector_bytes(fd: impl AsFd) -> io::Result<u32> {
    Ok(rustix::fs::ioctl_blksszget(fd)?)
}

/// Reports to the device that a range of bytes is unused.
pub(super) fn discard(fd: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two u64, start and length (linux/fs.h).
    Ok(unsafe { ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }?)
}
