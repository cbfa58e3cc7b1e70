//! Several threads on one pool while it commits and flushes: each finds what it wrote, whatever
//! the others do.
//!
//! A number of operations that follows from a seed, not a time, so that this can be run under
//! what watches threads (`make tsan`). Each thread has names of its own, in a directory that
//! others leave alone and in one that all use, and a stripe of one file that all write; so it
//! knows what it must find there, now, in a snapshot, and when the pool is opened again. Besides it
//! has a subvolume of its own, which it makes read-only and writable again, and rolls back.

#![allow(clippy::disallowed_methods, reason = "the machine's threads are what is tested")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};

use copyhold::{CreateOptions, Error, FsError, Limits, OpenOptions, Pool, Volume};
use copyhold_check::{Options, check_device};
use copyhold_device::{DynDevice, FileDevice, OpenMode};
use copyhold_fs::NodeId;
use copyhold_runtime::executors::{Config, Executors};
use copyhold_runtime::{ReactorKind, Rt};
use copyhold_types::DeviceId;

const SIZE: u64 = 128 << 20;
const THREADS: usize = 4;
/// Of each thread.
const OPERATIONS: u64 = 150;
/// Names of a thread in each of its two directories.
const NAMES: u64 = 4;
const FILE_BYTES_MAX: u64 = 40_000;
/// Not whole blocks: threads meet in those between.
const STRIPE_BYTES: usize = 3000;
const WORK: &str = "work";

fn start(reactor: ReactorKind) -> Arc<Executors> {
    Executors::start(Config { cpus: Some(2), reactor, ..Config::default() }).unwrap()
}

fn device(executors: &Arc<Executors>, path: &Path) -> DynDevice {
    FileDevice::open(executors.reactor(), DeviceId(0), path, OpenMode::ReadWrite).unwrap()
}

/// With little memory for changes, so that tables are rewritten all the time.
fn open(executors: &Arc<Executors>, path: &Path) -> Pool {
    let limits =
        Limits { delta_bytes: 256 << 10, node_cache_bytes: 256 << 10, ..Limits::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    Pool::open_device(executors.clone(), device(executors, path), options).unwrap()
}

/// One thread, and what it knows.
struct Client {
    place: usize,
    random: u64,
    root: Volume,
    work: Volume,
    /// A subvolume that no other client uses.
    mine: Volume,
    files: BTreeMap<String, Vec<u8>>,
    stripe: Vec<u8>,
    snapshots: Vec<String>,
    /// The content of the file in its own subvolume.
    kept: Vec<u8>,
}

impl Client {
    fn new(place: usize, root: &Volume) -> Client {
        let work = root.subvolume(WORK).unwrap();
        work.create_dir(format!("own{place}")).unwrap();
        let mine = root.create_subvolume(mine(place)).unwrap();
        mine.write("kept", b"").unwrap();
        Client {
            place,
            random: place as u64,
            root: root.clone(),
            work,
            mine,
            kept: Vec::new(),
            files: BTreeMap::new(),
            stripe: vec![0; STRIPE_BYTES],
            snapshots: Vec::new(),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        let step = 0x5851_f42d_4c95_7f2d;
        self.random = self.random.wrapping_mul(step).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) % bound
    }

    /// A name of this thread's, whether there is a file or not.
    fn name(&mut self) -> String {
        let (place, n) = (self.place, self.below(NAMES));
        match self.below(2) {
            0 => format!("own{place}/{n}"),
            _ => format!("all/{place}-{n}"),
        }
    }

    fn operation(&mut self, pool: &Pool, executors: &Executors) {
        let (name, other) = (self.name(), self.name());
        let (there, byte) = (self.files.contains_key(&name), self.below(256) as u8);
        match self.below(16) {
            0..=3 => self.write_at(&name, byte),
            4 => {
                let data = vec![byte; self.below(FILE_BYTES_MAX) as usize];
                self.work.write(&name, &data).unwrap();
                self.files.insert(name, data);
            }
            5 if there => {
                let size = self.below(FILE_BYTES_MAX);
                self.work.truncate(&name, size).unwrap();
                self.files.get_mut(&name).unwrap().resize(size as usize, 0);
            }
            6 if there => {
                self.work.remove_file(&name).unwrap();
                self.files.remove(&name);
            }
            7 | 8 if there && name != other => {
                self.work.rename(&name, &other).unwrap();
                let data = self.files.remove(&name).unwrap();
                self.files.insert(other, data);
            }
            9 if there => self.work.sync_file(&name).unwrap(),
            10 => {
                let at = (self.place * STRIPE_BYTES) as u64;
                self.stripe.fill(byte);
                self.work.write_at("stripes", at, &self.stripe).unwrap();
            }
            11 => self.look_at_others(),
            12 => self.snapshot(),
            13 if byte < 64 => self.root.sync().unwrap(),
            14 => self.protect(byte),
            15 => self.roll_back(byte, pool, executors),
            _ => self.verify(&self.work),
        }
    }

    fn write_at(&mut self, name: &str, byte: u8) {
        let (at, len) = (self.below(FILE_BYTES_MAX / 2) as usize, 1 + self.below(9000) as usize);
        self.work.write_at(name, at as u64, &vec![byte; len]).unwrap();
        let data = self.files.entry(name.to_owned()).or_default();
        data.resize(data.len().max(at + len), 0);
        data[at..at + len].fill(byte);
    }

    /// What others do at this moment is read, and may be anything that they could have done.
    fn look_at_others(&mut self) {
        let other = (self.place + 1) % THREADS;
        let read = self.work.read(format!("all/{other}-0"));
        let gone = matches!(read, Err(Error::File { source: FsError::NotFound, .. }));
        assert!(gone || read.unwrap().len() <= FILE_BYTES_MAX as usize);
        let stripe = self.work.read_at("stripes", (other * STRIPE_BYTES) as u64, STRIPE_BYTES);
        assert_eq!(stripe.unwrap().len(), STRIPE_BYTES);
    }

    /// Its own subvolume, which is small, is read-only for a while. Said twice, it changes nothing.
    fn protect(&mut self, byte: u8) {
        self.kept = vec![byte; self.below(FILE_BYTES_MAX) as usize];
        self.mine.write("kept", &self.kept).unwrap();
        for _ in 0..2 {
            self.mine.set_read_only(true).unwrap();
            let refused = self.mine.write_at("kept", 0, b"no");
            let is_read_only =
                matches!(refused, Err(Error::File { source: FsError::ReadOnly { .. }, .. }));
            assert!(is_read_only, "{refused:?}");
            assert!(self.mine.read("kept").unwrap() == self.kept);
        }
        for _ in 0..2 {
            self.mine.set_read_only(false).unwrap();
            assert!(self.mine.read("kept").unwrap() == self.kept);
        }
    }

    /// Its own subvolume becomes what it was, whatever of it was written, or durable, since.
    fn roll_back(&mut self, byte: u8, pool: &Pool, executors: &Executors) {
        let (mine, then) = (mine(self.place), format!("then{}", self.place));
        self.kept = vec![byte; self.below(FILE_BYTES_MAX) as usize];
        self.mine.write("kept", &self.kept).unwrap();
        let snapshot = snapshot(&self.root, &mine, &then, byte.is_multiple_of(2));
        assert!(snapshot.read("kept").unwrap() == self.kept);
        self.mine.write_at("kept", 100, &[!byte; 5000]).unwrap();
        self.mine.write("more", &[byte; 100]).unwrap();
        if byte.is_multiple_of(4) {
            self.mine.sync_file("kept").unwrap();
        }
        let fs = pool.filesystem();
        let back = fs.roll_back_subvolume(NodeId::ROOT, mine.as_bytes(), snapshot.id(), None);
        executors.block_on(back).unwrap();
        self.mine = self.root.subvolume(&mine).unwrap();
        self.verify_own();
        self.root.delete_subvolume(&then).unwrap();
    }

    fn verify_own(&self) {
        let names: Vec<_> = self.mine.list("").unwrap().into_iter().map(|item| item.name).collect();
        assert_eq!(names, ["kept"]);
        assert!(self.mine.read("kept").unwrap() == self.kept);
    }

    /// Others write meanwhile; of this thread's files it shows what they are.
    fn snapshot(&mut self) {
        let name = format!("snapshot{}-{}", self.place, self.snapshots.len());
        let is_read_only = self.below(2) == 0;
        let snapshot = snapshot(&self.root, WORK, &name, is_read_only);
        self.verify(&snapshot);
        if is_read_only {
            snapshot.set_read_only(false).unwrap();
        }
        let stripe = (self.place * STRIPE_BYTES) as u64;
        snapshot.write_at("stripes", stripe, b"the snapshot's").unwrap();
        if let Some(before) = self.snapshots.last() {
            self.root.delete_subvolume(before).unwrap();
        }
        self.snapshots.push(name);
    }

    /// All that is this thread's in `volume` is as it was left in the work's.
    fn verify(&self, volume: &Volume) {
        let mut found = BTreeSet::new();
        for dir in [format!("own{}", self.place), "all".to_owned()] {
            for item in volume.list(&dir).unwrap() {
                let name = item.name.into_string().unwrap();
                if dir != "all" || name.starts_with(&format!("{}-", self.place)) {
                    found.insert(format!("{dir}/{name}"));
                }
            }
        }
        assert_eq!(found, self.files.keys().cloned().collect::<BTreeSet<_>>());
        for (name, data) in &self.files {
            assert!(volume.read(name).unwrap() == *data, "the content of {name}");
        }
        let at = (self.place * STRIPE_BYTES) as u64;
        assert!(volume.read_at("stripes", at, STRIPE_BYTES).unwrap() == self.stripe);
    }
}

/// The name of a thread's own subvolume.
fn mine(place: usize) -> String {
    format!("mine{place}")
}

fn threads_find_what_they_wrote(reactor: ReactorKind) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.img");
    Pool::create(&path, &CreateOptions::sized(SIZE)).unwrap();
    let executors = start(reactor);
    let pool = open(&executors, &path);
    pool.enable_quotas().unwrap();
    let root = pool.root();
    let work = root.create_subvolume(WORK).unwrap();
    work.create_dir("all").unwrap();
    work.write("stripes", &[0; THREADS * STRIPE_BYTES]).unwrap();

    let mut clients: Vec<Client> = (0..THREADS).map(|place| Client::new(place, &root)).collect();
    std::thread::scope(|scope| {
        let (at_work, all_done) = mpsc::channel::<()>();
        let (pool, executors) = (&pool, &executors);
        for client in &mut clients {
            let at_work = at_work.clone();
            scope.spawn(move || {
                (0..OPERATIONS).for_each(|_| client.operation(pool, executors));
                drop(at_work);
            });
        }
        drop(at_work);
        // Everything is settled in tables again and again, and looked at.
        scope.spawn(move || {
            while all_done.try_recv() == Err(TryRecvError::Empty) {
                let fs = pool.filesystem();
                executors.block_on(fs.pool().flush_all()).unwrap();
                assert!(pool.groups().list().unwrap().len() > 1);
            }
        });
    });
    clients.iter().for_each(|client| client.verify(&client.work));
    pool.close().unwrap();
    // Tasks that are ending may still hold the device.
    executors.shutdown();

    let executors = start(reactor);
    let rt: Rt = executors.clone();
    let check = check_device(rt, device(&executors, &path), Options::default());
    let report = executors.block_on(check).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    executors.shutdown();
    let executors = start(reactor);
    let pool = open(&executors, &path);
    for client in &mut clients {
        client.root = pool.root();
        client.work = client.root.subvolume(WORK).unwrap();
        client.mine = client.root.subvolume(mine(client.place)).unwrap();
        client.verify(&client.work);
        client.verify_own();
    }
    pool.close().unwrap();
}

#[test]
fn threads_find_what_they_wrote_with_rings() {
    threads_find_what_they_wrote(ReactorKind::Auto);
}

#[test]
fn threads_find_what_they_wrote_with_a_pool_of_threads() {
    threads_find_what_they_wrote(ReactorKind::Threads);
}

fn snapshot(root: &Volume, source: &str, target: &str, read_only: bool) -> Volume {
    let made = match read_only {
        true => root.snapshot_read_only(source, target),
        false => root.snapshot(source, target),
    };
    made.unwrap()
}
