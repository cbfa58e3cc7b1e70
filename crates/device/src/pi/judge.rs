//! The commands of a device with protection, and its refusals as errors of a request.
//!
//! An emulated namespace and a real drive serve the same requests: this module turns protection
//! and expectation into a command, and the answer of either device into an error.

use copyhold_types::Purpose;

use super::command::{Command, Refusal, Status};
use super::{Checks, Format, Kind, Tags};
use crate::{Access, DeviceError, Expect, IoError, Protect, Verifier};

/// The blocks of a request, for its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) block: u64,
    pub(crate) blocks: u32,
    pub(crate) why: Purpose,
    pub(crate) access: Access,
}

impl Request {
    /// The first of the drive's blocks, in this format.
    pub(crate) fn first(&self, format: &Format) -> u64 {
        self.block * format.parts() as u64
    }

    /// The command of a write, and the metadata that the host sends where the device needs them.
    pub(crate) fn write_command(&self, format: &Format, protect: &Protect) -> (Command, Vec<u8>) {
        let of_birth = |birth| Tags::of_birth(format, self.first(format), birth);
        let by_device = |birth| {
            let zeros = vec![0; self.blocks as usize * format.entry_bytes()];
            (Command { by_device: true, checks: Checks::NONE, tags: of_birth(birth) }, zeros)
        };
        match protect {
            Protect::Plain => by_device(None),
            Protect::Offload { birth } => by_device(Some(*birth)),
            Protect::Guard { birth, guards } => {
                let tags = of_birth(Some(*birth));
                let sent = format.metadata(&tags, guards);
                (Command { by_device: false, checks: Checks::all(format), tags }, sent)
            }
        }
    }

    /// The command of a read.
    pub(crate) fn read_command(&self, format: &Format, expect: Expect) -> Command {
        let birth = expect.birth();
        let tags = Tags::of_birth(format, self.first(format), birth);
        let checks = if birth.is_some() { Checks::all(format) } else { Checks::NONE };
        Command { by_device: !matches!(expect, Expect::Guard { .. }), checks, tags }
    }

    /// Verifies the answer of the device by the host, where it is to.
    pub(crate) fn verify(
        &self,
        name: &str,
        format: &Format,
        expect: Expect,
        data: &[u8],
        metadata: &[u8],
    ) -> Result<(), DeviceError> {
        let Expect::Guard { .. } = expect else { return Ok(()) };
        let tags = self.read_command(format, expect).tags;
        let verified = format.verify(&tags, data, metadata);
        verified.map_err(|(nth, kind)| self.mismatch(name, format, nth, kind, Verifier::Host))
    }

    /// The refusal of a device as an error.
    pub(crate) fn refused(&self, name: &str, format: &Format, refusal: Refusal) -> DeviceError {
        let kind = match refusal.status {
            Status::Guard => Kind::Guard,
            Status::App => Kind::App,
            Status::Reference => Kind::Reference,
            Status::Storage => Kind::Storage,
            Status::Deallocated => Kind::Escape,
            // As the kernel calls an error of the medium.
            Status::WriteFault | Status::UnrecoveredRead => {
                return self.failed(name, IoError(libc::ENODATA));
            }
            Status::InvalidField | Status::InvalidProtection | Status::CompareFailure => {
                return self.contradiction(name);
            }
        };
        self.mismatch(name, format, refusal.nth, kind, Verifier::Device)
    }

    pub(crate) fn contradiction(&self, name: &str) -> DeviceError {
        let Request { block, blocks, why, access } = *self;
        DeviceError::Contradiction { name: name.into(), block, blocks, why, access }
    }

    /// A mismatch of the `nth` of the drive's blocks.
    pub(crate) fn mismatch(
        &self,
        name: &str,
        format: &Format,
        nth: u64,
        kind: Kind,
        by: Verifier,
    ) -> DeviceError {
        let Request { block, why, access, .. } = *self;
        let block = block + nth / format.parts() as u64;
        DeviceError::Integrity { name: name.into(), block, blocks: 1, why, access, kind, by }
    }

    /// Of a request that has failed for another reason than its protection.
    pub(crate) fn failed(&self, name: &str, source: IoError) -> DeviceError {
        let Request { block, blocks, why, access } = *self;
        let name = name.to_owned();
        match access {
            Access::Read => DeviceError::Read { name, block, blocks, why, source },
            Access::Write => DeviceError::Write { name, block, blocks, why, source },
        }
    }
}
