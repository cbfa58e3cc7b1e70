//! File operations in flight, in any reactor.
//!
//! RINGOP-O1  An operation owns its file and its memory until the kernel is done with them, also
//!            without a waiter: dropping a [`Completion`] stops waiting, not the operation.
//! RINGOP-O2  An operation completes once, with everything done or with the first error. A partial
//!            transfer is continued, an interrupted call is repeated.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use copyhold_sync::{Mutex, of};
use copyhold_types::{Buf, Bufs};

use crate::uring::IoVecs;

/// An open file that operations share: an `OwnedFd`, or a type that does more when the last of
/// them drops it.
pub type SharedFd = Arc<dyn AsFd + Send + Sync>;

/// The operations of a reactor. Offsets and lengths are in bytes.
pub enum Op {
    /// Fills `buf`. A file that ends before fails with [`io::ErrorKind::UnexpectedEof`].
    Read {
        fd: SharedFd,
        buf: Buf,
        offset: u64,
    },
    /// Writes `bufs` one behind the other.
    Write {
        fd: SharedFd,
        bufs: Bufs,
        offset: u64,
    },
    Fdatasync {
        fd: SharedFd,
    },
    /// `mode` as for fallocate(2).
    Fallocate {
        fd: SharedFd,
        mode: i32,
        offset: u64,
        len: u64,
    },
    /// Any other blocking call; always runs on a thread of its own.
    Blocking(Box<dyn FnOnce() -> io::Result<()> + Send>),
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Read { buf, offset, .. } => write!(f, "read {} at {offset}", buf.len()),
            Op::Write { bufs, offset, .. } => write!(f, "write {bufs:?} at {offset}"),
            Op::Fdatasync { .. } => f.write_str("fdatasync"),
            Op::Fallocate { mode, offset, len, .. } => {
                write!(f, "fallocate {mode:#x} {len} at {offset}")
            }
            Op::Blocking(_) => f.write_str("blocking"),
        }
    }
}

/// How an operation ended.
#[derive(Debug)]
pub struct Outcome {
    pub result: io::Result<()>,
    /// The buffer of a read; its content means something only if the result is `Ok`.
    pub buf: Option<Buf>,
}

/// Carries operations to the kernel.
pub trait Reactor: Send + Sync {
    /// Begins `op` at once; the result is the wait for its end. Never blocks for the operation.
    fn submit(&self, op: Op) -> Completion;
}

/// Waits for an operation.
#[derive(Debug)]
#[must_use = "the operation goes on, but nobody learns how it ends"]
pub struct Completion {
    flight: Arc<Flight>,
}

impl Future for Completion {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut reply = self.flight.reply.lock();
        if let Some(outcome) = reply.outcome.take() {
            return Poll::Ready(outcome);
        }
        if !reply.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            let replaced = reply.waker.replace(cx.waker().clone());
            drop(reply);
            drop(replaced);
        }
        Poll::Pending
    }
}

/// One operation in progress, and its waiter.
pub(crate) struct Flight {
    /// Touched by the carrier of the operation, never by its waiter.
    pub(crate) work: Mutex<Work, of::OpWork>,
    reply: Mutex<Reply, of::OpReply>,
}

#[derive(Default)]
struct Reply {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// The state of an operation between system calls.
pub(crate) struct Work {
    pub(crate) op: Op,
    /// Bytes read or written so far.
    pub(crate) done: usize,
    /// Memory that a ring's entry points to.
    #[cfg_attr(shuttle, expect(dead_code, reason = "the simulated kernel moves nothing"))]
    pub(crate) iovecs: IoVecs,
}

impl Flight {
    pub(crate) fn new(op: Op) -> (Arc<Flight>, Completion) {
        let work = Work { op, done: 0, iovecs: IoVecs::default() };
        let flight = Arc::new(Flight { work: Mutex::new(work), reply: Mutex::default() });
        (flight.clone(), Completion { flight })
    }

    /// Wakes the waiter with the result. No lock may be held that a waker might take.
    pub(crate) fn finish(&self, result: io::Result<()>) {
        let nothing = Op::Blocking(Box::new(|| Ok(())));
        // The file is released before the waiter is woken.
        let buf = match std::mem::replace(&mut self.work.lock().op, nothing) {
            Op::Read { fd: _, buf, .. } => Some(buf),
            _ => None,
        };
        let mut reply = self.reply.lock();
        assert!(reply.outcome.is_none(), "RINGOP-O2: an operation completes once");
        reply.outcome = Some(Outcome { result, buf });
        let waker = reply.waker.take();
        drop(reply);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Answers an operation that comes after the reactor was closed.
    pub(crate) fn refuse(&self) {
        self.finish(Err(io::Error::from_raw_os_error(libc::ESHUTDOWN)));
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work.try_lock() {
            Some(work) => work.op.fmt(f),
            None => f.write_str("an operation under way"),
        }
    }
}

impl Work {
    /// Bytes to read or write in all.
    pub(crate) fn len(&self) -> usize {
        match &self.op {
            Op::Read { buf, .. } => buf.len(),
            Op::Write { bufs, .. } => bufs.iter().map(|buf| buf.len()).sum(),
            _ => 0,
        }
    }

    /// Whether nothing has to be done at all.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.op, Op::Read { .. } | Op::Write { .. }) && self.len() == 0
    }

    /// The parts of a write's buffers that are still to be written, at most `max`.
    pub(crate) fn rest(&self, max: usize) -> impl Iterator<Item = &[u8]> {
        let bufs: &[Buf] = if let Op::Write { bufs, .. } = &self.op { bufs } else { &[] };
        let mut skip = self.done;
        bufs.iter()
            .filter_map(move |buf| {
                let skipped = skip.min(buf.len());
                skip -= skipped;
                (skipped < buf.len()).then(|| &buf[skipped..])
            })
            .take(max)
    }

    /// Applies the result of one system call; `None` when another one is needed (RINGOP-O2).
    pub(crate) fn advance(&mut self, result: Result<usize, i32>) -> Option<io::Result<()>> {
        let n = match result {
            // ECANCELED: the submitting thread has ended; no caller has cancelled the request.
            Err(libc::EINTR | libc::EAGAIN | libc::ECANCELED) => return None,
            Err(errno) => return Some(Err(io::Error::from_raw_os_error(errno))),
            Ok(n) => n,
        };
        let end = match &self.op {
            Op::Read { .. } => io::ErrorKind::UnexpectedEof,
            Op::Write { .. } => io::ErrorKind::WriteZero,
            _ => return Some(Ok(())),
        };
        if n == 0 {
            return Some(Err(end.into()));
        }
        self.done += n;
        assert!(self.done <= self.len(), "the kernel did more than it was asked to");
        (self.done == self.len()).then_some(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_of(blocks: &[usize]) -> Work {
        let fd = Arc::new(std::fs::File::open("/dev/null").unwrap());
        let bufs = blocks.iter().map(|blocks| Buf::zeroed(*blocks)).collect();
        Work { op: Op::Write { fd, bufs, offset: 0 }, done: 0, iovecs: IoVecs::default() }
    }

    #[test]
    fn a_short_write_goes_on_where_it_stopped() {
        let mut work = write_of(&[1, 2, 1]);
        assert!(work.advance(Ok(6000)).is_none());
        let rest: Vec<usize> = work.rest(9).map(<[u8]>::len).collect();
        assert_eq!(rest, [2 * 4096 - (6000 - 4096), 4096]);
        assert_eq!(work.rest(1).count(), 1);
        assert!(matches!(work.advance(Ok(4 * 4096 - 6000)), Some(Ok(()))));
    }

    #[test]
    fn an_interruption_is_no_error_and_an_end_is() {
        let mut work = write_of(&[1]);
        assert!(work.advance(Err(libc::EINTR)).is_none());
        assert_eq!(work.advance(Ok(0)).unwrap().unwrap_err().kind(), io::ErrorKind::WriteZero);
        let full = work.advance(Err(libc::ENOSPC)).unwrap().unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    }
}
