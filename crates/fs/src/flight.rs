//! Bytes that tasks of write-back have at the device.
//!
//! Problem.  A request of a caller, an fsync above all, waits at the device behind all that was
//!           sent before it. Eight tasks with two batches of 4 MiB each keep 64 MiB there: a second
//!           at 64 MB/s, for a neighbour that made 4 KiB durable.
//! Idea.     A batch of write-back takes room for its bytes before its blocks are taken, and gives
//!           it back when the device has them. While a tenant waits for the device, write-back of
//!           others has little room: two requests, which keep a device busy, and which the tenant
//!           waits for at most. A tenant that is alone has more room, for a fast device.
//!
//! FLIGHT-L1  Tasks have at most [`ALONE`] bytes of file data at the device, of all tenants. While
//!            a tenant waits for the device (`foreground`), a batch for another one begins only if
//!            there are at most [`BESIDE`] with it.
//! FLIGHT-L2  With nothing under way a batch begins. So write-back never stops.
//! FLIGHT-L3  Batches begin in the order in which they asked: while the first one waits, the others
//!            wait behind it. So a tenant with little room waits until the bytes of others have
//!            landed, and for no batch that asked later.
//!
//! Batches of an fsync take no room: the caller waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use copyhold_runtime::FifoMutex;
use copyhold_types::BLOCK_BYTES;
use event_listener::Event;

/// Bytes under way.
pub(crate) const ALONE: u64 = 16 << 20;
/// The same, while another tenant waits for the device.
pub(crate) const BESIDE: u64 = 2 << 20;

#[derive(Default)]
pub(crate) struct Flight {
    bytes: AtomicU64,
    landed: Event,
    /// Held by the batch that begins next (FLIGHT-L3).
    first: FifoMutex,
}

/// Room for the bytes of a batch, until it is dropped.
#[must_use = "the room ends when this is dropped"]
pub(crate) struct Flying {
    flight: Arc<Flight>,
    bytes: u64,
}

impl Flight {
    /// Bytes under way.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Acquire)
    }

    /// Waits for room for `wanted` bytes, or for half of `max` if that is less; `max` may change
    /// meanwhile.
    pub(crate) async fn take(self: &Arc<Self>, wanted: u64, max: impl Fn() -> u64) -> Flying {
        let _first = self.first.lock().await;
        loop {
            let landed = self.landed.listen();
            if let Some(flying) = self.try_take(wanted, max()) {
                return flying;
            }
            landed.await;
        }
    }

    fn try_take(self: &Arc<Self>, wanted: u64, max: u64) -> Option<Flying> {
        let bytes = wanted.min(max / 2);
        let fits = |used: u64| (used == 0 || used + bytes <= max).then_some(used + bytes);
        self.bytes.fetch_update(AcqRel, Acquire, fits).ok()?;
        Some(Flying { flight: self.clone(), bytes })
    }
}

impl Flying {
    /// Blocks that there is room for.
    pub(crate) fn blocks(&self) -> usize {
        self.bytes as usize / BLOCK_BYTES
    }

    /// The batch has only so many.
    pub(crate) fn keep_blocks(&mut self, blocks: usize) {
        let kept = self.bytes.min((blocks * BLOCK_BYTES) as u64);
        self.give_back(self.bytes - kept);
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.flight.bytes.fetch_sub(bytes, AcqRel);
        self.flight.landed.notify(usize::MAX);
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;

    /// FLIGHT-L1 and FLIGHT-L2.
    #[test]
    fn a_batch_waits_until_so_many_bytes_have_landed_that_it_fits() {
        let flight = Arc::new(Flight::default());
        let take = |max: u64| flight.take(8 * BLOCK, move || max);
        let first = take(64 * BLOCK).now_or_never().expect("there is room");
        let mut second = take(64 * BLOCK).now_or_never().expect("there is room");
        assert_eq!((first.blocks(), flight.bytes()), (8, 16 * BLOCK));
        let mut third = pin!(take(16 * BLOCK));
        assert!(third.as_mut().now_or_never().is_none());
        second.keep_blocks(1);
        assert_eq!(flight.bytes(), 9 * BLOCK);
        assert!(third.as_mut().now_or_never().is_none(), "there would be 17 blocks");
        drop(second);
        let third = third.now_or_never().expect("there is room");
        assert_eq!((third.blocks(), flight.bytes()), (8, 16 * BLOCK));
        drop((first, third));
        assert_eq!(flight.bytes(), 0);
        let alone = flight.take(64 * BLOCK, || 2 * BLOCK).now_or_never();
        assert_eq!(alone.map(|flying| flying.blocks()), Some(1), "half of the bound");
    }

    /// FLIGHT-L3.
    #[test]
    fn no_batch_overtakes_one_that_waits_for_more_bytes_to_land() {
        let flight = Arc::new(Flight::default());
        let take = |max: u64| Box::pin(flight.take(8 * BLOCK, move || max));
        let stream = [take(64 * BLOCK), take(64 * BLOCK)];
        let mut stream = stream.map(|take| take.now_or_never().expect("there is room"));
        let mut beside = take(16 * BLOCK);
        assert!(beside.as_mut().now_or_never().is_none());
        let mut later = take(64 * BLOCK);
        assert!(later.as_mut().now_or_never().is_none(), "it asked later");
        stream[0].keep_blocks(0);
        let beside = beside.now_or_never().expect("the first one fits");
        assert_eq!((beside.blocks(), flight.bytes()), (8, 16 * BLOCK));
        assert!(later.now_or_never().is_some(), "the next one is first now");
        let mut gone = take(8 * BLOCK);
        assert!(gone.as_mut().now_or_never().is_none());
        drop(gone);
        assert!(take(64 * BLOCK).now_or_never().is_some(), "a batch that is given up is not first");
        drop((stream, beside));
        assert_eq!(flight.bytes(), 0);
    }
}
