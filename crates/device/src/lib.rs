//! Devices: things that hold blocks.
//!
//! A device reads and writes runs of 4 KiB blocks, many in flight, flushes and discards. A write
//! is durable only after a flush that began when the write had completed. Every request carries
//! its purpose and is counted by it. A device may have protection information beside its blocks
//! ([`pi`]): it then verifies, too.

#![deny(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use copyhold_runtime::BoxFuture;
use copyhold_types::{Buf, Bufs, DeviceId, Purpose};

mod counters;
mod error;
pub mod file;
pub mod nvme;
mod open;
pub mod pi;
mod protect;
pub mod sim;

pub use counters::{CounterSnapshot, Counters, PurposeCount};
pub use error::{Access, DeviceError, IoError, Verifier};
pub use file::{FileDevice, OpenMode};
pub use nvme::NvmeDevice;
pub use open::open;
pub use protect::{Expect, Protect};
pub use sim::SimDevice;

/// The geometry of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in whole 4 KiB blocks.
    pub blocks: u64,
    /// Whether discards reach something that can use them.
    pub can_discard: bool,
    /// Path or name, for messages.
    pub name: String,
}

/// Block numbers are from the start of the device. A request that reaches past the end is refused
/// with [`DeviceError::OutOfBounds`]; requests in flight at the same time have no order.
///
/// A device on top of another forwards protection with each request: the methods that carry it
/// have no default, so that none is lost on the way.
pub trait Device: Send + Sync {
    fn id(&self) -> DeviceId;

    fn geometry(&self) -> Geometry;

    /// The format of the protection information that each block carries, if it does.
    fn protection(&self) -> Option<pi::Format>;

    /// A number that a namespace with protection information has from its creation to its end, if
    /// it has one.
    fn identity(&self) -> Option<[u8; 16]>;

    /// Defects of the structures of the device itself that it has found when it was opened, and
    /// that cost nothing yet.
    fn defects(&self) -> Vec<String> {
        Vec::new()
    }

    /// Reads `blocks` blocks that are as `expect` says, or else [`DeviceError::Integrity`].
    /// [`DeviceError::Unprotected`] without [`Self::protection`], unless nothing is expected.
    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>>;

    /// Writes `data`, buffer behind buffer, starting at `block`: one request, as far as the system
    /// allows. On an error any part may have been written, but no block of which the device finds
    /// that its guard does not match the data that arrives: [`DeviceError::Integrity`].
    fn write_protected(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Reads blocks of which nothing is expected.
    fn read(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        self.read_expecting(block, blocks, why, Expect::Plain)
    }

    /// Writes blocks without protection.
    fn write(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.write_protected(block, data, why, Protect::Plain)
    }

    /// Makes all requests durable that completed before the call. After an error, unflushed data
    /// is lost and no later success means otherwise (rule R12): the device must not be used any
    /// more.
    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Reports to the device that these blocks are unused; their content is undefined until
    /// written.
    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Blocks of the file or device below at this moment: it may have become longer since it was
    /// opened. A system call that does not wait.
    fn measure(&self) -> Result<u64, DeviceError> {
        Ok(self.geometry().blocks)
    }

    /// Makes the device `blocks` long, or uses a device that has become so long; it never becomes
    /// shorter. The host allocates `room` now, whose blocks are zeros then. Durable with the next
    /// flush. After an error the length is as before.
    fn grow(&self, blocks: u64, room: Range<u64>) -> BoxFuture<'_, Result<(), DeviceError>> {
        let (name, _) = (self.geometry().name, (blocks, room));
        at_once(Err(DeviceError::FixedSize { name }))
    }

    /// Releases the file behind the device, as soon as no request is in flight: it is closed and
    /// unlocked. Later requests fail.
    fn release(&self) {}

    /// Requests so far, by purpose.
    fn counters(&self) -> &Counters;
}

/// A future that is an answer already.
fn at_once<T: Send + 'static>(answer: T) -> BoxFuture<'static, T> {
    Box::pin(std::future::ready(answer))
}

/// How the engine holds a device.
pub type DynDevice = Arc<dyn Device>;
