//! Requests as commands of a drive: split, carried out one after the other, and judged.
//!
//! Problem.  A command covers few blocks, has a status for all of them, and does not say which one
//!           is bad. A request covers many, and its error names one.
//! Idea.     A request is cut into commands of whole blocks. A read that fails by a mismatch or
//!           by the medium is repeated block by block, so the bad one shows; of a write that the
//!           drive refuses the host computes the guards again, and names the block whose guard
//!           differs.
//!
//! NVMECMD-D1  Each command lies in the request and in the limits of the drive (NVMEID-I1) and of
//!             the kernel (NVMEK-K2), and the commands cover each block of the request once.
//! NVMECMD-D2  A command has a buffer of metadata exactly where the drive transfers some: without
//!             it, a drive reads or writes them at address 0 of the machine.
//! NVMECMD-D3  A read names the first block that is bad or unreadable, as one by one would. Of a
//!             write that is refused no block of that command is stored; those of the commands
//!             before it are.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use copyhold_types::{BLOCK_BYTES, Buf, Bufs, Purpose};

use super::command::{Commands, Fields, Queue, Transfer, deallocated_range};
use super::identify::{IdentifyProblem, Identity, PAGE_BYTES, Pages, has_wide_guards};
use super::repeat;
use crate::pi::{Checks, Command, Format, Refusal, Request, Status, Tags};
use crate::{Access, DeviceError, Expect, IoError, Protect};

/// Blocks of 4 KiB that one command deallocates, at first: 1 GiB.
const DISCARDED_BLOCKS: u64 = 1 << 18;
/// The status of a command with more blocks than the drive takes.
const TOO_LONG: u16 = 0x183;
/// The read that shows whether metadata can be transferred.
const FIRST_BLOCK: Request =
    Request { block: 0, blocks: 1, why: Purpose::Label, access: Access::Read };
/// The bytes of that read's buffer before it. Only by chance is metadata a run of this byte.
const UNTOUCHED: u8 = 0xa5;
/// The bits of an answer that are its status.
const CODE: u16 = 0x7ff;

/// A namespace, and the way to it.
pub(super) struct Drive {
    commands: Box<dyn Commands>,
    namespace: u32,
    identity: Identity,
    name: String,
    can_discard: AtomicBool,
    /// Blocks of 4 KiB that one command deallocates. A drive that refuses so many has it halved.
    discarded_blocks: AtomicU64,
}

/// The failure of a command: the drive's answer, or the system's.
enum Failure {
    Refused(Status),
    TooLong,
    Failed(IoError),
}

impl Drive {
    /// Asks the drive for the format of the namespace. `most_blocks` is the kernel's limit of a
    /// command.
    pub(super) fn identify(
        commands: Box<dyn Commands>,
        namespace: u32,
        most_blocks: u32,
        name: &str,
    ) -> Result<Drive, DeviceError> {
        let page = |what, of| page(&*commands, name, what, of);
        let controller = page(1, 0)?;
        let described = page(0, namespace)?;
        let extended = match has_wide_guards(&controller) {
            true => Some(page(5, namespace)?),
            false => None,
        };
        let (controller, described) = (&controller, &described);
        let pages = Pages { controller, namespace: described, extended: extended.as_ref() };
        let mut identity = Identity::parse(&pages).map_err(|problem| unusable(name, problem))?;
        identity.limit_blocks(most_blocks);
        let can_discard = AtomicBool::new(identity.can_discard);
        let discarded_blocks = AtomicU64::new(DISCARDED_BLOCKS);
        let name = name.into();
        Ok(Drive { commands, namespace, identity, name, can_discard, discarded_blocks })
    }

    /// Whether metadata can be transferred at all: reads those of the first block. Drive and kernel
    /// refuse the transfer by three answers, or leave the buffer as it is. Any other failure is of
    /// the block, and a pool has a second label.
    pub(super) fn probe(&self) -> Result<(), DeviceError> {
        let untouched = vec![UNTOUCHED; self.format().entry_bytes()];
        let mut metadata = untouched.clone();
        let source = match self.read_metadata_part(FIRST_BLOCK, &mut metadata) {
            Ok(()) if metadata == untouched => IoError(libc::ENODATA),
            Err(failure) if failure.is_of_transfer() => failure.io_error(),
            Ok(()) | Err(_) => return Ok(()),
        };
        Err(unusable(&self.name, IdentifyProblem::NoTransfer(source)))
    }

    /// The metadata of blocks, of which nothing is compared.
    pub(super) fn read_metadata(&self, request: Request) -> Result<Vec<u8>, DeviceError> {
        let entry = self.format().entry_bytes();
        let mut metadata = vec![0; request.blocks as usize * entry];
        let mut rest = &mut metadata[..];
        for (part, _) in parts(request, self.identity.most_blocks) {
            let (place, behind) =
                std::mem::take(&mut rest).split_at_mut(part.blocks as usize * entry);
            let read = self.read_metadata_part(part, place);
            read.map_err(|failure| self.failed(part, &failure))?;
            rest = behind;
        }
        Ok(metadata)
    }

    /// Reads metadata by one command, which transfers the data, too.
    fn read_metadata_part(&self, part: Request, metadata: &mut [u8]) -> Result<(), Failure> {
        let format = self.format();
        let tags = Tags::of_birth(format, part.first(format), None);
        let command = Command { by_device: false, checks: Checks::NONE, tags };
        let (mut data, mut space) = (Buf::zeroed(part.blocks as usize), Buf::zeroed(1));
        let read = &mut space.make_mut()[..metadata.len()];
        read.copy_from_slice(metadata);
        let fields = Fields::read(self.namespace, self.range(part), format, &command);
        let transfer = Transfer::ToHost { data: data.make_mut(), metadata: read };
        self.execute(&fields, transfer)?;
        metadata.copy_from_slice(&space[..metadata.len()]);
        Ok(())
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    pub(super) fn can_discard(&self) -> bool {
        self.can_discard.load(Relaxed)
    }

    fn format(&self) -> &Format {
        &self.identity.format
    }

    pub(super) fn read(&self, request: Request, expect: Expect) -> Result<Buf, DeviceError> {
        let mut data = Buf::scratch(request.blocks as usize);
        let bytes = data.make_mut();
        for (part, place) in parts(request, self.identity.most_blocks) {
            match self.read_part(part, expect, &mut bytes[place.clone()]) {
                Err(error) if part.blocks > 1 && is_of_a_block(&error) => {
                    self.read_singly(part, expect, &mut bytes[place])?;
                }
                answer => answer?,
            }
        }
        Ok(data)
    }

    /// Reads one block after the other, where a command of all has failed by a mismatch or by the
    /// medium: the first bad block shows, and none if the damage was on the way.
    fn read_singly(
        &self,
        request: Request,
        expect: Expect,
        data: &mut [u8],
    ) -> Result<(), DeviceError> {
        parts(request, 1).try_for_each(|(one, place)| self.read_part(one, expect, &mut data[place]))
    }

    /// Reads by one command.
    fn read_part(&self, part: Request, expect: Expect, data: &mut [u8]) -> Result<(), DeviceError> {
        let format = self.format();
        let command = part.read_command(format, expect);
        let mut space = Buf::zeroed(1);
        let metadata = self.metadata(&command, part);
        let metadata = &mut space.make_mut()[..metadata];
        let fields = Fields::read(self.namespace, self.range(part), format, &command);
        let transfer = Transfer::ToHost { data, metadata };
        let done = self.execute(&fields, transfer);
        done.map_err(|failure| self.failed(part, &failure))?;
        part.verify(&self.name, format, expect, data, metadata)
    }

    pub(super) fn write(
        &self,
        request: Request,
        data: &Bufs,
        protect: &Protect,
    ) -> Result<(), DeviceError> {
        let whole;
        let data: &[u8] = match data.as_slice() {
            [one] => one,
            many => {
                whole = join(many);
                &whole
            }
        };
        let per_block = self.format().parts();
        if let Protect::Guard { guards, .. } = protect
            && guards.len() != request.blocks as usize * per_block
        {
            return Err(request.contradiction(&self.name));
        }
        for (part, place) in parts(request, self.identity.most_blocks) {
            let first = place.start / BLOCK_BYTES * per_block;
            let count = part.blocks as usize * per_block;
            self.write_part(part, &data[place], &protect.part(first..first + count))?;
        }
        Ok(())
    }

    /// Writes by one command.
    fn write_part(&self, part: Request, data: &[u8], protect: &Protect) -> Result<(), DeviceError> {
        let format = self.format();
        let (command, sent) = part.write_command(format, protect);
        let sent = &sent[..self.metadata(&command, part)];
        let space = Buf::from_bytes(sent);
        let fields = Fields::write(self.namespace, self.range(part), format, &command);
        let transfer = Transfer::ToDrive { data, metadata: &space[..sent.len()] };
        self.execute(&fields, transfer).map_err(|failure| match (&failure, protect) {
            (Failure::Refused(Status::Guard), Protect::Guard { guards, .. }) => {
                let right = format.guards(data);
                let nth = guards.iter().zip(&right).position(|(given, right)| given != right);
                let refusal = Refusal { status: Status::Guard, nth: nth.unwrap_or(0) as u64 };
                let error = part.refused(&self.name, format, refusal);
                // Else the bytes have changed on the way, in any block.
                if nth.is_some() { error } else { of_all(error, part) }
            }
            _ => self.failed(part, &failure),
        })
    }

    pub(super) fn flush(&self) -> Result<(), DeviceError> {
        let done = self.execute(&Fields::flush(self.namespace), Transfer::None);
        done.map_err(|failure| DeviceError::Flush { name: self.name(), source: failure.io_error() })
    }

    pub(super) fn discard(&self, block: u64, blocks: u64) -> Result<(), DeviceError> {
        let end = block + blocks;
        let mut first = block;
        while first < end {
            let count = self.discarded_blocks.load(Relaxed).min(end - first);
            let source = match self.discard_part(first, count) {
                Ok(()) => {
                    first += count;
                    continue;
                }
                Err(Failure::TooLong) if count > 1 => {
                    self.discarded_blocks.fetch_min(count / 2, Relaxed);
                    continue;
                }
                Err(failure) => failure.io_error(),
            };
            if source == IoError(libc::EOPNOTSUPP) {
                // Then the blocks just stay as they are.
                self.can_discard.store(false, Relaxed);
                return Ok(());
            }
            return Err(DeviceError::Discard { name: self.name(), block, blocks, source });
        }
        Ok(())
    }

    /// Deallocates by one command.
    fn discard_part(&self, block: u64, blocks: u64) -> Result<(), Failure> {
        let per_block = self.format().parts() as u64;
        let range = deallocated_range(block * per_block, (blocks * per_block) as u32);
        let transfer = Transfer::ToDrive { data: &range, metadata: &[] };
        self.execute(&Fields::deallocate(self.namespace), transfer)
    }

    /// The drive's blocks of a part.
    fn range(&self, part: Request) -> (u64, u32) {
        (part.first(self.format()), part.blocks * self.format().parts() as u32)
    }

    /// Bytes of metadata that the command transfers (NVMECMD-D2).
    fn metadata(&self, command: &Command, part: Request) -> usize {
        match command.transfers_metadata(self.format()) {
            true => part.blocks as usize * self.format().entry_bytes(),
            false => 0,
        }
    }

    fn execute(&self, fields: &Fields, transfer: Transfer<'_>) -> Result<(), Failure> {
        match repeat::execute(&*self.commands, Queue::Io, fields, transfer) {
            Ok(0) => Ok(()),
            Ok(code) if code & CODE == TOO_LONG => Err(Failure::TooLong),
            Ok(code) => Err(match Status::of_code(code) {
                Some(status) => Failure::Refused(status),
                None => Failure::Failed(IoError(errno_of(code))),
            }),
            Err(error) => Err(Failure::Failed(IoError(error.raw_os_error().unwrap_or(libc::EIO)))),
        }
    }

    fn failed(&self, part: Request, failure: &Failure) -> DeviceError {
        let source = match *failure {
            Failure::Refused(status) => {
                let error = part.refused(&self.name, self.format(), Refusal { status, nth: 0 });
                return of_all(error, part);
            }
            Failure::TooLong | Failure::Failed(_) => failure.io_error(),
        };
        if part.access == Access::Write && source == IoError(libc::ENOSPC) {
            let Request { block, blocks, why, .. } = part;
            return DeviceError::ThinFull { name: self.name(), block, blocks, why, source };
        }
        part.failed(&self.name, source)
    }
}

impl Failure {
    /// Whether drive or kernel does not know the command with metadata.
    fn is_of_transfer(&self) -> bool {
        let is_unknown = matches!(self, Failure::Refused(Status::InvalidField));
        is_unknown || matches!(self.io_error().0, libc::EINVAL | libc::EOPNOTSUPP)
    }

    /// For requests without protection.
    fn io_error(&self) -> IoError {
        match self {
            Failure::Refused(status) => IoError(errno_of(status.code())),
            Failure::TooLong => IoError(errno_of(TOO_LONG)),
            Failure::Failed(source) => *source,
        }
    }
}

/// A page of Identify.
fn page(
    commands: &dyn Commands,
    name: &str,
    what: u8,
    of: u32,
) -> Result<[u8; PAGE_BYTES], DeviceError> {
    let mut page = [0; PAGE_BYTES];
    let fields = Fields::identify(of, what, 0);
    let transfer = Transfer::ToHost { data: &mut page, metadata: &mut [] };
    let errno = match repeat::execute(commands, Queue::Admin, &fields, transfer) {
        Ok(0) => return Ok(page),
        Ok(code) => errno_of(code),
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    Err(DeviceError::Open { name: name.into(), source: IoError(errno) })
}

pub(super) fn unusable(name: &str, problem: IdentifyProblem) -> DeviceError {
    DeviceError::Identify { name: name.into(), problem: Box::new(problem) }
}

/// The errno of a status that says nothing of protection, as the kernel has it.
fn errno_of(code: u16) -> i32 {
    match code & CODE {
        0x001 => libc::EOPNOTSUPP,    // invalid opcode
        0x020 | 0x182 => libc::EROFS, // write protected, read-only range
        0x081 => libc::ENOSPC,        // capacity exceeded
        0x280 | 0x281 => libc::ENODATA,
        _ => libc::EIO,
    }
}

/// Whether an error of a read is of one of its blocks, and others may be readable.
fn is_of_a_block(error: &DeviceError) -> bool {
    matches!(
        error,
        DeviceError::Integrity { .. } | DeviceError::Read { source: IoError(libc::ENODATA), .. }
    )
}

/// The error of one block as one of all: the drive does not say which block is bad.
fn of_all(mut error: DeviceError, part: Request) -> DeviceError {
    if let DeviceError::Integrity { block, blocks, .. } = &mut error {
        (*block, *blocks) = (part.block, part.blocks);
    }
    error
}

/// A request in parts of at most `most` blocks (NVMECMD-D1), and the bytes of each.
fn parts(request: Request, most: u32) -> impl Iterator<Item = (Request, Range<usize>)> {
    (0..request.blocks).step_by(most as usize).map(move |at| {
        let blocks = most.min(request.blocks - at);
        let start = at as usize * BLOCK_BYTES;
        let part = Request { block: request.block + u64::from(at), blocks, ..request };
        (part, start..start + blocks as usize * BLOCK_BYTES)
    })
}

/// Buffers in one. A command takes its data from one place.
fn join(bufs: &[Buf]) -> Buf {
    let mut whole = Buf::scratch(bufs.iter().map(Buf::blocks).sum());
    let mut rest = whole.make_mut();
    for buf in bufs {
        let (place, behind) = std::mem::take(&mut rest).split_at_mut(buf.len());
        place.copy_from_slice(buf);
        rest = behind;
    }
    whole
}

#[cfg(test)]
mod tests;
