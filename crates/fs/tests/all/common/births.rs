//! A namespace that refuses to be written as it must not: a place with a birth that names other
//! content already (BIRTH-B1, BIRTH-B2).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_device::pi::{Emulated, Format};
use copyhold_device::sim::SimDevice;
use copyhold_device::{Counters, Device, DeviceError, Expect, Geometry, Protect};
use copyhold_format::block_checksum;
use copyhold_runtime::{BoxFuture, Rt};
use copyhold_types::{BLOCK_BYTES, Buf, Bufs, DeviceId, Purpose};
use parking_lot::Mutex;

pub(crate) struct Births {
    pub(crate) drive: Arc<Emulated>,
    /// By block and birth: the checksum of the content.
    contents: Mutex<BTreeMap<(u64, u32), u32>>,
    requests: AtomicU64,
}

impl Births {
    /// On a new namespace of all of `disk`.
    pub(crate) async fn create(rt: Rt, disk: Arc<SimDevice>) -> Arc<Births> {
        let format = "4096+16:64b".parse().expect("a format");
        let drive = Emulated::create(rt, disk, format).await.expect("a namespace is made");
        Arc::new(Births { drive, contents: Mutex::default(), requests: AtomicU64::new(0) })
    }

    /// Blocks that were written with a birth.
    pub(crate) fn count(&self) -> usize {
        self.contents.lock().len()
    }

    /// Writes with a birth so far, also those that were refused.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Whether it was written or refused: a refused request may be stored in part.
    fn note(&self, first: u64, data: &Bufs, birth: u32) {
        self.requests.fetch_add(1, Relaxed);
        let mut contents = self.contents.lock();
        let blocks = data.iter().flat_map(|buf| buf.chunks_exact(BLOCK_BYTES));
        for (at, block) in (first..).zip(blocks) {
            let sum = block_checksum(block);
            let known = *contents.entry((at, birth)).or_insert(sum);
            assert_eq!(known, sum, "BIRTH-B1: block {at} gets other content with birth {birth}");
        }
    }
}

impl Device for Births {
    fn id(&self) -> DeviceId {
        self.drive.id()
    }

    fn geometry(&self) -> Geometry {
        self.drive.geometry()
    }

    fn protection(&self) -> Option<Format> {
        self.drive.protection()
    }

    fn identity(&self) -> Option<[u8; 16]> {
        self.drive.identity()
    }

    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        self.drive.read_expecting(block, blocks, why, expect)
    }

    fn write_protected(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        match protect {
            Protect::Plain => {}
            Protect::Guard { birth, .. } | Protect::Offload { birth } => {
                self.note(block, &data, birth);
            }
        }
        self.drive.write_protected(block, data, why, protect)
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.drive.flush()
    }

    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.drive.discard(block, blocks)
    }

    fn counters(&self) -> &Counters {
        self.drive.counters()
    }
}
