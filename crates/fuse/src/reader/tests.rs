//! Drains of a reader whose kernel is a pair of sockets.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};

use copyhold_memory::{Memory, MemoryCharge, MemoryClass, MemoryOwner};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::Reply;
use crate::desk::Connection;
use crate::device::Device;
use crate::payload::Buffers;
use crate::protocol::{AttrReply, Caller, Handle, Lock, NodeId, Write};
use crate::spawn::ThreadPerTask;

/// A filesystem that counts what it is told.
struct Counting {
    owner: MemoryOwner,
    served: AtomicU64,
    forgotten: AtomicU64,
    /// Requests that were served when the filesystem was destroyed.
    served_at_end: AtomicU64,
    /// Of a write, which waits for ever.
    waker: OnceLock<Waker>,
}

/// Offsets of writes that wait: with their data, with data that they took, and without it, at once
/// or behind a first wait.
const KEEPS: u64 = 0;
const TAKES: u64 = 1;
const RELEASES: u64 = 2;
const LATER: u64 = 3;

async fn yield_once() {
    let mut has_yielded = false;
    let yields = std::future::poll_fn(move |cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    yields.await;
}

impl Operations for Counting {
    fn forget(&self, _: NodeId, lookups: u64) {
        self.forgotten.fetch_add(lookups, Relaxed);
    }

    fn charge(&self, _: NodeId, bytes: usize) -> Option<MemoryCharge> {
        Some(self.owner.charge(MemoryClass::Request, bytes as i64))
    }

    async fn getattr(&self, _: Caller, _: NodeId, _: Option<Handle>) -> Reply<AttrReply> {
        self.served.fetch_add(1, Relaxed);
        Err(crate::Errno::ENOENT)
    }

    async fn setlkw(&self, _: Caller, _: NodeId, _: Lock) -> Reply<()> {
        std::future::pending().await
    }

    async fn write(&self, _: Caller, _: NodeId, write: Write, data: &mut Payload) -> Reply<u32> {
        if write.offset == LATER {
            yield_once().await;
        }
        match write.offset {
            KEEPS => {}
            TAKES => drop(data.take()),
            _ => data.release(),
        }
        let wait = std::future::poll_fn(|cx| {
            self.waker.get_or_init(|| cx.waker().clone());
            Poll::Pending
        });
        wait.await
    }

    async fn destroy(&self) {
        self.served_at_end.store(self.served.load(Relaxed), Relaxed);
    }
}

impl<F: Future<Output = Infallible> + Send + 'static> Reader<Counting, F> {
    /// Drains the kernel's queue; how many requests the backlog got.
    fn drains(&mut self) -> u64 {
        let backlog = Arc::clone(&self.backlog.as_ref().unwrap().backlog);
        let before = backlog.drained();
        assert!(self.drain().is_none());
        backlog.drained() - before
    }

    fn is_drain_due(&self) -> bool {
        self.backlog.as_ref().unwrap().is_drain_due()
    }

    /// Serves until the next drain is due; how many requests.
    fn serves_until_due(&mut self) -> u64 {
        (0..).take_while(|_| !self.is_drain_due() && self.serve_next()).count() as u64
    }
}

struct Kernel {
    /// The end of the descriptor that drains; the other one has ended.
    queue: OwnedFd,
    backlog: Arc<Backlog<Counting>>,
    fs: Arc<Counting>,
    sent: u64,
}

const BYTES_MAX: usize = 1 << 20;

fn sockets() -> (OwnedFd, OwnedFd) {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    socketpair(AddressFamily::UNIX, kind, flags, None).unwrap()
}

/// A kernel whose device ends at each read that may wait, and a reader of it.
fn start(
    bytes_max: usize,
) -> (Kernel, Reader<Counting, impl Future<Output = Infallible> + Send + 'static>) {
    let fs = Arc::new(Counting {
        owner: Memory::default().add_owner(),
        served: AtomicU64::new(0),
        forgotten: AtomicU64::new(0),
        served_at_end: AtomicU64::new(0),
        waker: OnceLock::new(),
    });
    let buffers = Buffers::new(256 << 10, BYTES_MAX, 4 * BYTES_MAX);
    let spawner = Arc::new(ThreadPerTask);
    let connection = Connection::new(Arc::clone(&fs), Default::default(), spawner, buffers, None);
    let ended = Channel::new(Device::new(sockets().0), &connection);
    let (queue, drained) = sockets();
    rustix::io::ioctl_fionbio(&drained, true).unwrap();
    let drained = Channel::new(Device::new(drained), &connection);
    let backlog = Arc::new(Backlog::new(drained, bytes_max));
    let reader = Reader::new(ended, desk::serve, Some(Arc::clone(&backlog)));
    (Kernel { queue, backlog, fs, sent: 0 }, reader)
}

impl Kernel {
    /// Its number.
    fn sends(&mut self, opcode: Opcode, args: &[u8]) -> u64 {
        self.sent += 2;
        let header = wire::InHeader {
            len: (size_of::<wire::InHeader>() + args.len()) as u32,
            opcode: opcode as u32,
            unique: self.sent,
            nodeid: 1,
            ..Default::default()
        };
        let message = [header.as_bytes(), args].concat();
        send(&self.queue, &message, SendFlags::NOSIGNAL).unwrap();
        self.sent
    }

    fn asks(&mut self, times: u64) {
        for _ in 0..times {
            self.sends(Opcode::Getattr, wire::GetattrIn::default().as_bytes());
        }
    }

    fn forgets(&mut self) {
        self.sends(Opcode::Forget, wire::ForgetIn { nlookup: 1 }.as_bytes());
    }

    /// The error of the next answer.
    fn hears(&self) -> i32 {
        let mut answer = [0; 512];
        recv(&self.queue, &mut answer[..], RecvFlags::DONTWAIT).unwrap();
        wire::OutHeader::read_from_prefix(&answer).unwrap().0.error
    }

    fn served(&self) -> u64 {
        self.fs.served.load(Relaxed)
    }
}

#[test]
fn requests_beside_a_reader_in_the_kernel_are_drained_one_by_one() {
    let (mut kernel, mut reader) = start(BYTES_MAX);
    assert!(kernel.backlog.gate.begin_read());
    kernel.asks(5);
    for round in 1..=3 {
        assert_eq!(reader.drains(), 1, "BACKLOG-B4");
        assert!(reader.turn().is_none());
        assert!(kernel.served() >= round);
    }
    kernel.backlog.gate.end_read();
    kernel.asks(5);
    while reader.drains() > 0 {}
    assert_eq!(kernel.backlog.drained(), 10);
}

#[test]
fn a_drain_begins_only_when_no_reader_waits_in_the_kernel() {
    let (mut kernel, mut reader) = start(BYTES_MAX);
    kernel.asks(10);
    assert_eq!(reader.drains(), 10);
    reader.serves_until_due();
    while !kernel.backlog.gate.is_empty() {
        assert!(reader.turn().is_none());
    }
    assert!(kernel.backlog.gate.begin_read());
    kernel.asks(2);
    assert!(!reader.is_drain_due(), "BACKLOG-B4: the other reader is woken for them");
    kernel.backlog.gate.end_read();
    assert!(reader.is_drain_due());
    assert!(reader.turn().is_none());
    assert_eq!((kernel.backlog.drained(), kernel.served()), (12, 11));
}

#[test]
fn a_reader_does_not_sleep_beside_a_request_in_memory() {
    let (mut kernel, mut reader) = start(BYTES_MAX);
    kernel.asks(1);
    reader.drains();
    assert!(reader.read_and_serve().is_none(), "BACKLOG-B4: it reads from a device that has ended");
    assert!(!kernel.backlog.gate.has_reading());
    assert!(reader.turn().is_none());
    assert!(reader.read_and_serve().is_some());
    assert!(!kernel.backlog.gate.has_reading());
}

#[test]
fn forgets_end_a_drain_if_a_request_waits() {
    let (mut kernel, mut reader) = start(BYTES_MAX);
    kernel.forgets();
    kernel.forgets();
    kernel.asks(1);
    kernel.forgets();
    kernel.forgets();
    let forgotten = |kernel: &Kernel| kernel.fs.forgotten.load(Relaxed);
    assert_eq!(reader.drains(), 1);
    assert_eq!(forgotten(&kernel), 3, "BACKLOG-B5");
    assert_eq!(reader.drains(), 0);
    assert_eq!(forgotten(&kernel), 4, "BACKLOG-B5");
    assert!(!reader.is_drain_due());
}

#[test]
fn a_reader_drains_often_as_long_as_requests_wait() {
    let (mut kernel, mut reader) = start(BYTES_MAX);
    kernel.asks(40);
    assert_eq!(reader.drains(), 40);
    for _ in 0..4 {
        assert_eq!(reader.serves_until_due(), 8);
        assert_eq!(reader.drains(), 0);
    }
}

#[test]
fn a_drain_ends_when_the_requests_take_their_room() {
    let (mut kernel, mut reader) = start(2 * size_of::<Message>());
    kernel.asks(20);
    let room = reader.drains();
    assert!((1..=2).contains(&room), "BACKLOG-B1: {room}");
    assert!(kernel.backlog.is_full());
    assert!(!reader.is_drain_due());
    let mut drained = room;
    while drained > 0 {
        assert_eq!(reader.serves_until_due(), drained);
        drained = reader.drains();
    }
    assert_eq!(kernel.served(), 20);
}

#[test]
fn drained_requests_are_charged_until_they_are_begun() {
    let (mut kernel, mut reader) = start(BYTES_MAX);
    let charged = |kernel: &Kernel| kernel.fs.owner.charged(MemoryClass::Request);
    kernel.asks(10);
    reader.drains();
    assert!(charged(&kernel) >= 10 * size_of::<Message>() as i64, "BACKLOG-B1");
    while !kernel.backlog.gate.is_empty() {
        reader.turn();
    }
    assert_eq!((kernel.served(), charged(&kernel)), (10, 0), "BACKLOG-B1");
}

/// PAYLOAD-M2.
#[test]
fn a_write_that_waits_counts_for_its_data_as_long_as_it_has_it() {
    const BYTES: usize = 8192;
    // The memory of a request, and its data.
    let waits = |offset: u64, bytes: usize| {
        let (mut kernel, mut reader) = start(BYTES_MAX);
        let head = wire::WriteIn { offset, size: BYTES as u32, ..Default::default() };
        kernel.sends(Opcode::Write, &[head.as_bytes(), &[7; BYTES]].concat());
        assert_eq!(reader.drains(), 1);
        while !kernel.backlog.gate.is_empty() {
            reader.turn();
        }
        let buffers = &kernel.backlog.channel().connection.buffers;
        while offset == LATER && buffers.out() > bytes {
            std::thread::yield_now();
        }
        assert_eq!(buffers.out(), bytes, "{offset}");
        move || kernel.fs.owner.charged(MemoryClass::Request) - bytes as i64
    };
    let charged = waits(KEEPS, BYTES)();
    assert!(charged > 0);
    assert_eq!(waits(TAKES, BYTES)(), charged, "it may wait with them");
    for offset in [RELEASES, LATER] {
        let of_request = waits(offset, 0);
        while offset == LATER && of_request() > charged {
            std::thread::yield_now();
        }
        assert_eq!(of_request(), charged, "{offset}");
    }
}

#[test]
fn a_drained_lock_is_interrupted_whatever_else_is_interrupted_before_it_begins() {
    let (mut kernel, mut reader) = start(BYTES_MAX);
    let number = kernel.sends(Opcode::Setlkw, wire::LkIn::default().as_bytes());
    assert_eq!(reader.drains(), 1);
    let interrupts = &kernel.backlog.channel().connection.interrupts;
    interrupts.interrupt(number);
    (1000..2000).for_each(|other| interrupts.interrupt(other));
    assert!(reader.turn().is_none());
    assert_eq!(kernel.hears(), -libc::EINTR);
}

#[test]
fn requests_in_memory_are_served_at_an_unmount_and_dropped_at_an_abort() {
    for (end, served) in [(End::Unmounted, 10), (End::Aborted, 0)] {
        let (mut kernel, mut reader) = start(BYTES_MAX);
        kernel.asks(10);
        reader.drains();
        reader.end(end);
        assert!(kernel.backlog.gate.is_empty(), "BACKLOG-B3");
        assert_eq!(kernel.served(), served, "BACKLOG-B3");
        assert_eq!(kernel.fs.owner.charged(MemoryClass::Request), 0);
    }
}

#[test]
fn destroy_begins_behind_all_requests_and_does_not_wait_in_memory() {
    let (mut kernel, mut reader) = start(BYTES_MAX);
    kernel.asks(10);
    kernel.sends(Opcode::Destroy, &[]);
    assert_eq!(reader.drains(), 10);
    assert!(kernel.backlog.gate.is_empty(), "BACKLOG-B3");
    assert_eq!(kernel.fs.served_at_end.load(Relaxed), 10, "BACKLOG-B3");
}
