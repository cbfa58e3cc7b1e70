//! The loop of one reader of `/dev/fuse`: read a request, have it polled once, continue.
//!
//! Requests are read into the same buffer as long as they are answered at once; an operation that
//! waits takes it along.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use copyhold_types::Buf;

use crate::desk::{self, Channel, Desk, Serve};
use crate::device::{End, Got, Head};
use crate::dispatch::Message;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::protocol::{Opcode, parse_prefix, wire};

/// How long FORGETs may wait for each other. An INTERRUPT may come that much later.
const GATHERING: Duration = Duration::from_millis(1);

/// Serves requests until the connection ends.
pub(crate) fn run<O: Operations>(channel: Arc<Channel<O>>) -> End {
    until_the_end(channel, |_| {})
}

/// The same where requests come another way, and here FORGET and INTERRUPT alone. Pauses behind
/// each FORGET: the kernel gathers the next ones meanwhile, and one message wakes us for all.
pub(crate) fn of_forgets<O: Operations>(channel: Arc<Channel<O>>) -> End {
    until_the_end(channel, |served| {
        if matches!(Opcode::new(served), Some(Opcode::Forget | Opcode::BatchForget)) {
            thread::sleep(GATHERING);
        }
    })
}

/// Calls `then` with the operation code of the last request served.
fn until_the_end<O: Operations>(channel: Arc<Channel<O>>, then: impl Fn(u32)) -> End {
    let mut reader = Reader::new(channel, desk::serve);
    loop {
        if let Some(end) = reader.turn() {
            return end;
        }
        then(reader.last);
    }
}

/// Serves one request each time it is called, until the connection ends.
pub(crate) fn by_turns<O: Operations>(
    channel: Arc<Channel<O>>,
) -> impl FnMut() -> Option<End> + Send {
    let mut reader = Reader::new(channel, desk::serve);
    move || reader.turn()
}

struct Reader<O, F> {
    desk: Desk<O, F>,
    head: Head,
    /// Where the rest of a request is read to; none when a WRITE has taken it.
    rest: Option<Buf>,
    args: Vec<u8>,
    /// The operation code of the last request.
    last: u32,
}

impl<O: Operations, F: Future<Output = Infallible> + Send + 'static> Reader<O, F> {
    fn new(channel: Arc<Channel<O>>, serve: Serve<O, F>) -> Reader<O, F> {
        let head = [0; wire::WRITE_PREFIX];
        Reader { desk: Desk::new(channel, serve), head, rest: None, args: Vec::new(), last: 0 }
    }

    /// Reads once, and serves the request; reports when the connection has ended.
    fn turn(&mut self) -> Option<End> {
        let Channel { device, connection, .. } = &**self.desk.channel();
        connection.buffers.pause();
        let rest = self.rest.get_or_insert_with(|| connection.buffers.get());
        let len = match device.read(&mut self.head, rest.make_mut()) {
            Got::Request(len) => len,
            Got::Again => return None,
            Got::Ended(end) => return Some(end),
        };
        let mut message = self.message(len)?;
        self.last = message.header.opcode;
        if !self.desk.admits(&mut message) {
            self.recycle(message);
            return None;
        }
        let held = message.payload.as_ref().map_or(0, Payload::held);
        if let Some(message) = self.desk.poll(message, held) {
            self.recycle(message);
        }
        None
    }

    /// The request of `len` bytes that was just read, if it can be understood.
    fn message(&mut self, len: usize) -> Option<Message> {
        let header = match parse_prefix(&self.head, len) {
            Ok(header) => header,
            Err(error) => {
                tracing::error!(%error, "the kernel's message is not understood; left out");
                return None;
            }
        };
        let start = size_of::<wire::InHeader>();
        let in_head = len.min(wire::WRITE_PREFIX);
        let in_rest = len - in_head;
        let mut args = std::mem::take(&mut self.args);
        args.clear();
        args.extend_from_slice(&self.head[start..in_head]);
        let mut payload = None;
        if Opcode::new(header.opcode) == Some(Opcode::Write) {
            payload = Some(self.payload(in_rest));
        } else {
            args.extend_from_slice(&self.rest.as_ref().expect("just read to")[..in_rest]);
        }
        Some(Message { header, args, payload, lease: None })
    }

    /// The `len` bytes in `rest` as the data of a WRITE.
    fn payload(&mut self, len: usize) -> Payload {
        let buffers = &self.desk.channel().connection.buffers;
        let rest = self.rest.take().expect("just read to");
        if buffers.wants_copy(len) {
            let own = Buf::from_bytes(&rest[..len]);
            self.rest = Some(rest);
            return Payload::new(own, len);
        }
        Payload::new(rest, len)
    }

    /// Takes back the buffers that the next request needs.
    fn recycle(&mut self, message: Message) {
        self.args = message.args;
        if let Some(buf) = message.payload.and_then(Payload::into_buf)
            && self.rest.is_none()
            && buf.blocks() > 0
            && !buf.is_shared()
        {
            self.rest = Some(buf);
        }
    }
}
