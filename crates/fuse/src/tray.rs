//! How requests come to the loop that serves a desk, and messages go back from it.
//!
//! Problem.  The state of an operation, of whatever kind, has several KiB. A future for each
//!           request would be copied to its place with all of it, though nothing is there yet.
//! Idea.     A future stays in its place and serves one request after another. What it waits for
//!           between them is the tray; nobody wakes it for that, the desk polls it when it has put
//!           something there. One that must wait for something else leaves with its place, and its
//!           tray is cleared away: it ends when it is done.

use std::future::poll_fn;
use std::task::Poll;

use parking_lot::Mutex;

use crate::dispatch::Message;

#[derive(Debug, Default)]
pub(crate) struct Tray {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    request: Option<Message>,
    /// Of a request that has been served.
    done: Option<Message>,
    cleared: bool,
}

impl Tray {
    /// A tray for this one request.
    pub(crate) fn of(request: Message) -> Tray {
        let state = State { request: Some(request), done: None, cleared: true };
        Tray { state: Mutex::new(state) }
    }

    pub(crate) fn put(&self, request: Message) {
        self.state.lock().request = Some(request);
    }

    /// The message of the request that was put here, if it has been served. Else nothing more is
    /// put here, and nothing comes back.
    pub(crate) fn take_or_clear(&self) -> Option<Message> {
        let mut state = self.state.lock();
        let done = state.done.take();
        state.cleared = done.is_none();
        done
    }

    /// The next request; none if there will be no more.
    pub(crate) async fn next(&self) -> Option<Message> {
        poll_fn(|_| {
            let mut state = self.state.lock();
            match state.request.take() {
                Some(request) => Poll::Ready(Some(request)),
                None if state.cleared => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Gives a message back, which is of no use if the desk does not wait for it.
    pub(crate) fn give_back(&self, message: Message) {
        let mut state = self.state.lock();
        if !state.cleared {
            state.done = Some(message);
        }
    }
}
