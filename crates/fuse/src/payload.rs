//! The data of a WRITE, on pages of its own, and the buffers that it comes from.
//!
//! Problem.  Each reader needs a place for the largest WRITE before it knows the next request, and
//!           a WRITE that waits takes its place along.
//! Idea.     Readers keep their buffer as long as requests are answered at once. One that waits
//!           takes the buffer along, until it is done. When much is out, and when it is not begun
//!           at once, a write that leaves a quarter of the buffer empty is copied into one of its
//!           own size first, so that many waiting 4 KiB writes do not hold 256 KiB each. The copy
//!           is that of [`Payload::take`], made earlier.
//!
//! PAYLOAD-M1  When more than a bound waits, readers pause: requests that they have not read take
//!             no memory here. A pause has an end, for an operation that waits may need the next
//!             request: the kernel writes pages back before it drops them.
//! PAYLOAD-M2  The buffer of a request that waits counts as long as the request has it, also when
//!             the operation took it ([`Payload::take`]): it may wait with it before it does
//!             anything. It counts until the operation says that the data is elsewhere in memory,
//!             and counts there ([`Payload::release`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use copyhold_types::{BLOCK_BYTES, Buf};

use crate::uring::slot::Lease;

/// Data of one WRITE; starts on a page.
#[derive(Debug)]
pub struct Payload {
    source: Source,
    len: usize,
    shown: Option<HeldBytes>,
}

/// The bytes of buffers that the data of the present request has, for the desk.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldBytes(Arc<AtomicUsize>);

impl HeldBytes {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
enum Source {
    /// Read from the device.
    Own(Buf),
    /// In the entry of a ring that the request came by.
    Lent(Lease),
}

impl Payload {
    /// `len` bytes at the start of `buf`.
    pub fn new(buf: Buf, len: usize) -> Payload {
        assert!(len <= buf.len(), "payload of {len} in a buffer of {}", buf.len());
        Payload { source: Source::Own(buf), len, shown: None }
    }

    /// The payload of `lease`, beside its headers.
    pub(crate) fn lent(lease: Lease) -> Payload {
        let len = lease.payload().len();
        Payload { source: Source::Lent(lease), len, shown: None }
    }

    pub fn bytes(&self) -> &[u8] {
        match &self.source {
            Source::Own(buf) => &buf[..self.len],
            Source::Lent(lease) => &lease.payload()[..self.len],
        }
    }

    /// Whether [`Payload::take`] moves the data instead of copying it.
    pub fn is_whole(&self) -> bool {
        matches!(&self.source, Source::Own(buf) if buf.len() == self.len)
    }

    /// The data as whole blocks, the last one filled up with zeros. Moves when the data fills a
    /// buffer, else copies. Nothing is left here.
    pub fn take(&mut self) -> Buf {
        let whole = self.is_whole();
        let len = std::mem::take(&mut self.len);
        match &mut self.source {
            Source::Own(buf) if whole => std::mem::replace(buf, Buf::zeroed(0)),
            Source::Own(buf) => Buf::from_bytes(&buf[..len]),
            Source::Lent(lease) => Buf::from_bytes(&lease.payload()[..len]),
        }
    }

    /// Ends the count of data that is elsewhere in memory, and frees its buffer unless it was
    /// taken. Nothing is left here.
    pub fn release(&mut self) {
        self.len = 0;
        if let Source::Own(buf) = &mut self.source {
            *buf = Buf::zeroed(0);
        }
        self.show();
    }

    /// Shows the bytes that it takes in `held`, until it is dropped.
    pub(crate) fn show_in(&mut self, held: HeldBytes) {
        self.shown = Some(held);
        self.show();
    }

    fn show(&self) {
        if let Some(shown) = &self.shown {
            shown.set(self.held());
        }
    }

    /// Bytes of memory that it takes, beside the entries of rings.
    pub(crate) fn held(&self) -> usize {
        match &self.source {
            Source::Own(buf) => buf.len(),
            Source::Lent(_) => 0,
        }
    }

    /// The device's buffer, if there is one.
    pub(crate) fn into_buf(self) -> Option<Buf> {
        match self.source {
            Source::Own(buf) => Some(buf),
            Source::Lent(_) => None,
        }
    }

    pub(crate) fn is_lent(&self) -> bool {
        matches!(self.source, Source::Lent(_))
    }

    pub(crate) fn into_lease(self) -> Option<Lease> {
        match self.source {
            Source::Own(_) => None,
            Source::Lent(lease) => Some(lease),
        }
    }
}

/// The buffers that readers read to, all of one size, and how much of them waiting requests have.
#[derive(Debug)]
pub(crate) struct Buffers {
    blocks: usize,
    out: AtomicUsize,
    out_max: usize,
    waiting_max: usize,
}

/// A look at the bytes that wait, and how many looks make the longest pause.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LOOKS: usize = 50;

impl Buffers {
    /// Buffers of `bytes`. With more than `out_max` in waiting requests smaller writes no longer
    /// keep them; with more than `waiting_max`, readers pause.
    pub(crate) fn new(bytes: usize, out_max: usize, waiting_max: usize) -> Buffers {
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        Buffers { blocks, out: AtomicUsize::new(0), out_max, waiting_max }
    }

    /// Blocks a reader as long as too much waits (PAYLOAD-M1).
    pub(crate) fn pause(&self) {
        for _ in 0..LOOKS {
            if !self.is_overfull() {
                break;
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    pub(crate) fn is_overfull(&self) -> bool {
        self.out() > self.waiting_max
    }

    /// Bytes that waiting requests have.
    pub(crate) fn out(&self) -> usize {
        self.out.load(Ordering::Relaxed)
    }

    /// A buffer that nothing else refers to; its content is arbitrary.
    pub(crate) fn get(&self) -> Buf {
        Buf::scratch(self.blocks)
    }

    /// Whether `buf` is one of them, and nothing else refers to it.
    pub(crate) fn is_one(&self, buf: &Buf) -> bool {
        buf.blocks() == self.blocks && !buf.is_shared()
    }

    /// Whether a write of `len` bytes should have a buffer of its own size, because it `waits` or
    /// much is out.
    pub(crate) fn wants_copy(&self, len: usize, waits: bool) -> bool {
        let leaves_a_quarter = len * 4 <= self.blocks * BLOCK_BYTES * 3;
        leaves_a_quarter && (waits || self.out() > self.out_max)
    }

    /// A request with `bytes` of buffer waits; give the same number to [`Buffers::settle`].
    pub(crate) fn lend(&self, bytes: usize) {
        self.out.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn settle(&self, bytes: usize) {
        self.out.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT_MAX: usize = 4 << 20;

    #[test]
    fn a_full_payload_moves_and_a_small_one_is_copied_without_strange_bytes() {
        let mut full = Payload::new(Buf::from_bytes(&[7; 8192]), 8192);
        let place = full.bytes().as_ptr();
        assert_eq!(full.take().as_ptr(), place);
        let mut part = Payload::new(Buf::from_bytes(&[7; 8192]), 5);
        let taken = part.take();
        assert_eq!((taken.blocks(), &taken[..6]), (1, &[7, 7, 7, 7, 7, 0][..]));
        assert!(part.bytes().is_empty());
    }

    #[test]
    fn writes_that_leave_a_quarter_empty_are_copied_when_much_is_out_or_they_wait() {
        let buffers = Buffers::new(256 << 10, OUT_MAX, usize::MAX);
        assert!(!buffers.wants_copy(4096, false));
        buffers.lend(OUT_MAX + 1);
        assert!(buffers.wants_copy(4096, false));
        assert!(buffers.wants_copy(192 << 10, false));
        assert!(!buffers.wants_copy(193 << 10, true));
        buffers.settle(OUT_MAX + 1);
        assert!(!buffers.wants_copy(4096, false));
        assert!(buffers.wants_copy(192 << 10, true));
    }

    #[test]
    fn readers_pause_for_a_bounded_time_when_too_much_waits() {
        let buffers = Buffers::new(256 << 10, OUT_MAX, 2 * OUT_MAX);
        let full = Payload::new(Buf::from_bytes(&[7; 8192]), 5);
        assert_eq!(full.held(), 8192, "its buffer, whatever the length");
        buffers.lend(2 * OUT_MAX);
        assert!(!buffers.is_overfull());
        buffers.lend(full.held());
        assert!(buffers.is_overfull(), "PAYLOAD-M1");
        // Nothing settles: it ends all the same.
        let began = std::time::Instant::now();
        buffers.pause();
        assert!(began.elapsed() >= LOOK_AGAIN * LOOKS as u32, "it looks again for a while");
        buffers.settle(full.held());
        assert!(!buffers.is_overfull());
    }
}
