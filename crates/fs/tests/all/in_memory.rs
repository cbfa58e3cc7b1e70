//! However many files are open or were read, no more inodes are in memory than there is room for
//! (docs/memory.md), and nobody notices that one has left.

use std::sync::Arc;

use copyhold_fs::{Filesystem, FsError, NodeId, OpenFlags, Options};
use copyhold_memory::{Event, GroupLimits, INODE_BYTES, MemoryClass, Promise};
use copyhold_types::{SubvolId, Timestamp};

use crate::common::tenants::{file, root_of, snapshot, subvolume};
use crate::common::{self, ROOT, World, create, pattern, read, write};

const FILES: usize = 1200;
/// Four for each shard.
const INODES_MAX: usize = 256;

fn options() -> Options {
    Options { inodes_max: INODES_MAX, ..Options::default() }
}

fn content(n: usize) -> Vec<u8> {
    pattern(n as u8, 100 + n)
}

/// Files that are open and settled.
async fn make(fs: &Arc<Filesystem>, dir: NodeId) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    for n in 0..FILES {
        let node = file(fs, dir, &format!("f{n}")).await;
        write(fs, node, 0, &content(n)).await;
        nodes.push(node);
    }
    fs.sync().await.unwrap();
    nodes
}

/// Loads other inodes, until those that were not in use have left.
async fn crowd_out(fs: &Arc<Filesystem>) {
    for n in 0..4 * INODES_MAX {
        let node = create(fs, &format!("other{n}")).await;
        fs.unlink(ROOT, format!("other{n}").as_bytes()).await.unwrap();
        fs.release(node);
        fs.forget(node, 1);
    }
    fs.reaper_idle().await;
    expect_few(fs);
}

/// A shard may have some more when all of its own are in use.
fn expect_few(fs: &Filesystem) {
    let (inodes, _) = fs.inodes_and_lookups();
    assert!(inodes <= INODES_MAX * 3 / 2, "{inodes} inodes");
}

async fn atime(fs: &Arc<Filesystem>, node: NodeId) -> Timestamp {
    fs.getattr(node).await.unwrap().atime
}

#[test]
fn open_files_are_read_and_written_when_their_inodes_have_left() {
    let world = World::new(11, 32_768);
    world.run(async {
        let fs = world.open_with(options()).await;
        let nodes = make(&fs, ROOT).await;
        crowd_out(&fs).await;
        for (n, &node) in nodes.iter().enumerate() {
            assert_eq!(read(&fs, node, 0, 1 << 16).await, content(n), "file {n}");
            write(&fs, node, 50, b"changed").await;
            fs.fsync(node, false).await.unwrap();
        }
        crowd_out(&fs).await;
        for &node in &nodes {
            assert_eq!(read(&fs, node, 50, 7).await, b"changed");
            fs.release(node);
        }
        world.close(fs).await;
    });
}

#[test]
fn a_file_without_a_name_lives_until_its_last_close() {
    let world = World::new(12, 32_768);
    world.run(async {
        let options = Options { count_lookups: false, ..options() };
        let fs = world.open_with(options).await;
        let nodes = make(&fs, ROOT).await;
        for &node in &nodes {
            fs.open_node(node, OpenFlags::READ).await.unwrap();
        }
        crowd_out(&fs).await;
        for n in 0..FILES {
            fs.unlink(ROOT, format!("f{n}").as_bytes()).await.unwrap();
        }
        fs.reaper_idle().await;
        for closes in [1, 2] {
            for (n, &node) in nodes.iter().enumerate() {
                assert_eq!(read(&fs, node, 0, 1 << 16).await, content(n), "{closes} closes");
                fs.release(node);
            }
            fs.reaper_idle().await;
        }
        for &node in &nodes {
            assert!(matches!(fs.getattr(node).await, Err(FsError::Stale)), "{node}");
        }
        common::check_space(&fs).await;
        world.close(fs).await;
    });
}

#[test]
fn what_is_open_of_a_deleted_subvolume_is_told_although_its_inode_has_left() {
    let world = World::new(13, 32_768);
    world.run(async {
        let fs = world.open_with(options()).await;
        let (a, b) = (subvolume(&fs, "a").await, subvolume(&fs, "b").await);
        let mut open = make(&fs, root_of(a)).await;
        make(&fs, root_of(b)).await;
        crowd_out(&fs).await;
        for node in open.split_off(FILES / 2) {
            fs.release(node);
        }
        let told = fs.delete_subvolume(ROOT, b"a", None).await.unwrap().stale;
        let mut told: Vec<NodeId> = told.into_iter().filter(|&node| node != root_of(a)).collect();
        told.sort_unstable();
        assert_eq!(told, open);
        for &node in &open {
            assert!(matches!(fs.read(node, 0, 1).await, Err(FsError::Stale)), "{node}");
            fs.release(node);
        }
        world.close(fs).await;
    });
}

#[test]
fn files_that_were_read_leave_and_keep_their_access_times() {
    let world = World::new(14, 32_768);
    world.run(async {
        let fs = world.open_with(options()).await;
        let nodes = make(&fs, ROOT).await;
        crowd_out(&fs).await;
        fs.pool().runtime().sleep(std::time::Duration::from_secs(2)).await;
        let written = atime(&fs, nodes[0]).await;
        for &node in &nodes {
            read(&fs, node, 0, 10).await;
            // Nothing else goes on: whoever logs gets a turn.
            fs.pool().runtime().sleep(std::time::Duration::from_millis(1)).await;
            expect_few(&fs);
        }
        for &node in &nodes {
            assert!(atime(&fs, node).await > written, "{node}");
        }
        world.close(fs).await;
        let fs = world.open_with(options()).await;
        for &node in &nodes {
            assert!(atime(&fs, node).await > written, "{node} behind a mount");
        }
        world.close(fs).await;
    });
}

#[test]
fn so_many_reads_at_once_that_no_list_holds_them_take_no_more_memory() {
    let world = World::new(15, 32_768);
    world.run(async {
        let fs = world.open_with(options()).await;
        let nodes = make(&fs, ROOT).await;
        fs.pool().runtime().sleep(std::time::Duration::from_secs(2)).await;
        for &node in &nodes {
            read(&fs, node, 0, 10).await;
        }
        crowd_out(&fs).await;
        world.close(fs).await;
    });
}

#[test]
fn reading_a_read_only_subvolume_changes_nothing_of_it() {
    let world = World::new(16, 32_768);
    let read_all = async |fs: &Arc<Filesystem>, subvol: SubvolId, nodes: &[NodeId]| {
        fs.pool().runtime().sleep(std::time::Duration::from_secs(2)).await;
        for node in nodes {
            read(fs, NodeId { subvol, ..*node }, 0, 10).await;
        }
        common::names(fs, root_of(subvol)).await;
    };
    let times = async |fs: &Arc<Filesystem>, subvol: SubvolId, nodes: &[NodeId]| {
        let mut times = vec![atime(fs, root_of(subvol)).await];
        for node in nodes {
            times.push(atime(fs, NodeId { subvol, ..*node }).await);
        }
        times
    };
    world.run(async {
        let fs = world.open_with(options()).await;
        let a = subvolume(&fs, "a").await;
        let mut nodes = make(&fs, root_of(a)).await;
        nodes.truncate(20);
        let frozen = snapshot(&fs, a, "frozen", true).await;
        let born = times(&fs, frozen, &nodes).await;
        read_all(&fs, frozen, &nodes).await;
        assert_eq!(times(&fs, frozen, &nodes).await, born);
        // What was read before it became read-only is as it was seen then.
        read_all(&fs, a, &nodes).await;
        fs.set_subvolume_read_only(a, true).await.unwrap();
        let seen = times(&fs, a, &nodes).await;
        assert!(seen.iter().zip(&born).all(|(seen, born)| seen > born));
        read_all(&fs, a, &nodes).await;
        world.close(fs).await;
        let fs = world.open_with(options()).await;
        assert_eq!(times(&fs, frozen, &nodes).await, born);
        assert_eq!(times(&fs, a, &nodes).await, seen);
        world.close(fs).await;
    });
}

/// Makes files, and has each looked at once.
async fn walk(fs: &Arc<Filesystem>, dir: NodeId, files: usize) {
    for n in 0..files {
        let node = file(fs, dir, &format!("f{n}")).await;
        fs.release(node);
        fs.forget(node, 1);
    }
    fs.sync().await.unwrap();
    for n in 0..files {
        let entry = fs.lookup(dir, format!("f{n}").as_bytes()).await.unwrap();
        fs.forget(entry.node, 1);
    }
}

/// CACHE-C4: the inodes of a tenant that are left beside another one that walks over many files.
#[test]
fn a_walk_of_a_tenant_leaves_inodes_of_another_one_that_are_promised() {
    for (low, kept) in [(u64::MAX, 64..=80), (0, 0..=12)] {
        let world = World::new(12, 32_768);
        world.run(async {
            let fs = world.open_with(options()).await;
            let (neighbour, rogue) = (subvolume(&fs, "n").await, subvolume(&fs, "r").await);
            let owner = |subvol| fs.volumes().subvol(subvol).unwrap().owner().clone();
            let owner = owner(neighbour);
            let promise = Promise { min: 0, low };
            owner.set_limits(&GroupLimits { promise, ..GroupLimits::default() });
            walk(&fs, root_of(neighbour), 64).await;
            walk(&fs, root_of(rogue), FILES).await;
            let left = owner.charged(MemoryClass::Inode) as u64 / INODE_BYTES;
            assert!(kept.contains(&left), "{left} inodes with low {low}");
            expect_few(&fs);
            world.close(fs).await;
        });
    }
}

/// CACHE-C4: promises do not make the cache of inodes larger without a bound.
#[test]
fn a_walk_within_a_promise_keeps_a_quarter_more_inodes_at_most() {
    let world = World::new(13, 32_768);
    world.run(async {
        let fs = world.open_with(options()).await;
        let tenant = subvolume(&fs, "t").await;
        let owner = fs.volumes().subvol(tenant).unwrap().owner().clone();
        let promise = Promise { min: u64::MAX, low: u64::MAX };
        owner.set_limits(&GroupLimits { promise, ..GroupLimits::default() });
        walk(&fs, root_of(tenant), FILES).await;
        expect_few(&fs);
        world.close(fs).await;
    });
}

/// CACHE-C5: a tenant at its limit lets its own inodes go, and none of a neighbour's.
#[test]
fn a_tenant_at_its_max_keeps_few_inodes_and_all_works() {
    let world = World::new(13, 32_768);
    world.run(async {
        let fs = world.open().await;
        let (neighbour, limited) = (subvolume(&fs, "n").await, subvolume(&fs, "l").await);
        let owner = |subvol| fs.volumes().subvol(subvol).unwrap().owner().clone();
        let (beside, of) = (owner(neighbour), owner(limited));
        walk(&fs, root_of(neighbour), 200).await;
        let before = beside.charged(MemoryClass::Inode);
        of.set_limits(&GroupLimits { max: 0, ..GroupLimits::default() });
        walk(&fs, root_of(limited), FILES).await;
        // Two in each shard: one that is in use, and one beside it.
        let left = of.charged(MemoryClass::Inode) as u64 / INODE_BYTES;
        assert!(left <= 2 * 64, "{left} of {FILES} inodes");
        assert!(of.counts().event(Event::Max) > 0 && of.counts().event(Event::Forced) > 0);
        assert_eq!(beside.charged(MemoryClass::Inode), before);
        assert_eq!(of.charged(MemoryClass::Node), 0, "no node is cached");
        world.close(fs).await;
    });
}
