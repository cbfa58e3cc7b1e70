//! A future that lets other tasks run.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Completes at its second poll, which comes when other ready tasks have had a turn.
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false }
}

#[derive(Debug)]
#[must_use = "does nothing unless awaited"]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
