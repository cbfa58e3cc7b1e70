//! Places where operations are served, one after another.
//!
//! Problem.  The state of an operation of any kind has several KiB. A future for each request would
//!           be copied to its place with all of it, though it is empty yet, and the memory of a
//!           waiting one would be freed by another thread than takes the next.
//! Idea.     A future stays in its place and serves one request after another. Between them it
//!           waits for its [`Tray`]; no wakeup comes for that: the thread that fills the tray polls
//!           the future. A future that must wait for another event leaves its desk with its place,
//!           and joins the desk's spare ones when its request has been served.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use copyhold_sync::{Mutex, of};

use crate::dispatch::Message;
use crate::payload::HeldBytes;

/// Most places that one desk keeps for later.
const SPARE_MAX: usize = 64;

/// The tray of a future: the next request, and the message of the one served.
#[derive(Debug, Default)]
pub(crate) struct Tray {
    state: Mutex<RequestTaskState, of::RequestPlace>,
    held: HeldBytes,
}

#[derive(Debug, Default)]
struct RequestTaskState {
    request: Option<Message>,
    served: Option<Message>,
}

impl Tray {
    /// The next request.
    pub(crate) async fn next(&self) -> Message {
        let request =
            poll_fn(|_| self.state.lock().request.take().map_or(Poll::Pending, Poll::Ready));
        let mut message = request.await;
        match &mut message.payload {
            Some(payload) => payload.show_in(self.held.clone()),
            None => self.held.set(0),
        }
        message
    }

    /// The request of `message` has been answered.
    pub(crate) fn give_back(&self, message: Message) {
        self.state.lock().served = Some(message);
    }
}

/// A future that serves its tray for ever.
pub(crate) struct RequestTask<F> {
    tray: Arc<Tray>,
    serving: Pin<Box<F>>,
}

impl<F: Future<Output = Infallible>> RequestTask<F> {
    pub(crate) fn new(serve: impl FnOnce(Arc<Tray>) -> F) -> RequestTask<F> {
        let tray = Arc::<Tray>::default();
        RequestTask { serving: Box::pin(serve(Arc::clone(&tray))), tray }
    }

    /// Puts a request into the tray, which is empty: it is to be polled then, to its end.
    pub(crate) fn put(&self, request: Message) {
        let before = self.tray.state.lock().request.replace(request);
        debug_assert!(before.is_none(), "one request at a time");
    }

    /// The bytes of buffers that the data of the request has, which was polled (PAYLOAD-M2).
    pub(crate) fn held(&self) -> usize {
        self.tray.held.get()
    }

    /// Continues with the request: its message when it has been served.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Message> {
        let Poll::Pending = self.serving.as_mut().poll(cx);
        self.tray.state.lock().served.take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// The places of one desk that serve nothing.
pub(crate) struct Places<F> {
    spare: Mutex<Vec<RequestTask<F>>, of::SparePlaces>,
}

impl<F> Default for Places<F> {
    fn default() -> Places<F> {
        Places { spare: Mutex::default() }
    }
}

impl<F> Places<F> {
    pub(crate) fn take(&self) -> Option<RequestTask<F>> {
        self.spare.lock().pop()
    }

    /// Keeps a place whose request has been served.
    pub(crate) fn give_back(&self, place: RequestTask<F>) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use zerocopy::FromZeros;

    use super::*;
    use crate::protocol::wire;

    /// Waits once for each request.
    async fn serve(tray: Arc<Tray>) -> Infallible {
        loop {
            let message = tray.next().await;
            let mut turns = [Poll::Ready(()), Poll::Pending].to_vec();
            poll_fn(|_| turns.pop().expect("two turns")).await;
            tray.give_back(message);
        }
    }

    #[test]
    fn a_place_serves_one_request_after_another() {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut place = RequestTask::new(serve);
        for unique in 1..4 {
            let header = wire::InHeader { unique, ..wire::InHeader::new_zeroed() };
            place.put(Message::new(header, Vec::new(), None, None));
            assert!(place.poll(cx).is_pending());
            let Poll::Ready(served) = place.poll(cx) else { panic!("it is served") };
            assert_eq!(served.header.unique, unique);
        }
    }

    #[test]
    fn so_many_places_are_kept() {
        let places = Places::default();
        (0..SPARE_MAX + 2).for_each(|_| places.give_back(RequestTask::new(serve)));
        assert_eq!(std::iter::from_fn(|| places.take()).count(), SPARE_MAX);
    }
}
