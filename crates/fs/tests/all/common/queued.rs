//! A device that serves one request after the other, in the order of arrival.
//!
//! Its times are fixed: so long for each request, and so long for each byte. So the time that a
//! caller waits is that of the bytes in front of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use copyhold_device::pi::Format;
use copyhold_device::sim::SimDevice;
use copyhold_device::{Counters, Device, DeviceError, Expect, Geometry, Protect};
use copyhold_runtime::{BoxFuture, FifoMutex, Rt};
use copyhold_types::{BLOCK_BYTES, Buf, Bufs, DeviceId, Purpose};

/// Of each request, and of each block: 200 MB/s.
const REQUEST: Duration = Duration::from_micros(20);
const BLOCK: Duration = Duration::from_micros(20);

pub(crate) struct QueuedDevice {
    rt: Rt,
    device: Arc<SimDevice>,
    line: Arc<Line>,
}

#[derive(Default)]
struct Line {
    turn: FifoMutex,
    data_bytes: AtomicU64,
}

impl QueuedDevice {
    pub(crate) fn new(rt: Rt, device: Arc<SimDevice>) -> Arc<QueuedDevice> {
        Arc::new(QueuedDevice { rt, device, line: Arc::default() })
    }

    /// Bytes of file data that wait to be written, or are being written.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.line.data_bytes.load(Relaxed)
    }

    /// The time that the device takes for so many bytes in so many requests.
    pub(crate) fn time_of(bytes: u64, requests: u32) -> Duration {
        BLOCK * (bytes as usize).div_ceil(BLOCK_BYTES) as u32 + REQUEST * requests
    }

    fn serve<T: Send + 'static>(
        &self,
        blocks: usize,
        request: BoxFuture<'static, T>,
    ) -> BoxFuture<'static, T> {
        let (rt, line) = (self.rt.clone(), self.line.clone());
        Box::pin(async move {
            let _turn = line.turn.lock().await;
            rt.sleep(QueuedDevice::time_of((blocks * BLOCK_BYTES) as u64, 1)).await;
            request.await
        })
    }
}

impl Device for QueuedDevice {
    fn id(&self) -> DeviceId {
        self.device.id()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn protection(&self) -> Option<Format> {
        self.device.protection()
    }

    fn identity(&self) -> Option<[u8; 16]> {
        self.device.identity()
    }

    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        self.serve(blocks as usize, self.device.read_expecting(block, blocks, why, expect))
    }

    fn write_protected(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        let blocks = data.iter().map(Buf::blocks).sum();
        let written = self.device.write_protected(block, data, why, protect);
        let served = self.serve(blocks, written);
        if why != Purpose::Data {
            return served;
        }
        let (line, bytes) = (self.line.clone(), (blocks * BLOCK_BYTES) as u64);
        line.data_bytes.fetch_add(bytes, Relaxed);
        Box::pin(async move {
            let written = served.await;
            line.data_bytes.fetch_sub(bytes, Relaxed);
            written
        })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>> {
        // A request of the device below makes durable the writes that completed before the call.
        let (device, line) = (self.device.clone(), self.line.clone());
        Box::pin(async move {
            let _turn = line.turn.lock().await;
            device.flush().await
        })
    }

    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.device.discard(block, blocks)
    }

    fn counters(&self) -> &Counters {
        self.device.counters()
    }
}
