//! Room in the log for records that have no place in it yet.
//!
//! Half of the ring is for users (A1), and who asks for admission sees how much of that is taken.
//! But what is admitted reaches the ring later: when its piece is full, or its txg is closed. So
//! each admission takes room for its records, and holds it until they have their place. Thousands
//! of files that are written back at the same time are not admitted all at once.
//!
//! A3  Blocks of the ring in use, and what is admitted without a place, are three quarters of the
//!     ring together; a transaction that nothing else is before is admitted whatever its size.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use copyhold_sync::{Mutex, of};

#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Bytes of records without a place.
    bytes: AtomicU64,
    waiting: AtomicBool,
    waiters: Mutex<Vec<Waker>, of::LogRoomWaiters>,
}

impl Room {
    /// Takes room for `bytes`, if there are `free` beside what is taken already.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64, free: u64) -> Option<LogRoom> {
        let fits = |taken: u64| (taken == 0 || taken + bytes <= free).then_some(taken + bytes);
        self.bytes.fetch_update(SeqCst, SeqCst, fits).ok()?;
        Some(LogRoom { bytes, room: Some(self.clone()) })
    }

    /// Takes it whether there is any or not: for what trims the log.
    pub(crate) fn take_anyway(self: &Arc<Self>, bytes: u64) -> LogRoom {
        self.bytes.fetch_add(bytes, SeqCst);
        LogRoom { bytes, room: Some(self.clone()) }
    }

    /// Ready with what `find` finds, which is asked again whenever room is given back.
    pub(crate) fn poll<T>(&self, cx: &Context<'_>, find: impl Fn() -> Option<T>) -> Poll<T> {
        if let Some(found) = find() {
            return Poll::Ready(found);
        }
        self.waiters.lock().push(cx.waker().clone());
        self.waiting.store(true, SeqCst);
        // What was given back before the waker stood there has not woken it.
        find().map_or(Poll::Pending, Poll::Ready)
    }

    pub(crate) fn wake(&self) {
        if self.waiting.swap(false, SeqCst) {
            std::mem::take(&mut *self.waiters.lock()).into_iter().for_each(Waker::wake);
        }
    }
}

/// Room that is taken, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct LogRoom {
    bytes: u64,
    room: Option<Arc<Room>>,
}

impl LogRoom {
    /// What the records take is known now; it may be more than was thought.
    pub(crate) fn resize(&mut self, bytes: u64) {
        let Some(room) = &self.room else { return };
        room.bytes.fetch_add(bytes, SeqCst);
        room.bytes.fetch_sub(self.bytes, SeqCst);
        self.bytes = bytes;
    }

    pub(crate) fn join(&mut self, mut other: LogRoom) {
        self.bytes += std::mem::take(&mut other.bytes);
        self.room = self.room.take().or(other.room.take());
    }
}

impl Drop for LogRoom {
    fn drop(&mut self) {
        if let Some(room) = self.room.take().filter(|_| self.bytes > 0) {
            room.bytes.fetch_sub(self.bytes, SeqCst);
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
        let mut first = room.take(150, 100).expect("nothing is before it");
        assert!(room.take(1, 100).is_none());
        first.resize(60);
        let second = room.take(40, 100).expect("it fits");
        assert!(room.take(1, 100).is_none());
        first.join(second);
        assert!(room.take(1, 100).is_none());
        drop(first);
        assert!(room.take(100, 100).is_some());
    }

    #[test]
    fn who_waits_is_woken_when_room_is_given_back() {
        let room = Arc::new(Room::default());
        let held = room.take_anyway(10);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let cx = Context::from_waker(&waker);
        let find = || room.take(10, 10);
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
