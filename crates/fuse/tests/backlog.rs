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
    Attr, AttrReply, Caller, Entry, Handle, Lookup, NodeId, Open, Opened, Release, Settings, Write,
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
    released: AtomicU64,
    /// Writes of the rogue before the neighbour's last answer.
    written_before: AtomicU64,
    gate: Gate,
}

/// Where readers wait, each with a request of the rogue.
#[derive(Default)]
struct Gate {
    /// Requests that may pass, and the readers that wait.
    state: Mutex<(u64, usize)>,
    opened: Condvar,
}

const ALL: u64 = u64::MAX;

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        while state.0 == 0 {
            state = self.opened.wait(state).unwrap();
        }
        state.0 -= u64::from(state.0 < ALL);
        state.1 -= 1;
    }

    /// So many requests may pass from now on, or [`ALL`].
    fn allow(&self, requests: u64) {
        self.state.lock().unwrap().0 = requests;
        self.opened.notify_all();
    }

    /// Readers that wait when no request may pass.
    fn readers(&self) -> usize {
        let (allowed, readers) = *self.state.lock().unwrap();
        if allowed == 0 { readers } else { 0 }
    }
}

/// Opens the gate for ever at the end of a test, also one that has failed: the rogue's threads end.
struct OpensAtEnd<'a> {
    gate: &'a Gate,
    is_over: &'a AtomicBool,
}

impl Drop for OpensAtEnd<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.gate.allow(ALL);
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

    async fn release(&self, _: Caller, _: NodeId, _: Release) -> Reply<()> {
        self.gate.pass();
        self.released.fetch_add(1, Ordering::SeqCst);
        Ok(())
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

fn mount(files: &Arc<TwoFiles>, readers: usize) -> Mounted {
    let options = SessionOptions {
        readers: Some(readers),
        transport: Transport::Device,
        ..SessionOptions::default()
    };
    files.gate.allow(ALL);
    Mounted::with(files.clone(), &Settings::default(), options)
}

/// Has the rogue's threads write again and again behind the closed gate, each after `rest`, until
/// `test` is over or a write fails.
fn beside_writers(mounted: &Mounted, gate: &Gate, rest: impl Fn() + Sync, test: impl FnOnce()) {
    let rogue = File::options().write(true).open(mounted.path("rogue")).unwrap();
    let is_over = AtomicBool::new(false);
    gate.allow(0);
    thread::scope(|scope| {
        let _end = OpensAtEnd { gate, is_over: &is_over };
        for _ in 0..WRITERS {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) && rogue.write_all_at(&[1; 4096], 0).is_ok() {
                    rest();
                }
            });
        }
        test();
    });
}

/// How many writes of the rogue were served before a request of the neighbour, which came when a
/// write of each of the rogue's threads was there: in some rounds.
fn served_before(is_one_tenant: bool) -> Vec<u64> {
    let files = Arc::new(TwoFiles { is_one_tenant, ..TwoFiles::default() });
    let mounted = mount(&files, 1);
    let number = mounted.mount.number().unwrap();
    let neighbour = File::open(mounted.path("neighbour")).unwrap();
    let thread = AtomicI32::new(0);
    let mut found = Vec::new();
    beside_writers(
        &mounted,
        &files.gate,
        || {},
        || {
            for _ in 0..5 {
                wait_until(|| files.gate.readers() == 1);
                wait_until(|| unanswered(number) == WRITERS);
                let before = files.written.load(Ordering::SeqCst);
                thread::scope(|scope| {
                    let request = scope.spawn(|| {
                        thread.store(
                            rustix::thread::gettid().as_raw_nonzero().get(),
                            Ordering::SeqCst,
                        );
                        neighbour.metadata().unwrap()
                    });
                    wait_until(|| unanswered(number) == WRITERS + 1);
                    // It is counted a moment before it is in the kernel's queue.
                    wait_until(|| is_asleep(thread.load(Ordering::SeqCst)));
                    files.gate.allow(ALL);
                    request.join().unwrap();
                    files.gate.allow(0);
                });
                found.push(files.written_before.load(Ordering::SeqCst) - before);
            }
        },
    );
    assert!(mounted.counters().drained >= WRITERS);
    drop(neighbour);
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

#[test]
fn all_readers_serve_the_requests_that_one_has_drained() {
    if !needs::are_met() {
        return;
    }
    const READERS: usize = 4;
    const ROUNDS: u64 = 20;
    let files = Arc::new(TwoFiles::default());
    let mounted = mount(&files, READERS);
    // Readers fall asleep between rounds.
    let turnstile = Gate::default();
    let written = || files.written.load(Ordering::SeqCst);
    beside_writers(
        &mounted,
        &files.gate,
        || turnstile.pass(),
        || {
            let _end = OpensAtEnd { gate: &turnstile, is_over: &AtomicBool::new(false) };
            for done in 1..=ROUNDS {
                files.gate.allow(WRITERS / 2);
                wait_until(|| files.gate.readers() == READERS);
                files.gate.allow(ALL);
                wait_until(|| written() == done * WRITERS);
                files.gate.allow(0);
                turnstile.allow(WRITERS);
            }
        },
    );
    assert!(mounted.counters().drained >= WRITERS);
    assert!(matches!(mounted.end(), End::Unmounted));
}

#[test]
fn drained_writes_are_not_begun_when_the_connection_is_aborted() {
    if !needs::are_met() {
        return;
    }
    let files = Arc::new(TwoFiles::default());
    let mounted = mount(&files, 1);
    let number = mounted.mount.number().unwrap();
    beside_writers(
        &mounted,
        &files.gate,
        || {},
        || {
            wait_until(|| unanswered(number) == WRITERS);
            files.gate.allow(MOST);
            wait_until(|| files.gate.readers() == 1);
            wait_until(|| unanswered(number) == WRITERS);
            mounted.mount.abort().unwrap();
        },
    );
    assert!(mounted.counters().drained > 0);
    assert!(matches!(mounted.wait(), End::Aborted));
    let written = files.written.load(Ordering::SeqCst);
    assert!(written <= 2 * MOST, "BACKLOG-B3: {written}");
}

#[test]
fn drained_requests_are_served_when_the_filesystem_is_unmounted() {
    if !needs::are_met() {
        return;
    }
    let files = Arc::new(TwoFiles::default());
    let mounted = mount(&files, 1);
    let number = mounted.mount.number().unwrap();
    let open: Vec<_> = (0..WRITERS).map(|_| File::open(mounted.path("rogue")).unwrap()).collect();
    let is_over = AtomicBool::new(false);
    let end = OpensAtEnd { gate: &files.gate, is_over: &is_over };
    files.gate.allow(0);
    drop(open);
    wait_until(|| unanswered(number) == WRITERS);
    files.gate.allow(MOST);
    wait_until(|| files.gate.readers() == 1);
    assert!(mounted.counters().drained >= WRITERS - MOST);
    mounted.mount.unmount().unwrap();
    drop(end);
    assert!(matches!(mounted.wait(), End::Unmounted));
    assert_eq!(files.released.load(Ordering::SeqCst), WRITERS, "BACKLOG-B3");
}
