//! The cost of a subvolume among many, counted: a source has many snapshots in one directory; a
//! mount finds them, a list names them, and half of them are deleted and awaited.
//!
//! Each figure is for one subvolume, so a figure that grows with the number of subvolumes shows
//! a walk over all of them. The test compares few with more; for a table of other numbers:
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
use copyhold_pool::Limits;
use copyhold_types::{InodeNo, SubvolId};
use copyhold_volume::looks;

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

/// The figures of one number of subvolumes.
struct Figures {
    rows: Vec<Row>,
    /// Bytes in memory after a mount, for each subvolume.
    bytes: f64,
}

impl Figures {
    fn of(&self, name: &str) -> Cost {
        self.rows.iter().find(|(phase, _)| *phase == name).expect("a phase").1
    }

    fn print(&self, number: usize) {
        println!("{number} subvolumes: {:.0} bytes in memory each after a mount", self.bytes);
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

async fn mounted(world: &World) -> Arc<Filesystem> {
    let (node_cache_bytes, delta_bytes) = if asked().is_some() { CACHES } else { SMALL_CACHES };
    let limits = Limits { node_cache_bytes, delta_bytes, ..Limits::default() };
    let options = Options { count_lookups: false, ..Options::default() };
    let device: copyhold_device::DynDevice = world.device.clone();
    mount(&(world.rt.clone() as copyhold_runtime::Rt), &device, limits, options).await
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

/// Bytes in memory without the nodes, whose number is bounded.
fn bytes(fs: &Filesystem) -> u64 {
    let nodes = fs.pool().memory().charged(MemoryClass::Node);
    counting::bytes() - u64::try_from(nodes).expect("charges are not negative")
}

/// Bytes that a mount keeps.
async fn mount_and_weigh(world: &World) -> (Arc<Filesystem>, u64) {
    let before = counting::bytes();
    let fs = mounted(world).await;
    let after = bytes(&fs);
    (fs, after - before)
}

fn measured(number: usize) -> Figures {
    let world = World::with_log(1, BLOCKS, LOG_BYTES);
    world.run(async {
        let mut rows: Vec<Row> = Vec::new();
        let (fs, empty) = mount_and_weigh(&world).await;
        let (source, dir) = (base(&fs).await, mkdir(&fs, ROOT, "many").await);
        let mark = Mark::now(&world, Some(&fs));
        for n in 0..number {
            fs.snapshot(source, dir, &name(n), false, None).await.unwrap();
        }
        fs.sync().await.unwrap();
        rows.push(("snapshot", mark.each(&world, &fs, number)));
        world.close(fs).await;
        world.rt.drop_tasks();

        let mark = Mark::now(&world, None);
        let (fs, full) = mount_and_weigh(&world).await;
        rows.push(("mount", mark.each(&world, &fs, number)));

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
        Figures { rows, bytes: full.saturating_sub(empty) as f64 / number as f64 }
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
    let figures: Vec<Figures> = numbers()
        .into_iter()
        .map(|number| {
            let figures = measured(number);
            figures.print(number);
            figures
        })
        .collect();
    let [few, .., many] = &figures[..] else { return };
    for (phase, most) in &few.rows {
        let now = many.of(phase);
        assert!(now.looks <= most.looks * 1.5 + 1.0, "{phase}: {now:?}, of few {most:?}");
        assert!(now.groups <= most.groups * 1.5 + 8.0, "{phase}: {now:?}, of few {most:?}");
        assert!(now.allocations <= most.allocations * 1.5 + 2.0, "{phase}: {now:?}, {most:?}");
    }
}
