//! A namespace with protection information on any device.
//!
//! Problem.  Few drives have metadata beside their blocks, and none of a laptop, a cloud or a
//!           simulation. Protection must be there to be tested and used on all of them.
//! Idea.     A file or disk holds the data at its own block numbers, and behind it an entry of
//!           metadata for each block (`layout`). This module plays the drive: it checks and makes
//!           tuples (`command`), and stores both halves in the device below (`entries`). No journal
//!           joins the halves: the engine writes only blocks that nothing refers to yet.
//!
//! PIDEV-E1  A write that completes has stored both halves; a flush makes both durable, with one
//!           flush of the device below. A write that was refused has stored nothing. A write
//!           without protection needs its data only: it completes if its tuples cannot be stored.
//! PIDEV-E2  A request changes both halves of its own blocks only (ENTRY-T1). It is a task of its
//!           own: it continues if its future is dropped, or not polled.
//! PIDEV-E3  A crash may leave data and tuple of one block apart, each old, new or torn, only if
//!           no flush began after the completion of the block's last write. Then a read that
//!           expects protection returns one of the two contents, or a mismatch.
//! PIDEV-E4  Blocks that were never written have an escape (ENTRY-T3), and so have discarded ones
//!           if the device below can discard, and has erased their tuples.
//!
//! The engine may rely on PIDEV-E1 and PIDEV-E3: it flushes between data that only its tuple
//! protects and the batch that refers to it (R8), and never writes it in place.
//!
//! Cost: a read with protection has one request more. A write has one more for all blocks of
//! entries that it covers, and two (a read and a write) at each of its ends, which it may share
//! with other writes. Reads without protection have none.

use std::sync::Arc;

use copyhold_runtime::{BoxFuture, Rt};
use copyhold_types::{Buf, Bufs, DeviceId, Purpose};
use futures_channel::oneshot;

use super::command::Refusal;
use super::entries::Entries;
use super::faults::{DriveFault, Faults, flip};
use super::header::{Header, HeaderProblem};
use super::headers::{Copies, erase_headers};
use super::layout::{HEADERS, Layout};
use super::{Format, Request};
use crate::error::check_bounds;
use crate::{
    Access, Counters, Device, DeviceError, DynDevice, Expect, Geometry, IoError, OpenMode, Protect,
    at_once,
};

/// See the module's text.
pub struct Emulated {
    shared: Arc<Shared>,
}

struct Shared {
    rt: Rt,
    below: DynDevice,
    mode: OpenMode,
    name: String,
    header: Header,
    layout: Layout,
    counters: Arc<Counters>,
    entries: Entries,
    faults: Faults,
    /// Of the copies of the header.
    defects: Vec<String>,
}

impl Emulated {
    /// Makes a namespace of all of `below`, whose content is lost. It is durable at the end. All
    /// tuples are written: 0.4 % of the device with `4096+16`.
    pub async fn create(
        rt: Rt,
        below: DynDevice,
        format: Format,
    ) -> Result<Arc<Emulated>, DeviceError> {
        Emulated::make(rt, below, format, false).await
    }

    /// As [`Self::create`], of a device that reads as zeros, such as a file of holes. They are the
    /// tuples of blocks that were never written (ENTRY-T3): nothing but the header is written.
    pub async fn create_on_zeros(
        rt: Rt,
        below: DynDevice,
        format: Format,
    ) -> Result<Arc<Emulated>, DeviceError> {
        Emulated::make(rt, below, format, true).await
    }

    async fn make(
        rt: Rt,
        below: DynDevice,
        format: Format,
        is_zeros: bool,
    ) -> Result<Arc<Emulated>, DeviceError> {
        let Geometry { blocks, name, .. } = below.geometry();
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&rt.random().to_le_bytes());
        identity[8..].copy_from_slice(&rt.random().to_le_bytes());
        let header = Header::new(identity, format, blocks);
        let header = header.map_err(|problem| unusable(name, problem))?;

        // A crash leaves no header of an older namespace over entries of this one.
        erase_headers(&below).await?;
        let made = Emulated::over(rt, below.clone(), header, OpenMode::ReadWrite, Vec::new());
        if !is_zeros {
            made.shared.entries.erase(0, header.data_blocks).await?;
            below.flush().await?;
        }
        let copies = Buf::from_bytes(&header.encode().repeat(HEADERS as usize));
        below.write(blocks - HEADERS, copies.into(), Purpose::Guard).await?;
        below.flush().await?;
        Ok(made)
    }

    /// The blocks of a namespace on a device `name` with so many.
    pub fn room(name: &str, format: Format, blocks: u64) -> Result<u64, DeviceError> {
        let header = Header::new([0; 16], format, blocks);
        Ok(header.map_err(|problem| unusable(name.into(), problem))?.data_blocks)
    }

    /// The fewest blocks of a device with a namespace of so many.
    pub fn blocks_for(format: Format, data_blocks: u64) -> u64 {
        Layout { format, data_blocks }.blocks()
    }

    /// The namespace on `below`, if there is one: a header that can be read.
    pub async fn find(
        rt: Rt,
        below: DynDevice,
        mode: OpenMode,
    ) -> Result<Option<Arc<Emulated>>, DeviceError> {
        let Some(copies) = Copies::read(&below).await else { return Ok(None) };
        let Some(found) = copies.find() else { return Ok(None) };
        let usable = found.and_then(|header| match mode {
            OpenMode::ReadWrite => header.check_writable().map(|()| header),
            OpenMode::ReadOnly => Ok(header),
        });
        match usable {
            Ok(header) => Ok(Some(Emulated::over(rt, below, header, mode, copies.defects()))),
            Err(problem) => Err(unusable(below.geometry().name, problem)),
        }
    }

    /// The namespace that this header describes, whether or not it is there.
    pub(super) fn over(
        rt: Rt,
        below: DynDevice,
        header: Header,
        mode: OpenMode,
        defects: Vec<String>,
    ) -> Arc<Emulated> {
        let (layout, counters) = (header.layout(), Arc::<Counters>::default());
        let shared = Shared {
            rt,
            name: below.geometry().name,
            entries: Entries::new(below.clone(), layout, counters.clone()),
            below,
            mode,
            header,
            layout,
            counters,
            faults: Faults::default(),
            defects,
        };
        Arc::new(Emulated { shared: Arc::new(shared) })
    }

    /// Data and metadata of a block, of which nothing is compared.
    pub(super) async fn read_both(&self, block: u64) -> Result<(Buf, Vec<u8>), DeviceError> {
        let shared = &self.shared;
        let data = shared.below.read(block, 1, Purpose::Guard).await?;
        let entries = shared.entries.read(block, 1).await?;
        Ok((data, shared.entries.metadata(block, 1, &entries)))
    }

    pub fn header(&self) -> &Header {
        &self.shared.header
    }

    /// Lets `fault` happen to the `nth` request (from 0) of its direction with this purpose.
    pub fn arm(&self, why: Purpose, nth: u64, fault: DriveFault) {
        self.shared.faults.arm(why, nth, fault);
    }

    /// The place of a block's metadata in the device below: the block, and the bytes in it. Each
    /// is stored as its complement.
    pub fn place_of_metadata(&self, block: u64) -> (u64, std::ops::Range<usize>) {
        let entry = self.shared.layout.entry(block);
        (entry.block, entry.range())
    }
}

pub(super) fn unusable(name: String, problem: HeaderProblem) -> DeviceError {
    DeviceError::Namespace { name, problem: Box::new(problem) }
}

/// The namespace on `below`, or `below` itself if it has none.
pub async fn open(rt: Rt, below: DynDevice, mode: OpenMode) -> Result<DynDevice, DeviceError> {
    match Emulated::find(rt, below.clone(), mode).await? {
        Some(namespace) => Ok(namespace),
        None => Ok(below),
    }
}

/// Runs `work` as a task of its own from now on. It has turns that others wait for, so it depends
/// neither on the caller's polls nor on its future.
fn begin<T: Send + 'static>(
    rt: &Rt,
    work: impl Future<Output = T> + Send + 'static,
) -> oneshot::Receiver<T> {
    let (report, answer) = oneshot::channel();
    rt.spawn(Box::pin(async move {
        let _caller_is_gone = report.send(work.await);
    }));
    answer
}

impl Shared {
    fn format(&self) -> &Format {
        &self.layout.format
    }

    fn check_bounds(&self, block: u64, blocks: u64) -> Result<(), DeviceError> {
        check_bounds(&self.name, self.layout.data_blocks, block, blocks)
    }

    fn has(&self, block: u64, blocks: u64) -> bool {
        self.check_bounds(block, blocks).is_ok()
    }

    // Deciding

    /// The metadata that a write stores, as a drive would.
    fn decide(&self, request: Request, data: &Bufs, protect: &Protect) -> Result<Vec<u8>, Refusal> {
        let format = self.format();
        let data: Vec<&[u8]> = data.iter().map(|buf| &**buf).collect();
        let (command, sent) = request.write_command(format, protect);
        command.write(format, request.first(format), &data, Some(&sent))
    }

    /// The data that a read returns: checked by the drive, then by the host.
    fn judge(
        &self,
        request: Request,
        expect: Expect,
        fault: Option<DriveFault>,
        mut data: Buf,
        metadata: &[u8],
    ) -> Result<Buf, DeviceError> {
        let format = self.format();
        if expect.birth().is_some() && fault != Some(DriveFault::SkipChecks) {
            let command = request.read_command(format, expect);
            let answer = command.read(format, request.first(format), &data, metadata);
            answer.map_err(|refusal| request.refused(&self.name, format, refusal))?;
        }
        if fault == Some(DriveFault::FlipToHost) {
            flip(std::slice::from_mut(&mut data));
        }
        request.verify(&self.name, format, expect, &data, metadata)?;
        Ok(data)
    }

    /// An error of a request for entries, as one of the blocks that they belong to.
    fn of_entries(&self, request: Request, error: DeviceError) -> DeviceError {
        let Request { block, blocks, why, access } = request;
        let name = self.name.clone();
        let is_write = access == Access::Write;
        match error {
            DeviceError::Integrity { kind, by, .. } if !is_write => {
                DeviceError::Integrity { name, block, blocks, why, access, kind, by }
            }
            DeviceError::Integrity { .. } => {
                // The medium of the tuples has failed; the data of this write is not wrong.
                request.failed(&self.name, IoError(libc::EIO))
            }
            DeviceError::Read { source, .. } if !is_write => {
                DeviceError::Read { name, block, blocks, why, source }
            }
            DeviceError::Read { source, .. } | DeviceError::Write { source, .. } => {
                DeviceError::Write { name, block, blocks, why, source }
            }
            DeviceError::ThinFull { source, .. } => {
                DeviceError::ThinFull { name, block, blocks, why, source }
            }
            error => error,
        }
    }
}

impl Device for Emulated {
    fn id(&self) -> DeviceId {
        self.shared.below.id()
    }

    fn geometry(&self) -> Geometry {
        let below = self.shared.below.geometry();
        let can_discard = below.can_discard && self.shared.mode == OpenMode::ReadWrite;
        Geometry { blocks: self.shared.layout.data_blocks, can_discard, ..below }
    }

    fn protection(&self) -> Option<Format> {
        Some(*self.shared.format())
    }

    fn identity(&self) -> Option<[u8; 16]> {
        Some(self.shared.header.identity)
    }

    fn defects(&self) -> Vec<String> {
        self.shared.defects.clone()
    }

    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        let shared = self.shared.clone();
        if let Err(error) = shared.check_bounds(block, blocks.into()) {
            return at_once(Err(error));
        }
        shared.counters.read(why, blocks);
        let fault = shared.faults.trip(why, Access::Read);
        let from = match fault {
            Some(DriveFault::MisdirectRead { from }) if shared.has(from, blocks.into()) => from,
            _ => block,
        };
        let data = shared.below.read(from, blocks, why);
        if blocks == 0 || expect == Expect::Plain && fault.is_none() {
            return data;
        }
        let entries = shared.entries.read(from, blocks.into());
        let request = Request { block, blocks, why, access: Access::Read };
        Box::pin(async move {
            let data = data.await?;
            let entries = entries.await.map_err(|error| shared.of_entries(request, error))?;
            let metadata = shared.entries.metadata(from, blocks.into(), &entries);
            shared.judge(request, expect, fault, data, &metadata)
        })
    }

    fn write_protected(
        &self,
        block: u64,
        mut data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        let shared = self.shared.clone();
        let blocks: u64 = data.iter().map(|buf| buf.blocks() as u64).sum();
        if let Err(error) = shared.check_bounds(block, blocks) {
            return at_once(Err(error));
        }
        let request = Request { block, blocks: blocks as u32, why, access: Access::Write };
        if shared.mode == OpenMode::ReadOnly {
            return at_once(Err(request.failed(&shared.name, IoError(libc::EROFS))));
        }
        let fault = shared.faults.trip(why, Access::Write);
        if fault == Some(DriveFault::FlipToDrive) {
            flip(&mut data);
        }
        let metadata = match shared.decide(request, &data, &protect) {
            Ok(metadata) => metadata,
            Err(refusal) => {
                return at_once(Err(request.refused(&shared.name, shared.format(), refusal)));
            }
        };
        shared.counters.write(why, blocks);
        let to = match fault {
            Some(DriveFault::LoseWrite) => return at_once(Ok(())),
            Some(DriveFault::MisdirectWrite { to }) if shared.has(to, blocks) => to,
            _ => block,
        };
        let data = shared.below.write(to, data, why);
        let needs_tuples = protect != Protect::Plain;
        let begun = shared.clone();
        // Both halves end, also when one fails: the caller may use the blocks again then.
        let stored = begin(&shared.rt, async move {
            let stored = begun.entries.store(to, blocks, &metadata).await;
            data.await?;
            match stored {
                Err(error) if needs_tuples => Err(begun.of_entries(request, error)),
                _ => Ok(()),
            }
        });
        Box::pin(async move {
            stored
                .await
                .unwrap_or_else(|_| Err(request.failed(&shared.name, IoError(libc::ECANCELED))))
        })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.shared.counters.flush();
        self.shared.below.flush()
    }

    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>> {
        let shared = self.shared.clone();
        if let Err(error) = shared.check_bounds(block, blocks) {
            return at_once(Err(error));
        }
        if blocks == 0 || !self.geometry().can_discard {
            return at_once(Ok(()));
        }
        shared.counters.discard(blocks);
        let name = shared.name.clone();
        let failed = move |source| DeviceError::Discard { name, block, blocks, source };
        let begun = shared.clone();
        let discarded = begin(&shared.rt, async move {
            // Tuples that stay do no harm: the content is undefined behind this, and a read finds a
            // mismatch. On a host without space, only this discard may make some (R32).
            let erased = begun.entries.erase(block, blocks).await;
            begun.below.discard(block, blocks).await?;
            Ok(erased)
        });
        Box::pin(async move {
            let erased = match discarded.await {
                Ok(discarded) => discarded?,
                Err(_) => return Err(failed(IoError(libc::ECANCELED))),
            };
            erased.map_err(|error| match error {
                DeviceError::Read { source, .. }
                | DeviceError::Write { source, .. }
                | DeviceError::ThinFull { source, .. } => failed(source),
                DeviceError::Integrity { .. } => failed(IoError(libc::EIO)),
                error => error,
            })
        })
    }

    fn release(&self) {
        self.shared.below.release();
    }

    fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

#[cfg(test)]
mod tests;
