//! Work that is finished although its waiter is cancelled.
//!
//! A future is dropped when its caller is cancelled, at any await. A request to a device continues
//! then, and its guards (a claim of the space that is being written, the lead of a commit) must
//! last as long. So such work owns all that it needs, and is handed over when it is dropped: from
//! then on it is a task of its own, and its result is discarded.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{BoxFuture, Rt};

/// Runs `work` in the caller's task, and in the background once the caller is cancelled.
pub fn finishing<T: Send + 'static>(
    rt: &Rt,
    work: impl Future<Output = T> + Send + 'static,
) -> Finishing<T> {
    Finishing { rt: rt.clone(), work: Some(Box::pin(work)) }
}

/// See [`finishing`].
#[must_use = "dropped at once it runs in the background"]
pub struct Finishing<T: Send + 'static> {
    rt: Rt,
    /// Nothing when it is done.
    work: Option<BoxFuture<'static, T>>,
}

impl<T: Send + 'static> Future for Finishing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let work = self.work.as_mut().expect("a future is not polled after its end");
        let poll = work.as_mut().poll(cx);
        if poll.is_ready() {
            self.work = None;
        }
        poll
    }
}

impl<T: Send + 'static> Drop for Finishing<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.rt.spawn(Box::pin(async move { drop(work.await) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Waker;
    use std::time::Duration;

    use super::*;
    use crate::{Runtime, SeededRuntime};

    struct Held(Arc<AtomicU32>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes a second, and returns the value that it held meanwhile.
    fn work(rt: &Rt, drops: &Arc<AtomicU32>) -> Finishing<Held> {
        let (sleep, held) = (rt.sleep(Duration::from_secs(1)), Held(drops.clone()));
        finishing(rt, async move {
            sleep.await;
            held
        })
    }

    #[test]
    fn what_is_dropped_half_way_goes_on_and_lets_go_at_its_end() {
        let (rt, drops) = (SeededRuntime::new(1), Arc::default());
        let mut work = work(&(rt.clone() as Rt), &drops);
        rt.block_on(async {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut work).poll(&mut cx).is_pending());
            drop(work);
            rt.sleep(Duration::from_millis(900)).await;
            assert_eq!(drops.load(Ordering::Relaxed), 0);
            rt.sleep(Duration::from_millis(200)).await;
        });
        assert_eq!((drops.load(Ordering::Relaxed), rt.tasks()), (1, 0));
    }

    #[test]
    fn what_is_waited_for_gives_what_it_has_and_leaves_no_task() {
        let (rt, drops) = (SeededRuntime::new(2), Arc::default());
        let held = rt.block_on(work(&(rt.clone() as Rt), &drops));
        assert_eq!((drops.load(Ordering::Relaxed), rt.tasks()), (0, 0));
        drop(held);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn losing_power_ends_it_too() {
        let (rt, drops) = (SeededRuntime::new(3), Arc::default());
        let work = work(&(rt.clone() as Rt), &drops);
        rt.spawn(Box::pin(async move { drop(work.await) }));
        rt.run_until_idle();
        rt.drop_tasks();
        assert_eq!((drops.load(Ordering::Relaxed), rt.tasks()), (1, 0));
    }
}
