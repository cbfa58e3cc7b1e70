//! The promises of fsync, sync and close hold beside batches that are under way.

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use common::*;
use copyhold_fs::{FallocateMode, Filesystem, OpenFlags, Options};

const BYTES: usize = 300_000;
const BLOCK: u64 = 4096;
const WHOLE: usize = BYTES / 4096 * 4096;
const HOLE: Range<u64> = 8 * BLOCK..40 * BLOCK;

/// The content of `f` after `then`, on a new filesystem with these options, and a crash.
fn after_crash(seed: u64, options: Options, then: impl AsyncFnOnce(&Arc<Filesystem>)) -> Vec<u8> {
    let world = World::new(seed, 16_384);
    let fs = world.run(async {
        let fs = world.open_with(options).await;
        then(&fs).await;
        fs
    });
    let world = world.crash(fs, seed);
    world.run(async {
        let fs = world.open().await;
        let file = lookup(&fs, "f").await.unwrap().node;
        let found = read(&fs, file, 0, 2 * BYTES).await;
        world.close(fs).await;
        found
    })
}

async fn wait_up_to(fs: &Arc<Filesystem>, nanos: u64) {
    let rt = fs.pool().runtime();
    rt.sleep(Duration::from_nanos(rt.random() % nanos)).await;
}

fn sync_beside(fs: &Arc<Filesystem>) {
    let other = fs.clone();
    fs.pool().runtime().spawn(Box::pin(async move { drop(other.sync().await) }));
}

/// A block that is rewritten while a batch writes it is taken by a second batch, which may be that
/// of another caller and begin behind the fsync (R34).
#[test]
fn fsync_waits_for_a_batch_of_another_caller_that_took_what_was_accepted_before() {
    for seed in seeds(60) {
        let found = after_crash(seed, Options::default(), async |fs| {
            let file = create(fs, "f").await;
            for version in 1..3 {
                write(fs, file, 0, &pattern(version, BYTES)).await;
                sync_beside(fs);
                wait_up_to(fs, 60_000).await;
            }
            write(fs, file, 0, &pattern(3, BYTES)).await;
            sync_beside(fs);
            wait_up_to(fs, 60_000).await;
            fs.fsync(file, false).await.unwrap();
        });
        assert!(found == pattern(3, BYTES), "seed {seed}");
    }
}

/// The timer logs the truncation, and other files press the inode out of memory: neither is what
/// close has promised (D8).
#[test]
fn close_makes_a_truncation_durable_that_has_left_memory() {
    let options = Options {
        inodes_max: 1,
        writeback_interval: Duration::from_millis(5),
        ..Options::default()
    };
    for seed in seeds(20) {
        let found = after_crash(seed, options.clone(), async |fs| {
            let file = create(fs, "f").await;
            write(fs, file, 0, &pattern(1, BYTES)).await;
            fs.fsync(file, false).await.unwrap();
            fs.release(file);
            fs.sync().await.unwrap();
            let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
            fs.open_node(file, flags).await.unwrap();
            fs.pool().runtime().sleep(Duration::from_millis(20)).await;
            for n in 0..400 {
                let other = create(fs, &format!("other{n}")).await;
                fs.release(other);
                fs.forget(other, 1);
            }
            match seed.is_multiple_of(2) {
                true => assert!(fs.has_content(file), "its close is to be told"),
                false => assert_eq!(fs.getattr(file).await.unwrap().size, 0, "it is read again"),
            }
            fs.flush(file).await.unwrap();
        });
        assert_eq!(found.len(), 0, "seed {seed}");
    }
}

/// Of a batch that waits for another file's, the space of some blocks is punched out: that is no
/// error, and the others go to where they belong. Both sides of the hole were allocated together,
/// so they are neighbours on the device.
#[test]
fn what_is_punched_out_before_it_is_written_in_place_leaves_the_rest_right() {
    let met = AtomicU64::new(0);
    let options = Options { dirty_bytes_max: 1 << 20, ..Options::default() };
    for seed in seeds(40) {
        let world = World::new(seed, 16_384);
        world.run(async {
            let fs = world.open_with(options.clone()).await;
            let mut files = Vec::new();
            for name in ["e", "f"] {
                let file = create(&fs, name).await;
                let mode = FallocateMode::Allocate { keep_size: false };
                fs.fallocate(file, HOLE.start, HOLE.end - HOLE.start, mode).await.unwrap();
                fs.fallocate(file, 0, BYTES as u64, mode).await.unwrap();
                files.push(file);
            }
            fs.sync().await.unwrap();
            // Without room for anything else, data goes to where it was preallocated.
            let hog = create(&fs, "hog").await;
            let mut at = 0;
            while fs.write(hog, at, &pattern(9, BYTES), Default::default()).await.is_ok() {
                at += BYTES as u64;
            }
            drop(fs.sync().await);
            for &file in &files {
                write(&fs, file, 0, &pattern(2, WHOLE)).await;
            }
            wait_up_to(&fs, 2_000_000).await;
            met.fetch_add(u64::from(fs.dirty_bytes() > WHOLE as u64), Relaxed);
            let len = HOLE.end - HOLE.start;
            fs.fallocate(files[1], HOLE.start, len, FallocateMode::Punch).await.unwrap();
            for &file in &files {
                fs.fsync(file, false).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            let mut right = pattern(2, WHOLE);
            assert!(read(&fs, files[0], 0, WHOLE).await == right, "seed {seed}: the whole file");
            right[HOLE.start as usize..HOLE.end as usize].fill(0);
            assert!(read(&fs, files[1], 0, WHOLE).await == right, "seed {seed}: the punched file");
            fs.unlink(ROOT, b"hog").await.unwrap();
            world.close(fs).await;
        });
    }
    assert!(met.load(Relaxed) > 5, "the second file waited: {met:?}");
}

/// A reflink behind the end logs no size beyond a block that is still to be installed (F1).
#[test]
fn a_reflink_behind_dirty_blocks_logs_no_size_beyond_them() {
    let met = AtomicU64::new(0);
    for seed in seeds(60) {
        let found = after_crash(seed, Options::default(), async |fs| {
            let source = create(fs, "source").await;
            write(fs, source, 0, &pattern(5, BYTES)).await;
            let file = create(fs, "f").await;
            fs.sync().await.unwrap();
            // Its batch is what the reflink waits for.
            write(fs, file, 0, &[8; BLOCK as usize]).await;
            let other = fs.clone();
            fs.pool().runtime().spawn(Box::pin(async move {
                drop(other.copy_file_range(source, 0, file, 2 * BLOCK, 16 * BLOCK).await);
            }));
            wait_up_to(fs, 60_000).await;
            write(fs, file, BLOCK, &[9; BLOCK as usize]).await;
            if fs.getattr(file).await.unwrap().size > 2 * BLOCK {
                // The reflink was first, and made a hole.
                return fs.fsync(file, false).await.unwrap();
            }
            met.fetch_add(1, Relaxed);
            wait_up_to(fs, 400_000).await;
            fs.pool().commit(fs.pool().open_txg()).await.unwrap();
        });
        let zeros = found.iter().take(2 * BLOCK as usize).filter(|byte| **byte == 0).count();
        assert_eq!(zeros, 0, "seed {seed}: of {} bytes", found.len());
    }
    assert!(met.load(Relaxed) > 10, "writes were before the reflink: {met:?}");
}
