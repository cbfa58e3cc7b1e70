//! Regular files and block devices.
//!
//! Direct I/O where the filesystem allows it, so that completed writes are with the device and the
//! host keeps no second copy in its page cache. A request goes to the reactor at the call, not at
//! the first poll, and continues when its future is dropped.
//!
//! The file is open and locked until the device is released, or dropped, and no request is in
//! flight.

mod block_device;
mod create;
mod grow;
mod open;
mod signature;

use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use copyhold_runtime::{BoxFuture, Completion, Op, Reactor};
use copyhold_sync::{RwLock, of};
use copyhold_types::{BLOCK_BYTES, Buf, Bufs, DeviceId, Purpose};

pub(crate) use self::block_device::size as block_bytes;
use self::create::Made;
pub use self::open::OpenMode;
use self::open::Opened;
#[cfg(test)]
pub(crate) use self::open::open;
pub(crate) use self::open::{Locked, failed, io_error, lock, name_of, open_patiently};
pub use self::signature::probe_signature;
pub(crate) use self::signature::recognise;
use crate::error::check_bounds;
use crate::pi::Format;
use crate::{Counters, Device, DeviceError, Expect, Geometry, IoError, Protect, at_once};

/// Blocks of one write of [`FileDevice::preallocate`], and how many are in flight.
const PREALLOCATE_BLOCKS: u64 = 256;
const PREALLOCATE_DEPTH: usize = 4;

/// A regular file or a block device.
pub struct FileDevice {
    id: DeviceId,
    reactor: Arc<dyn Reactor>,
    /// `None` once it is released.
    fd: RwLock<Option<Arc<Locked>>, of::DeviceFile>,
    mode: OpenMode,
    is_block_device: bool,
    is_direct: bool,
    made: Option<Made>,
    counters: Counters,
    shared: Arc<Shared>,
}

/// The data that requests need when they end.
struct Shared {
    name: String,
    blocks: AtomicU64,
    can_discard: AtomicBool,
}

impl FileDevice {
    /// Opens and locks an existing file. [`DeviceError::Locked`] if another process, or another
    /// device of this one, has it.
    pub fn open(
        reactor: Arc<dyn Reactor>,
        id: DeviceId,
        path: &Path,
        mode: OpenMode,
    ) -> Result<Arc<FileDevice>, DeviceError> {
        Ok(FileDevice::new(reactor, id, path, mode, open::open(path, mode)?, None))
    }

    /// Creates a sparse regular file of `bytes`, which becomes durable with its name. One that
    /// exists is emptied; a block device is opened as it is, in its size.
    ///
    /// [`DeviceError::Occupied`] where [`probe_signature`] finds data, unless `force`. It looks
    /// when the place is locked, so of two creations one is refused. A file that existed keeps its
    /// content where the creation is refused; an I/O error may come later.
    pub fn create(
        reactor: Arc<dyn Reactor>,
        id: DeviceId,
        path: &Path,
        bytes: u64,
        force: bool,
    ) -> Result<Arc<FileDevice>, DeviceError> {
        let (opened, made) = create::create(path, bytes, force)?;
        Ok(FileDevice::new(reactor, id, path, OpenMode::ReadWrite, opened, made))
    }

    /// Removes the file, if [`Self::create`] has made it and it still has its name. The lock keeps
    /// other openings of this library out until the device is dropped.
    pub fn remove_if_made(&self) {
        if let (Some(made), Some(fd)) = (&self.made, self.fd.read().as_deref()) {
            made.remove(fd);
        }
    }

    fn new(
        reactor: Arc<dyn Reactor>,
        id: DeviceId,
        path: &Path,
        mode: OpenMode,
        opened: Opened,
        made: Option<Made>,
    ) -> Arc<FileDevice> {
        let shared = Shared {
            name: open::name_of(path),
            blocks: AtomicU64::new(opened.bytes / BLOCK_BYTES as u64),
            can_discard: AtomicBool::new(mode == OpenMode::ReadWrite),
        };
        Arc::new(FileDevice {
            id,
            reactor,
            fd: RwLock::new(Some(Arc::new(opened.fd))),
            mode,
            is_block_device: opened.is_block_device,
            is_direct: opened.is_direct,
            made,
            counters: Counters::default(),
            shared: Arc::new(shared),
        })
    }

    /// Whether requests bypass the host's page cache. Some filesystems refuse that; then the
    /// cache holds data twice, and nothing else differs.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Writes zeros, so that later writes there neither need space of the host (rule R32) nor
    /// its allocator (P6). Not flushed. Also after an error, no write is in flight any more.
    pub fn preallocate(
        &self,
        block: u64,
        blocks: u64,
        why: Purpose,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let zeros = Buf::zeroed(PREALLOCATE_BLOCKS.min(blocks) as usize);
            let end = block.saturating_add(blocks);
            let mut in_flight = std::collections::VecDeque::new();
            let mut written = Ok(());
            for at in (block..end).step_by(PREALLOCATE_BLOCKS as usize) {
                if in_flight.len() == PREALLOCATE_DEPTH
                    && let Some(oldest) = in_flight.pop_front()
                {
                    let oldest: BoxFuture<'static, Result<(), DeviceError>> = oldest;
                    written = oldest.await;
                }
                if written.is_err() {
                    break;
                }
                let left = (end - at).min(PREALLOCATE_BLOCKS) as usize;
                let data = if left == zeros.blocks() { zeros.clone() } else { Buf::zeroed(left) };
                in_flight.push_back(self.write(at, data.into(), why));
            }
            for write in in_flight {
                written = written.and(write.await);
            }
            written
        })
    }

    fn check(&self, block: u64, blocks: u64) -> Result<(), DeviceError> {
        check_bounds(&self.shared.name, self.shared.blocks.load(Relaxed), block, blocks)
    }

    /// The file, or why there is none.
    fn file(&self) -> Result<Arc<Locked>, IoError> {
        self.fd.read().clone().ok_or(IoError(libc::EBADF))
    }

    fn discard_op(&self, fd: Arc<Locked>, block: u64, blocks: u64) -> Op {
        let (offset, len) = (bytes(block), bytes(blocks));
        if self.is_block_device {
            return Op::Blocking(Box::new(move || block_device::discard(&*fd, offset, len)));
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        Op::Fallocate { fd, mode, offset, len }
    }
}

fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

impl Device for FileDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.shared.blocks.load(Relaxed),
            can_discard: self.shared.can_discard.load(Relaxed),
            name: self.shared.name.clone(),
        }
    }

    fn protection(&self) -> Option<Format> {
        None
    }

    fn identity(&self) -> Option<[u8; 16]> {
        None
    }

    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        let plain = expect.check_plain(&self.shared.name);
        if let Err(error) = plain.and_then(|()| self.check(block, blocks.into())) {
            return at_once(Err(error));
        }
        let shared = self.shared.clone();
        let fd = match self.file() {
            Ok(fd) => fd,
            Err(source) => {
                let name = shared.name.clone();
                return at_once(Err(DeviceError::of_read(name, (block, blocks), why, source)));
            }
        };
        self.counters.read(why, blocks);
        let buf = Buf::scratch(blocks as usize);
        let read = self.reactor.submit(Op::Read { fd, buf, offset: bytes(block) });
        Box::pin(async move {
            let outcome = read.await;
            let Err(error) = outcome.result else {
                return Ok(outcome.buf.expect("a read gives its buffer back"));
            };
            let name = shared.name.clone();
            if error.kind() == ErrorKind::UnexpectedEof {
                return Err(DeviceError::Shrunk { name, end: block + u64::from(blocks) });
            }
            Err(DeviceError::of_read(name, (block, blocks), why, io_error(&error)))
        })
    }

    fn write_protected(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        let blocks = data.iter().map(|buf| buf.blocks() as u64).sum();
        let plain = protect.check_plain(&self.shared.name);
        if let Err(error) = plain.and_then(|()| self.check(block, blocks)) {
            return at_once(Err(error));
        }
        let shared = self.shared.clone();
        let is_block_device = self.is_block_device;
        let failed = move |source| {
            let (name, blocks) = (shared.name.clone(), blocks as u32);
            if is_block_device && source == IoError(libc::ENOSPC) {
                return DeviceError::ThinFull { name, block, blocks, why, source };
            }
            DeviceError::of_write(name, (block, blocks), why, source)
        };
        let fd = match self.file() {
            Ok(fd) => fd,
            Err(source) => return at_once(Err(failed(source))),
        };
        self.counters.write(why, blocks);
        let write = self.reactor.submit(Op::Write { fd, bufs: data, offset: bytes(block) });
        Box::pin(async move { write.await.result.map_err(|error| failed(io_error(&error))) })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>> {
        if self.mode == OpenMode::ReadOnly {
            return at_once(Ok(()));
        }
        let shared = self.shared.clone();
        let failed = move |source| DeviceError::Flush { name: shared.name.clone(), source };
        let fd = match self.file() {
            Ok(fd) => fd,
            Err(source) => return at_once(Err(failed(source))),
        };
        self.counters.flush();
        let sync = self.reactor.submit(Op::Fdatasync { fd });
        Box::pin(async move { sync.await.result.map_err(|error| failed(io_error(&error))) })
    }

    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>> {
        if let Err(error) = self.check(block, blocks) {
            return at_once(Err(error));
        }
        if blocks == 0 || !self.shared.can_discard.load(Relaxed) {
            return at_once(Ok(()));
        }
        let shared = self.shared.clone();
        let fd = match self.file() {
            Ok(fd) => fd,
            Err(source) => {
                let name = shared.name.clone();
                return at_once(Err(DeviceError::Discard { name, block, blocks, source }));
            }
        };
        self.counters.discard(blocks);
        let discard: Completion = self.reactor.submit(self.discard_op(fd, block, blocks));
        Box::pin(async move {
            let Err(error) = discard.await.result else { return Ok(()) };
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) {
                // Then the blocks just stay as they are.
                shared.can_discard.store(false, Relaxed);
                return Ok(());
            }
            let name = shared.name.clone();
            Err(DeviceError::Discard { name, block, blocks, source: io_error(&error) })
        })
    }

    fn measure(&self) -> Result<u64, DeviceError> {
        self.measured()
    }

    fn grow(&self, blocks: u64, room: Range<u64>) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.lengthen(blocks, room))
    }

    fn release(&self) {
        *self.fd.write() = None;
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
