//! A listing with attributes, and look-ups in the order of a listing, read the inodes of the next
//! entries together: counted on a device that takes the same time for each request, in the time of
//! the simulation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_device::sim::{Lasting, SimConfig, SimDevice, SimImage};
use copyhold_format::node::Level;
use copyhold_fs::{Attr, Caller, DirEntry, Filesystem, FsError, NodeId, Options};
use copyhold_memory::GroupLimits;
use copyhold_pool::{CreateOptions, Limits, Pool};
use copyhold_runtime::{Rt, Runtime as _};
use copyhold_types::{DeviceId, NodePtr, Purpose};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::common::tenants::{owner, root_of, subvolume};
use crate::common::{self, ROOT, World, mkdir, seeds};

const FILES: u64 = 5000;
/// Files with content.
const FULL_FILES: u64 = 1500;
/// Small nodes, so that few files have many leaves.
const SMALL: u32 = 4096;
const READ: Duration = Duration::from_micros(100);
/// As a page of a listing has.
const PAGE: usize = 25;
/// As 32 KiB of a listing have.
const REPLY: usize = 190;

async fn fill(fs: &Arc<Filesystem>, dir: NodeId, files: u64) {
    for n in 0..files {
        make(fs, dir, n).await;
    }
    fs.sync().await.unwrap();
    fs.pool().flush_all().await.unwrap();
}

async fn make(fs: &Arc<Filesystem>, dir: NodeId, n: u64) {
    let name = format!("file-{n}");
    let made = fs.mknod(&Caller::ROOT, dir, name.as_bytes(), 0o100_644, 0).await.unwrap();
    fs.forget(made.node, 1);
}

/// As [`fill`], with content that lies beside the inodes: some ten files have a leaf.
async fn fill_with_content(fs: &Arc<Filesystem>, dir: NodeId, files: u64) {
    for n in 0..files {
        let name = format!("file-{n}");
        let made = fs.mknod(&Caller::ROOT, dir, name.as_bytes(), 0o100_644, 0).await.unwrap();
        common::write(fs, made.node, 0, &common::pattern(n as u8, 400)).await;
        fs.forget(made.node, 1);
    }
    fs.sync().await.unwrap();
    fs.pool().flush_all().await.unwrap();
}

/// A pool with nodes of this size.
fn pool_of(seed: u64, node_bytes: u32) -> World {
    let world = World::on(seed, SimImage::empty(1 << 18));
    world.run(async {
        let (rt, device): (Rt, DynDevice) = (world.rt.clone(), world.device.clone());
        let (log_bytes, node_bytes) = (Some(64 << 20), Some(node_bytes));
        let options = CreateOptions { log_bytes, node_bytes, ..CreateOptions::default() };
        Pool::create(&rt, &device, &options).await.unwrap();
        let pool = world.pool(false).await;
        Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
        pool.close().await.unwrap();
    });
    world
}

/// A pool with a full directory; nothing is in memory.
fn filled(seed: u64, node_bytes: u32, files: u64) -> World {
    let world = pool_of(seed, node_bytes);
    world.run(async {
        let fs = world.open().await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        fill(&fs, dir, files).await;
        world.close(fs).await;
    });
    cold(world, seed)
}

/// As [`filled`], of small nodes, with content in the files.
fn filled_with_content(seed: u64, files: u64) -> World {
    let world = pool_of(seed, SMALL);
    world.run(async {
        let fs = world.open().await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        fill_with_content(&fs, dir, files).await;
        world.close(fs).await;
    });
    cold(world, seed)
}

/// The pool on a device of constant times.
fn cold(world: World, seed: u64) -> World {
    let World { rt, device } = world;
    let read = READ.as_nanos() as u64;
    let config = SimConfig { read_latency: read..read + 1, one_slow_in: 0, ..SimConfig::new(seed) };
    let image = device.image();
    let device = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
    World { rt, device }
}

async fn dir(fs: &Filesystem) -> NodeId {
    common::lookup(fs, "dir").await.unwrap().node
}

fn leaf_reads(fs: &Filesystem) -> u64 {
    fs.pool().devices().counters().purposes[Purpose::Leaf as usize].reads
}

async fn leaves(fs: &Filesystem) -> Vec<NodePtr> {
    let mut leaves = Vec::new();
    for table in fs.pool().tables() {
        let visit = &mut |visit: copyhold_table::NodeVisit| {
            if visit.level == Level::Leaf {
                leaves.push(visit.ptr);
            }
        };
        table.for_each_node(fs.pool().node_source(), true, visit).await;
    }
    leaves
}

type Listed = BTreeMap<Vec<u8>, (NodeId, Option<Attr>)>;

/// A whole listing, in replies of so many entries.
async fn list(fs: &Filesystem, dir: NodeId, reply: usize) -> Result<Listed, FsError> {
    let (mut listed, mut after) = (Listed::new(), 0);
    loop {
        let mut taken = 0;
        fs.readdirplus(dir, after, &mut |entry| {
            if taken == reply {
                return false;
            }
            (taken, after) = (taken + 1, entry.cookie);
            let before = listed.insert(entry.name.to_vec(), (entry.node, entry.attr));
            assert!(before.is_none(), "an entry came twice");
            true
        })
        .await?;
        if taken == 0 {
            return Ok(listed);
        }
    }
}

/// The names of a directory, in the order of a listing without attributes.
async fn names(fs: &Filesystem, dir: NodeId) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    fs.readdir(dir, 2, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .await
    .unwrap();
    names
}

/// How many of these names could be looked up.
async fn look_up<'n>(
    fs: &Arc<Filesystem>,
    dir: NodeId,
    names: impl IntoIterator<Item = &'n Vec<u8>>,
) -> usize {
    let mut found = 0;
    for name in names {
        match fs.lookup(dir, name).await {
            Ok(entry) => fs.forget(entry.node, 1),
            Err(_) => continue,
        }
        found += 1;
    }
    found
}

/// Reads of leaves, and the time of the simulation, of look-ups of the names that `chosen` keeps,
/// behind a listing of all names.
fn cost_of_look_ups(
    world: &World,
    chosen: impl FnOnce(Vec<Vec<u8>>) -> Vec<Vec<u8>>,
) -> (u64, Duration) {
    world.run(async {
        let fs = world.open().await;
        let dir = dir(&fs).await;
        let names = chosen(names(&fs, dir).await);
        let (before, begun) = (leaf_reads(&fs), world.rt.now());
        assert_eq!(look_up(&fs, dir, &names).await, names.len());
        let (reads, took) = (leaf_reads(&fs) - before, world.rt.now() - begun);
        let leaves = leaves(&fs).await.len() as u64;
        assert!(reads <= leaves, "{reads} reads of {leaves} leaves");
        world.close(fs).await;
        (reads, Duration::from_nanos(took))
    })
}

/// Reads of leaves, and the time of the simulation, of a cold listing.
fn cost_of_cold_listing(world: &World, files: u64, reply: usize) -> (u64, Duration) {
    world.run(async {
        let fs = world.open().await;
        let dir = dir(&fs).await;
        let (before, begun) = (leaf_reads(&fs), world.rt.now());
        let listed = list(&fs, dir, reply).await.unwrap();
        let (reads, took) = (leaf_reads(&fs) - before, world.rt.now() - begun);
        assert_eq!(listed.len() as u64, files + 2);
        let leaves = leaves(&fs).await.len() as u64;
        assert!(reads <= leaves, "{reads} reads of {leaves} leaves");
        world.close(fs).await;
        (reads, Duration::from_nanos(took))
    })
}

/// INOAHEAD-W1.
#[test]
fn a_cold_listing_reads_each_leaf_once_and_many_at_a_time() {
    for reply in [PAGE, REPLY, usize::MAX] {
        let (reads, took) = cost_of_cold_listing(&filled(11, SMALL, FILES), FILES, reply);
        assert!(reads > 20, "{reads} reads tell nothing");
        let one_by_one = READ * reads as u32;
        assert!(took * 3 < one_by_one, "{took:?} of {one_by_one:?}, for replies of {reply}");
    }
}

/// Prints the figures of docs/performance.md: `LISTED=200000` and `--nocapture`.
#[test]
#[allow(clippy::disallowed_methods)] // a test program's arguments
fn a_cold_listing_of_a_large_directory_reads_no_leaf_twice() {
    let number = std::env::var("LISTED").ok().and_then(|text| text.parse().ok());
    let files = number.unwrap_or(FILES);
    let world = filled(16, 32 << 10, files);
    let (reads, took) = cost_of_cold_listing(&world, files, REPLY);
    println!("{files} files: {reads} reads of leaves in {took:?}");
    let (reads, took) = cost_of_look_ups(&world, |names| names);
    println!("look-ups in the order of a listing: {reads} reads of leaves in {took:?}");
    let (reads, took) = cost_of_look_ups(&world, in_another_order);
    println!("look-ups in another order: {reads} reads of leaves in {took:?}");
}

fn in_another_order(mut names: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    names.sort_unstable();
    names
}

/// INORDER-O2.
#[test]
fn look_ups_in_the_order_of_a_listing_read_inodes_many_at_a_time() {
    let world = filled_with_content(17, FULL_FILES);
    let (reads, took) = cost_of_look_ups(&world, |names| names);
    let one_by_one = READ * reads as u32;
    assert!(reads > 20 && took * 3 < one_by_one, "{took:?} of {one_by_one:?}");
    let (reads, took) = cost_of_look_ups(&world, in_another_order);
    assert!(took >= READ * reads as u32, "INORDER-O1: {reads} reads in {took:?}");
}

/// INORDER-O2, INORDER-O3.
#[test]
fn few_look_ups_read_few_inodes_ahead() {
    let world = filled_with_content(18, FULL_FILES);
    for count in [1, 3, 4, 10, 20] {
        let first = |names: Vec<Vec<u8>>| names.into_iter().take(count).collect();
        let (reads, _) = cost_of_look_ups(&world, first);
        // Those of the look-ups, and two ahead for each.
        let most = if count < 4 { count } else { 3 * count };
        assert!(reads <= most as u64, "{reads} reads for {count} look-ups in order");
        let far = |names: Vec<Vec<u8>>| names.into_iter().step_by(60).take(count).collect();
        let (reads, _) = cost_of_look_ups(&world, far);
        assert!(reads <= count as u64, "{reads} reads for {count} look-ups of distant entries");
    }
}

/// INOAHEAD-W3: an unreadable leaf of inodes fails the look-ups of its own files alone.
#[test]
fn look_ups_in_order_fail_where_others_fail() {
    let world = filled_with_content(19, 200);
    world.run(async {
        let fs = world.open().await;
        let leaves = leaves(&fs).await;
        let names = names(&fs, dir(&fs).await).await;
        world.close(fs).await;
        let mut failed = 0;
        for ptr in leaves {
            let fs = world.open().await;
            let dir = dir(&fs).await;
            for run in ptr.runs() {
                world.device.break_block(run.addr.block(), 5, Lasting::Forever);
            }
            let in_order = look_up(&fs, dir, &names).await;
            let sorted = in_another_order(names.clone());
            assert_eq!(look_up(&fs, dir, &sorted).await, in_order);
            failed += usize::from(in_order < names.len());
            world.device.heal();
            assert_eq!(look_up(&fs, dir, &names).await, names.len());
            world.close(fs).await;
        }
        assert!(failed > 3, "{failed} leaves");
    });
}

#[test]
fn a_listing_of_few_entries_reads_few_leaves() {
    let world = filled(12, SMALL, FILES);
    world.run(async {
        let fs = world.open().await;
        let dir = dir(&fs).await;
        let before = leaf_reads(&fs);
        let mut taken = 0;
        fs.readdir(dir, 0, &mut |_| {
            taken += 1;
            taken < 10
        })
        .await
        .unwrap();
        let plain = leaf_reads(&fs) - before;
        assert!(plain <= 2, "{plain} leaves without attributes");
    });
}

/// AHEAD-A2: below a limit of one leaf, nothing fits.
#[test]
fn a_listing_reads_nothing_ahead_while_memory_is_scarce() {
    let world = pool_of(13, SMALL);
    let subvol = world.run(async {
        let fs = world.open().await;
        let subvol = subvolume(&fs, "tenant").await;
        fill(&fs, root_of(subvol), FILES).await;
        world.close(fs).await;
        subvol
    });
    let world = cold(world, 13);
    let reads_of_few_entries = |max: u64| {
        let world = &world;
        world.run(async {
            let fs = world.open().await;
            let limits = GroupLimits { max, ..GroupLimits::default() };
            owner(&fs, subvol).set_limits(&limits);
            let before = leaf_reads(&fs);
            let mut taken = 0;
            let visit = &mut |_: &DirEntry<'_>| {
                taken += 1;
                taken < 4
            };
            fs.readdirplus(root_of(subvol), 0, visit).await.unwrap();
            let reads = leaf_reads(&fs) - before;
            world.close(fs).await;
            reads
        })
    };
    let (scarce, ample) = (reads_of_few_entries(4 << 10), reads_of_few_entries(u64::MAX));
    assert!(scarce <= 4, "{scarce} leaves for few entries");
    assert!(ample > scarce, "{ample} leaves where memory is ample");
}

/// AHEAD-A2: a tenant at its limit still reads several leaves at a time.
#[test]
fn a_tenant_at_its_limit_reads_ahead_in_the_place_of_its_own_nodes() {
    let world = pool_of(20, SMALL);
    let subvol = world.run(async {
        let fs = world.open().await;
        let subvol = subvolume(&fs, "tenant").await;
        fill_with_content(&fs, root_of(subvol), FULL_FILES).await;
        world.close(fs).await;
        subvol
    });
    let world = cold(world, 20);
    world.run(async {
        let fs = world.open().await;
        let owner = owner(&fs, subvol);
        let max = 1 << 20;
        owner.set_limits(&GroupLimits { max, ..GroupLimits::default() });
        let (before, begun) = (leaf_reads(&fs), world.rt.now());
        let listed = list(&fs, root_of(subvol), REPLY).await.unwrap();
        assert_eq!(listed.len() as u64, FULL_FILES + 2);
        assert!(owner.over_any_limit(32 * u64::from(SMALL)).is_some(), "it is at its limit");
        let (reads, took) = (leaf_reads(&fs) - before, world.rt.now() - begun);
        let one_by_one = READ * reads as u32;
        let took = Duration::from_nanos(took);
        println!("at a limit of {max} bytes: {reads} reads of leaves in {took:?}");
        assert!(took * 3 < one_by_one * 2, "{took:?} of {one_by_one:?}");
        world.close(fs).await;
    });
}

/// INOAHEAD-W1: a listing that ends early has read few leaves of inodes.
#[test]
fn a_listing_with_attributes_that_ends_early_reads_few_leaves() {
    let world = filled_with_content(21, FULL_FILES);
    for count in [1, 8, 30] {
        let reads = world.run(async {
            let fs = world.open().await;
            let dir = dir(&fs).await;
            let before = leaf_reads(&fs);
            let mut taken = 0;
            let visit = &mut |_: &DirEntry<'_>| {
                taken += 1;
                taken <= count
            };
            fs.readdirplus(dir, 2, visit).await.unwrap();
            let reads = leaf_reads(&fs) - before;
            world.close(fs).await;
            reads
        });
        // Two leaves of the directory; places among the hashes are a little uneven.
        let most = 2 + 16.max(2 * count + 16);
        assert!(reads <= most, "{reads} reads for {count} entries");
    }
}

/// INOAHEAD-W2.
#[test]
fn a_listing_that_is_dropped_leaves_no_read_behind() {
    let world = filled(14, SMALL, FILES);
    world.run(async {
        let fs = world.open().await;
        let dir = dir(&fs).await;
        let deadline = world.rt.sleep(READ * 3);
        let listed = Box::pin(list(&fs, dir, usize::MAX));
        let either = futures_util::future::select(listed, deadline).await;
        let futures_util::future::Either::Right((_, listed)) = either else {
            panic!("the listing ended early");
        };
        drop(listed);
        let before = leaf_reads(&fs);
        world.rt.sleep(READ * 100).await;
        assert_eq!(leaf_reads(&fs), before, "reads behind the listing");
        assert_eq!(list(&fs, dir, REPLY).await.unwrap().len() as u64, FILES + 2);
    });
}

/// INOAHEAD-W3.
#[test]
fn a_listing_ends_at_the_entry_whose_leaf_is_unreadable_and_at_no_other() {
    let world = filled(15, SMALL, 1500);
    world.run(async {
        let fs = world.open().await;
        let dir = dir(&fs).await;
        let leaves = leaves(&fs).await;
        world.close(fs).await;
        let (mut failed, mut listed_before) = (0, 0);
        for ptr in leaves {
            let broken = ptr.runs();
            let fs = world.open().await;
            for run in broken {
                world.device.break_block(run.addr.block(), 5, Lasting::Forever);
            }
            let mut names = 0;
            let visit = &mut |_: &DirEntry<'_>| {
                names += 1;
                true
            };
            let first = fs.readdirplus(dir, 2, visit).await;
            if names < 1500 {
                failed += 1;
                listed_before += names;
                let again = list(&fs, dir, REPLY).await;
                assert!(again.is_err(), "{first:?} and then a whole listing");
            }
            world.device.heal();
            assert_eq!(list(&fs, dir, REPLY).await.unwrap().len(), 1502);
            world.close(fs).await;
        }
        assert!(failed > 3 && listed_before > 3, "{failed} leaves, {listed_before} entries");
    });
}

/// The same pool, listed with much memory and with hardly any: the listing has all files.
#[test]
fn a_listing_is_the_same_with_and_without_inodes_read_ahead() {
    for seed in seeds(6) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut below = move |most: u64| rng.next_u64() % most;
        let world = pool_of(seed, SMALL);
        let mut model: BTreeMap<Vec<u8>, NodeId> = BTreeMap::new();
        world.run(async {
            let fs = world.open().await;
            let dir = mkdir(&fs, ROOT, "dir").await;
            for n in 0..200 + below(1800) {
                make(&fs, dir, n).await;
                let name = format!("file-{n}").into_bytes();
                let node = fs.lookup(dir, &name).await.unwrap().node;
                fs.forget(node, 1);
                model.insert(name, node);
                if below(5) == 0 {
                    let name = format!("file-{}", below(n + 1)).into_bytes();
                    if model.remove(&name).is_some() {
                        fs.unlink(dir, &name).await.unwrap();
                    }
                }
                if below(300) == 0 {
                    fs.pool().flush_all().await.unwrap();
                }
            }
            subvolume(&fs, "beside").await;
            world.close(fs).await;
        });
        let mut attributes: Option<Listed> = None;
        for node_cache_bytes in [64 << 20, 1 << 20, 0] {
            let world = &world;
            let limits = Limits { node_cache_bytes, ..Limits::default() };
            let listed = world.run(async {
                let device: DynDevice = world.device.clone();
                let rt = &(world.rt.clone() as Rt);
                let options = Options { inodes_max: 64, ..Options::default() };
                let fs = common::mount(rt, &device, limits, options).await;
                let dir = dir(&fs).await;
                let listed = list(&fs, dir, 1 + below(300) as usize).await.unwrap();
                for name in names(&fs, dir).await {
                    let found = fs.lookup(dir, &name).await.unwrap();
                    assert_eq!(listed[&name], (found.node, Some(found.attr)), "seed {seed}");
                    fs.forget(found.node, 1);
                }
                world.close(fs).await;
                listed
            });
            let named = listed.iter().filter(|(_, (_, attr))| attr.is_some());
            let found: BTreeMap<_, _> =
                named.map(|(name, (node, _))| (name.clone(), *node)).collect();
            assert_eq!(found, model, "seed {seed}");
            match &attributes {
                Some(first) => assert_eq!(*first, listed, "seed {seed}"),
                None => attributes = Some(listed),
            }
        }
    }
}
