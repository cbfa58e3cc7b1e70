//! A file or block device that becomes longer while it is open.
//!
//! Problem.  The host may have no room for the part that must be allocated, and finds that out at
//!           any step. A file that stays half grown is no damage, but its length misleads.
//! Idea.     The length is changed first, then the room is allocated and written with zeros. After
//!           an error, a file gets its old length again.
//!
//! LENGTH-L1  Requests reach the new blocks only when all steps have succeeded.
//! LENGTH-L2  A file never becomes shorter than it was at the call. One that has been cut since it
//!            was opened stays as it is: it would get holes in the place of data.
//! LENGTH-L3  After an error, no zeros are on their way any more.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use copyhold_runtime::Op;
use copyhold_types::{BLOCK_BYTES, Purpose};
use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use rustix::io::Errno;

use super::{FileDevice, Locked, block_device, bytes, io_error};
use crate::{DeviceError, IoError};

impl FileDevice {
    /// Blocks of the file or device at this moment.
    pub(super) fn measured(&self) -> Result<u64, DeviceError> {
        Ok(self.measured_bytes()? / BLOCK_BYTES as u64)
    }

    fn measured_bytes(&self) -> Result<u64, DeviceError> {
        let found = self
            .file()
            .and_then(|fd| length(&fd, self.is_block_device).map_err(|error| io_error(&error)));
        let name = || self.shared.name.clone();
        found.map_err(|source| DeviceError::Open { name: name(), source })
    }

    /// See `Device::grow`.
    pub(super) async fn lengthen(&self, blocks: u64, room: Range<u64>) -> Result<(), DeviceError> {
        let (before, found) = (self.shared.blocks.load(Relaxed), self.measured_bytes()?);
        if found < bytes(before) {
            return Err(DeviceError::Shrunk { name: self.shared.name.clone(), end: before });
        }
        let failed = |source| DeviceError::Grow { name: self.shared.name.clone(), blocks, source };
        if self.is_block_device && found < bytes(blocks) {
            let found = found / BLOCK_BYTES as u64;
            return Err(DeviceError::Short { name: self.shared.name.clone(), found });
        }
        if !self.is_block_device {
            let room = room.clone();
            self.on_file(move |fd| extend(&fd, found, blocks, room)).await.map_err(failed)?;
        }
        self.shared.blocks.store(blocks.max(before), Relaxed);
        let zeros = self.preallocate(room.start, room.end - room.start, Purpose::Data).await;
        let Err(error) = zeros else { return Ok(()) };
        self.shared.blocks.store(before, Relaxed); // LENGTH-L1
        if !self.is_block_device && found < bytes(blocks) {
            self.on_file(move |fd| Ok(ftruncate(&*fd, found)?)).await.map_err(failed)?;
        }
        Err(error)
    }

    /// Calls that may wait, with the file.
    async fn on_file(
        &self,
        calls: impl FnOnce(Arc<Locked>) -> io::Result<()> + Send + 'static,
    ) -> Result<(), IoError> {
        let fd = self.file()?;
        let done = self.reactor.submit(Op::Blocking(Box::new(move || calls(fd))));
        done.await.result.map_err(|error| io_error(&error))
    }
}

fn length(fd: &Locked, is_block_device: bool) -> io::Result<u64> {
    match is_block_device {
        true => block_device::size(fd),
        false => Ok(fstat(fd)?.st_size.try_into().unwrap_or(0)),
    }
}

/// Gives a file of `found` bytes its new length, and allocates `room`.
fn extend(fd: &Locked, found: u64, blocks: u64, room: Range<u64>) -> io::Result<()> {
    if found < bytes(blocks) {
        ftruncate(fd, bytes(blocks))?;
    }
    let (at, len) = (bytes(room.start), bytes(room.end - room.start));
    let allocated = match fallocate(fd, FallocateFlags::empty(), at, len) {
        // The zeros that follow allocate it.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        allocated => allocated,
    };
    if allocated.is_err() && found < bytes(blocks) {
        ftruncate(fd, found)?; // LENGTH-L2
    }
    Ok(allocated?)
}
