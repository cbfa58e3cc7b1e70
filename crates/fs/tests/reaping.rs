//! The removal of an unlinked file that fails is tried again.

mod common;

use std::time::Duration;

use common::*;
use copyhold_device::sim::{Fault, Trigger};
use copyhold_format::item::{LISTS, ORPHAN};
use copyhold_runtime::Runtime;
use copyhold_types::{Key, SubvolId};

const EIO: i32 = 5;

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
        let reads = || fs.pool().counters().purposes.iter().map(|count| count.reads).sum::<u64>();
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
