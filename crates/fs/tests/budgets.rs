//! What operations cost, counted and recorded in `budgets.txt`: requests to the device, flushes,
//! bytes by purpose, and allocations, each for one operation.
//!
//! Wall time on shared machines is noise. These figures are exact, since device and order are
//! simulated: a change that makes anything dearer fails here, and so does one that makes it
//! cheaper, until the new figure is recorded. Allocations may become fewer without that. With
//! `RECORD=1` the test writes the file.
//!
//! Requests are the engine's. Those that an emulated namespace makes for tuples are not counted, as
//! a drive makes none; their bytes are among the others.
//!
//! The allocator counts for the whole process, so no other test may run beside this one: it is a
//! program of its own.

#![allow(clippy::disallowed_methods)] // a test program's arguments, and a file beside it

#[path = "all/common/mod.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod common;
mod counting;

use std::sync::Arc;

use common::*;
use copyhold_device::DynDevice;
use copyhold_device::sim::{SimImage, make_namespace};
use copyhold_format::item::ChecksumMode;
use copyhold_fs::{
    Caller, DataCache, Filesystem, FsError, NodeId, Options, ReadFlags, RenameFlags, XattrSet,
    set_checksum_mode,
};
use copyhold_memory::Arm;
use copyhold_pool::Limits;
use copyhold_runtime::Rt;
use copyhold_types::{Purpose, SubvolId};

const BLOCK: u64 = 4096;
/// Blocks of the file that is overwritten.
const BLOCKS: u64 = 2048;

/// What was counted so far.
#[derive(Clone, Copy)]
struct Count {
    reads: u64,
    writes: u64,
    flushes: u64,
    data: u64,
    log: u64,
    other: u64,
    allocations: u64,
}

impl Count {
    fn now(fs: &Filesystem) -> Count {
        let counters = fs.pool().devices().counters();
        let of_engine = Purpose::OF_ENGINE.map(|purpose| counters.purposes[purpose as usize]);
        let bytes = |purpose: Purpose| counters.purposes[purpose as usize].written_bytes;
        let all: u64 = counters.purposes.iter().map(|purpose| purpose.written_bytes).sum();
        let (data, log) = (bytes(Purpose::Data), bytes(Purpose::Log));
        Count {
            reads: of_engine.map(|count| count.reads).iter().sum(),
            writes: of_engine.map(|count| count.writes).iter().sum(),
            flushes: counters.flushes,
            data,
            log,
            other: all - data - log,
            allocations: counting::allocations(),
        }
    }

    /// A line of the file: since `before`, for each of `ops` operations.
    fn line(self, before: Count, name: &str, ops: u64) -> String {
        let each = |count: fn(&Count) -> u64| (count(&self) - count(&before)) as f64 / ops as f64;
        let counts = [
            each(|count| count.reads),
            each(|count| count.writes),
            each(|count| count.flushes),
            each(|count| count.data),
            each(|count| count.log),
            each(|count| count.other),
            each(|count| count.allocations),
        ];
        line(name, counts.map(|count| format!("{count:.3}")))
    }
}

const COLUMNS: [&str; 7] = ["reads", "writes", "flushes", "data", "log", "other", "allocations"];

/// A line of the file: a name, three counts, and three sums of bytes and the allocations.
fn line(name: &str, columns: [String; 7]) -> String {
    let [reads, writes, flushes, wide @ ..] = columns;
    let wide: String = wide.iter().map(|column| format!(" {column:>11}")).collect();
    format!("{name:<36} {reads:>8} {writes:>8} {flushes:>8}{wide}")
}

struct Book {
    fs: Arc<Filesystem>,
    lines: Vec<String>,
}

impl Book {
    /// Counts `ops` operations.
    async fn count<F: Future<Output = ()>>(
        &mut self,
        name: &str,
        ops: u64,
        work: impl Fn(u64) -> F,
    ) {
        let before = Count::now(&self.fs);
        for n in 0..ops {
            work(n).await;
        }
        self.lines.push(Count::now(&self.fs).line(before, name, ops));
    }

    /// The same, and what it takes until all of it is durable.
    async fn count_synced<F: Future<Output = ()>>(
        &mut self,
        name: &str,
        ops: u64,
        work: impl Fn(u64) -> F,
    ) {
        let before = Count::now(&self.fs);
        for n in 0..ops {
            work(n).await;
        }
        self.fs.sync().await.unwrap();
        self.lines.push(Count::now(&self.fs).line(before, name, ops));
    }
}

/// A place that is not the next one.
fn place(n: u64) -> u64 {
    n * 769 % BLOCKS * BLOCK
}

/// Made in one place on the stack: a name costs no allocation.
fn name(n: u64) -> [u8; 12] {
    let mut name = *b"file-0000000";
    for (place, digit) in name.iter_mut().rev().zip(0..7) {
        *place = b'0' + (n / 10u64.pow(digit) % 10) as u8;
    }
    name
}

/// A file is written, and then overwritten.
async fn overwrites(book: &mut Book, node: NodeId) {
    let fs = &book.fs.clone();
    let (block, big) = (&pattern(1, BLOCK as usize), &pattern(2, 1 << 20));
    let write_big = |n| async move { write(fs, node, n << 20, big).await };
    book.count_synced("write 1 MiB, sync at the end", 8, write_big).await;
    let write_block = |n| async move { write(fs, node, place(n), block).await };
    book.count_synced("overwrite 4 KiB, sync at the end", 1000, write_block).await;
    let durably = |n| async move {
        write(fs, node, place(n), block).await;
        fs.fsync(node, true).await.unwrap();
    };
    book.count("overwrite 4 KiB, fsync each", 500, durably).await;
}

async fn data(book: &mut Book) {
    let fs = book.fs.clone();
    let node = create(&fs, "data").await;
    let fs = &fs;
    overwrites(book, node).await;
    let clean = |_| async move { fs.fsync(node, true).await.unwrap() };
    book.count("fsync of a clean file", 500, clean).await;
    let read_block = |n| async move { drop(read(fs, node, place(n), BLOCK as usize).await) };
    book.count("read 4 KiB", 500, read_block).await;
    let read_big = |n| async move { drop(read(fs, node, n << 20, 1 << 20).await) };
    book.count("read 1 MiB", 8, read_big).await;
}

async fn names(book: &mut Book) {
    let fs = book.fs.clone();
    let (fs, dir) = (&fs, mkdir(&fs, ROOT, "names").await);
    let make = async |n: u64| {
        let made = fs.mknod(&Caller::ROOT, dir, &name(n), 0o100644, 0).await;
        made.unwrap().node
    };
    let make = &make;
    book.count_synced("create, sync at the end", 1000, |n| async move {
        make(n).await;
    })
    .await;
    let durably = |n| async move {
        let node = make(1000 + n).await;
        fs.fsync(node, false).await.unwrap();
    };
    book.count("create, fsync each", 200, durably).await;
    let look_up = |n| async move { assert!(fs.lookup(dir, &name(n)).await.is_ok()) };
    book.count("lookup", 1000, look_up).await;
    let stat = |_| async move { assert!(fs.getattr(dir).await.is_ok()) };
    book.count("stat", 1000, stat).await;
    let miss = |n| async move {
        assert!(matches!(fs.lookup(dir, &name(5000 + n)).await, Err(FsError::NotFound)));
    };
    book.count("lookup of what is not there", 1000, miss).await;
    let list = |_| async move { fs.readdirplus(dir, 0, &mut |_| true).await.unwrap() };
    book.count("readdir of 1200 with attributes", 10, list).await;
    let set = |n| async move {
        let (by, how) = (&Caller::ROOT, XattrSet::Any);
        fs.set_xattr(by, dir, b"user.a", &name(n), how, false).await.unwrap();
    };
    book.count_synced("set an attribute", 500, set).await;
    let rename = |n| async move {
        let (by, flags) = (&Caller::ROOT, RenameFlags::default());
        fs.rename(by, dir, &name(n), dir, &name(10_000 + n), flags).await.unwrap();
    };
    book.count_synced("rename, sync at the end", 1000, rename).await;
    let remove = |n| async move { fs.unlink(dir, &name(10_000 + n)).await.unwrap() };
    book.count_synced("unlink, sync at the end", 1000, remove).await;
}

async fn snapshots(book: &mut Book) {
    let fs = book.fs.clone();
    let (fs, node): (_, NodeId) = (&fs, lookup(&fs, "data").await.unwrap().node);
    let snapshot = |n| async move {
        fs.snapshot(SubvolId::ROOT, ROOT, &name(n), true, None).await.unwrap();
    };
    book.count("snapshot of what is clean", 4, snapshot).await;
    let block = &pattern(3, BLOCK as usize);
    let durably = |n| async move {
        write(fs, node, place(n), block).await;
        fs.fsync(node, true).await.unwrap();
    };
    book.count("overwrite what is shared, fsync each", 200, durably).await;
    let delete = |n| async move { drop(fs.delete_subvolume(ROOT, &name(n), None).await.unwrap()) };
    book.count("delete a snapshot", 4, delete).await;
}

/// Direct reads of a file whose data is in memory.
async fn from_memory(book: &mut Book) {
    const SIZE: u64 = 8 << 20;
    let fs = book.fs.clone();
    let (fs, node) = (&fs, create(&book.fs, "read again").await);
    write(fs, node, 0, &vec![7; SIZE as usize]).await;
    fs.sync().await.unwrap();
    let direct = ReadFlags { direct: true, ..ReadFlags::default() };
    for n in 0..8 {
        drop(fs.read_with(node, n << 20, 1 << 20, direct).await.unwrap());
    }
    let read = |n, len: u64| async move {
        drop(fs.read_with(node, n * len % SIZE, len as usize, direct).await.unwrap());
    };
    book.count("read 4 KiB from memory", 500, |n| read(n * 7, BLOCK)).await;
    book.count("read 256 KiB from memory", 32, |n| read(n, 256 << 10)).await;
}

/// The lines of all operations, with this rule of protection (`-o reclaim=`).
fn counted(arm: Arm) -> Vec<String> {
    let with_arm = |fs: Arc<Filesystem>| {
        fs.pool().memory().set_arm(arm);
        fs
    };
    let world = World::with_log(1, 1 << 16, 16 << 20);
    world.run(async {
        let lines = vec![line("each", COLUMNS.map(String::from))];
        let mut book = Book { fs: with_arm(world.open().await), lines };
        data(&mut book).await;
        names(&mut book).await;
        snapshots(&mut book).await;
        world.close(book.fs).await;
        book.fs = with_arm(world.open_clean(DataCache::Direct).await);
        from_memory(&mut book).await;
        world.close(book.fs).await;
        book.lines
    })
}

/// The lines of writes to a namespace, with guards of the host.
fn counted_with_guards(arm: Arm) -> Vec<String> {
    let world = World::on(1, SimImage::empty(1 << 16));
    let device: DynDevice = make_namespace(&world.rt, &world.device, "4096+16:64b");
    world.run(async {
        let rt: Rt = world.rt.clone();
        make_pool(&rt, &device, 16 << 20).await;
        let fs = mount(&rt, &device, Limits::default(), Options::default()).await;
        fs.pool().memory().set_arm(arm);
        let node = create(&fs, "data").await;
        set_checksum_mode(&fs, &Caller::ROOT, node, ChecksumMode::Guard).await.unwrap();
        let lines = vec![line("with guards beside the blocks", COLUMNS.map(String::from))];
        let mut book = Book { fs, lines };
        overwrites(&mut book, node).await;
        world.close(book.fs).await;
        book.lines
    })
}

fn all(arm: Arm) -> Vec<String> {
    [counted(arm), counted_with_guards(arm)].concat()
}

#[test]
fn each_operation_costs_what_is_recorded() {
    let lines = all(Arm::Proportional);
    if std::env::var_os("RECORD").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/budgets.txt");
        std::fs::write(path, lines.join("\n") + "\n").unwrap();
    }
    expect_recorded(&lines);
    // Without the groups no operation costs more.
    expect_recorded(&all(Arm::Off));
}

fn expect_recorded(lines: &[String]) {
    let recorded: Vec<&str> = include_str!("budgets.txt").lines().collect();
    assert_eq!(recorded.len(), lines.len());
    let differ = lines.iter().zip(recorded).filter(|(found, recorded)| found != recorded);
    for (found, recorded) in differ {
        let split = |line: &str| {
            let (costs, allocations) = line.rsplit_once(' ').expect("a column");
            (costs.trim_end().to_owned(), allocations.parse::<f64>().expect("a number"))
        };
        let ((costs, allocations), (budget, most)) = (split(found), split(recorded));
        assert!(costs == budget && allocations <= most, "now\n{found}\nand not\n{recorded}");
    }
}
