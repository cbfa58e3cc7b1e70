//! Cuts of files whose many extents a snapshot shares, on pools that fill up: what is accepted
//! after a cut is kept, and what was behind it never shows.

use std::sync::Arc;

use copyhold_fs::{
    Caller, FallocateMode, FileFlags, Filesystem, FsError, NodeId, Options, SetAttr,
};
use copyhold_pool::{Reservation, Tier};
use copyhold_types::{InodeNo, SubvolId};

use crate::common::*;

const BLOCK: u64 = 4096;
/// More extents than a transaction removes.
const MANY: u64 = 400;

async fn cut(fs: &Arc<Filesystem>, node: NodeId, size: u64) -> Result<(), FsError> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, node, &set).await.map(drop)
}

/// Every other block of a file, from `first` on, each an extent of its own.
async fn scattered(fs: &Arc<Filesystem>, node: NodeId, first: u64, extents: u64) {
    for n in 0..extents {
        write(fs, node, (first + n * 2) * BLOCK, &pattern(n as u8, 4096)).await;
    }
}

async fn settle(fs: &Arc<Filesystem>) {
    fs.sync().await.unwrap();
    fs.pool().flush_all().await.unwrap();
    fs.sync().await.unwrap();
}

/// Others' deletes, and the pool itself, take so much of the reserve that no delete is taken.
async fn others_take_the_reserve(fs: &Filesystem) -> Reservation {
    let space = fs.pool().space();
    let blocks = space.available() + space.reserve / 2;
    fs.pool().reserve(blocks, Tier::Internal).await.unwrap()
}

#[test]
fn what_is_accepted_after_a_cut_is_not_refused_by_steps_of_it() {
    let world = World::new(9, 16_384);
    world.run(async {
        let options = Options { attach_bytes_max: 0, ..Options::default() };
        let fs = world.open_with(options).await;
        let node = create(&fs, "f").await;
        scattered(&fs, node, 0, MANY).await;
        fs.sync().await.unwrap();
        fs.snapshot(SubvolId::ROOT, ROOT, b"s", false, None).await.unwrap();
        settle(&fs).await;
        cut(&fs, node, 0).await.unwrap();
        write(&fs, node, 0, &pattern(7, 40_000)).await;
        let taken = others_take_the_reserve(&fs).await;
        fs.fsync(node, false).await.unwrap();
        drop(taken);
        world.close(fs).await;
        let fs = world.open().await;
        let node = lookup(&fs, "f").await.unwrap().node;
        assert!(read(&fs, node, 0, 1 << 20).await == pattern(7, 40_000));
        world.close(fs).await;
    });
}

#[test]
fn what_is_accepted_after_a_refused_cut_is_not_refused_by_steps_of_it() {
    let world = World::new(10, 16_384);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "f").await;
        scattered(&fs, node, 0, MANY).await;
        fs.sync().await.unwrap();
        fs.snapshot(SubvolId::ROOT, ROOT, b"s", false, None).await.unwrap();
        settle(&fs).await;
        let rest = fs.pool().reserve(fs.pool().space().available(), Tier::Write).await.unwrap();
        let mut taken = Vec::new();
        // Room for the last transaction of the cut, but not for the steps before.
        while let Ok(some) = fs.pool().reserve_now(8, Tier::Delete) {
            taken.push(some);
        }
        taken.truncate(taken.len() - 9);
        assert!(matches!(cut(&fs, node, 0).await, Err(FsError::NoSpace(_))), "told at once");
        assert_eq!(fs.getattr(node).await.unwrap().size, 0, "its steps were, not the cut");
        drop((rest, taken));
        write(&fs, node, 0, &pattern(8, 40_000)).await;
        let taken = others_take_the_reserve(&fs).await;
        fs.fsync(node, false).await.unwrap();
        drop(taken);
        assert!(read(&fs, node, 0, 1 << 20).await == pattern(8, 40_000));
        world.close(fs).await;
    });
}

#[test]
fn a_size_is_refused_where_changes_are_and_never_when_it_is_logged() {
    let world = World::new(12, 16_384);
    world.run(async {
        let fs = world.open().await;
        let [long, short] = [create(&fs, "long").await, create(&fs, "short").await];
        write(&fs, long, 0, &pattern(1, 40_000)).await;
        settle(&fs).await;
        let pool = fs.pool();
        let all = pool.reserve(pool.space().available(), Tier::Write).await.unwrap();
        cut(&fs, short, 9000).await.unwrap();
        let mut taken = Vec::new();
        // Waits for what is on its way to be free, as a truncation does.
        while let Ok(some) = pool.reserve(1, Tier::Change).await {
            taken.push(some);
        }
        for size in [0, 8000, 9000, 70_000] {
            let refused = cut(&fs, short, size).await;
            assert!(matches!(refused, Err(FsError::NoSpace(_))), "{size}: {refused:?}");
        }
        cut(&fs, long, 5000).await.expect("it frees, so it is refused where deletes are");
        let promised = pool.space().reserved;
        fs.fsync(long, false).await.unwrap();
        fs.fsync(short, false).await.unwrap();
        assert!(pool.space().reserved < promised, "its room is given back when it is logged");
        drop((all, taken));
        world.close(fs).await;
    });
}

#[test]
fn nothing_of_a_cut_shows_where_preallocated_space_is_written_meanwhile() {
    let world = World::new(8, 16_384);
    let fs = world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "f").await;
        let mode = FallocateMode::Allocate { keep_size: false };
        fs.fallocate(node, 0, 90 * BLOCK, mode).await.unwrap();
        scattered(&fs, node, 200, 150).await;
        settle(&fs).await;
        cut(&fs, node, 5000).await.unwrap();
        let pool = fs.pool();
        let all = pool.reserve(pool.space().available(), Tier::Write).await.unwrap();
        write(&fs, node, 0, &pattern(2, 4096)).await;
        let taken = pool.reserve(pool.space().reserve / 2, Tier::Internal).await.unwrap();
        fs.fsync(node, false).await.unwrap();
        drop((all, taken));
        fs
    });
    let world = world.crash(fs, 8);
    world.run(async {
        let fs = world.open().await;
        let node = lookup(&fs, "f").await.unwrap().node;
        assert_eq!(fs.getattr(node).await.unwrap().size, 5000);
        assert!(read(&fs, node, 0, 4096).await == pattern(2, 4096), "what was written is there");
        cut(&fs, node, 500 * BLOCK).await.unwrap();
        let behind = read(&fs, node, 5000, 500 * 4096).await;
        assert!(behind.iter().all(|byte| *byte == 0), "R36: old bytes show behind the end");
        world.close(fs).await;
    });
}

#[test]
fn the_place_of_a_subvolume_in_a_snapshot_has_no_flags_to_set() {
    let world = World::new(11, 8192);
    world.run(async {
        let fs = world.open().await;
        let by = &Caller::ROOT;
        let root = |subvol| NodeId { subvol, ino: InodeNo::ROOT };
        let outer = fs.create_subvolume(by, ROOT, b"a", None).await.unwrap();
        fs.create_subvolume(by, root(outer), b"inner", None).await.unwrap();
        let copy = fs.snapshot(outer, ROOT, b"s", false, None).await.unwrap();
        let place = fs.lookup(root(copy), b"inner").await.unwrap().node;
        let set = fs.set_flags(by, place, FileFlags(0), None).await;
        assert!(matches!(set, Err(FsError::NotPermitted(_))), "{set:?}");
        world.close(fs).await;
    });
}
