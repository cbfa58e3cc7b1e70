//! The removal of an unlinked file that fails is tried again.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::{Fault, Trigger};
use copyhold_format::item::{LISTS, ORPHAN};
use copyhold_fs::{Filesystem, NodeId};
use copyhold_pool::{Reservation, Tier};
use copyhold_runtime::Runtime;
use copyhold_types::{Key, SubvolId};

use crate::common::*;

const EIO: i32 = 5;
/// Extents of a file, each a block.
const EXTENTS: u64 = 1200;

/// An unlinked file that is still in use, and what takes all but `left` blocks of the space that
/// the reaper may use.
async fn unlinked(fs: &Arc<Filesystem>, left: i64) -> (NodeId, Reservation) {
    let node = create(fs, "f").await;
    for block in 0..EXTENTS {
        write(fs, node, 8192 * block, &pattern(block as u8, 4096)).await;
    }
    fs.sync().await.unwrap();
    fs.unlink(ROOT, b"f").await.unwrap();
    fs.sync().await.unwrap();
    fs.pool().flush_all().await.unwrap();
    let space = fs.pool().space();
    let taken = space.free - space.reserved - space.reserve / 8 * 3;
    (node, fs.pool().reserve_now(taken.strict_sub_signed(left), Tier::Internal).unwrap())
}

async fn is_reaped(fs: &Filesystem) -> bool {
    let root = fs.volumes().subvol(SubvolId::ROOT).unwrap();
    let (from, to) = (Key::new(LISTS, ORPHAN, 0), Key::new(LISTS, ORPHAN, u64::MAX));
    fs.volumes().range(&root, from, to, 10).await.unwrap().is_empty()
}

#[test]
fn the_reaper_takes_smaller_steps_where_space_is_short() {
    let world = World::new(4000, 65536);
    world.run(async {
        let fs = world.open().await;
        // 256 extents need more.
        let (node, taken) = unlinked(&fs, 2).await;
        fs.release(node);
        fs.forget(node, 1);
        fs.reaper_idle().await;
        assert!(is_reaped(&fs).await, "R28: no step is too large for the space that is left");
        drop(taken);
        world.close(fs).await;
    });
}

#[test]
fn a_write_waits_for_an_unlinked_file_that_the_reaper_had_no_space_for() {
    let world = World::new(4000, 65536);
    world.run(async {
        let fs = world.open().await;
        let (node, taken) = unlinked(&fs, -100).await;
        fs.release(node);
        fs.forget(node, 1);
        fs.reaper_idle().await;
        assert!(!is_reaped(&fs).await, "there was no space for it");
        drop(taken);
        let space = fs.pool().space();
        let room = space.free - space.reserved - space.reserve;
        let other = create(&fs, "other").await;
        let blocks = room + EXTENTS / 2;
        for at in (0..blocks * 4096).step_by(1 << 20) {
            let written = fs.write(other, at, &[1; 1 << 20], Default::default()).await;
            written.unwrap_or_else(|error| panic!("R22: at {at} of {blocks} blocks: {error}"));
        }
        fs.sync().await.unwrap();
        world.close(fs).await;
    });
}

#[test]
fn an_unlinked_file_that_cannot_be_removed_is_tried_again_ever_less_often() {
    let world = World::new(4000, 65536);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "f").await;
        // More extents than a node has room for.
        for block in 0..6000 {
            write(&fs, node, 8192 * block, &pattern(block as u8, 4096)).await;
        }
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        world.close(fs).await;
    });
    world.run(async {
        let fs = world.open().await;
        let free = fs.pool().space().free;
        let node = lookup(&fs, "f").await.unwrap().node;
        world.device.arm_for_good(Trigger::Read { nth: 0 }, Fault::Error(EIO));
        // The directory has been read; what leads to the file's extents has not.
        fs.unlink(ROOT, b"f").await.unwrap();
        fs.forget(node, 1);
        let reads =
            || fs.pool().devices().counters().purposes.iter().map(|count| count.reads).sum::<u64>();
        world.rt.sleep(Duration::from_secs(1)).await;
        let before = reads();
        world.rt.sleep(Duration::from_secs(1000)).await;
        let tries = reads() - before;
        assert!((1..200).contains(&tries), "{tries} reads in a thousand seconds");
        world.device.disarm();
        world.rt.sleep(Duration::from_secs(200)).await;
        let root = fs.volumes().subvol(SubvolId::ROOT).unwrap();
        let (from, to) = (Key::new(LISTS, ORPHAN, 0), Key::new(LISTS, ORPHAN, u64::MAX));
        assert_eq!(fs.volumes().range(&root, from, to, 10).await.unwrap().len(), 0);
        for _ in 0..4 {
            fs.sync().await.unwrap();
            fs.pool().flush_all().await.unwrap();
        }
        assert!(fs.pool().space().free >= free + 5900, "its space is free");
        world.close(fs).await;
    });
}
