//! A small kernel before the adapter, for random histories of one file: it caches pages, of which
//! some are dirty, and treats them as Linux does. An asynchronous direct write does not drop the
//! pages that a reader filled while it was under way. LSEEK asks the daemon, for any dirty pages
//! here. Only a notification writes pages back and drops them.
//!
//! A client reads, writes, maps, seeks, and sets flags, and compares what it sees with a plain
//! model: the last number that was written to each page.

use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

use copyhold_device::sim::{Fault, SimConfig, SimDevice, SimImage, Trigger};
use copyhold_fs::{
    Caller as By, FileFlags, Filesystem, FsError, NodeId as FsNode, OpenFlags, Options, Sabotage,
    SetAttr,
};
use copyhold_fuse::protocol::{
    Caller, Fallocate, Handle, LockOwner, NodeId, Notification, Read, Seek, Write,
};
use copyhold_fuse::{Errno, Listener, Notifier, Operations, Payload, Reply};
use copyhold_pool::{CreateOptions, OpenOptions, Pool};
use copyhold_runtime::executors::Config;
use copyhold_runtime::{Executors, Rt};
use copyhold_types::{BLOCK_BYTES, Buf, DeviceId};
use parking_lot::Mutex;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use super::content::{FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE};
use super::operations::{SEEK_DATA, SEEK_HOLE};
use super::{Adapter, Rules};

const PAGE: u64 = BLOCK_BYTES as u64;
/// Pages of the file.
const PAGES: u64 = 16;
const STEPS: u64 = 200;
/// Histories that a broken rule may take to be noticed.
const SEEDS: u64 = 50;

/// The request itself says nothing of who asks.
const CALLER: Caller = Caller { unique: 1, ids: None, pid: 0 };
/// Direct I/O names an owner of locks, pages do not.
const DIRECT: Option<LockOwner> = Some(LockOwner(1));

/// The first difference that a client finds, if there is one.
type Found = Result<(), String>;

/// A page is full of one number.
#[derive(Clone, Copy, Debug)]
struct Page {
    number: u64,
    dirty: bool,
}

struct Kernel {
    executors: Arc<Executors>,
    adapter: OnceLock<Weak<Adapter>>,
    node: NodeId,
    pages: Mutex<BTreeMap<u64, Page>>,
    /// A write-back that failed: the data is lost.
    lost: Mutex<Option<String>>,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kernel")
    }
}

impl Listener for Kernel {
    fn hear(&self, notification: &Notification<'_>) -> Result<(), Errno> {
        if let Notification::InvalInode { offset, len, .. } = *notification
            && let Ok(from) = u64::try_from(offset)
        {
            let to = if len == 0 { PAGES * PAGE } else { from + len as u64 };
            self.drop_pages(from / PAGE..to.div_ceil(PAGE));
        }
        Ok(())
    }
}

impl Kernel {
    fn ask<T>(&self, request: impl AsyncFnOnce(&Adapter) -> Reply<T>) -> Reply<T> {
        let adapter = self.adapter.get().and_then(Weak::upgrade).expect("it is served");
        self.executors.block_on(request(&adapter))
    }

    fn send_read(&self, page: u64, lock_owner: Option<LockOwner>) -> Reply<u64> {
        let (handle, offset, size) = (Handle(0), page * PAGE, PAGE as u32);
        let read = Read { handle, offset, size, flags: 0, lock_owner };
        let data = self.ask(async |fs| fs.read(CALLER, self.node, read).await)?.to_vec();
        let number = data[..8].try_into().expect("eight bytes");
        Ok(u64::from_le_bytes(number))
    }

    fn send_write(
        &self,
        page: u64,
        number: u64,
        cached: bool,
        lock_owner: Option<LockOwner>,
    ) -> Reply<u32> {
        let bytes = number.to_le_bytes().repeat(BLOCK_BYTES / 8);
        let (handle, offset, size) = (Handle(0), page * PAGE, PAGE as u32);
        let write =
            Write { handle, offset, size, flags: 1, lock_owner, cached, kill_suidgid: false };
        let mut data = Payload::new(Buf::from_bytes(&bytes), bytes.len());
        self.ask(async |fs| fs.write(CALLER, self.node, write, &mut data).await)
    }

    /// Sends dirty pages to the daemon, and keeps them as clean ones.
    fn write_back(&self, range: Range<u64>) {
        let is_dirty = |(at, page): (&u64, &Page)| page.dirty.then_some((*at, page.number));
        let dirty: Vec<_> = self.pages.lock().range(range).filter_map(is_dirty).collect();
        for (at, number) in dirty {
            match self.send_write(at, number, true, None) {
                Ok(_) => drop(self.pages.lock().insert(at, Page { number, dirty: false })),
                Err(error) => {
                    self.pages.lock().remove(&at);
                    *self.lost.lock() = Some(format!("write-back of page {at}: {error:?}"));
                }
            }
        }
    }

    fn drop_pages(&self, range: Range<u64>) {
        self.write_back(range.clone());
        self.pages.lock().retain(|at, _| !range.contains(at));
    }

    // -- what system calls do ------------------------------------------------

    fn read(&self, at: u64) -> u64 {
        let cached = self.pages.lock().get(&at).copied();
        cached.map_or_else(
            || {
                let number = self.send_read(at, None).expect("it is read");
                self.pages.lock().insert(at, Page { number, dirty: false });
                number
            },
            |page| page.number,
        )
    }

    fn store_mapped(&self, at: u64, number: u64) {
        self.read(at);
        self.pages.lock().insert(at, Page { number, dirty: true });
    }

    fn write_through(&self, at: u64, number: u64) {
        self.read(at);
        self.send_write(at, number, false, None).expect("it is written");
        self.pages.lock().get_mut(&at).expect("it was read").number = number;
    }

    fn read_past(&self, at: u64) -> u64 {
        self.write_back(at..at + 1);
        self.send_read(at, DIRECT).expect("it is read")
    }

    /// Asynchronously, while another reads through the cache, or not.
    fn write_past(&self, at: u64, number: u64, has_reader: bool) {
        self.drop_pages(at..at + 1);
        if has_reader {
            self.read(at);
        }
        self.send_write(at, number, false, DIRECT).expect("it is written");
    }

    fn punch(&self, at: u64) {
        self.write_back(at..at + 1);
        let mode = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
        let range = Fallocate { handle: Handle(0), offset: at * PAGE, length: PAGE, mode };
        self.ask(async |fs| fs.fallocate(CALLER, self.node, range).await).expect("it is punched");
        self.pages.lock().remove(&at);
    }

    fn seek(&self, at: u64, whence: u32) -> Reply<u64> {
        let seek = Seek { handle: Handle(0), offset: at * PAGE, whence };
        Ok(self.ask(async |fs| fs.lseek(CALLER, self.node, seek).await)? / PAGE)
    }
}

struct Client {
    kernel: Arc<Kernel>,
    fs: Arc<Filesystem>,
    node: FsNode,
    rng: Xoshiro256PlusPlus,
    /// The last number of each page; 0: a hole, or zeros.
    model: [u64; PAGES as usize],
    /// Nothing is written but by mappings that were there before.
    guarded: bool,
}

impl Client {
    fn below(&mut self, end: u64) -> u64 {
        self.rng.next_u64() % end
    }

    fn step(&mut self, number: u64) -> Found {
        let found = self.do_anything(number);
        self.kernel.lost.lock().take().map_or(found, Err)
    }

    fn do_anything(&mut self, number: u64) -> Found {
        let (at, kernel) = (self.below(PAGES), self.kernel.clone());
        let page = at as usize;
        let what = self.below(10);
        match what {
            0 => self.expect(page, "a buffered read", kernel.read(at))?,
            1 => self.expect(page, "a direct read", kernel.read_past(at))?,
            2 => self.seek_data(at)?,
            3 => self.seek_hole(at)?,
            4 => kernel.write_back(0..PAGES),
            5 => self.set_flags(),
            6 => {
                kernel.store_mapped(at, number);
                self.model[page] = number;
            }
            _ if self.guarded => {}
            7 => {
                kernel.punch(at);
                self.model[page] = 0;
            }
            8 => {
                kernel.write_through(at, number);
                self.model[page] = number;
            }
            _ => {
                let has_reader = self.below(2) == 0;
                kernel.write_past(at, number, has_reader);
                self.model[page] = number;
            }
        }
        Ok(())
    }

    fn expect(&self, page: usize, how: &str, found: u64) -> Found {
        let last = self.model[page];
        match found == last {
            true => Ok(()),
            false => Err(format!("{how} of page {page} shows {found}, not {last}")),
        }
    }

    fn seek_data(&self, from: u64) -> Found {
        let said = match self.kernel.seek(from, SEEK_DATA) {
            Ok(at) => from..at,
            Err(Errno::ENXIO) => from..PAGES,
            Err(error) => return Err(format!("SEEK_DATA: {error:?}")),
        };
        match said.clone().find(|at| self.model[*at as usize] != 0) {
            None => Ok(()),
            Some(at) => Err(format!("SEEK_DATA skips {said:?}, though page {at} has data")),
        }
    }

    fn seek_hole(&self, from: u64) -> Found {
        let at = self.kernel.seek(from, SEEK_HOLE).map_err(|error| format!("{error:?}"))?;
        let is_hole = self.model.get(at as usize).is_none_or(|number| *number == 0);
        if is_hole { Ok(()) } else { Err(format!("SEEK_HOLE: page {at} has data")) }
    }

    fn set_flags(&mut self) {
        let flags = [FileFlags(0), FileFlags::IMMUTABLE, FileFlags::APPEND];
        let flags = flags[self.below(3) as usize];
        self.guarded = flags != FileFlags(0);
        let set = self.fs.set_flags(&By::ROOT, self.node, flags, None);
        self.kernel.executors.block_on(set).expect("root may");
    }
}

/// The output of a future that is ready.
pub(super) fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

pub(super) fn device(rt: Rt) -> Arc<SimDevice> {
    SimDevice::from_image(rt, DeviceId(0), SimImage::empty(4096), SimConfig::new(1))
}

pub(super) async fn open(
    rt: Rt,
    device: Arc<SimDevice>,
    sabotage: Option<Sabotage>,
) -> Result<Arc<Filesystem>, FsError> {
    let create = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
    Pool::create(&rt, &(device.clone() as _), &create).await?;
    let pool = OpenOptions { tenants: true, ..OpenOptions::default() };
    let pool = Pool::open(rt, device, pool).await?;
    Filesystem::format(&pool, &By::ROOT, 0o755).await?;
    Filesystem::open(pool, Options { sabotage, ..Options::default() }).await
}

/// A file of holes that is open for writing.
async fn make(fs: &Arc<Filesystem>) -> Result<FsNode, FsError> {
    let (root, flags) = (&By::ROOT, OpenFlags::READ_WRITE);
    let node = fs.create(root, fs.root(), b"f", 0o600, flags, true).await?.0.node;
    let size = SetAttr { size: Some(PAGES * PAGE), ..SetAttr::default() };
    fs.setattr(root, node, &size).await?;
    Ok(node)
}

pub(super) fn executors() -> Arc<Executors> {
    Executors::start(Config { cpus: Some(1), ..Config::default() }).expect("threads")
}

pub(super) fn adapter(fs: &Arc<Filesystem>) -> Arc<Adapter> {
    let (sees_callers, namespaces) = (false, crate::namespaces::Namespaces::Any);
    let (mounted_by, owners_may, public_lists) = (Some(0), true, false);
    let rules = Rules { mounted_by, owners_may, sees_callers, public_lists, namespaces };
    Arc::new(Adapter::new(fs.clone(), Box::new(|_| String::new()), rules))
}

fn history(seed: u64, sabotage: Option<Sabotage>) -> Found {
    let executors = executors();
    let device = device(executors.clone());
    let fs = executors.block_on(open(executors.clone(), device, sabotage)).expect("it opens");
    let node = executors.block_on(make(&fs)).expect("it is made");
    let adapter = adapter(&fs);
    let kernel = Arc::new(Kernel {
        executors: executors.clone(),
        adapter: OnceLock::from(Arc::downgrade(&adapter)),
        node: NodeId(node.raw()),
        pages: Mutex::default(),
        lost: Mutex::default(),
    });
    adapter.notify_through(Notifier::to(kernel.clone()));
    let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (model, guarded) = ([0; PAGES as usize], false);
    let mut client = Client { kernel, fs: fs.clone(), node, rng, model, guarded };
    let found = (1..=STEPS).try_for_each(|step| client.step(step));
    drop((client, adapter));
    executors.block_on(fs.close()).expect("it closes");
    executors.block_on(fs.pool().close()).expect("it closes");
    executors.shutdown();
    found
}

#[track_caller]
fn is_noticed(rule: Sabotage) {
    for seed in 1..=SEEDS {
        assert_eq!(history(seed, None), Ok(()), "seed {seed}");
        if let Err(noticed) = history(seed, Some(rule)) {
            println!("{rule:?}: noticed at seed {seed}: {noticed}");
            return;
        }
    }
    panic!("{rule:?} can be broken for {SEEDS} seeds, and nobody notices");
}

#[test]
fn what_is_cached_holed_and_guarded_is_what_was_written() {
    for seed in 1..=SEEDS {
        assert_eq!(history(seed, None), Ok(()), "seed {seed}");
    }
}

#[test]
fn pages_that_stay_behind_a_direct_write_are_noticed() {
    is_noticed(Sabotage::KeepStalePages);
}

#[test]
fn holes_that_are_reported_over_dirty_pages_are_noticed() {
    is_noticed(Sabotage::BelieveHoles);
}

#[test]
fn write_back_that_later_flags_refuse_is_noticed() {
    is_noticed(Sabotage::JudgeAgain);
}

#[test]
fn a_failure_of_the_last_close_is_known_when_the_session_has_ended() {
    for fails in [false, true] {
        let executors = executors();
        let device = device(executors.clone());
        let opening = open(executors.clone(), device.clone(), None);
        let fs = executors.block_on(opening).expect("it opens");
        let adapter = adapter(&fs);
        executors.block_on(make(&fs)).expect("it is made");
        if fails {
            device.arm_for_good(Trigger::Flush { nth: 0 }, Fault::Error(5));
        }
        executors.block_on(adapter.destroy());
        assert_eq!(adapter.closed().is_err(), fails, "{:?}", adapter.closed());
        executors.shutdown();
    }
}
