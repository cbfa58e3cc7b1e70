//! The device: requests of the engine, each carried out on a thread of its own.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use copyhold_runtime::{BoxFuture, Op, Reactor};
use copyhold_sync::{RwLock, of};
use copyhold_types::{BLOCK_BYTES, Buf, Bufs, DeviceId, Purpose};

use super::drive::Drive;
use super::identify::Identity;
use super::open;
use crate::error::check_bounds;
use crate::file::{io_error, recognise};
use crate::pi::{Format, Kind, Request};
use crate::{
    Access, Counters, Device, DeviceError, Expect, Geometry, IoError, OpenMode, Protect, at_once,
};

/// Blocks at either end that are looked at for other data: 1 MiB.
const LOOK: u64 = 256;

/// A namespace of an NVMe drive.
pub struct NvmeDevice {
    id: DeviceId,
    reactor: Arc<dyn Reactor>,
    /// `None` once it is released.
    drive: RwLock<Option<Arc<Drive>>, of::NvmeDrive>,
    mode: OpenMode,
    name: String,
    identified: Identity,
    counters: Counters,
}

impl NvmeDevice {
    /// Opens and locks the namespace with this character device. [`DeviceError::Identify`] if its
    /// format cannot be used.
    pub fn open(
        reactor: Arc<dyn Reactor>,
        id: DeviceId,
        path: &Path,
        mode: OpenMode,
    ) -> Result<Arc<NvmeDevice>, DeviceError> {
        let drive = open::open(path, mode)?;
        Ok(NvmeDevice::over(reactor, id, drive, mode))
    }

    /// As [`Self::open`], for a namespace that gets new content. [`DeviceError::Occupied`] if it
    /// has data, unless `force`: then the present content is not even read.
    pub fn create(
        reactor: Arc<dyn Reactor>,
        id: DeviceId,
        path: &Path,
        force: bool,
    ) -> Result<Arc<NvmeDevice>, DeviceError> {
        let drive = open::open(path, OpenMode::ReadWrite)?;
        expect_room(&drive, force)?;
        Ok(NvmeDevice::over(reactor, id, drive, OpenMode::ReadWrite))
    }

    fn over(
        reactor: Arc<dyn Reactor>,
        id: DeviceId,
        drive: Drive,
        mode: OpenMode,
    ) -> Arc<NvmeDevice> {
        let (identified, name) = (*drive.identity(), drive.name());
        let drive = RwLock::new(Some(Arc::new(drive)));
        let counters = Counters::default();
        Arc::new(NvmeDevice { id, reactor, drive, mode, name, identified, counters })
    }

    /// The drive's description of the namespace.
    pub fn identified(&self) -> &Identity {
        &self.identified
    }

    /// Reads the metadata of blocks as they are: nothing is compared.
    pub fn read_metadata(
        &self,
        block: u64,
        blocks: u32,
    ) -> BoxFuture<'static, Result<Vec<u8>, DeviceError>> {
        if let Err(error) = self.check(block, blocks.into()) {
            return at_once(Err(error));
        }
        let request = Request { block, blocks, why: Purpose::Guard, access: Access::Read };
        let name = self.name.clone();
        let failed = move |source| request.failed(&name, source);
        let drive = match self.drive() {
            Ok(drive) => drive,
            Err(source) => return at_once(Err(failed(source))),
        };
        self.counters.read(Purpose::Guard, blocks);
        self.blocking(move || drive.read_metadata(request), failed)
    }

    fn drive(&self) -> Result<Arc<Drive>, IoError> {
        self.drive.read().clone().ok_or(IoError(libc::EBADF))
    }

    /// The namespace, for requests that change it.
    fn writable(&self) -> Result<Arc<Drive>, IoError> {
        match self.mode {
            OpenMode::ReadWrite => self.drive(),
            OpenMode::ReadOnly => Err(IoError(libc::EROFS)),
        }
    }

    fn check(&self, block: u64, blocks: u64) -> Result<(), DeviceError> {
        check_bounds(&self.name, self.identified.blocks, block, blocks)
    }

    /// Runs `call` beside the executors, also if the future is dropped (NVME-N2). `failed` makes
    /// the error of a call that could not begin.
    fn blocking<T: Send + Sync + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
        failed: impl FnOnce(IoError) -> DeviceError + Send + 'static,
    ) -> BoxFuture<'static, Result<T, DeviceError>> {
        let answer = Arc::new(OnceLock::new());
        let place = answer.clone();
        let done = self.reactor.submit(Op::Blocking(Box::new(move || {
            let _is_first = place.set(call());
            Ok(())
        })));
        Box::pin(async move {
            if let Err(error) = done.await.result {
                return Err(failed(io_error(&error)));
            }
            let answer = Arc::into_inner(answer).and_then(OnceLock::into_inner);
            answer.expect("a call that has ended has given its answer")
        })
    }
}

/// Refuses a namespace with data, unless `force`.
fn expect_room(drive: &Drive, force: bool) -> Result<(), DeviceError> {
    match if force { None } else { find_data(drive)? } {
        Some(found) => Err(DeviceError::Occupied { name: drive.name(), found }),
        None => Ok(()),
    }
}

/// The kind of data in the namespace that a user may miss.
fn find_data(drive: &Drive) -> Result<Option<&'static str>, DeviceError> {
    let blocks = drive.identity().blocks;
    let count = LOOK.min(blocks) as u32;
    Ok(recognise(&look(drive, 0, count)?, &look(drive, blocks - u64::from(count), count)?))
}

/// Reads blocks of any tuples. A deallocated block, which some drives refuse, counts as zeros.
fn look(drive: &Drive, block: u64, blocks: u32) -> Result<Buf, DeviceError> {
    let read = |block, blocks| {
        let request = Request { block, blocks, why: Purpose::Label, access: Access::Read };
        drive.read(request, Expect::Plain)
    };
    match read(block, blocks) {
        Err(DeviceError::Integrity { kind: Kind::Escape, .. }) => {}
        seen => return seen,
    }
    let mut seen = Buf::zeroed(blocks as usize);
    for (at, place) in (block..).zip(seen.make_mut().chunks_exact_mut(BLOCK_BYTES)) {
        match read(at, 1) {
            Ok(content) => place.copy_from_slice(&content),
            Err(DeviceError::Integrity { kind: Kind::Escape, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(seen)
}

impl Device for NvmeDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn geometry(&self) -> Geometry {
        let can_discard = self.writable().is_ok_and(|drive| drive.can_discard());
        Geometry { blocks: self.identified.blocks, can_discard, name: self.name.clone() }
    }

    fn protection(&self) -> Option<Format> {
        Some(self.identified.format)
    }

    fn identity(&self) -> Option<[u8; 16]> {
        self.identified.unique
    }

    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        if let Err(error) = self.check(block, blocks.into()) {
            return at_once(Err(error));
        }
        let request = Request { block, blocks, why, access: Access::Read };
        let drive = match self.drive() {
            Ok(drive) => drive,
            Err(source) => return at_once(Err(request.failed(&self.name, source))),
        };
        self.counters.read(why, blocks);
        let name = self.name.clone();
        let failed = move |source| request.failed(&name, source);
        self.blocking(move || drive.read(request, expect), failed)
    }

    fn write_protected(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        let blocks = data.iter().map(|buf| buf.blocks() as u64).sum();
        if let Err(error) = self.check(block, blocks) {
            return at_once(Err(error));
        }
        let request = Request { block, blocks: blocks as u32, why, access: Access::Write };
        let drive = match self.writable() {
            Ok(drive) => drive,
            Err(source) => return at_once(Err(request.failed(&self.name, source))),
        };
        self.counters.write(why, blocks);
        let name = self.name.clone();
        let failed = move |source| request.failed(&name, source);
        self.blocking(move || drive.write(request, &data, &protect), failed)
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>> {
        if self.mode == OpenMode::ReadOnly {
            return at_once(Ok(()));
        }
        let name = self.name.clone();
        let failed = move |source| DeviceError::Flush { name: name.clone(), source };
        let drive = match self.drive() {
            Ok(drive) => drive,
            Err(source) => return at_once(Err(failed(source))),
        };
        self.counters.flush();
        self.blocking(move || drive.flush(), failed)
    }

    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>> {
        if let Err(error) = self.check(block, blocks) {
            return at_once(Err(error));
        }
        if self.mode == OpenMode::ReadOnly {
            return at_once(Ok(()));
        }
        let name = self.name.clone();
        let failed =
            move |source| DeviceError::Discard { name: name.clone(), block, blocks, source };
        let drive = match self.drive() {
            Ok(drive) => drive,
            Err(source) => return at_once(Err(failed(source))),
        };
        if blocks == 0 || !drive.can_discard() {
            return at_once(Ok(()));
        }
        self.counters.discard(blocks);
        self.blocking(move || drive.discard(block, blocks), failed)
    }

    fn release(&self) {
        *self.drive.write() = None;
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

#[cfg(test)]
mod tests;
