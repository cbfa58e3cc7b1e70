//! The thread of one CPU: takes requests from its ring, has them polled, commits answers.
//!
//! A turn: take completions, poll each operation once, commit answers, here
//! or elsewhere, ensure that each queue has an entry in the kernel's hand (URING-U3), and sleep
//! until something completes or the mailbox's bell is rung. Answers are handed to the kernel
//! together, but not more than [`TOGETHER`], so that the first caller does not wait for the last.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use rustix::thread::{CpuSet, sched_setaffinity};

use super::mailbox::{Answered, Mailbox};
use super::plan::Plan;
use super::ring::{Event, Ring};
use super::slot::Lease;
use crate::desk::{self, Channel, Desk, Serve};
use crate::device::Device;
use crate::dispatch::Message;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::protocol::Opcode;

/// Requests that are polled before their answers are committed.
const TOGETHER: usize = 8;
/// Data from which on an operation is polled on another CPU.
const LARGE: usize = 64 << 10;
/// Entries that are registered at a time when fewer than the reserve are in the kernel's hand: it
/// gives one that is new only to requests that come after it, and looks for waiting ones only when
/// one is committed.
const MORE: usize = 4;
/// Most entries of a thread. So many requests waiting at once are too many for other reasons.
const ENTRIES_MAX: usize = 16 << 10;

/// The parameters of a thread.
pub(super) struct Start {
    pub(super) plan: Plan,
    pub(super) device: Device,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Start {
    /// The thread: reports whether it has its resources, waits for the connection, says whether
    /// the kernel has taken its entries, and serves to the end.
    pub(super) fn run<O: Operations>(
        self,
        begun: &Receiver<Arc<Channel<O>>>,
        tell: &Sender<io::Result<()>>,
    ) {
        // A request whose operation panicked would never be answered, and its caller never freed.
        let _guard = desk::AbortOnPanic;
        bind(self.plan.cpu);
        let Start { plan, device, mailbox } = self;
        let kept = plan.depth * plan.queues.len();
        let ring = match Ring::new(device, Arc::clone(&mailbox), &plan.queues, kept) {
            Ok(ring) => ring,
            Err(error) => return drop(tell.send(Err(error))),
        };
        // If the session could not be started, the receiver is gone.
        let _ = tell.send(Ok(()));
        let Ok(channel) = begun.recv() else { return };
        let mut queue = Queue::new(plan, mailbox, ring, channel, desk::serve);
        let _ = tell.send(queue.register());
        queue.serve();
    }
}

fn bind(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    // Only speed is lost where it is not allowed.
    let _unbound = sched_setaffinity(None, &cpus);
}

struct Queue<O, F> {
    plan: Plan,
    mailbox: Arc<Mailbox>,
    ring: Ring,
    desk: Desk<O, F>,
    args: Vec<u8>,
    /// Empty between turns.
    events: Vec<Event>,
    answered: Vec<Answered>,
    entries: usize,
    /// The kernel has refused to take more entries.
    is_full: bool,
}

impl<O: Operations, F: Future<Output = Infallible> + Send + 'static> Queue<O, F> {
    fn new(
        plan: Plan,
        mailbox: Arc<Mailbox>,
        ring: Ring,
        channel: Arc<Channel<O>>,
        serve: Serve<O, F>,
    ) -> Self {
        Queue {
            plan,
            mailbox,
            ring,
            desk: Desk::new(channel, serve),
            args: Vec::new(),
            events: Vec::new(),
            answered: Vec::new(),
            entries: 0,
            is_full: false,
        }
    }

    /// Gives the kernel the first entries. After an error it does without the ring.
    fn register(&mut self) -> io::Result<()> {
        let registered = self.register_all();
        if registered.is_err()
            && let Err(error) = self.ring.refuse()
        {
            tracing::error!(%error, "the FUSE ring could not start, and the kernel waits for it");
        }
        registered
    }

    fn register_all(&mut self) -> io::Result<()> {
        // All queues have one before any has two: callers wait for that.
        for _ in 0..self.plan.depth + self.plan.reserve {
            for queue in self.plan.queues.clone() {
                self.ring.register(queue, self.plan.payload_bytes)?;
                self.entries += 1;
            }
        }
        self.ring.enter(0)?;
        self.ring.reap(&mut self.events);
        let lost = self.events.iter().find_map(|event| match event {
            Event::Lost(errno) => Some(io::Error::from_raw_os_error(*errno)),
            Event::Request(_) => None,
        });
        lost.map_or(Ok(()), Err)
    }

    fn serve(mut self) {
        loop {
            self.turn().expect("io_uring takes commands as long as it is open");
            if self.mailbox.is_closed() && self.ring.is_empty() {
                return;
            }
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        self.ring.reap(&mut self.events);
        self.ring.trim();
        let mut events = std::mem::take(&mut self.events);
        for (number, event) in events.drain(..).enumerate() {
            match event {
                Event::Request(lease) => self.begin(lease),
                Event::Lost(errno) => self.lose(errno),
            }
            if number % TOGETHER == TOGETHER - 1 {
                self.commit()?;
                self.ring.enter(0)?;
            }
        }
        self.events = events;
        self.commit()?;
        self.replenish()?;
        if self.mailbox.is_closed() {
            if !self.ring.is_empty() {
                self.ring.enter(1)?;
            }
        } else if self.mailbox.may_sleep() {
            self.ring.listen()?;
            self.ring.enter(1)?;
            self.mailbox.is_awake();
        }
        Ok(())
    }

    /// Has the request polled, here or on another CPU.
    fn begin(&mut self, lease: Lease) {
        let Some(mut message) = self.message(lease) else { return };
        if !self.desk.admits(&mut message) {
            self.args = message.args;
            return;
        }
        if message.moved() >= LARGE {
            self.desk.hand_over(message);
        } else if let Some(message) = self.desk.poll(message) {
            self.args = message.args;
        }
    }

    /// The message of `lease`, if it can be understood.
    fn message(&mut self, lease: Lease) -> Option<Message> {
        let header = lease.header();
        let Some(argument) = lease.argument() else {
            tracing::error!(?header, "the kernel's message is not understood; answered EIO");
            return None;
        };
        let mut args = std::mem::take(&mut self.args);
        args.clear();
        args.extend_from_slice(argument);
        if Opcode::new(header.opcode) == Some(Opcode::Write) {
            return Some(Message::new(header, args, Some(Payload::lent(lease)), None));
        }
        args.extend_from_slice(lease.payload());
        Some(Message::new(header, args, None, Some(lease)))
    }

    fn commit(&mut self) -> io::Result<()> {
        let mut answered = std::mem::take(&mut self.answered);
        self.mailbox.take(&mut answered);
        for answered in answered.drain(..) {
            self.ring.commit(answered)?;
        }
        self.answered = answered;
        Ok(())
    }

    /// URING-U3.
    fn replenish(&mut self) -> io::Result<()> {
        if self.is_full || self.mailbox.is_closed() {
            return Ok(());
        }
        for at in 0..self.ring.queues().len() {
            let (queue, left) = self.ring.queues()[at];
            if left > self.plan.reserve {
                continue;
            }
            for _ in 0..MORE {
                if self.entries >= ENTRIES_MAX
                    || self.ring.register(queue, self.plan.payload_bytes).is_err()
                {
                    tracing::error!("no more requests can be taken until others are answered");
                    self.is_full = true;
                    return Ok(());
                }
                self.entries += 1;
            }
        }
        Ok(())
    }

    /// At the end of the connection all entries are lost, before it none should be.
    fn lose(&mut self, errno: i32) {
        if !matches!(errno, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED) {
            tracing::error!(errno, "the kernel has refused an entry of the ring");
            self.is_full = true;
        }
    }
}
