//! A tenant's requests beside a queue that another one has filled: counted, not timed.

#![allow(clippy::disallowed_methods)] // tests of threads and processes

mod common;

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use common::{Mounted, wait_until};
use copyhold_fuse::protocol::flags::fopen;
use copyhold_fuse::protocol::{
    Attr, AttrReply, Caller, Entry, Handle, Lookup, NodeId, Open, Opened, Settings, Write,
};
use copyhold_fuse::{End, Errno, Operations, Payload, Reply, SessionOptions, Share, Transport};
use copyhold_harness::needs;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

const ROGUE: NodeId = NodeId(2);
const NEIGHBOUR: NodeId = NodeId(3);
/// Direct writers of the rogue, each with a write that is not answered.
const WRITERS: u64 = 200;
/// The longest way of a reader to a drain; the write that it serves when the neighbour's request
/// comes; and one that the rogue has paid for.
const MOST: u64 = 64 + 2;

/// The file of the rogue, and that of the neighbour.
#[derive(Default)]
struct TwoFiles {
    /// Both files belong to one tenant.
    is_one_tenant: bool,
    written: AtomicU64,
    /// Writes of the rogue before the neighbour's last answer.
    written_before: AtomicU64,
    gate: Gate,
}

/// Where the reader waits, with a write of the rogue.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
    has_reader: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        let mut is_closed = self.is_closed.lock().unwrap();
        self.has_reader.store(*is_closed, Ordering::SeqCst);
        while *is_closed {
            is_closed = self.opened.wait(is_closed).unwrap();
        }
        self.has_reader.store(false, Ordering::SeqCst);
    }

    fn set_closed(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap() = is_closed;
        self.opened.notify_all();
    }
}

fn attr(node: NodeId) -> Attr {
    let time = Default::default();
    let kind = if node == NodeId(1) { libc::S_IFDIR } else { libc::S_IFREG };
    Attr {
        ino: node.0,
        size: 1 << 20,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: None,
        mode: kind | 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        attributes: 0,
        attributes_mask: 0,
    }
}

impl Operations for TwoFiles {
    fn share(&self, node: NodeId) -> Share {
        let tenant = if self.is_one_tenant { 0 } else { node.0 };
        Share { tenant, ..Share::default() }
    }

    async fn lookup(&self, _: Caller, _: NodeId, name: &[u8]) -> Reply<Lookup> {
        let node = match name {
            b"rogue" => ROGUE,
            b"neighbour" => NEIGHBOUR,
            _ => return Err(Errno::ENOENT),
        };
        let valid = Duration::ZERO;
        let (attr, generation) = (attr(node), 0);
        Ok(Lookup::Found(Entry { node, generation, attr, entry_valid: valid, attr_valid: valid }))
    }

    async fn getattr(&self, _: Caller, node: NodeId, _: Option<Handle>) -> Reply<AttrReply> {
        if node == NEIGHBOUR {
            let written = self.written.load(Ordering::SeqCst);
            self.written_before.store(written, Ordering::SeqCst);
        }
        Ok(AttrReply { attr: attr(node), valid: Duration::ZERO })
    }

    /// The first question of the kernel; it would ask for the rest by another request.
    async fn statx(&self, by: Caller, node: NodeId, handle: Option<Handle>) -> Reply<AttrReply> {
        self.getattr(by, node, handle).await
    }

    async fn open(&self, _: Caller, _: NodeId, _: Open) -> Reply<Opened> {
        let flags = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES | fopen::NOFLUSH;
        Ok(Opened { handle: Handle(0), flags })
    }

    async fn write(&self, _: Caller, _: NodeId, write: Write, _: &mut Payload) -> Reply<u32> {
        self.gate.pass();
        self.written.fetch_add(1, Ordering::SeqCst);
        Ok(write.size)
    }
}

/// Requests of the connection without an answer, those in the kernel's queue included.
fn unanswered((major, minor): (u32, u32)) -> u64 {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    fsconfig_create(context.as_fd()).unwrap();
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let tree = fsmount(context.as_fd(), flags, MountAttrFlags::empty()).unwrap();
    let path = format!("{}/waiting", u64::from(major) << 20 | u64::from(minor));
    let file = openat(&tree, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut text = String::new();
    File::from(file).read_to_string(&mut text).unwrap();
    text.trim().parse().unwrap()
}

fn is_asleep(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('S')
}

/// How many writes of the rogue were served before a request of the neighbour, which came when a
/// write of each of the rogue's threads was there: in some rounds.
fn served_before(is_one_tenant: bool) -> Vec<u64> {
    let files = Arc::new(TwoFiles { is_one_tenant, ..TwoFiles::default() });
    let options = SessionOptions {
        readers: Some(1),
        transport: Transport::Device,
        ..SessionOptions::default()
    };
    let mounted = Mounted::with(files.clone(), &Settings::default(), options);
    let number = mounted.mount.number().unwrap();
    let (is_over, thread) = (AtomicBool::new(false), AtomicI32::new(0));
    let rogue = File::options().write(true).open(mounted.path("rogue")).unwrap();
    let neighbour = File::open(mounted.path("neighbour")).unwrap();
    let mut found = Vec::new();
    files.gate.set_closed(true);
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    rogue.write_all_at(&[1; 4096], 0).unwrap();
                }
            });
        }
        for _ in 0..5 {
            wait_until(|| files.gate.has_reader.load(Ordering::SeqCst));
            wait_until(|| unanswered(number) == WRITERS);
            let before = files.written.load(Ordering::SeqCst);
            let request = scope.spawn(|| {
                thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
                neighbour.metadata().unwrap()
            });
            wait_until(|| unanswered(number) == WRITERS + 1);
            // It is counted a moment before it is in the kernel's queue.
            wait_until(|| is_asleep(thread.load(Ordering::SeqCst)));
            files.gate.set_closed(false);
            request.join().unwrap();
            files.gate.set_closed(true);
            found.push(files.written_before.load(Ordering::SeqCst) - before);
        }
        is_over.store(true, Ordering::SeqCst);
        files.gate.set_closed(false);
    });
    assert!(mounted.counters().drained >= WRITERS);
    drop((rogue, neighbour));
    assert!(matches!(mounted.end(), End::Unmounted));
    found
}

#[test]
fn a_request_of_a_neighbour_overtakes_the_queue_of_a_rogue() {
    if !needs::are_met() {
        return;
    }
    let served = served_before(false);
    assert!(served.iter().all(|before| *before <= MOST), "FAIR-F3: {served:?}");
    let in_order = served_before(true);
    assert!(in_order.iter().all(|before| *before >= WRITERS / 2), "{in_order:?}");
}
