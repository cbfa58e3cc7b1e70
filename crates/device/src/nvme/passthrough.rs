//! Commands to a drive by ioctl (`linux/nvme_ioctl.h`).
//!
//! The kernel copies the fields of a command, maps the two buffers, waits for the drive, and
//! answers with the status of the command, or with an errno.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::command::{Commands, Fields, Queue, Transfer};
use crate::file::Locked;

const NVME_IOCTL_ID: u32 = 0x4e40;
const NVME_IOCTL_ADMIN64_CMD: u32 = 0xc050_4e47;
const NVME_IOCTL_IO64_CMD: u32 = 0xc050_4e48;

/// Between repetitions of a command. The kernel makes a command wait while it resets the
/// controller, so this need not last as long as a reset; drives count their delays in these units.
const PAUSE: Duration = Duration::from_millis(100);

/// `struct nvme_passthru_cmd64`.
#[repr(C)]
#[derive(Default)]
struct PassthroughCommand {
    opcode: u8,
    flags: u8,
    reserved1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10_to_15: [u32; 6],
    timeout_ms: u32,
    reserved2: u32,
    result: u64,
}

/// The number of an ioctl has the size of its argument in bits 16 to 29.
const _: () =
    assert!(size_of::<PassthroughCommand>() == (NVME_IOCTL_IO64_CMD >> 16 & 0x3fff) as usize);

/// The open character device of a namespace.
pub(super) struct Passthrough {
    node: Locked,
    /// Keeps other programs from the kernel's block device.
    _claim: Option<Locked>,
}

impl Passthrough {
    pub(super) fn new(node: Locked, claim: Option<Locked>) -> Passthrough {
        Passthrough { node, _claim: claim }
    }

    /// Its number in the drive.
    pub(super) fn namespace(&self) -> io::Result<u32> {
        // SAFETY: NVME_IOCTL_ID takes no argument.
        let answer = unsafe { libc::ioctl(self.node.as_fd().as_raw_fd(), NVME_IOCTL_ID as _) };
        u32::try_from(answer).map_err(|_| io::Error::last_os_error())
    }
}

impl Commands for Passthrough {
    fn execute(&self, queue: Queue, fields: &Fields, transfer: Transfer<'_>) -> io::Result<u16> {
        let (wanted, data, metadata) = match transfer {
            Transfer::None => (0, (0, 0), (0, 0)),
            Transfer::ToDrive { data, metadata } => (1, place_of(data), place_of(metadata)),
            Transfer::ToHost { data, metadata } => (2, place_of_mut(data), place_of_mut(metadata)),
        };
        let direction = fields.opcode & 3;
        assert!(direction == wanted, "opcode {:#x} transfers the other way", fields.opcode);
        let ((addr, data_len), (metadata, metadata_len)) = (data, metadata);
        let mut command = PassthroughCommand {
            opcode: fields.opcode,
            nsid: fields.namespace,
            cdw2: fields.low[0],
            cdw3: fields.low[1],
            metadata,
            addr,
            metadata_len,
            data_len,
            cdw10_to_15: fields.high,
            ..PassthroughCommand::default()
        };
        let number = match queue {
            Queue::Admin => NVME_IOCTL_ADMIN64_CMD,
            Queue::Io => NVME_IOCTL_IO64_CMD,
        };
        // SAFETY: both numbers take this structure (linux/nvme_ioctl.h), which outlives the call.
        // The kernel reads from the two buffers for an opcode that transfers to the drive (bit 0),
        // and writes to them for the others (bit 1), no more than their lengths; they are borrowed
        // for the call in that direction, which is asserted above. The kernel is done with
        // them when the call returns: it waits for the drive, or has reset it.
        let answer =
            unsafe { libc::ioctl(self.node.as_fd().as_raw_fd(), number as _, &raw mut command) };
        u16::try_from(answer).map_err(|_| io::Error::last_os_error())
    }

    #[allow(clippy::disallowed_methods, reason = "a thread of blocking calls, and no task, waits")]
    fn pause(&self) {
        std::thread::sleep(PAUSE);
    }
}

/// Address and length of a buffer. An empty slice has an address, too; the kernel would take that
/// for a buffer.
fn place_of(bytes: &[u8]) -> (u64, u32) {
    if bytes.is_empty() { (0, 0) } else { (bytes.as_ptr() as u64, bytes.len() as u32) }
}

fn place_of_mut(bytes: &mut [u8]) -> (u64, u32) {
    if bytes.is_empty() { (0, 0) } else { (bytes.as_mut_ptr() as u64, bytes.len() as u32) }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_command_is_laid_out_as_the_kernel_has_it() {
        use PassthroughCommand as C;
        assert_eq!((size_of::<C>(), offset_of!(C, nsid), offset_of!(C, metadata)), (80, 4, 16));
        assert_eq!((offset_of!(C, addr), offset_of!(C, metadata_len)), (24, 32));
        assert_eq!((offset_of!(C, data_len), offset_of!(C, cdw10_to_15)), (36, 40));
        assert_eq!((offset_of!(C, timeout_ms), offset_of!(C, result)), (64, 72));
    }
}
