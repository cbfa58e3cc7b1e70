//! The promises of fsync, sync and close hold beside batches that are under way.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use copyhold_device::sim::{Fault, Trigger};
use copyhold_fs::{Caller, FallocateMode, Filesystem, OpenFlags, Options, RenameFlags, SetAttr};
use copyhold_types::Purpose;

use crate::common::*;

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

/// Other files press inodes out of memory.
async fn leaves_memory(fs: &Arc<Filesystem>) {
    for n in 0..400 {
        let other = create(fs, &format!("other{n}")).await;
        fs.release(other);
        fs.forget(other, 1);
    }
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

/// Changes of an emptied file before and behind its inode's eviction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Emptied {
    Alone,
    Looked,
    GrownBefore,
    GrownBehind,
}

/// The timer logs the truncation, and other files press the inode out of memory: neither is what
/// close has promised (DIRTY-D8).
#[test]
fn close_makes_a_truncation_durable_that_has_left_memory() {
    let options = Options {
        inodes_max: 1,
        writeback_interval: Duration::from_millis(5),
        ..Options::default()
    };
    let grow = SetAttr { size: Some(BLOCK), ..SetAttr::default() };
    for case in [Emptied::Alone, Emptied::Looked, Emptied::GrownBefore, Emptied::GrownBehind] {
        for seed in seeds(10) {
            let found = after_crash(seed, options.clone(), async |fs| {
                let file = create(fs, "f").await;
                write(fs, file, 0, &pattern(1, BYTES)).await;
                fs.fsync(file, false).await.unwrap();
                fs.release(file);
                fs.sync().await.unwrap();
                let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
                fs.open_node(file, flags).await.unwrap();
                if case == Emptied::GrownBefore {
                    fs.setattr(&Caller::ROOT, file, &grow).await.unwrap();
                }
                fs.pool().runtime().sleep(Duration::from_millis(20)).await;
                leaves_memory(fs).await;
                if case != Emptied::Alone {
                    fs.getattr(file).await.expect("it is read again");
                }
                if case == Emptied::GrownBehind {
                    fs.setattr(&Caller::ROOT, file, &grow).await.unwrap();
                }
                fs.flush(file).await.unwrap();
            });
            let is_grown = matches!(case, Emptied::GrownBefore | Emptied::GrownBehind);
            let left = if is_grown { BLOCK as usize } else { 0 };
            assert!(found == vec![0; left], "{case:?}, seed {seed}: {} bytes", found.len());
        }
    }
}

/// Zeros that a growing file gets are not written by anybody: the truncation is still durable when
/// the close returns (DIRTY-D8).
#[test]
fn close_makes_a_truncation_durable_behind_which_a_tiny_file_grows() {
    for seed in seeds(10) {
        let found = after_crash(seed, Options::default(), async |fs| {
            let file = create(fs, "f").await;
            write(fs, file, 0, &pattern(1, 50)).await;
            fs.fsync(file, false).await.unwrap();
            fs.release(file);
            let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
            fs.open_node(file, flags).await.unwrap();
            for size in [100, 200] {
                let grow = SetAttr { size: Some(size), ..SetAttr::default() };
                fs.setattr(&Caller::ROOT, file, &grow).await.unwrap();
            }
            fs.flush(file).await.unwrap();
        });
        assert_eq!(found, vec![0; 200], "seed {seed}");
    }
}

/// A close commits only where a crash could bring content back.
#[test]
fn close_commits_nothing_for_a_file_that_is_durably_empty_or_was_written_to() {
    let world = World::new(1, 16_384);
    world.run(async {
        let options = Options {
            inodes_max: 1,
            writeback_interval: Duration::from_millis(5),
            ..Options::default()
        };
        let fs = world.open_with(options).await;
        let empties = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        let commits = async |file| {
            let before = fs.pool().durable_txg();
            fs.flush(file).await.unwrap();
            fs.pool().durable_txg() > before
        };
        let file = create(&fs, "f").await;
        fs.open_node(file, empties).await.unwrap();
        assert!(commits(file).await, "its name is not durable");
        fs.release(file);
        fs.release(file);
        fs.open_node(file, empties).await.unwrap();
        assert!(!commits(file).await, "it is durably empty");
        write(&fs, file, 0, b"content").await;
        assert!(!commits(file).await, "it was written to");
        fs.fsync(file, false).await.unwrap();
        fs.open_node(file, empties).await.unwrap();
        let source = create(&fs, "source").await;
        write(&fs, source, 0, &pattern(1, BYTES)).await;
        fs.sync().await.unwrap();
        assert!(!commits(file).await, "a sync has made it durable");
        fs.open_node(file, empties).await.unwrap();
        fs.copy_file_range(source, 0, file, 0, BYTES as u64).await.unwrap();
        assert!(!commits(file).await, "it was copied to");
        fs.fsync(file, false).await.unwrap();
        fs.open_node(file, empties).await.unwrap();
        fs.pool().runtime().sleep(Duration::from_millis(20)).await;
        leaves_memory(&fs).await;
        write(&fs, file, 0, b"other").await;
        assert!(!commits(file).await, "it was written to since it was read again");
        world.close(fs).await;
    });
}

/// The file that a name leads to is empty, whatever was there before.
#[test]
fn close_makes_a_truncation_durable_of_a_file_that_has_replaced_another() {
    let found = after_crash(1, Options::default(), async |fs| {
        let file = create(fs, "f").await;
        write(fs, file, 0, &pattern(1, BYTES)).await;
        fs.fsync(file, false).await.unwrap();
        let other = create(fs, "other").await;
        fs.rename(&Caller::ROOT, ROOT, b"other", ROOT, b"f", RenameFlags::default()).await.unwrap();
        let empties = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        fs.open_node(other, empties).await.unwrap();
        fs.flush(other).await.unwrap();
    });
    assert!(found.is_empty(), "{} bytes", found.len());
}

/// R34: a close takes no error that an fsync is to report.
#[test]
fn close_leaves_an_error_of_the_background_to_fsync() {
    let world = World::new(3, 16_384);
    world.run(async {
        let options =
            Options { writeback_interval: Duration::from_millis(5), ..Options::default() };
        let fs = world.open_with(options).await;
        let file = create(&fs, "f").await;
        fs.sync().await.unwrap();
        let of_data = Trigger::Write { nth: 0, why: Some(Purpose::Data) };
        world.device.arm(of_data, Fault::Error(5));
        write(&fs, file, 0, &pattern(1, BYTES)).await;
        fs.pool().runtime().sleep(Duration::from_secs(5)).await;
        let empties = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        fs.open_node(file, empties).await.unwrap();
        fs.flush(file).await.expect("nothing of it has failed");
        fs.fsync(file, false).await.expect_err("a write in the background has");
        fs.fsync(file, false).await.expect("an fsync reports it once");
        world.close(fs).await;
    });
}

/// R34: a close reports its own error, and no fsync reports that again.
#[test]
fn close_tells_its_own_error_once() {
    let world = World::new(4, 16_384);
    world.run(async {
        let options = Options { attach_bytes_max: 0, ..Options::default() };
        let fs = world.open_with(options).await;
        let file = create(&fs, "f").await;
        write(&fs, file, 0, &pattern(1, 50)).await;
        fs.fsync(file, false).await.unwrap();
        let empties = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        fs.open_node(file, empties).await.unwrap();
        for size in [100, 2 * BLOCK] {
            // Zeros behind its end are written.
            let grow = SetAttr { size: Some(size), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, file, &grow).await.unwrap();
        }
        let of_data = Trigger::Write { nth: 0, why: Some(Purpose::Data) };
        world.device.arm(of_data, Fault::Error(5));
        fs.flush(file).await.expect_err("its write fails");
        fs.fsync(file, false).await.expect("the close has reported it");
        world.close(fs).await;
    });
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

/// A reflink behind the end logs no size beyond a block that is still to be installed (FILES-F1).
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
