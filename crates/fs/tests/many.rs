//! The cost of a subvolume among many, counted: a source has many snapshots in one directory; a
//! mount finds them, a list names them, and half of them are deleted and awaited.
//!
//! Each figure is for one subvolume, so a figure that grows with the number of subvolumes shows
//! a walk over all of them. The test compares few with more, and the bytes that a mount takes for
//! them with those that `at_rest` counts. For a table of other numbers:
//!
//! `SUBVOLUMES=1000,10000,100000 cargo test --release -p copyhold-fs --test many -- --nocapture`
//!
//! Time is printed, and nothing depends on it.

#![allow(clippy::disallowed_methods)] // it measures, and has arguments

#[path = "all/common/mod.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod common;
mod counting;

use std::sync::Arc;
use std::time::Instant;

use common::*;
use copyhold_fs::{Caller, Filesystem, NodeId, OpenFlags, Options};
use copyhold_memory::MemoryClass;
use copyhold_pool::{Limits, OpenOptions, Pool};
use copyhold_types::{InodeNo, SubvolId};
use copyhold_volume::{AtRest, Slice, looks};

/// 16 GiB, of which only the blocks written take memory.
const BLOCKS: u64 = 1 << 22;
const LOG_BYTES: u64 = 64 << 20;
/// Bytes for nodes and for unflushed edits in a table of other numbers: so few nodes in memory that
/// they do not hide what a subvolume takes.
const CACHES: (usize, u64) = (16 << 20, 64 << 20);
/// The same in the test: so small that few subvolumes fill them.
const SMALL_CACHES: (usize, u64) = (512 << 10, 256 << 10);
/// Files of the subvolume that is snapshotted.
const FILES: usize = 20;
/// Rows of a page of the list.
const PAGE: usize = 128;

/// The cost of one subvolume in one phase.
#[derive(Clone, Copy, Debug)]
struct Cost {
    allocations: f64,
    reads: f64,
    /// Tables at which a search for work looked.
    tables: f64,
    /// Subvolumes and epochs at which a walk looked.
    looks: f64,
    /// Memory groups at which reclaim looked, or a division of edits.
    groups: f64,
    nanos: f64,
}

struct Mark {
    allocations: u64,
    reads: u64,
    tables: u64,
    looks: u64,
    groups: u64,
    begin: Instant,
}

fn reads(world: &World) -> u64 {
    let counters = copyhold_device::Device::counters(&*world.device).snapshot();
    counters.purposes.iter().map(|purpose| purpose.reads).sum()
}

impl Mark {
    fn now(world: &World, fs: Option<&Filesystem>) -> Mark {
        Mark {
            allocations: counting::allocations(),
            reads: reads(world),
            tables: fs.map_or(0, |fs| fs.pool().table_looks()),
            looks: fs.map_or(0, |fs| looks(fs.volumes())),
            groups: fs.map_or(0, |fs| fs.pool().memory().looks()),
            begin: Instant::now(),
        }
    }

    fn each(&self, world: &World, fs: &Filesystem, ops: usize) -> Cost {
        let now = Mark::now(world, Some(fs));
        let each = |after: u64, before: u64| (after - before) as f64 / ops as f64;
        Cost {
            allocations: each(now.allocations, self.allocations),
            reads: each(now.reads, self.reads),
            tables: each(now.tables, self.tables),
            looks: each(now.looks, self.looks),
            groups: each(now.groups, self.groups),
            nanos: (now.begin - self.begin).as_nanos() as f64 / ops as f64,
        }
    }
}

/// A phase and its cost.
type Row = (&'static str, Cost);

/// Bytes in memory after a mount, beside nodes.
#[derive(Clone, Copy)]
struct Weight {
    /// With unflushed edits.
    all: u64,
    /// Without these, as they are charged.
    at_rest: u64,
    counted: AtRest,
}

/// The same for each subvolume.
struct Each {
    /// With the edits that a mount replays.
    with_edits: f64,
    /// When all edits had been flushed before the mount.
    at_rest: f64,
    counted: f64,
    /// Names, numbers and bytes of the parts of `counted`.
    slices: [(&'static str, f64, f64); 4],
}

/// The figures of one number of subvolumes.
struct Figures {
    rows: Vec<Row>,
    each: Each,
}

impl Each {
    /// `before` is of an empty pool.
    fn new(number: usize, before: Weight, with_edits: Weight, idle: Weight) -> Each {
        let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / number as f64;
        let slice = |name, of: fn(&AtRest) -> Slice| {
            let (after, before) = (of(&idle.counted), of(&before.counted));
            (name, each(after.count, before.count), each(after.bytes, before.bytes))
        };
        Each {
            with_edits: each(with_edits.all, before.all),
            at_rest: each(idle.at_rest, before.at_rest),
            counted: each(idle.counted.bytes(), before.counted.bytes()),
            slices: [
                slice("subvolumes", |of| of.subvols),
                slice("owners", |of| of.owners),
                slice("epochs", |of| of.epochs),
                slice("tables", |of| of.tables),
            ],
        }
    }

    fn print(&self, number: usize) {
        let Each { with_edits, at_rest, counted, slices } = self;
        println!("{number} subvolumes: {with_edits:.0} bytes in memory each after a mount");
        println!("  without edits to replay {at_rest:.0}, and {counted:.0} are counted:");
        for (name, count, bytes) in slices {
            println!("  {name:<12} {count:>6.2} {bytes:>8.0}");
        }
    }
}

impl Figures {
    fn of(&self, name: &str) -> Cost {
        self.rows.iter().find(|(phase, _)| *phase == name).expect("a phase").1
    }

    fn print(&self, number: usize) {
        self.each.print(number);
        println!(
            "  {:<8} {:>12} {:>8} {:>8} {:>8} {:>8} {:>10}",
            "each", "allocations", "reads", "tables", "looks", "groups", "us"
        );
        for (name, cost) in &self.rows {
            let Cost { allocations, reads, tables, looks, groups, nanos } = cost;
            let us = nanos / 1000.0;
            let counts = format!("{tables:>8.2} {looks:>8.2} {groups:>8.2}");
            println!("  {name:<8} {allocations:>12.2} {reads:>8.3} {counts} {us:>10.1}");
        }
    }
}

async fn mounted(world: &World, read_only: bool) -> Arc<Filesystem> {
    let (node_cache_bytes, delta_bytes) = if asked().is_some() { CACHES } else { SMALL_CACHES };
    let limits = Limits { node_cache_bytes, delta_bytes, ..Limits::default() };
    let options = Options { count_lookups: false, ..Options::default() };
    let open = OpenOptions { read_only, tenants: true, limits, ..OpenOptions::default() };
    let pool = Pool::open(world.rt.clone(), world.device.clone(), open).await.unwrap();
    Filesystem::open(pool, options).await.unwrap()
}

/// A subvolume with files of a block.
async fn base(fs: &Arc<Filesystem>) -> SubvolId {
    let id = fs.create_subvolume(&Caller::ROOT, ROOT, b"base", None).await.unwrap();
    let root = NodeId { subvol: id, ino: InodeNo::ROOT };
    for n in 0..FILES {
        let (by, name) = (&Caller::ROOT, format!("f{n}"));
        let flags = OpenFlags::READ_WRITE;
        let made = fs.create(by, root, name.as_bytes(), 0o644, flags, true).await;
        let node = made.unwrap().0.node;
        write(fs, node, 0, &pattern(n as u8, 4096)).await;
        fs.release(node);
    }
    fs.sync().await.unwrap();
    id
}

fn name(n: usize) -> Vec<u8> {
    format!("s{n}").into_bytes()
}

fn list(fs: &Filesystem) -> usize {
    let (mut after, mut seen) = (SubvolId(0), 0);
    loop {
        let page = fs.subvolumes_behind(after, PAGE);
        let Some(last) = page.last() else { return seen };
        (after, seen) = (last.id, seen + page.len());
    }
}

/// The bytes that a mount keeps which writes nothing, because the device's blocks are in memory,
/// too. The number of nodes is bounded, so they do not count.
async fn weigh(world: &World) -> Weight {
    let before = counting::bytes();
    let fs = mounted(world, true).await;
    let charged = |class| fs.pool().memory().charged(class);
    let charged = |class| u64::try_from(charged(class)).expect("charges are not negative");
    let all = counting::bytes() - before - charged(MemoryClass::Node);
    let at_rest = all - charged(MemoryClass::Edit);
    let counted = copyhold_volume::at_rest(fs.volumes());
    close(world, fs).await;
    Weight { all, at_rest, counted }
}

async fn close(world: &World, fs: Arc<Filesystem>) {
    world.close(fs).await;
    world.rt.drop_tasks();
}

/// Flushes all edits, and unmounts.
async fn settle(world: &World, fs: Arc<Filesystem>) {
    fs.sync().await.unwrap();
    fs.pool().flush_all().await.unwrap();
    fs.sync().await.unwrap();
    close(world, fs).await;
}

fn measured(number: usize) -> Figures {
    let world = World::with_log(1, BLOCKS, LOG_BYTES);
    world.run(async {
        let mut rows: Vec<Row> = Vec::new();
        let empty = weigh(&world).await;
        let fs = mounted(&world, false).await;
        let (source, dir) = (base(&fs).await, mkdir(&fs, ROOT, "many").await);
        let mark = Mark::now(&world, Some(&fs));
        for n in 0..number {
            fs.snapshot(source, dir, &name(n), false, None).await.unwrap();
        }
        fs.sync().await.unwrap();
        rows.push(("snapshot", mark.each(&world, &fs, number)));
        close(&world, fs).await;
        let with_edits = weigh(&world).await;

        let mark = Mark::now(&world, None);
        let fs = mounted(&world, false).await;
        rows.push(("mount", mark.each(&world, &fs, number)));
        settle(&world, fs).await;
        let idle = weigh(&world).await;
        let fs = mounted(&world, false).await;

        let mark = Mark::now(&world, Some(&fs));
        assert_eq!(list(&fs), number + 2);
        rows.push(("list", mark.each(&world, &fs, number)));

        let dir = lookup(&fs, "many").await.unwrap().node;
        let mark = Mark::now(&world, Some(&fs));
        for n in (0..number).step_by(2) {
            fs.delete_subvolume(dir, &name(n), None).await.unwrap();
        }
        rows.push(("delete", mark.each(&world, &fs, number.div_ceil(2))));

        let mark = Mark::now(&world, Some(&fs));
        fs.sync_subvolumes(&[]).await.unwrap();
        rows.push(("sync", mark.each(&world, &fs, number.div_ceil(2))));
        assert_eq!(list(&fs), number / 2 + 2);
        world.close(fs).await;
        Figures { rows, each: Each::new(number, empty, with_edits, idle) }
    })
}

/// The numbers of subvolumes: of the variable `SUBVOLUMES`, or few and more.
fn numbers() -> Vec<usize> {
    asked().unwrap_or(vec![400, 1600])
}

fn asked() -> Option<Vec<usize>> {
    let list = std::env::var("SUBVOLUMES").ok()?;
    Some(list.split(',').map(|n| n.parse().expect("a number")).collect())
}

#[test]
fn a_subvolume_costs_the_same_among_few_and_among_many() {
    // Else buffers have memory that was allocated before the mount.
    copyhold_types::keep_spare(0);
    let figures: Vec<Figures> = numbers()
        .into_iter()
        .map(|number| {
            let figures = measured(number);
            figures.print(number);
            figures
        })
        .collect();
    for Figures { each: Each { at_rest, counted, .. }, .. } in &figures {
        let is_near = (counted / at_rest - 1.0).abs() <= 0.25;
        assert!(is_near, "{counted} bytes are counted for each, {at_rest} are allocated");
    }
    let [few, .., many] = &figures[..] else { return };
    for (phase, most) in &few.rows {
        let now = many.of(phase);
        assert!(now.looks <= most.looks * 1.5 + 1.0, "{phase}: {now:?}, of few {most:?}");
        assert!(now.groups <= most.groups * 1.5 + 8.0, "{phase}: {now:?}, of few {most:?}");
        assert!(now.allocations <= most.allocations * 1.5 + 2.0, "{phase}: {now:?}, {most:?}");
    }
}
