//! The pool's own background work: it closes a txg on the timer, marks the last batch as durable
//! when the pool falls idle (rule R14), and discards runs that have been free for long (P6).

use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use copyhold_runtime::FifoMutex;
use copyhold_sync::{Mutex, of};
use futures_util::future::{Either, select};

use copyhold_types::{Nanos, Txg};

use crate::{Pool, Sabotage, discard, stock};

/// Wakes one background task, which holds no pool while it waits: dropping a pool ends its tasks.
/// Kicks are remembered, not counted.
#[derive(Debug, Default)]
pub(crate) struct Kick {
    state: Mutex<(bool, Option<Waker>), of::Marker>,
}

impl Kick {
    pub(crate) fn kick(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for a kick, or until `timeout` has passed; whether it was a kick.
    pub(crate) async fn wait(&self, rt: &copyhold_runtime::Rt, timeout: Duration) -> bool {
        let kicked = std::future::poll_fn(|cx| {
            let mut state = self.state.lock();
            if std::mem::take(&mut state.0) {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        });
        matches!(select(Box::pin(kicked), rt.sleep(timeout)).await, Either::Left(_))
    }
}

/// The timer's side of the pool.
#[derive(Debug, Default)]
pub(crate) struct Marker {
    kick: Arc<Kick>,
    /// Held while the task runs, so that closing can wait for its end.
    running: Arc<FifoMutex>,
}

impl Marker {
    pub(crate) fn kick(&self) {
        self.kick.kick();
    }

    /// Waits until the background task has ended; it does once the pool is stopped or closing.
    pub(crate) async fn ended(&self) {
        drop(self.running.lock().await);
    }
}

/// Closes txgs on the timer and marks idle ones, until the pool is closed.
pub(crate) async fn run(pool: Weak<Pool>) {
    let Some(strong) = pool.upgrade() else { return };
    let (rt, limits) = (strong.rt.clone(), strong.limits.clone());
    let (running, kick) = (strong.marker.running.clone(), strong.marker.kick.clone());
    let _running = running.lock().await;
    drop(strong);
    let mut waited = Duration::ZERO;
    let mut aged = Aged { at: rt.now(), txg: None, from: 0 };
    loop {
        let Some(strong) = pool.upgrade() else { return };
        if strong.is_closing() || strong.health.check().is_err() {
            return;
        }
        let marked = waited >= limits.mark_after;
        let pause = if marked { limits.txg_interval } else { limits.mark_after };
        drop(strong);
        let kicked = kick.wait(&rt, pause).await;
        let Some(strong) = pool.upgrade() else { return };
        waited = if kicked { Duration::ZERO } else { waited + pause };
        if !kicked && !marked {
            mark(&strong).await;
        }
        if rt.now() - aged.at >= discard::AGE.as_nanos() as u64 {
            aged.discard(&strong).await;
        }
        if waited >= limits.txg_interval {
            waited = Duration::ZERO;
            close_txg(&strong).await;
        } else if stock::is_txg_due(&strong) {
            close_txg(&strong).await;
        }
    }
}

async fn close_txg(pool: &Arc<Pool>) {
    match pool.commit(pool.open_txg()).await {
        Ok(()) => stock::end_txg(pool).await,
        Err(error) => tracing::error!("{error}"),
    }
}

/// The txg that was open a while ago: blocks freed before it have been free for as long.
struct Aged {
    at: Nanos,
    txg: Option<Txg>,
    /// Discards continue from this block.
    from: u64,
}

impl Aged {
    async fn discard(&mut self, pool: &Pool) {
        if let Some(txg) = self.txg {
            match pool.discard_old(txg, self.from).await {
                Ok(from) => self.from = from,
                Err(error) => tracing::warn!("{error}"),
            }
        }
        (self.at, self.txg) = (pool.rt.now(), Some(pool.open_txg()));
    }
}

/// Marks the last batch. That failing leaves the pool as it was: the mark is a hint.
pub(crate) async fn mark(pool: &Pool) {
    if pool.sabotaged(Sabotage::NoMark) {
        return;
    }
    if let Err(error) = pool.journal.write_mark(pool.durable_txg()).await {
        tracing::warn!("the last batch could not be marked as durable: {error}");
    }
}
