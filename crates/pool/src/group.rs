//! Group commit: many waiters, one leader (P12).
//!
//! The first waiter for a txg that is not durable leads: it runs the commit itself, without a
//! thread in between. Later waiters are parked; when the leader is done they look again, and the
//! first whose txg is still not durable leads the next commit, which carries them all.
//!
//! GROUP-C1  At most one commit is under way.
//! GROUP-C2  A commit that was begun is finished, also if its leader is cancelled. Should it be
//!           dropped all the same, with its runtime, the pool stops: the state of the device is
//!           unknown.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use copyhold_sync::{Mutex, of};
use copyhold_types::Txg;

use crate::PoolError;
use crate::health::Health;

#[derive(Debug)]
pub(crate) struct Group {
    state: Mutex<CommitGroupState, of::CommitGroup>,
}

#[derive(Debug)]
struct CommitGroupState {
    durable: Txg,
    leading: bool,
    waiters: Vec<Waker>,
}

/// The next action of a waiter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Done,
    Lead,
}

impl Group {
    pub(crate) fn new(durable: Txg) -> Group {
        Group {
            state: Mutex::new(CommitGroupState { durable, leading: false, waiters: Vec::new() }),
        }
    }

    pub(crate) fn durable(&self) -> Txg {
        self.state.lock().durable
    }

    /// Waits until `txg` is durable, or until it is the caller's turn to lead. A caller that leads
    /// holds a [`Lead`] until its commit has ended.
    pub(crate) async fn turn(&self, txg: Txg, health: &Health) -> Result<Turn, PoolError> {
        self.wait(txg, health, true).await
    }

    /// Waits until `txg` is durable, never leading.
    pub(crate) async fn follow(&self, txg: Txg, health: &Health) -> Result<(), PoolError> {
        self.wait(txg, health, false).await.map(|_| ())
    }

    async fn wait(&self, txg: Txg, health: &Health, may_lead: bool) -> Result<Turn, PoolError> {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.durable >= txg {
                return Poll::Ready(Ok(Turn::Done));
            }
            if let Err(stopped) = health.check() {
                return Poll::Ready(Err(stopped));
            }
            if may_lead && !state.leading {
                state.leading = true;
                return Poll::Ready(Ok(Turn::Lead));
            }
            if !state.waiters.iter().any(|w| w.will_wake(cx.waker())) {
                state.waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Takes the lead without waiting for a txg: for a commit that is wanted even if empty.
    pub(crate) async fn lead(&self, health: &Health) -> Result<(), PoolError> {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if let Err(stopped) = health.check() {
                return Poll::Ready(Err(stopped));
            }
            if !state.leading {
                state.leading = true;
                return Poll::Ready(Ok(()));
            }
            state.waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Wakes all waiters, to look again: the pool was stopped.
    pub(crate) fn wake_all(&self) {
        let waiters = std::mem::take(&mut self.state.lock().waiters);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// The leader is done; `durable` is the last txg that is.
    pub(crate) fn led(&self, durable: Option<Txg>) {
        let mut state = self.state.lock();
        assert!(state.leading, "GROUP-C1: only a leader ends a commit");
        state.leading = false;
        if let Some(durable) = durable {
            assert!(durable > state.durable, "txgs become durable in order");
            state.durable = durable;
        }
        drop(state);
        self.wake_all();
    }
}

/// Held while leading. Dropped before [`Lead::end`], it stops the pool (GROUP-C2).
pub(crate) struct Lead<'a> {
    group: &'a Group,
    health: &'a Health,
    ended: bool,
}

impl<'a> Lead<'a> {
    pub(crate) fn begin(group: &'a Group, health: &'a Health) -> Lead<'a> {
        Lead { group, health, ended: false }
    }

    pub(crate) fn end(mut self, durable: Option<Txg>) {
        self.ended = true;
        self.group.led(durable);
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.health.stop("a commit was abandoned half-way");
            self.group.led(None);
        }
    }
}
