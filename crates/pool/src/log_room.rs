//! Log space for records that have no place in the log yet.
//!
//! Half of the ring is for users (ADMIT-A1), and admission sees how much of that is taken. But
//! admitted records reach the ring later: when their piece is full, or their txg is closed. So
//! each admission reserves log space for its records, until they have their place. Thousands of
//! files that are written back at the same time are not admitted all at once.
//!
//! Log space is counted as written: in whole blocks, as if each transaction had a frame of its own
//! until it has joined others, and at the end of the ring the blocks that a frame leaves behind if
//! it does not fit there. Frames are small against the ring, except for a large transaction
//! (`piece_bytes`).
//!
//! LOGROOM-A3  Blocks of the ring in use, and admitted records without a place, are at most three
//!             quarters of the ring together; a transaction before all others is admitted with any
//!             size, if the blocks in use are not above their limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use copyhold_sync::{Mutex, of};
use copyhold_types::BLOCK_BYTES;

/// Head of a frame and fields of a batch with its descriptor, beside the records.
const FRAME_BYTES: u64 = 1280;
/// Records are written as a piece when this many bytes have gathered (P7), or less in a small ring:
/// a frame skips up to its own size at the end of the ring.
const PIECE_BYTES_MAX: u64 = 128 << 10;
const RING_PIECES: u64 = 16;

/// Bytes of records that make a piece.
pub(crate) fn piece_bytes(ring_blocks: u64) -> usize {
    (ring_blocks * BLOCK_BYTES as u64 / RING_PIECES).min(PIECE_BYTES_MAX) as usize
}

/// Blocks that so many bytes of records take at most.
pub(crate) fn blocks_of(bytes: u64) -> u64 {
    (bytes + FRAME_BYTES).div_ceil(BLOCK_BYTES as u64)
}

/// Blocks of a transaction without a place, in the lower half, and of the largest of them since
/// there were none, in the upper one.
#[derive(Clone, Copy)]
struct Taken(u64);

impl Taken {
    fn new(blocks: u64, largest: u64) -> Taken {
        Taken(blocks.min(u32::MAX.into()) | largest.min(u32::MAX.into()) << 32)
    }

    fn blocks(self) -> u64 {
        self.0 & u64::from(u32::MAX)
    }

    fn largest(self) -> u64 {
        self.0 >> 32
    }

    fn with(self, blocks: u64) -> Taken {
        Taken::new(self.blocks() + blocks, self.largest().max(blocks))
    }

    fn without(self, blocks: u64) -> Taken {
        let left = self.blocks() - blocks;
        Taken::new(left, if left == 0 { 0 } else { self.largest() })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Room {
    /// See [`Taken`].
    taken: AtomicU64,
    waiting: AtomicBool,
    waiters: Mutex<Vec<Waker>, of::LogRoomWaiters>,
}

impl Room {
    /// Reserves `blocks`, if there are as many beside those that are reserved already; or if none
    /// is reserved and the log `is_short`. `free`: blocks that can surely be placed, given the
    /// largest transaction.
    pub(crate) fn take(
        self: &Arc<Self>,
        blocks: u64,
        is_short: impl Fn() -> bool,
        free: impl Fn(u64) -> u64,
    ) -> Option<LogRoom> {
        let fits = |taken: u64| {
            let (before, after) = (Taken(taken), Taken(taken).with(blocks));
            let is_first = before.blocks() == 0 && is_short();
            (is_first || after.blocks() <= free(after.largest())).then_some(after.0)
        };
        self.taken.fetch_update(SeqCst, SeqCst, fits).ok()?;
        Some(LogRoom { blocks, room: Some(self.clone()) })
    }

    /// Reserves them whether there are any or not: for work that trims the log.
    pub(crate) fn take_anyway(self: &Arc<Self>, blocks: u64) -> LogRoom {
        self.change(|taken| taken.with(blocks));
        LogRoom { blocks, room: Some(self.clone()) }
    }

    fn change(&self, to: impl Fn(Taken) -> Taken) {
        let changed = self.taken.fetch_update(SeqCst, SeqCst, |taken| Some(to(Taken(taken)).0));
        changed.expect("there is always an answer");
    }

    /// Ready with the result of `find`, which is called again whenever log space is released.
    pub(crate) fn poll<T>(&self, cx: &Context<'_>, find: impl Fn() -> Option<T>) -> Poll<T> {
        if let Some(found) = find() {
            return Poll::Ready(found);
        }
        self.waiters.lock().push(cx.waker().clone());
        self.waiting.store(true, SeqCst);
        // A release before the waker was registered has not woken it.
        find().map_or(Poll::Pending, Poll::Ready)
    }

    pub(crate) fn wake(&self) {
        if self.waiting.load(SeqCst) && self.waiting.swap(false, SeqCst) {
            std::mem::take(&mut *self.waiters.lock()).into_iter().for_each(Waker::wake);
        }
    }
}

/// Room that is taken, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct LogRoom {
    blocks: u64,
    room: Option<Arc<Room>>,
}

impl LogRoom {
    /// The size of the records is known now; it may be more than was estimated.
    pub(crate) fn resize(&mut self, blocks: u64) {
        let Some(room) = &self.room else { return };
        room.change(|taken| taken.with(blocks).without(self.blocks));
        self.blocks = blocks;
    }

    pub(crate) fn join(&mut self, mut other: LogRoom) {
        self.blocks += std::mem::take(&mut other.blocks);
        self.room = self.room.take().or(other.room.take());
    }

    /// The joined records go into one frame of so many blocks: releases the excess. Wakes no
    /// waiter: this is called under locks.
    pub(crate) fn shrink_to(&mut self, blocks: u64) {
        let Some(room) = self.room.as_ref().filter(|_| blocks < self.blocks) else { return };
        let over = self.blocks - blocks;
        self.blocks = blocks;
        room.change(|taken| taken.without(over));
    }
}

impl Drop for LogRoom {
    fn drop(&mut self) {
        if let Some(room) = self.room.take().filter(|_| self.blocks > 0) {
            room.change(|taken| taken.without(self.blocks));
            room.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_held_until_it_is_dropped_and_the_first_is_always_admitted() {
        let room = Arc::new(Room::default());
        let free = |_| 100;
        let mut first = room.take(150, || true, free).expect("nothing is before it");
        assert!(room.take(1, || true, free).is_none());
        first.resize(60);
        let second = room.take(40, || true, free).expect("it fits");
        assert!(room.take(1, || true, free).is_none());
        first.join(second);
        assert!(room.take(1, || true, free).is_none());
        drop(first);
        assert!(room.take(101, || false, free).is_none(), "the log is to be trimmed first");
        assert!(room.take(100, || false, free).is_some());
    }

    #[test]
    fn the_largest_transaction_without_a_place_says_what_is_free() {
        let room = Arc::new(Room::default());
        let free = |largest| 100 - largest;
        let large = room.take(40, || true, free).expect("it fits");
        let small = room.take(20, || true, free).expect("they fit together");
        assert!(room.take(1, || true, free).is_none());
        drop(small);
        assert!(room.take(21, || true, free).is_none());
        drop(large);
        assert_eq!(Taken(room.taken.load(SeqCst)).largest(), 0);
        let small = room.take(1, || true, free).expect("nothing is before it");
        assert!(room.take(49, || true, free).is_some());
        drop(small);
    }

    #[test]
    fn who_waits_is_woken_when_room_is_given_back() {
        let room = Arc::new(Room::default());
        let held = room.take_anyway(10);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let cx = Context::from_waker(&waker);
        let find = || room.take(10, || true, |_| 10);
        assert!(room.poll(&cx, find).is_pending());
        assert!(!woken.0.load(SeqCst));
        drop(held);
        assert!(woken.0.load(SeqCst) && room.poll(&cx, find).is_ready());
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }
}
