//! The first poll of an operation, and the way to the executors for one that must wait.
//!
//! Problem.  An operation is polled first by the thread that read it. If it must wait, handing it
//!           over at once would wake an executor only to hear "not yet" a second time.
//! Idea.     The first poll has a [`Bell`] for a waker. An operation that waits is left inside its
//!           bell; when the bell is rung, and not before, the operation goes to the spawner, which
//!           polls it to the end with wakers of its own.
//!
//! A bell whose operation was ready at once is used for the next one. Late rings of the former
//! operation then cost the next one a needless poll, nothing else.

use std::sync::Arc;
use std::task::{Wake, Waker};

use copyhold_runtime::BoxFuture;
use copyhold_sync::{Mutex, of};

use crate::spawn::Spawner;

enum ParkingState {
    /// Being polled for the first time, or between two operations.
    Quiet,
    /// Rung meanwhile.
    Rung,
    /// Waits to be rung.
    Parked(BoxFuture<'static, ()>),
    /// The spawner has it.
    Left,
}

pub(crate) struct Bell {
    state: Mutex<ParkingState, of::Parking>,
    spawner: Arc<dyn Spawner>,
}

impl Bell {
    pub(crate) fn new(spawner: &Arc<dyn Spawner>) -> Arc<Bell> {
        Arc::new(Bell { state: Mutex::new(ParkingState::Quiet), spawner: Arc::clone(spawner) })
    }

    /// Leaves an operation here that has been polled with this bell once, and was not ready. The
    /// bell is of no use to others then.
    pub(crate) fn park(&self, operation: BoxFuture<'static, ()>) {
        let mut state = self.state.lock();
        match *state {
            ParkingState::Quiet => *state = ParkingState::Parked(operation),
            ParkingState::Rung => {
                *state = ParkingState::Left;
                drop(state);
                self.spawner.run(operation);
            }
            ParkingState::Parked(_) | ParkingState::Left => {
                unreachable!("a bell serves one waiting operation")
            }
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, ParkingState::Left) {
            ParkingState::Quiet | ParkingState::Rung => *state = ParkingState::Rung,
            ParkingState::Left => {}
            ParkingState::Parked(operation) => {
                drop(state);
                self.spawner.run(operation);
            }
        }
    }
}

/// A bell and its waker, made once for many first polls.
pub(crate) struct FirstPoll {
    pub(crate) bell: Arc<Bell>,
    pub(crate) waker: Waker,
}

impl FirstPoll {
    pub(crate) fn new(spawner: &Arc<dyn Spawner>) -> FirstPoll {
        let bell = Bell::new(spawner);
        let waker = Waker::from(Arc::clone(&bell));
        FirstPoll { bell, waker }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Spawner for Arc<Count> {
        fn run(&self, _: BoxFuture<'static, ()>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn bell() -> (Arc<Count>, FirstPoll) {
        let count = Arc::new(Count::default());
        let spawner: Arc<dyn Spawner> = Arc::new(Arc::clone(&count));
        (count, FirstPoll::new(&spawner))
    }

    #[test]
    fn an_operation_leaves_when_its_bell_is_rung_and_only_once() {
        let (count, first) = bell();
        first.bell.park(Box::pin(async {}));
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        first.waker.wake_by_ref();
        first.waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_bell_that_rang_during_the_first_poll_is_heard() {
        let (count, first) = bell();
        first.waker.wake_by_ref();
        first.bell.park(Box::pin(async {}));
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
