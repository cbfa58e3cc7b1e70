//! What snapshots and deletions cost, counted: the same however many snapshots there are; and how
//! much freeing leaves to others.

use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{Caller, Filesystem, NodeId, OpenFlags};
use copyhold_runtime::Runtime as _;
use copyhold_types::{InodeNo, SubvolId};

use crate::common::*;

const LOG_BYTES: u64 = 32 << 20;

fn world(seed: u64) -> World {
    World::with_log(seed, 1 << 17, LOG_BYTES)
}

/// What was asked of the device, and how often a table was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    reads: u64,
    writes: u64,
    flushes: u64,
    looks: u64,
}

fn spent(fs: &Filesystem) -> Cost {
    let counters = fs.pool().devices().counters();
    let of = |count: fn(&copyhold_device::PurposeCount) -> u64| counters.purposes.iter().map(count);
    Cost {
        reads: of(|purpose| purpose.reads).sum(),
        writes: of(|purpose| purpose.writes).sum(),
        flushes: counters.flushes,
        looks: fs.pool().table_looks(),
    }
}

fn since(fs: &Filesystem, before: Cost) -> Cost {
    let now = spent(fs);
    Cost {
        reads: now.reads - before.reads,
        writes: now.writes - before.writes,
        flushes: now.flushes - before.flushes,
        looks: now.looks - before.looks,
    }
}

/// A subvolume of its own with files of a block.
struct Tenant {
    fs: Arc<Filesystem>,
    id: SubvolId,
    files: Vec<NodeId>,
    round: usize,
}

impl Tenant {
    async fn new(fs: &Arc<Filesystem>, name: &str, files: usize) -> Tenant {
        let id = fs.create_subvolume(&Caller::ROOT, ROOT, name.as_bytes(), None).await.unwrap();
        let root = NodeId { subvol: id, ino: InodeNo::ROOT };
        let mut tenant = Tenant { fs: fs.clone(), id, files: Vec::new(), round: 0 };
        for n in 0..files {
            let (by, name) = (&Caller::ROOT, format!("f{n}"));
            let flags = OpenFlags::READ_WRITE;
            let made = fs.create(by, root, name.as_bytes(), 0o644, flags, false).await;
            tenant.files.push(made.unwrap().0.node);
            write(fs, tenant.files[n], 0, &pattern(n as u8, 4096)).await;
        }
        fs.sync().await.unwrap();
        tenant
    }

    /// Changes files, with an fsync each.
    async fn change(&mut self, files: usize) {
        for _ in 0..files {
            let node = self.files[self.round % self.files.len()];
            self.round += 1;
            write(&self.fs, node, 0, &pattern(self.round as u8, 4096)).await;
            self.fs.fsync(node, true).await.unwrap();
        }
    }

    async fn snapshot(&self, n: usize) -> SubvolId {
        self.fs.snapshot(self.id, ROOT, name(n).as_bytes(), false, None).await.unwrap()
    }
}

fn name(n: usize) -> String {
    format!("s{n}")
}

async fn delete(fs: &Arc<Filesystem>, n: usize) {
    fs.delete_subvolume(ROOT, name(n).as_bytes(), None).await.unwrap();
}

/// Lets the background do what it does.
async fn pause(world: &World) {
    world.rt.sleep(Duration::from_millis(20)).await;
}

#[test]
fn the_thousandth_snapshot_costs_what_the_tenth_does_and_so_does_its_deletion() {
    let world = world(1);
    world.run(async {
        let fs = world.open().await;
        let mut tenant = Tenant::new(&fs, "a", 50).await;
        let (mut made, mut around, mut deleted) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..1001 {
            let before = spent(&fs);
            tenant.change(4).await;
            pause(&world).await;
            let then = spent(&fs);
            tenant.snapshot(n).await;
            made.push(since(&fs, then));
            pause(&world).await;
            around.push(since(&fs, before));
        }
        let nothing = Cost::default();
        assert_eq!([made[10], made[1000]], [nothing; 2], "it waits for nothing");
        assert_eq!(around[10], around[1000], "nor do commits and flushes cost more");
        for n in 0..1000 {
            let before = spent(&fs);
            delete(&fs, n).await;
            fs.volumes().finish_background().await.unwrap();
            deleted.push(since(&fs, before));
        }
        assert!(fs.volumes().dying().is_empty());
        assert_eq!([deleted[10], deleted[990]], [nothing; 2], "what goes is not flushed before");
        world.close(fs).await;
    });
}

#[test]
fn snapshots_that_come_faster_than_flushes_wait_for_one_table_at_most() {
    let world = world(2);
    world.run(async {
        let fs = world.open().await;
        let mut tenant = Tenant::new(&fs, "a", 50).await;
        let mut flushes = Vec::new();
        for n in 0..40 {
            tenant.change(2).await;
            let before = spent(&fs);
            tenant.snapshot(n).await;
            flushes.push(since(&fs, before).flushes);
        }
        assert!(flushes.iter().all(|&flushes| flushes <= 3), "{flushes:?}");
        world.close(fs).await;
    });
}

// -- how freeing shares the time ------------------------------------------------------------------

const SNAPSHOTS: usize = 20;

/// A tenant, and its snapshots, of which each has something of its own.
async fn with_snapshots(fs: &Arc<Filesystem>) -> Tenant {
    let mut tenant = Tenant::new(fs, "a", 50).await;
    for n in 0..SNAPSHOTS {
        tenant.change(5).await;
        tenant.snapshot(n).await;
    }
    tenant
}

async fn delete_all(fs: &Arc<Filesystem>) {
    for n in 0..SNAPSHOTS {
        delete(fs, n).await;
    }
}

/// Writes until all is freed.
async fn work_beside(world: &World, fs: &Arc<Filesystem>, neighbour: &mut Tenant) {
    while !fs.volumes().dying().is_empty() {
        neighbour.change(1).await;
        world.rt.sleep(Duration::from_micros(100)).await;
    }
}

#[test]
fn beside_others_freeing_rests_for_three_quarters_of_the_time_and_comes_to_its_end() {
    let world = world(3);
    world.run(async {
        let fs = world.open().await;
        let mut neighbour = Tenant::new(&fs, "n", 5).await;
        drop(with_snapshots(&fs).await);
        delete_all(&fs).await;
        let (before, began) = (fs.volumes().freeing_work(), world.rt.now());
        work_beside(&world, &fs, &mut neighbour).await;
        let (after, took) = (fs.volumes().freeing_work(), world.rt.now() - began);
        let (worked, rested) = (after.worked - before.worked, after.rested - before.rested);
        assert!(after.steps - before.steps > SNAPSHOTS as u64);
        assert!(rested >= 3 * worked, "{before:?} {after:?}");
        assert!(took >= rested / 2, "it does rest: {took} of {rested}");
        world.close(fs).await;
    });
}

#[test]
fn alone_freeing_does_not_rest() {
    let world = world(4);
    world.run(async {
        let fs = world.open().await;
        drop(with_snapshots(&fs).await);
        delete_all(&fs).await;
        let before = fs.volumes().freeing_work();
        while !fs.volumes().dying().is_empty() {
            world.rt.sleep(Duration::from_millis(1)).await;
        }
        let after = fs.volumes().freeing_work();
        assert!(after.steps - before.steps > SNAPSHOTS as u64);
        let rested = Duration::from_nanos(after.rested - before.rested);
        assert!(rested <= Duration::from_millis(60), "until it has seen that: {rested:?}");
        world.close(fs).await;
    });
}

#[test]
fn where_space_is_short_freeing_does_not_rest_for_others() {
    let world = World::with_log(5, 1 << 15, 4 << 20);
    world.run(async {
        let fs = world.open().await;
        let mut neighbour = Tenant::new(&fs, "n", 5).await;
        drop(with_snapshots(&fs).await);
        let ballast = create(&fs, "ballast").await;
        let mut at = 0;
        while fs.statfs().blocks_available > fs.statfs().blocks / 64 {
            write(&fs, ballast, at, &[1; 1 << 18]).await;
            at += 1 << 18;
        }
        fs.sync().await.unwrap();
        let before = fs.volumes().freeing_work();
        delete_all(&fs).await;
        work_beside(&world, &fs, &mut neighbour).await;
        let after = fs.volumes().freeing_work();
        assert!(after.steps - before.steps > SNAPSHOTS as u64);
        assert_eq!(after.rested, before.rested);
        world.close(fs).await;
    });
}
