//! Requests that the readers of `/dev/fuse` have read before they serve them, in turn by tenant.
//!
//! Problem.  The kernel's queue has one order, that of arrival, and is read from its head alone. If
//!           a tenant's requests come faster than they are answered, those of all tenants wait.
//! Idea.     When the kernel's queue is not empty, a reader moves it here (a *drain*), by a
//!           descriptor whose reads do not wait, and all readers serve the [`FairQueue`] of it
//!           until it is empty. Drains are repeated meanwhile, so a new request finds its place
//!           soon. Messages without an answer (FORGET, INTERRUPT) are dealt with by the drain.
//! Cost.     A read does not report whether the next one would wait. So a reader drains after some
//!           requests ([`Look`]): after 8 during a backlog, after up to 64 as long as drains find
//!           no request. A drain without a request is one system call. Requests that a drain moves
//!           are copied into memory of their size. A read that may wait is counted, by two atomic
//!           operations.
//! Work.     It is estimated from the message: the same for each request, and the bytes of data and
//!           names that are moved. COPY_FILE_RANGE, ioctl and the look-ups of READDIRPLUS count
//!           like any other request, for their work depends on more than the message.
//!
//! BACKLOG-B1  Memory for requests here is bounded: a drain ends when they take up the room. The
//!             other requests stay in the kernel, in the order of arrival. Requests here count as
//!             memory of waiting requests (PAYLOAD-M1), and are charged to the owners of their
//!             nodes until they are begun.
//! BACKLOG-B2  The reader that has drained serves until this queue is empty, before it reads in a
//!             way that may wait. So no request here waits for another one to come.
//! BACKLOG-B3  DESTROY begins when this queue is empty. A reader that ends serves the queue first,
//!             unless the connection is aborted: then no caller waits, and the queue is dropped.
//! BACKLOG-B4  While a reader is in a read that may wait, this queue has one request at most for
//!             each reader that is about to serve one. The kernel wakes the reader for requests in
//!             its own queue, but not for those here. So a drain begins, and goes on behind a
//!             request, only if no reader is in such a read, and a reader counts itself as in it
//!             before it looks whether a request is here, and reads if there is none. A lone
//!             caller therefore pays for no drain: another reader waits for its next request.
//! BACKLOG-B5  A drain ends behind a FORGET if a request waits here: a list of FORGETs can have
//!             thousands of them.
//!
//! Between its arrival and its begin, a request waits for those that each reader serves until a
//! drain, and then as FAIR-F3 states. The first drain of a backlog may be 64 requests away.

pub(crate) mod gate;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use copyhold_memory::MemoryCharge;
use copyhold_sync::{Mutex, of};

use self::gate::Gate;
use crate::desk::Channel;
use crate::dispatch::Message;
use crate::fair::FairQueue;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::protocol::NodeId;

/// The least work of a request, in bytes that could be copied meanwhile.
const WORK: usize = 16 << 10;
/// Most requests of one drain: the reader serves some, too.
pub(crate) const DRAIN_MAX: usize = 256;

/// The requests of a connection that were drained and not begun.
pub(crate) struct Backlog<O> {
    /// Its device never waits. The requests are answered by it.
    channel: Arc<Channel<O>>,
    queue: Mutex<FairQueue<Drained>, of::Backlog>,
    bytes: AtomicUsize,
    bytes_max: usize,
    /// How many requests ever were here.
    drained: AtomicU64,
    /// Before reads that may wait (BACKLOG-B4).
    pub(crate) gate: Gate,
}

/// A request, and what it is charged for.
type Drained = (Message, Option<MemoryCharge>);

impl<O: Operations> Backlog<O> {
    pub(crate) fn new(channel: Arc<Channel<O>>, bytes_max: usize) -> Backlog<O> {
        let (queue, bytes, drained, gate) = Default::default();
        Backlog { channel, queue, bytes, bytes_max, drained, gate }
    }

    pub(crate) fn channel(&self) -> &Arc<Channel<O>> {
        &self.channel
    }

    /// Whether a drain must end (BACKLOG-B1).
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.load(Relaxed) >= self.bytes_max
    }

    pub(crate) fn drained(&self) -> u64 {
        self.drained.load(Relaxed)
    }

    pub(crate) fn add(&self, mut message: Message) {
        let connection = &self.channel.connection;
        message.listen(&connection.interrupts);
        let (node, bytes) = (NodeId(message.header.nodeid), bytes(&message));
        let (share, charge) = (connection.fs.share(node), connection.fs.charge(node, bytes));
        connection.buffers.lend(bytes);
        self.bytes.fetch_add(bytes, Relaxed);
        self.drained.fetch_add(1, Relaxed);
        let work = WORK + message.moved() + message.listed();
        let mut queue = self.queue.lock();
        queue.push(share, work, (message, charge));
        self.gate.add();
    }

    /// The request that is to be begun now.
    pub(crate) fn next(&self) -> Option<Message> {
        if self.gate.is_empty() {
            return None;
        }
        let mut queue = self.queue.lock();
        let (message, _charge) = queue.pop()?;
        self.gate.take();
        drop(queue);
        let bytes = bytes(&message);
        self.bytes.fetch_sub(bytes, Relaxed);
        self.channel.connection.buffers.settle(bytes);
        Some(message)
    }

    /// Drops all requests, for no caller waits.
    pub(crate) fn clear(&self) {
        while self.next().is_some() {}
    }
}

/// Memory that a request takes here.
fn bytes(message: &Message) -> usize {
    let payload = message.payload.as_ref().map_or(0, Payload::held);
    size_of::<Message>() + message.args.capacity() + payload
}

/// When a reader drains the kernel's queue again.
#[derive(Debug)]
pub(crate) struct Look {
    /// Requests until then.
    left: u32,
    /// Requests from the last time to then.
    every: u32,
}

impl Look {
    const SOONEST: u32 = 8;
    const LATEST: u32 = 64;

    pub(crate) fn new() -> Look {
        Look { left: Look::SOONEST, every: Look::SOONEST }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.left == 0
    }

    /// A request was served.
    pub(crate) fn served(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// The queue is served: look before a read that waits.
    pub(crate) fn at_once(&mut self) {
        self.left = 0;
    }

    /// A drain has found so many requests; `waits`: some are still to be begun.
    pub(crate) fn found(&mut self, requests: usize, waits: bool) {
        self.every = match requests {
            0 if !waits => (self.every * 2).min(Look::LATEST),
            _ => Look::SOONEST,
        };
        self.left = self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests served from one look to the next.
    fn until_due(look: &mut Look) -> u32 {
        let served = (0..).take_while(|_| {
            !look.is_due() && {
                look.served();
                true
            }
        });
        served.count() as u32
    }

    #[test]
    fn a_reader_looks_seldom_while_it_finds_nothing_and_often_in_a_backlog() {
        let mut look = Look::new();
        let mut times = Vec::new();
        let empty = [0; 4].map(|found| (found, false));
        for (found, waits) in empty.into_iter().chain([(1, false), (0, true), (300, true)]) {
            times.push(until_due(&mut look));
            look.found(found, waits);
        }
        times.push(until_due(&mut look));
        assert_eq!(times, [8, 16, 32, 64, 64, 8, 8, 8]);
        look.at_once();
        assert!(look.is_due());
    }
}
