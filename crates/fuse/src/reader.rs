//! The loop of one reader: read a request, poll its operation once, go on.
//!
//! Fast path.  The operation is ready when first polled: its answer has been sent from here, and
//!             its message and its place are used again. Nothing is allocated, nobody is woken.
//! Slow path.  It must wait: the future is parked with its message until it can go on (see
//!             [`crate::parking`]), and the reader takes a new place. The answer is sent by whoever
//!             polls it last.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::{Condvar, Mutex};

use copyhold_types::Buf;

use crate::Errno;
use crate::device::{Device, End, Got, Head};
use crate::dispatch::{self, Message};
use crate::interrupt::Interrupts;
use crate::operations::Operations;
use crate::parking::FirstPoll;
use crate::payload::{Buffers, Payload};
use crate::protocol::{Answer, Dialect, NodeId, Opcode, Request, parse_prefix, wire};
use crate::spawn::Spawner;

/// What the readers of a connection share.
pub(crate) struct Connection<O> {
    pub(crate) fs: Arc<O>,
    pub(crate) dialect: Dialect,
    pub(crate) spawner: Arc<dyn Spawner>,
    pub(crate) buffers: Buffers,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) flight: Flight,
    /// DESTROY was received.
    pub(crate) destroyed: AtomicBool,
    /// Only this user and root are served (`allow_root`).
    pub(crate) only: Option<u32>,
}

/// One reader's way into the connection.
pub(crate) struct Channel<O> {
    pub(crate) device: Device,
    pub(crate) connection: Arc<Connection<O>>,
    pub(crate) requests: AtomicU64,
}

/// The operations that wait.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    waiting: Mutex<usize>,
    landed: Condvar,
    /// How many ever had to wait.
    pub(crate) parked: AtomicU64,
}

impl Flight {
    pub(crate) fn start(&self) {
        *self.waiting.lock() += 1;
    }

    pub(crate) fn land(&self) {
        let mut waiting = self.waiting.lock();
        *waiting -= 1;
        if *waiting == 0 {
            self.landed.notify_all();
        }
    }

    /// Blocks until no operation waits.
    pub(crate) fn drain(&self) {
        let mut waiting = self.waiting.lock();
        while *waiting > 0 {
            self.landed.wait(&mut waiting);
        }
    }
}

/// Serves requests until the connection ends.
pub(crate) fn run<O: Operations>(channel: Arc<Channel<O>>) -> End {
    Reader::new(channel).run(serve)
}

/// One request from its message to its answer. Gives the message back for the next one.
async fn serve<O: Operations>(channel: Arc<Channel<O>>, mut message: Message) -> Message {
    let connection = &channel.connection;
    let answer =
        dispatch::answer(&*connection.fs, &mut message, connection.dialect, &connection.interrupts)
            .await;
    channel.device.reply(message.header.unique, &answer);
    message
}

struct Reader<O, F> {
    channel: Arc<Channel<O>>,
    head: Head,
    /// Where the rest of a request is read to; none when a WRITE has taken it.
    rest: Option<Buf>,
    args: Vec<u8>,
    /// Where the operation is polled; empty between requests.
    place: Pin<Box<Option<F>>>,
    first: FirstPoll,
}

impl<O: Operations, F: Future<Output = Message> + Send + 'static> Reader<O, F> {
    fn new(channel: Arc<Channel<O>>) -> Reader<O, F> {
        let rest = None;
        let head = [0; wire::WRITE_PREFIX];
        let first = FirstPoll::new(&channel.connection.spawner);
        Reader { channel, head, rest, args: Vec::new(), place: Box::pin(None), first }
    }

    fn run(mut self, serve: impl Fn(Arc<Channel<O>>, Message) -> F) -> End {
        loop {
            let Channel { device, connection, .. } = &*self.channel;
            let rest = self.rest.get_or_insert_with(|| connection.buffers.get());
            let len = match device.read(&mut self.head, rest.make_mut()) {
                Got::Request(len) => len,
                Got::Again => continue,
                Got::Ended(end) => return end,
            };
            self.channel.requests.fetch_add(1, Ordering::Relaxed);
            if let Some(message) = self.message(len) {
                let operation = serve(Arc::clone(&self.channel), message);
                self.poll(operation);
            }
        }
    }

    /// The request of `len` bytes that was just read, unless it has been dealt with.
    fn message(&mut self, len: usize) -> Option<Message> {
        let header = match parse_prefix(&self.head, len) {
            Ok(header) => header,
            Err(error) => {
                tracing::error!(%error, "the kernel's message is not understood; left out");
                return None;
            }
        };
        let opcode = Opcode::new(header.opcode);
        let start = size_of::<wire::InHeader>();
        let in_head = len.min(wire::WRITE_PREFIX);
        let in_rest = len - in_head;
        let mut args = std::mem::take(&mut self.args);
        args.clear();
        args.extend_from_slice(&self.head[start..in_head]);
        let mut payload = None;
        if opcode == Some(Opcode::Write) {
            payload = Some(self.payload(in_rest));
        } else {
            args.extend_from_slice(&self.rest.as_ref().expect("just read to")[..in_rest]);
        }
        let message = Message { header, args, payload };
        if !self.is_admitted(&message.header, opcode) {
            self.channel.device.reply(header.unique, &Answer::error(Errno::EACCES));
            self.recycle(message);
            return None;
        }
        match opcode {
            Some(opcode) if !opcode.expects_reply() => {
                self.hear(&message);
                self.recycle(message);
                None
            }
            Some(Opcode::Destroy) => {
                self.channel.connection.destroyed.store(true, Ordering::Release);
                Some(message)
            }
            _ => Some(message),
        }
    }

    /// The `len` bytes in `rest` as the data of a WRITE.
    fn payload(&mut self, len: usize) -> Payload {
        let buffers = &self.channel.connection.buffers;
        let rest = self.rest.take().expect("just read to");
        if buffers.wants_copy(len) {
            let own = Buf::from_bytes(&rest[..len]);
            self.rest = Some(rest);
            return Payload::new(own, len);
        }
        Payload::new(rest, len)
    }

    /// With `allow_root`, others may use what was opened for them, but nothing else.
    fn is_admitted(&self, header: &wire::InHeader, opcode: Option<Opcode>) -> bool {
        let harmless = opcode.is_some_and(|opcode| {
            matches!(
                opcode,
                Opcode::Read
                    | Opcode::Write
                    | Opcode::Fsync
                    | Opcode::Flush
                    | Opcode::Release
                    | Opcode::Readdir
                    | Opcode::Readdirplus
                    | Opcode::Fsyncdir
                    | Opcode::Releasedir
                    | Opcode::Destroy
                    | Opcode::Syncfs
            ) || !opcode.expects_reply()
        });
        match self.channel.connection.only {
            Some(owner) => harmless || header.uid == owner || header.uid == 0,
            None => true,
        }
    }

    /// A message that expects no answer.
    fn hear(&self, message: &Message) {
        let connection = &self.channel.connection;
        match Request::parse(&message.header, &message.args, connection.dialect) {
            Ok(Request::Forget { lookups }) => {
                connection.fs.forget(NodeId(message.header.nodeid), lookups);
            }
            Ok(Request::BatchForget(list)) => {
                list.into_iter().for_each(|one| connection.fs.forget(one.node, one.lookups));
            }
            Ok(Request::Interrupt { unique }) => connection.interrupts.interrupt(unique),
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "the kernel's message is not understood"),
        }
    }

    fn poll(&mut self, operation: F) {
        self.place.set(Some(operation));
        let future = self.place.as_mut().as_pin_mut().expect("it was just put there");
        match future.poll(&mut Context::from_waker(&self.first.waker)) {
            Poll::Ready(message) => {
                self.place.set(None);
                self.recycle(message);
            }
            Poll::Pending => self.park(),
        }
    }

    /// Takes back what the next request needs.
    fn recycle(&mut self, message: Message) {
        self.args = message.args;
        if let Some(payload) = message.payload {
            let buf = payload.into_buf();
            if self.rest.is_none() && buf.blocks() > 0 && !buf.is_shared() {
                self.rest = Some(buf);
            }
        }
    }

    fn park(&mut self) {
        let connection = &self.channel.connection;
        let held = if self.rest.is_none() { connection.buffers.bytes() } else { 0 };
        connection.buffers.lend(held);
        connection.flight.start();
        connection.flight.parked.fetch_add(1, Ordering::Relaxed);
        let place = std::mem::replace(&mut self.place, Box::pin(None));
        let parked = Parked { place, held, connection: Arc::clone(connection) };
        let first = std::mem::replace(&mut self.first, FirstPoll::new(&connection.spawner));
        first.bell.park(Box::pin(parked));
    }
}

/// An operation that waits, wherever it is polled.
struct Parked<O: Operations, F> {
    place: Pin<Box<Option<F>>>,
    /// Bytes of a reader's buffer that it took along.
    held: usize,
    connection: Arc<Connection<O>>,
}

impl<O: Operations, F: Future<Output = Message>> Future for Parked<O, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(future) = self.place.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        let Poll::Ready(message) = future.poll(cx) else { return Poll::Pending };
        self.place.set(None);
        if let Some(payload) = message.payload {
            self.connection.buffers.put(payload.into_buf());
        }
        Poll::Ready(())
    }
}

impl<O: Operations, F> Drop for Parked<O, F> {
    fn drop(&mut self) {
        // The operation ends before it counts as landed.
        self.place.set(None);
        self.connection.buffers.settle(self.held);
        self.connection.flight.land();
    }
}
