//! The loop of one reader of `/dev/fuse`: read a request, have it polled once, continue.
//!
//! Requests are read into the same buffer as long as they are answered at once; an operation that
//! waits takes it along. If requests come faster than they are answered, readers move the kernel's
//! queue into memory, and serve it in turn by tenant (see [`crate::backlog`]).

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use copyhold_types::Buf;

use crate::backlog::{Backlog, DRAIN_MAX, Look};
use crate::desk::{self, Channel, Desk, Serve};
use crate::device::{End, Got, Head};
use crate::dispatch::Message;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::protocol::{Opcode, parse_prefix, wire};

/// How long FORGETs may wait for each other. An INTERRUPT may come that much later.
const GATHERING: Duration = Duration::from_millis(1);

/// Serves requests until the connection ends.
pub(crate) fn run<O: Operations>(
    channel: Arc<Channel<O>>,
    backlog: Option<Arc<Backlog<O>>>,
) -> End {
    let mut reader = Reader::new(channel, desk::serve, backlog);
    loop {
        if let Some(end) = reader.turn() {
            return end;
        }
    }
}

/// The same where requests come another way, and here FORGET and INTERRUPT alone. Pauses behind
/// each FORGET: the kernel gathers the next ones meanwhile, and one message wakes us for all.
pub(crate) fn of_forgets<O: Operations>(channel: Arc<Channel<O>>) -> End {
    let mut reader = Reader::new(channel, desk::serve, None);
    loop {
        if let Some(end) = reader.turn() {
            return end;
        }
        if is_forget(reader.last) {
            thread::sleep(GATHERING);
        }
    }
}

/// Serves one request each time it is called, until the connection ends.
pub(crate) fn by_turns<O: Operations>(
    channel: Arc<Channel<O>>,
) -> impl FnMut() -> Option<End> + Send {
    let mut reader = Reader::new(channel, desk::serve, None);
    move || reader.turn()
}

struct Reader<O, F> {
    desk: Desk<O, F>,
    backlog: Option<BacklogReader<O, F>>,
    head: Head,
    /// Where the rest of a request is read to; none when a WRITE has taken it.
    rest: Option<Buf>,
    args: Vec<u8>,
    /// The operation code of the last request.
    last: u32,
}

/// The side of a reader that drains the kernel's queue, and serves the requests from there.
struct BacklogReader<O, F> {
    backlog: Arc<Backlog<O>>,
    desk: Desk<O, F>,
    look: Look,
}

impl<O: Operations, F> BacklogReader<O, F> {
    fn is_drain_due(&self) -> bool {
        let buffers = &self.backlog.channel().connection.buffers;
        let may_drain = !self.backlog.gate.has_reading() && !self.backlog.is_full();
        self.look.is_due() && may_drain && !buffers.is_overfull()
    }
}

impl<O: Operations, F: Future<Output = Infallible> + Send + 'static> Reader<O, F> {
    fn new(
        channel: Arc<Channel<O>>,
        serve: Serve<O, F>,
        backlog: Option<Arc<Backlog<O>>>,
    ) -> Reader<O, F> {
        let head = [0; wire::WRITE_PREFIX];
        let backlog = backlog.map(|backlog| BacklogReader {
            desk: Desk::new(Arc::clone(backlog.channel()), serve),
            backlog,
            look: Look::new(),
        });
        let desk = Desk::new(channel, serve);
        Reader { desk, backlog, head, rest: None, args: Vec::new(), last: 0 }
    }

    /// Serves one request, or moves the kernel's queue into memory; reports when the connection
    /// has ended.
    fn turn(&mut self) -> Option<End> {
        if self.backlog.as_ref().is_some_and(BacklogReader::is_drain_due)
            && let Some(end) = self.drain()
        {
            return Some(self.end(end));
        }
        if self.serve_next() { None } else { self.read_and_serve() }
    }

    /// Reads once, waiting for a request, and serves it.
    fn read_and_serve(&mut self) -> Option<End> {
        self.desk.channel().connection.buffers.pause();
        let len = match self.wait_for_request() {
            Got::Request(len) => len,
            Got::Again => return None,
            Got::Ended(end) => return Some(self.end(end)),
        };
        if let Some(backlog) = &mut self.backlog {
            backlog.look.served();
        }
        let mut message = self.message(len, false)?;
        self.last = message.header.opcode;
        if !self.desk.admits(&mut message) {
            self.recycle(message);
            return None;
        }
        if is_destroy(&message) {
            self.serve_backlog();
        }
        if let Some(message) = self.desk.poll(message) {
            self.recycle(message);
        }
        None
    }

    /// Reads from the kernel's queue, unless a request is in memory (BACKLOG-B4).
    fn wait_for_request(&mut self) -> Got {
        if self.backlog.as_ref().is_some_and(|one| !one.backlog.gate.begin_read()) {
            return Got::Again;
        }
        let got = self.read(true);
        if let Some(one) = &self.backlog {
            one.backlog.gate.end_read();
        }
        got
    }

    /// Reads from the kernel's queue; `waits`: until there is a request.
    fn read(&mut self, waits: bool) -> Got {
        let Channel { device, connection, .. } = match &self.backlog {
            Some(one) if !waits => &**one.backlog.channel(),
            _ => &**self.desk.channel(),
        };
        let rest = self.rest.get_or_insert_with(|| connection.buffers.get());
        device.read(&mut self.head, rest.make_mut())
    }

    /// Moves requests from the kernel's queue to the backlog until there is none left, or the
    /// backlog needs service first.
    fn drain(&mut self) -> Option<End> {
        let backlog = Arc::clone(&self.backlog.as_ref()?.backlog);
        let mut found = 0;
        for _ in 0..DRAIN_MAX {
            let len = match self.read(false) {
                Got::Request(len) => len,
                Got::Again => break,
                Got::Ended(end) => return Some(end),
            };
            let Some(message) = self.message(len, true) else { continue };
            let is_forget = is_forget(message.header.opcode);
            found += usize::from(self.take(message));
            if backlog.is_full() || is_forget && !backlog.gate.is_empty() {
                break;
            }
            if backlog.gate.has_reading() {
                // The next drain is due at once.
                return None;
            }
        }
        self.backlog.as_mut()?.look.found(found, !backlog.gate.is_empty());
        None
    }

    /// Adds a drained request to the backlog; `false`: it has been dealt with.
    fn take(&mut self, mut message: Message) -> bool {
        let Some(BacklogReader { backlog, desk, .. }) = &mut self.backlog else { return false };
        if !desk.admits(&mut message) {
            self.recycle(message);
            return false;
        }
        if !is_destroy(&message) {
            backlog.add(message);
            return true;
        }
        self.serve_backlog();
        if let Some(one) = &mut self.backlog
            && let Some(message) = one.desk.poll(message)
        {
            self.recycle(message);
        }
        false
    }

    /// Serves the request of the backlog that is next; `false`: there is none.
    fn serve_next(&mut self) -> bool {
        let Some(BacklogReader { backlog, desk, look }) = &mut self.backlog else { return false };
        let Some(message) = backlog.next() else { return false };
        look.served();
        let message = desk.poll(message);
        if backlog.gate.is_empty() {
            look.at_once();
        }
        if let Some(message) = message {
            self.recycle(message);
        }
        true
    }

    /// The connection has ended (BACKLOG-B3).
    fn end(&mut self, end: End) -> End {
        match (&end, &self.backlog) {
            (End::Aborted, Some(one)) => one.backlog.clear(),
            _ => self.serve_backlog(),
        }
        end
    }

    /// Serves the whole backlog.
    fn serve_backlog(&mut self) {
        while self.serve_next() {}
    }

    /// The request of `len` bytes that was just read, if it can be understood. `waits`: it is not
    /// begun at once.
    fn message(&mut self, len: usize, waits: bool) -> Option<Message> {
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
            payload = Some(self.payload(in_rest, waits));
        } else {
            args.extend_from_slice(&self.rest.as_ref().expect("just read to")[..in_rest]);
        }
        Some(Message::new(header, args, payload, None))
    }

    /// The `len` bytes in `rest` as the data of a WRITE.
    fn payload(&mut self, len: usize, waits: bool) -> Payload {
        let buffers = &self.desk.channel().connection.buffers;
        let rest = self.rest.take().expect("just read to");
        if buffers.wants_copy(len, waits) {
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
            && self.desk.channel().connection.buffers.is_one(&buf)
        {
            self.rest = Some(buf);
        }
    }
}

fn is_forget(opcode: u32) -> bool {
    matches!(Opcode::new(opcode), Some(Opcode::Forget | Opcode::BatchForget))
}

fn is_destroy(message: &Message) -> bool {
    Opcode::new(message.header.opcode) == Some(Opcode::Destroy)
}

#[cfg(test)]
mod tests;
