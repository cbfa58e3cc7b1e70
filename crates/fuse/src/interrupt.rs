//! INTERRUPT: a signal reached a caller that waits for an answer.
//!
//! Only requests that may wait for ever (SETLKW) listen; an INTERRUPT for another has no effect,
//! since the answer will come. One that is read before it is begun listens from then on. Requests
//! and their INTERRUPTs are read by different threads, so one may be here before the request that
//! it means: the latest strays are remembered for that.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use copyhold_sync::{Mutex, of};

/// How many INTERRUPTs without a listener are remembered. A request overtaken by so many, between
/// two system calls of its reader, would miss its signal until the next one.
const STRAYS_MAX: usize = 256;

#[derive(Debug, Default)]
struct InterruptState {
    /// Listeners by the number of their request, with their waker once they were polled.
    listening: BTreeMap<u64, Option<Waker>>,
    strays: VecDeque<u64>,
    ended: bool,
}

/// The listeners of one connection.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    state: Mutex<InterruptState, of::Interrupts>,
}

impl Interrupts {
    /// Completes when request `unique` is interrupted.
    pub(crate) fn listen(self: &Arc<Interrupts>, unique: u64) -> Interrupted {
        let mut state = self.state.lock();
        if state.ended {
            // Not listening means interrupted.
        } else if let Some(at) = state.strays.iter().position(|&stray| stray == unique) {
            state.strays.remove(at);
        } else {
            state.listening.insert(unique, None);
        }
        Interrupted { interrupts: Arc::clone(self), unique }
    }

    /// The connection is gone: interrupts all waiters, now and later.
    pub(crate) fn end(&self) {
        let listening = {
            let mut state = self.state.lock();
            state.ended = true;
            std::mem::take(&mut state.listening)
        };
        listening.into_values().flatten().for_each(Waker::wake);
    }

    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        let waker = match state.listening.remove(&unique) {
            Some(waker) => waker,
            None => {
                state.strays.push_back(unique);
                if state.strays.len() > STRAYS_MAX {
                    state.strays.pop_front();
                }
                None
            }
        };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// See [`Interrupts::listen`]. Not listening any more means: interrupted.
#[derive(Debug)]
pub(crate) struct Interrupted {
    interrupts: Arc<Interrupts>,
    unique: u64,
}

impl Future for Interrupted {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.interrupts.state.lock().listening.get_mut(&self.unique) {
            None => Poll::Ready(()),
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        self.interrupts.state.lock().listening.remove(&self.unique);
    }
}

/// The output of `work`, or `None` when `stop` completes first; `work` is dropped then.
pub(crate) async fn unless<W: Future>(
    stop: impl Future<Output = ()>,
    work: W,
) -> Option<W::Output> {
    let mut stop = std::pin::pin!(stop);
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        stop.as_mut().poll(cx).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(future: &mut Interrupted) -> Poll<()> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_interrupt_reaches_its_listener_before_or_after_it_listens() {
        let interrupts = Arc::new(Interrupts::default());
        let mut first = interrupts.listen(2);
        let mut other = interrupts.listen(6);
        assert!(poll(&mut first).is_pending());
        interrupts.interrupt(2);
        assert!(poll(&mut first).is_ready());
        assert!(poll(&mut other).is_pending());

        interrupts.interrupt(4);
        assert!(poll(&mut interrupts.listen(4)).is_ready());
        assert!(interrupts.state.lock().strays.is_empty());
    }

    #[test]
    fn strays_are_forgotten_and_listeners_leave_nothing_behind() {
        let interrupts = Arc::new(Interrupts::default());
        (0..1000).for_each(|unique| interrupts.interrupt(unique));
        assert_eq!(interrupts.state.lock().strays.len(), STRAYS_MAX);
        drop(interrupts.listen(5000));
        assert!(interrupts.state.lock().listening.is_empty());
    }

    #[test]
    fn the_end_interrupts_everybody() {
        let interrupts = Arc::new(Interrupts::default());
        let mut early = interrupts.listen(2);
        assert!(poll(&mut early).is_pending());
        interrupts.end();
        assert!(poll(&mut early).is_ready());
        assert!(poll(&mut interrupts.listen(4)).is_ready());
    }
}
