//! What a crash, or a snapshot, leaves of a subvolume is taken up once, before anything changes;
//! and files in use are never taken for leftovers.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_device::sim::{Fault, Trigger};
use copyhold_format::item::{
    InodeItem, LISTS, ORPHAN, TRUNCATE, encode_truncate, inode_key, truncate_key,
};
use copyhold_fs::{Caller, Filesystem, FsError, NodeId, Options, SetAttr};
use copyhold_pool::{OpenOptions, Pool, Tier, Transaction};
use copyhold_runtime::{Rt, Runtime};
use copyhold_types::{InodeNo, Key, Kind, SubvolId, TableId};

use crate::common::tenants::*;
use crate::common::*;

const EIO: i32 = 5;
const LEN: usize = 100_000;

/// Items of one of the lists.
async fn listed(fs: &Arc<Filesystem>, subvol: SubvolId, kind: Kind) -> usize {
    let subvol = fs.volumes().subvol(subvol).unwrap();
    let (from, to) = (Key::new(LISTS, kind, 0), Key::new(LISTS, kind, u64::MAX));
    fs.volumes().range(&subvol, from, to, 1 << 20).await.unwrap().len()
}

/// Lets blocks of the file be logged ahead of its size: block 4, while block 1 is still dirty.
async fn log_ahead(fs: &Arc<Filesystem>, node: NodeId, blocks: usize) {
    write(fs, node, 16384, &pattern(1, blocks * 4096)).await;
    let mut sync = pin!(fs.fsync(node, false));
    let mut cx = Context::from_waker(Waker::noop());
    let _pending = sync.as_mut().poll(&mut cx).is_pending();
    write(fs, node, 4096, &pattern(2, 4096)).await;
}

/// A subvolume `a` with files whose blocks were logged ahead of their size when the power failed,
/// everything settled in its tables.
fn crashed_ahead(seed: u64, files: usize) -> World {
    let world = World::with_log(seed, 65536, 256 << 10);
    let crashed = world.run(async {
        let fs = world.open_with(Options { attach_bytes_max: 0, ..Options::default() }).await;
        let a = subvolume(&fs, "a").await;
        for n in 0..files {
            let node = file(&fs, root_of(a), &format!("f{n}")).await;
            log_ahead(&fs, node, 1).await;
        }
        world.rt.sleep(Duration::from_millis(100)).await;
        fs.pool().commit(fs.pool().open_txg()).await.unwrap();
        assert!(listed(&fs, a, TRUNCATE).await * 10 > files * 9, "most are ahead of their size");
        fs
    });
    world.crash(crashed, seed)
}

fn tenant(fs: &Arc<Filesystem>) -> SubvolId {
    fs.subvolumes().into_iter().find(|subvol| subvol.id != SubvolId::ROOT).unwrap().id
}

/// Behind the end of the file, which a crash has cut, nothing shows when it grows.
async fn grows_with_zeros(fs: &Arc<Filesystem>, node: NodeId) {
    let end = 10 * 4096;
    let size = fs.getattr(node).await.unwrap().size;
    let set = SetAttr { size: Some(end), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, node, &set).await.unwrap();
    fs.fsync(node, false).await.unwrap();
    let got = read(fs, node, size, end as usize).await;
    assert!(got.iter().all(|byte| *byte == 0), "{node}: old bytes show behind {size}");
}

#[test]
fn making_writable_what_is_writable_leaves_open_unlinked_files_alone() {
    let world = World::new(901, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        let node = file(&fs, root_of(a), "f").await;
        write(&fs, node, 0, &pattern(1, LEN)).await;
        fs.unlink(root_of(a), b"f").await.unwrap();
        fs.fsync(node, false).await.unwrap();
        world.rt.sleep(Duration::from_secs(1)).await;
        fs.set_subvolume_read_only(a, false).await.unwrap();
        world.rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(read(&fs, node, 0, LEN).await, pattern(1, LEN));
        write(&fs, node, 0, &pattern(3, LEN)).await;
        fs.sync().await.unwrap();
        assert_eq!(read(&fs, node, 0, LEN).await, pattern(3, LEN));
        world.close(fs).await;
    });
}

#[test]
fn making_writable_what_is_writable_leaves_blocks_alone_that_are_ahead_of_the_size() {
    let world = World::new(902, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        let node = file(&fs, root_of(a), "f").await;
        log_ahead(&fs, node, 256).await;
        world.rt.sleep(Duration::from_millis(100)).await;
        assert_eq!(listed(&fs, a, TRUNCATE).await, 1);
        fs.set_subvolume_read_only(a, false).await.unwrap();
        fs.fsync(node, false).await.unwrap();
        assert!(read(&fs, node, 16384, 1 << 20).await == pattern(1, 1 << 20));
        assert_eq!(listed(&fs, a, TRUNCATE).await, 0);
        world.close(fs).await;
    });
}

/// A file that is open and has no name stays while its subvolume is read-only for a while, and goes
/// when it is released, also while the subvolume is read-only.
#[test]
fn open_unlinked_files_outlive_that_their_subvolume_is_read_only() {
    let world = World::new(903, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        let nodes = [file(&fs, root_of(a), "f").await, file(&fs, root_of(a), "g").await];
        for (node, name) in nodes.into_iter().zip([b"f", b"g"]) {
            write(&fs, node, 0, &pattern(1, LEN)).await;
            fs.unlink(root_of(a), name).await.unwrap();
        }
        fs.set_subvolume_read_only(a, true).await.unwrap();
        world.rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(read(&fs, nodes[0], 0, LEN).await, pattern(1, LEN));
        let refused = fs.write(nodes[0], 0, b"x", Default::default()).await;
        assert!(matches!(refused, Err(FsError::ReadOnly { .. })), "{refused:?}");
        fs.release(nodes[1]);
        fs.forget(nodes[1], 1);
        world.rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(listed(&fs, a, ORPHAN).await, 1, "the one that is open");
        fs.set_subvolume_read_only(a, false).await.unwrap();
        world.rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(read(&fs, nodes[0], 0, LEN).await, pattern(1, LEN));
        fs.release(nodes[0]);
        fs.forget(nodes[0], 1);
        world.rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(listed(&fs, a, ORPHAN).await, 0);
        world.close(fs).await;
    });
}

/// One caller comes first, another writes and syncs while the first is still being served.
#[test]
fn whoever_comes_to_a_subvolume_after_a_crash_waits_for_its_leftovers() {
    for seed in 1..6 {
        let world = crashed_ahead(1000 + seed, 400);
        world.run(async {
            let fs = world.open().await;
            let a = tenant(&fs);
            let (me, first) = (fs.clone(), fs.clone());
            world.rt.spawn(Box::pin(async move {
                first.lookup(root_of(a), b"f0").await.unwrap();
            }));
            world.rt.sleep(Duration::from_nanos(1)).await;
            let data = pattern(3, 50_000);
            let node = me.lookup(root_of(a), b"f399").await.unwrap().node;
            write(&me, node, 20_000, &data).await;
            me.fsync(node, false).await.unwrap();
            assert!(read(&me, node, 20_000, 50_000).await == data);
            world.rt.sleep(Duration::from_secs(60)).await;
            assert!(read(&me, node, 20_000, 50_000).await == data, "seed {seed}");
            assert_eq!(listed(&fs, a, TRUNCATE).await, 0, "the others were cut in the background");
            let f0 = fs.lookup(root_of(a), b"f0").await.unwrap().node;
            grows_with_zeros(&fs, f0).await;
            world.close(me).await;
        });
    }
}

/// A caller that gives up leaves nothing half done for the next one.
#[test]
fn a_first_caller_that_gives_up_is_followed_by_another() {
    let world = crashed_ahead(1100, 300);
    world.run(async {
        let fs = world.open().await;
        let a = tenant(&fs);
        for polls in 1..20 {
            let mut first = pin!(fs.lookup(root_of(a), b"f0"));
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                if first.as_mut().poll(&mut cx).is_ready() {
                    break;
                }
                world.rt.sleep(Duration::from_micros(30)).await;
            }
        }
        let node = fs.lookup(root_of(a), b"f7").await.unwrap().node;
        grows_with_zeros(&fs, node).await;
        world.close(fs).await;
    });
}

/// As long as the lists cannot be read, nothing changes, and what can be read is.
#[test]
fn leftovers_that_cannot_be_read_are_read_later_and_nothing_changes_before() {
    let world = crashed_ahead(1200, 3);
    world.run(async {
        let fs = world.open().await;
        fs.pool().flush_all().await.unwrap();
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        world.close(fs).await;
    });
    // What `close` has settled lies in nodes that have to be read.
    world.run(async {
        let fs = world.open().await;
        let a = tenant(&fs);
        world.device.arm_for_good(Trigger::Read { nth: 0 }, Fault::Error(EIO));
        assert!(fs.lookup(root_of(a), b"f0").await.is_err());
        let made = fs.mkdir(&Caller::ROOT, root_of(a), b"new", 0o755).await;
        assert!(made.is_err() && !matches!(made, Err(FsError::Stale)), "{made:?}");
        world.device.disarm();
        for n in 0..3 {
            let name = format!("f{n}");
            let node = fs.lookup(root_of(a), name.as_bytes()).await.unwrap().node;
            grows_with_zeros(&fs, node).await;
        }
        fs.mkdir(&Caller::ROOT, root_of(a), b"new", 0o755).await.unwrap();
        assert_eq!(listed(&fs, a, TRUNCATE).await, 0);
        world.close(fs).await;
    });
}

/// A file becomes one that is cut after the first, as a crash may leave it: the
/// others are still there, and announced.
async fn leave_behind(world: &World, table: TableId, ino: InodeNo) {
    let (rt, device) = (world.rt.clone() as Rt, world.device.clone() as DynDevice);
    let pool = Pool::open(rt, device, OpenOptions::default()).await.unwrap();
    let value = pool.get(table, inode_key(ino)).await.unwrap().unwrap();
    let item = InodeItem { size: 4096, ..InodeItem::parse(&value).unwrap() };
    let mut tx = Transaction::new();
    tx.put(table, inode_key(ino), &item.encode()[..]);
    tx.put(table, truncate_key(ino), &encode_truncate(1)[..]);
    let credit = pool.admit(Tier::Write, 2, 1 << 12).await.unwrap();
    let txg = pool.apply(credit, tx).unwrap();
    pool.commit(txg).await.unwrap();
    pool.close().await.unwrap();
}

/// While a snapshot is read-only its leftovers stay, and its files are in use already when it
/// becomes writable.
#[test]
fn a_snapshot_that_becomes_writable_is_without_leftovers() {
    let world = World::new(1300, 65536);
    let (table, inos) = world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        let mut inos = Vec::new();
        for name in ["f", "g", "h"] {
            let node = file(&fs, root_of(a), name).await;
            write(&fs, node, 0, &pattern(7, 8 * 4096)).await;
            inos.push(node.ino);
        }
        let s = snapshot(&fs, a, "s", true).await;
        let table = fs.volumes().subvol(s).unwrap().files();
        world.close(fs).await;
        (table, inos)
    });
    world.run(async {
        for ino in &inos {
            leave_behind(&world, table, *ino).await;
        }
        let fs = world.open().await;
        let s = fs.lookup(ROOT, b"s").await.unwrap().node.subvol;
        let nodes: Vec<NodeId> = inos.iter().map(|&ino| NodeId { subvol: s, ino }).collect();
        for node in &nodes[..2] {
            assert_eq!(read(&fs, *node, 0, LEN).await, pattern(7, 4096));
        }
        world.rt.sleep(Duration::from_secs(60)).await;
        assert_eq!(listed(&fs, s, TRUNCATE).await, 3, "it is read-only");
        fs.set_subvolume_read_only(s, false).await.unwrap();
        for node in &nodes {
            grows_with_zeros(&fs, *node).await;
            assert_eq!(read(&fs, *node, 0, 4096).await, pattern(7, 4096));
        }
        world.rt.sleep(Duration::from_secs(60)).await;
        assert_eq!(listed(&fs, s, TRUNCATE).await, 0);
        fs.volumes().finish_background().await.unwrap();
        world.close(fs).await;
    });
}
