//! Reads nodes in a given order, several at a time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use copyhold_format::node::Node;
use copyhold_types::{NodePtr, Purpose};

use crate::{NodeFuture, NodeSource, TableError};

/// Leaves to come, of which up to a window are being read.
pub(crate) struct ReadAhead<'n> {
    nodes: &'n dyn NodeSource,
    why: Purpose,
    window: usize,
    waiting: VecDeque<NodePtr>,
    flying: VecDeque<Flight<'n>>,
}

/// A leaf, or why it cannot be read.
pub(crate) type Arrival = (NodePtr, Result<Arc<Node>, TableError>);

enum Flight<'n> {
    Reading(NodePtr, NodeFuture<'n, Arc<Node>>),
    Done(Arrival),
}

impl<'n> ReadAhead<'n> {
    pub(crate) fn new(
        nodes: &'n dyn NodeSource,
        why: Purpose,
        window: usize,
        leaves: impl Iterator<Item = NodePtr>,
    ) -> ReadAhead<'n> {
        ReadAhead { nodes, why, window, waiting: leaves.collect(), flying: VecDeque::new() }
    }

    /// The next leaf, in the order of requests.
    pub(crate) async fn next(&mut self) -> Option<Arrival> {
        while self.flying.len() < self.window
            && let Some(ptr) = self.waiting.pop_front()
        {
            let flight = match self.nodes.cached(&ptr) {
                Some(node) => Flight::Done((ptr, Ok(node))),
                None => Flight::Reading(ptr, self.nodes.read(ptr, self.why)),
            };
            self.flying.push_back(flight);
        }
        poll_fn(|cx| self.poll_front(cx)).await
    }

    fn poll_front(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arrival>> {
        for flight in &mut self.flying {
            flight.poll(cx);
        }
        match self.flying.pop_front() {
            None => Poll::Ready(None),
            Some(Flight::Done(arrival)) => Poll::Ready(Some(arrival)),
            Some(reading) => {
                self.flying.push_front(reading);
                Poll::Pending
            }
        }
    }
}

impl Flight<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Flight::Reading(ptr, read) = self
            && let Poll::Ready(result) = read.as_mut().poll(cx)
        {
            *self = Flight::Done((*ptr, result));
        }
    }
}

/// Lets other tasks of the executor run.
pub(crate) async fn give_way() {
    let mut gave_way = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut gave_way, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}
