//! The bytes that `debug export` reads: of a file or block device, or of an NVMe namespace by its
//! commands, which give the metadata of blocks, too.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use copyhold_device::{Device, DeviceError, NvmeDevice, OpenMode, nvme};
use copyhold_rescue::{BLOCK, Seekable, Source};
use copyhold_types::{DeviceId, Purpose};
use rustix::fs::{FlockOperation, flock};

use super::Machine;
use crate::failure::{Failure, Kind};

/// See the module.
pub(crate) enum Medium {
    File(Seekable<File>),
    Namespace { machine: Machine, device: Arc<NvmeDevice> },
}

impl Medium {
    /// Opens it for reading, locked as readers do.
    pub(crate) fn open(pool: &Path) -> Result<Medium, Failure> {
        if nvme::is_namespace(pool) {
            let machine = Machine::start()?;
            let reactor = machine.executors.reactor();
            let device = NvmeDevice::open(reactor, DeviceId(0), pool, OpenMode::ReadOnly)?;
            return Ok(Medium::Namespace { machine, device });
        }
        let wrong = |error| Failure::system(pool.display(), &error);
        let file = File::open(pool).map_err(wrong)?;
        if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
            let why = format!("{}: in use; unmount it first", pool.display());
            return Err(Failure::new(Kind::InUse, why));
        }
        Ok(Medium::File(Seekable::new(file).map_err(wrong)?))
    }
}

impl Source for Medium {
    fn blocks(&self) -> u64 {
        match self {
            Medium::File(file) => file.blocks(),
            Medium::Namespace { device, .. } => device.geometry().blocks,
        }
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Medium::File(file) => file.read(block, bytes),
            Medium::Namespace { machine, device } => {
                let blocks = (bytes.len() / BLOCK) as u32;
                let read = machine.run(device.read(block, blocks, Purpose::Data));
                bytes.copy_from_slice(&read.map_err(of_device)?);
                Ok(())
            }
        }
    }

    fn protection(&self) -> Option<([u8; 8], [u8; 16])> {
        let Medium::Namespace { device, .. } = self else { return None };
        let format = device.identified().format.to_bytes();
        Some((format, device.identity().unwrap_or_default()))
    }

    fn read_metadata(&self, block: u64, metadata: &mut [u8]) -> io::Result<()> {
        let Medium::Namespace { machine, device } = self else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let blocks = metadata.len() / device.identified().format.entry_bytes();
        let read = machine.run(device.read_metadata(block, blocks as u32));
        metadata.copy_from_slice(&read.map_err(of_device)?);
        Ok(())
    }
}

fn of_device(error: DeviceError) -> io::Error {
    io::Error::other(error)
}
