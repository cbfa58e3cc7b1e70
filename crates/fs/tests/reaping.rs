//! The removal of an unlinked file that fails is tried again.

mod common;

use std::time::Duration;

use common::*;
use copyhold_device::DynDevice;
use copyhold_device::sim::{Fault, SimConfig, SimDevice, SimImage, Trigger};
use copyhold_format::item::{LISTS, ORPHAN};
use copyhold_fs::{Caller, Filesystem, FsError, OpenFlags, Options};
use copyhold_pool::{CreateOptions, Pool};
use copyhold_runtime::{Rt, Runtime};
use copyhold_types::{DeviceId, Key, SubvolId};

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

/// A read without an open holds the lock of the file's map while it waits for the device, so the
/// removal waits for it; the open comes in that time.
#[test]
fn a_file_that_is_opened_while_its_removal_waits_keeps_its_content() {
    let content = pattern(3, 4096);
    let last = 8192 * 999;
    let mut world = World::on(4001, SimImage::empty(65536));
    world.run(async {
        let (rt, device) = (world.rt.clone() as Rt, world.device.clone() as DynDevice);
        // Nodes so small that the file's extents are in many.
        let options = CreateOptions { node_bytes: Some(4096), ..CreateOptions::default() };
        Pool::create(&rt, &device, &options).await.unwrap();
        let pool = world.pool(false).await;
        Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
        pool.close().await.unwrap();
        let fs = world.open().await;
        let node = create(&fs, "f").await;
        for block in 0..1000 {
            write(&fs, node, 8192 * block, &content).await;
        }
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        world.close(fs).await;
    });
    // Each read takes a second.
    let read_latency = 1_000_000_000..1_000_000_001;
    let config = SimConfig { read_latency, one_slow_in: 0, ..SimConfig::new(4001) };
    let rt: Rt = world.rt.clone();
    world.device = SimDevice::from_image(rt, DeviceId(0), world.device.image(), config);
    world.run(async {
        let fs = world.open_with(Options { count_lookups: false, ..Options::default() }).await;
        let node = lookup(&fs, "f").await.unwrap().node;
        fs.open_node(node, OpenFlags::READ).await.unwrap();
        fs.unlink(ROOT, b"f").await.unwrap();
        let reader = fs.clone();
        world.rt.spawn(Box::pin(async move {
            let _ = reader.read(node, last, 1).await;
        }));
        world.rt.sleep(Duration::from_millis(100)).await;
        fs.release(node);
        world.rt.sleep(Duration::from_millis(100)).await;
        let opened = fs.open_node(node, OpenFlags::READ).await;
        assert!(opened.is_ok(), "the removal still waits: {opened:?}");
        world.rt.sleep(Duration::from_secs(30)).await;
        assert!(read(&fs, node, last, 4096).await == content);
        fs.release(node);
        fs.reaper_idle().await;
        assert!(matches!(fs.getattr(node).await, Err(FsError::Stale)), "it is removed at last");
        world.close(fs).await;
    });
}
