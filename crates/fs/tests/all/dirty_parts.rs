//! Dirty data is shared out among tenants when it is scarce.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_fs::{Filesystem, NodeId, Options};
use copyhold_memory::MemoryClass;
use copyhold_pool::Limits;
use copyhold_runtime::{Rt, Runtime};
use copyhold_types::SubvolId;
use futures_util::future::join_all;

use crate::common::queued::QueuedDevice;
use crate::common::{World, mount, pattern, write};
use crate::quotas::{make, root_of, subvolume};

const LIMIT: u64 = 4 << 20;

/// Bounds of the bytes at the device (FLIGHT-L1).
const ALONE: u64 = 16 << 20;
const BESIDE: u64 = 2 << 20;

/// Writers of this tenant fill the limit, in files of a MiB each.
async fn flood(fs: &Arc<Filesystem>, files: &[NodeId]) {
    let all = files.iter().map(|file| async {
        for at in 0..16 {
            write(fs, *file, at * 65_536, &pattern(1, 65_536)).await;
        }
    });
    join_all(all).await;
}

/// SCARCE-P2.
#[test]
fn a_tenant_writes_without_a_wait_beside_one_that_has_more_than_its_part() {
    let world = World::new(71, 65536);
    world.run(async {
        let options = Options { dirty_bytes_max: LIMIT, ..Options::default() };
        let fs = world.open_with(options).await;
        let (rogue, neighbour) = (subvolume(&fs, "rogue").await, subvolume(&fs, "neighbour").await);
        let mut files = Vec::new();
        for n in 0..32 {
            files.push(make(&fs, root_of(rogue), &format!("file{n}")).await.unwrap());
        }
        let file = make(&fs, root_of(neighbour), "file").await.unwrap();
        write(&fs, file, 0, &pattern(2, 65_536)).await;
        fs.sync().await.unwrap();
        let (begun, mut scarce) = (world.rt.now(), 0);
        let mut flooding = Box::pin(flood(&fs, &files));
        while futures_util::poll!(&mut flooding).is_pending() {
            let before = world.rt.now();
            scarce += usize::from(fs.dirty_bytes() >= LIMIT * 3 / 4);
            write(&fs, file, 0, &pattern(3, 65_536)).await;
            assert_eq!(world.rt.now(), before, "the neighbour waits");
            world.rt.sleep(Duration::from_micros(50)).await;
        }
        drop(flooding);
        assert!(world.rt.now() > begun && scarce > 5, "the rogue waits, in {scarce} looks");
        world.close(fs).await;
    });
}

/// A tenant that waits for room has its fsync answered.
#[test]
fn an_fsync_goes_on_while_writers_of_its_tenant_wait_for_room() {
    let world = World::new(72, 65536);
    world.run(async {
        let options = Options { dirty_bytes_max: LIMIT, ..Options::default() };
        let fs = world.open_with(options).await;
        let rogue = subvolume(&fs, "rogue").await;
        let mut files = Vec::new();
        for n in 0..32 {
            files.push(make(&fs, root_of(rogue), &format!("file{n}")).await.unwrap());
        }
        let mut flooding = Box::pin(flood(&fs, &files[1..]));
        write(&fs, files[0], 0, &pattern(2, 65_536)).await;
        assert!(futures_util::poll!(&mut flooding).is_pending(), "its writers wait");
        fs.fsync(files[0], false).await.unwrap();
        assert!(futures_util::poll!(&mut flooding).is_pending(), "they still do");
        flooding.await;
        world.close(fs).await;
    });
}

/// A filesystem on a device that serves one request after the other.
async fn queued(world: &World) -> (Arc<QueuedDevice>, Arc<Filesystem>) {
    let rt: Rt = world.rt.clone();
    let device = QueuedDevice::new(rt.clone(), world.device.clone());
    let below: DynDevice = device.clone();
    let fs = mount(&rt, &below, Limits::default(), Options::default()).await;
    (device, fs)
}

async fn sixteen_files(fs: &Arc<Filesystem>, of: SubvolId) -> Vec<NodeId> {
    let mut files = Vec::new();
    for n in 0..16 {
        files.push(make(fs, root_of(of), &format!("file{n}")).await.unwrap());
    }
    files
}

/// Writes 24 MiB to each file, as fast as it may.
async fn stream(fs: &Arc<Filesystem>, files: &[NodeId]) {
    let all = files.iter().map(|file| async {
        for at in 0..24 {
            write(fs, *file, at << 20, &pattern(1, 1 << 20)).await;
        }
    });
    join_all(all).await;
}

/// A tenant writes large files, and makes a block durable now and then, so write-back for another
/// one has little room. The other's data is written all the same (FLIGHT-L3).
#[test]
fn data_of_a_tenant_is_written_beside_one_that_writes_and_waits_for_the_device() {
    let world = World::with_log(74, 262_144, 32 << 20);
    world.run(async {
        let (_, fs) = queued(&world).await;
        let (rogue, neighbour) = (subvolume(&fs, "rogue").await, subvolume(&fs, "neighbour").await);
        let files = sixteen_files(&fs, rogue).await;
        let synced = make(&fs, root_of(rogue), "synced").await.unwrap();
        let file = make(&fs, root_of(neighbour), "file").await.unwrap();
        fs.sync().await.unwrap();
        let mut streaming = Box::pin(stream(&fs, &files));
        assert!(futures_util::poll!(&mut streaming).is_pending());
        write(&fs, synced, 0, &pattern(2, 4096)).await;
        fs.fsync(synced, false).await.unwrap();
        write(&fs, file, 0, &pattern(3, 8 << 20)).await;
        let owner = fs.volumes().subvol(neighbour).unwrap().owner().clone();
        while owner.charged(MemoryClass::Dirty) > 0 {
            assert!(futures_util::poll!(&mut streaming).is_pending(), "its data is not written");
            world.rt.sleep(Duration::from_millis(10)).await;
        }
        streaming.await;
        world.close(fs).await;
    });
}

/// Tasks that make 4 MiB of each file durable, so many times; each has a copy of the result until
/// it ends. An fsync may lead the commit of others, so it needs a task of its own.
fn make_durable(world: &World, fs: &Arc<Filesystem>, files: &[NodeId], times: usize) -> Arc<()> {
    let running = Arc::new(());
    for &file in files {
        let (fs, runs) = (fs.clone(), running.clone());
        world.rt.spawn(Box::pin(async move {
            for _ in 0..times {
                write(&fs, file, 0, &pattern(1, 4 << 20)).await;
                fs.fsync(file, false).await.unwrap();
            }
            drop(runs);
        }));
    }
    running
}

/// Makes a block of the file durable: the bytes of data at the device before, and the wait.
async fn durable_block(
    world: &World,
    device: &QueuedDevice,
    fs: &Arc<Filesystem>,
    file: NodeId,
) -> (u64, Duration) {
    write(fs, file, 0, &pattern(3, 4096)).await;
    let (ahead, begun) = (device.data_bytes(), world.rt.now());
    fs.fsync(file, false).await.unwrap();
    (ahead, Duration::from_nanos(world.rt.now() - begun))
}

/// FLIGHT-L4: callers of a tenant make large files durable, and another one makes a block durable
/// now and then. Both go on, and the second one waits for few bytes of the first one.
#[test]
fn an_fsync_waits_for_few_bytes_that_others_make_durable() {
    let world = World::with_log(75, 262_144, 32 << 20);
    world.run(async {
        let (device, fs) = queued(&world).await;
        let (rogue, neighbour) = (subvolume(&fs, "rogue").await, subvolume(&fs, "neighbour").await);
        let files = sixteen_files(&fs, rogue).await;
        let file = make(&fs, root_of(neighbour), "file").await.unwrap();
        fs.sync().await.unwrap();
        let running = make_durable(&world, &fs, &files, 8);
        let mut waits = Vec::new();
        while Arc::strong_count(&running) > 1 {
            waits.push(durable_block(&world, &device, &fs, file).await);
            world.rt.sleep(Duration::from_millis(10)).await;
        }
        let (first, later) = waits.split_first().unwrap();
        assert!(first.0 <= 2 * ALONE && later.len() > 20, "{waits:?}");
        // Of the callers, and of tasks that write back the same files.
        assert!(later.iter().all(|(ahead, _)| *ahead <= 2 * BESIDE), "FLIGHT-L4: {waits:?}");
        let most = QueuedDevice::time_of(8 * BESIDE, 64);
        assert!(later.iter().all(|(_, took)| *took < most), "{waits:?}");
        world.close(fs).await;
    });
}

/// A tenant writes large files as fast as it may; another one makes a block durable now and then.
/// Its fsync waits at the device for few bytes of the first one's data (FLIGHT-L1).
#[test]
fn an_fsync_waits_for_few_bytes_that_others_write_back() {
    let world = World::with_log(73, 262_144, 32 << 20);
    world.run(async {
        let (device, fs) = queued(&world).await;
        let (rogue, neighbour) = (subvolume(&fs, "rogue").await, subvolume(&fs, "neighbour").await);
        let files = sixteen_files(&fs, rogue).await;
        let file = make(&fs, root_of(neighbour), "file").await.unwrap();
        fs.sync().await.unwrap();
        let mut flooding = Box::pin(stream(&fs, &files));
        let mut waits = Vec::new();
        while futures_util::poll!(&mut flooding).is_pending() {
            world.rt.sleep(Duration::from_millis(10)).await;
            waits.push(durable_block(&world, &device, &fs, file).await);
        }
        let (first, later) = waits.split_first().unwrap();
        assert!(first.0 <= ALONE && later.len() > 20, "{waits:?}");
        assert!(later.iter().all(|(ahead, _)| *ahead <= BESIDE), "FLIGHT-L1: {waits:?}");
        // Each of few requests waits for these bytes.
        let most = QueuedDevice::time_of(4 * BESIDE, 64);
        assert!(later.iter().all(|(_, took)| *took < most), "{waits:?}");
        drop(flooding);
        world.close(fs).await;
    });
}
