//! Place and birth name one content (BIRTH-B1, BIRTH-B2), also of blocks that are written and not
//! needed, or that the device refuses. Space is so scarce that it is used again as soon as it may.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_device::pi::DriveFault;
use copyhold_device::sim::SimImage;
use copyhold_format::item::ChecksumMode;
use copyhold_fs::{
    Caller, FallocateMode, Filesystem, FsError, NodeId, Options, SetAttr, set_checksum_mode,
};
use copyhold_pool::Limits;
use copyhold_runtime::Rt;
use copyhold_types::Purpose;
use futures_util::future::join;

use crate::common::births::Births;
use crate::common::{World, create, make_pool, mount, pattern, read, seeds, write};

const BLOCK: usize = 4096;
/// More than travels with an fsync.
const LARGE: usize = 24 * BLOCK;
/// So little that a file is written together with others.
const SMALL: usize = 4 * BLOCK;
/// Blocks that are left.
const LEFT: u64 = 72;
/// Data becomes old soon, and txgs become so late.
const INTERVAL: Duration = Duration::from_millis(50);

/// A filesystem on a namespace with so many blocks left.
async fn scarce(world: &World, left: u64) -> (Arc<Births>, Arc<Filesystem>) {
    let rt: Rt = world.rt.clone();
    let drive = Births::create(rt.clone(), world.device.clone()).await;
    let device: DynDevice = drive.clone();
    make_pool(&rt, &device, 1 << 20).await;
    let options = Options { writeback_interval: INTERVAL, ..Options::default() };
    let fs = mount(&rt, &device, Limits::default(), options).await;
    let hog = create(&fs, "hog").await;
    let bytes = (fs.pool().space().available() - left) * BLOCK as u64;
    fs.fallocate(hog, 0, bytes, FallocateMode::Allocate { keep_size: true }).await.unwrap();
    fs.sync().await.unwrap();
    (drive, fs)
}

async fn guarded(fs: &Arc<Filesystem>, name: &str) -> NodeId {
    let file = create(fs, name).await;
    set_checksum_mode(fs, &Caller::ROOT, file, ChecksumMode::Guard).await.unwrap();
    file
}

/// Waits until more blocks were written with a birth than so many.
async fn until_more_than(fs: &Arc<Filesystem>, drive: &Births, count: usize) {
    while drive.count() <= count {
        fs.pool().runtime().sleep(Duration::from_micros(5)).await;
    }
}

/// Writes blocks to a new file as long as there is room, and makes them durable.
async fn fill(fs: &Arc<Filesystem>) {
    let file = guarded(fs, "rest").await;
    for at in 0.. {
        let data = pattern(90 + at as u8, BLOCK);
        match fs.write(file, (at * BLOCK) as u64, &data, Default::default()).await {
            Ok(()) => {}
            Err(FsError::NoSpace(_)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    fs.sync().await.unwrap();
}

#[test]
fn blocks_that_are_overwritten_on_their_way_leave_their_place_to_a_later_birth() {
    for seed in seeds(10) {
        let world = World::on(seed, SimImage::empty(4096));
        world.run(async {
            let (drive, fs) = scarce(&world, LEFT).await;
            let file = guarded(&fs, "f").await;
            for round in 0..12 {
                let (first, second) = (pattern(2 * round, LARGE), pattern(2 * round + 1, LARGE));
                write(&fs, file, 0, &first).await;
                let count = drive.count();
                let overwrite = async {
                    until_more_than(&fs, &drive, count).await;
                    write(&fs, file, 0, &second).await;
                };
                let (synced, ()) = join(fs.fsync(file, false), overwrite).await;
                synced.unwrap();
                fs.fsync(file, false).await.unwrap();
                assert_eq!(read(&fs, file, 0, LARGE).await, second, "seed {seed}");
            }
            world.close(fs).await;
        });
    }
}

/// Both files lie in one request.
async fn write_two(fs: &Arc<Filesystem>) -> [NodeId; 2] {
    let files = [guarded(fs, "a").await, guarded(fs, "b").await];
    // A batch of this mount is durable: tags are possible (BIRTH-B1).
    fs.sync().await.unwrap();
    for (file, seed) in files.into_iter().zip([1, 2]) {
        write(fs, file, 0, &pattern(seed, SMALL)).await;
    }
    files
}

#[test]
fn a_file_that_is_cut_while_a_request_has_it_takes_nothing_from_the_other() {
    for seed in seeds(10) {
        let world = World::on(seed, SimImage::empty(4096));
        world.run(async {
            let (drive, fs) = scarce(&world, LEFT).await;
            let [a, b] = write_two(&fs).await;
            until_more_than(&fs, &drive, 0).await;
            assert_eq!(drive.count(), 2 * SMALL / BLOCK, "one request has both");
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, a, &cut).await.unwrap();
            fs.sync().await.unwrap();
            fill(&fs).await;
            assert_eq!(read(&fs, b, 0, SMALL).await, pattern(2, SMALL), "seed {seed}");
            world.close(fs).await;
        });
    }
}

/// The device refuses the request of both, and then that of the first alone: its claims are
/// cancelled, and no other content gets their place with their birth (BIRTH-B2).
#[test]
fn a_file_of_which_a_request_is_refused_twice_takes_nothing_from_the_other() {
    for seed in seeds(10) {
        let world = World::on(seed, SimImage::empty(4096));
        world.run(async {
            let (drive, fs) = scarce(&world, LEFT).await;
            let [a, b] = write_two(&fs).await;
            let before = drive.requests();
            for nth in 0..2 {
                drive.drive.arm(Purpose::Data, nth, DriveFault::FlipToDrive);
            }
            fs.pool().runtime().sleep(3 * INTERVAL).await;
            assert_eq!(drive.requests() - before, 4, "both, the first twice, the second");
            fill(&fs).await;
            for (file, content) in [(a, 1), (b, 2)] {
                let found = read(&fs, file, 0, SMALL).await;
                assert_eq!(found, pattern(content, SMALL), "seed {seed}, {content}");
            }
            world.close(fs).await;
        });
    }
}
