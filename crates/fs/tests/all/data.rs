//! File data through crashes, errors and full pools.

use std::time::Duration;

use copyhold_device::Device;
use copyhold_device::sim::{Fault, Trigger};
use copyhold_format::item;
use copyhold_fs::{
    Caller, FallocateMode, Filesystem, FsError, NodeId, OpenFlags, Options, RenameFlags, Seek,
    SetAttr,
};
use copyhold_pool::Pool;
use copyhold_runtime::Runtime;
use copyhold_types::{Key, Purpose};
use futures_util::future::{Either, select};
use futures_util::pin_mut;

use crate::common::*;

fn resized(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// Batches of a file end in any order. What a crash leaves behind the end that is logged by then
/// must not show when the file grows.
#[test]
fn regression_blocks_behind_the_end_after_a_crash_are_zeros_when_the_file_grows() {
    const BLOCK: usize = 4096;
    let mut behind = 0;
    for seed in 0..128 {
        let world = World::new(seed, 8192);
        let options = Options {
            writeback_interval: Duration::from_micros(100),
            file_dirty_bytes_start: BLOCK as u64,
            attach_bytes_max: 0,
            ..Options::default()
        };
        let fs = world.run(async {
            let fs = world.open_with(options).await;
            let node = create(&fs, "f").await;
            fs.sync().await.unwrap();
            // The last block is being written when one before it is changed.
            for (n, pause) in [(2, seed % 8), (1, seed / 8)] {
                write(&fs, node, n * BLOCK as u64, &pattern(n as u8, BLOCK)).await;
                world.rt.sleep(Duration::from_micros(40 * pause)).await;
            }
            // What is logged becomes durable; what is not yet is lost.
            fs.pool().commit(fs.pool().open_txg()).await.unwrap();
            fs
        });
        let world = world.crash(fs, seed);
        world.run(async {
            let fs = world.open().await;
            let attr = lookup(&fs, "f").await.unwrap().attr;
            behind += usize::from(attr.size == BLOCK as u64);
            let set = SetAttr { size: Some(16 * BLOCK as u64), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, attr.node, &set).await.unwrap();
            let bytes = read(&fs, attr.node, attr.size, 16 * BLOCK).await;
            assert!(bytes.iter().all(|byte| *byte == 0), "seed {seed}: not zero behind the end");
            world.close(fs).await;
        });
    }
    assert!(behind > 0, "no crash came between");
}

#[test]
fn a_file_that_replaced_another_is_never_less_than_either() {
    for seed in 0..30 {
        let mut world = World::new(seed, 16384);
        let rt = world.rt.clone();
        let (old, new) = (pattern(1, 30_000), pattern(2, 90_000));
        let fs = rt.block_on(async {
            let fs = world.open().await;
            let node = create(&fs, "name").await;
            write(&fs, node, 0, &old).await;
            fs.fsync(node, false).await.unwrap();
            let fresh = create(&fs, "name.new").await;
            write(&fs, fresh, 0, &new).await;
            let flags = RenameFlags::default();
            fs.rename(&Caller::ROOT, ROOT, b"name.new", ROOT, b"name", flags).await.unwrap();
            fs.pool().runtime().sleep(Duration::from_millis(seed * 400)).await;
            fs
        });
        world = world.crash(fs, seed);
        world.run(async {
            let fs = world.open().await;
            let node = lookup(&fs, "name").await.unwrap().node;
            let found = read(&fs, node, 0, 100_000).await;
            assert!(found == old || found == new, "seed {seed}: {} bytes", found.len());
            check_space(&fs).await;
            world.close(fs).await;
        });
    }
}

#[test]
fn a_file_that_is_truncated_and_rewritten_is_never_left_empty() {
    for seed in 0..30 {
        let mut world = World::new(seed, 16384);
        let rt = world.rt.clone();
        let (old, new) = (pattern(1, 200_000), pattern(2, 150_000));
        let fs = rt.block_on(async {
            let fs = world.open().await;
            let node = create(&fs, "name").await;
            write(&fs, node, 0, &old).await;
            fs.fsync(node, false).await.unwrap();
            let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
            fs.open_node(node, flags).await.unwrap();
            // Other files' transactions commit in between; they do not carry the truncate.
            let other = create(&fs, "other").await;
            fs.fsync(other, false).await.unwrap();
            write(&fs, node, 0, &new).await;
            fs.pool().runtime().sleep(Duration::from_millis(seed * 300)).await;
            fs
        });
        world = world.crash(fs, seed);
        world.run(async {
            let fs = world.open().await;
            let node = lookup(&fs, "name").await.unwrap().node;
            let found = read(&fs, node, 0, 300_000).await;
            assert!(found == old || found == new, "seed {seed}: {} bytes", found.len());
            check_space(&fs).await;
            world.close(fs).await;
        });
    }
}

#[test]
fn fsynced_data_is_there_after_a_crash_whatever_follows() {
    for seed in 0..40u64 {
        let mut world = World::new(seed, 16384);
        let rt = world.rt.clone();
        let size = [10, 3000, 5000, 60_000, 300_000][seed as usize % 5];
        let data = pattern(seed as u8, size);
        let fs = rt.block_on(async {
            let fs = world.open().await;
            let node = create(&fs, "file").await;
            write(&fs, node, 0, &data).await;
            fs.fsync(node, seed % 2 == 0).await.unwrap();
            let other = create(&fs, "other").await;
            write(&fs, other, 0, &pattern(9, 200_000)).await;
            if seed % 3 == 0 {
                fs.fsync(other, false).await.unwrap();
            }
            fs
        });
        world = world.crash(fs, seed);
        world.run(async {
            let fs = world.open().await;
            let node = lookup(&fs, "file").await.unwrap().node;
            assert!(read(&fs, node, 0, size + 1).await == data, "seed {seed}");
            check_space(&fs).await;
            world.close(fs).await;
        });
    }
}

#[test]
fn a_small_fsync_writes_no_data_of_its_own() {
    let world = World::new(1, 16384);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "file").await;
        write(&fs, node, 0, &pattern(1, 1 << 20)).await;
        fs.fsync(node, false).await.unwrap();
        let before = world.device.counters().snapshot();
        write(&fs, node, 40960, &pattern(2, 4096)).await;
        fs.fsync(node, false).await.unwrap();
        let after = world.device.counters().snapshot();
        assert_eq!(after.flushes - before.flushes, 1);
        let data = Purpose::Data as usize;
        assert_eq!(after.purposes[data].writes - before.purposes[data].writes, 1);
        fs.fsync(node, false).await.unwrap();
        assert_eq!(world.device.counters().snapshot().flushes, after.flushes);
        // A 4 KiB read is one request of one block.
        let before = world.device.counters().snapshot();
        assert_eq!(read(&fs, node, 40960, 4096).await, pattern(2, 4096));
        let after = world.device.counters().snapshot();
        assert_eq!(after.purposes[data].reads - before.purposes[data].reads, 1);
        assert_eq!(after.purposes[data].read_bytes - before.purposes[data].read_bytes, 4096);
        world.close(fs).await;
    });
}

#[test]
fn what_was_cut_off_never_shows_again() {
    let world = World::new(2, 16384);
    world.run(async {
        let fs = world.open().await;
        let root = Caller::ROOT;
        let node = create(&fs, "file").await;
        write(&fs, node, 0, &[0xff; 20_000]).await;
        fs.fsync(node, false).await.unwrap();
        fs.setattr(&root, node, &resized(5000)).await.unwrap();
        fs.fsync(node, false).await.unwrap();
        fs.setattr(&root, node, &resized(12_000)).await.unwrap();
        let mut expected = vec![0; 12_000];
        expected[..5000].fill(0xff);
        assert_eq!(read(&fs, node, 0, 20_000).await, expected);
        world.close(fs).await;
        let fs = world.open().await;
        assert_eq!(read(&fs, node, 0, 20_000).await, expected);
        // Again with nothing written in between, and a write far behind the end.
        fs.setattr(&root, node, &resized(4500)).await.unwrap();
        write(&fs, node, 100_000, b"far").await;
        fs.sync().await.unwrap();
        let found = read(&fs, node, 0, 200_000).await;
        assert!(found[..4500].iter().all(|byte| *byte == 0xff));
        assert!(found[4500..100_000].iter().all(|byte| *byte == 0));
        assert_eq!(found[100_000..], b"far"[..]);
        world.close(fs).await;
    });
}

#[test]
fn a_file_of_many_extents_is_cut_in_steps_that_a_crash_does_not_stop() {
    for seed in 0..12 {
        let mut world = World::new(seed, 32768);
        let rt = world.rt.clone();
        let fs = rt.block_on(async {
            let fs = world.open().await;
            let node = create(&fs, "file").await;
            // Every other block: as many extents.
            for n in 0..700u64 {
                write(&fs, node, n * 8192, &[n as u8; 4096]).await;
            }
            fs.fsync(node, false).await.unwrap();
            fs.setattr(&Caller::ROOT, node, &resized(3 * 8192)).await.unwrap();
            let late = fs.clone();
            fs.pool().runtime().spawn(Box::pin(async move {
                let _ = late.sync().await;
            }));
            fs.pool().runtime().sleep(Duration::from_micros(seed * 150)).await;
            fs
        });
        world = world.crash(fs, seed);
        world.run(async {
            let fs = world.open().await;
            let attr = lookup(&fs, "file").await.unwrap().attr;
            let (node, size) = (attr.node, attr.size);
            assert!(size == 3 * 8192 || size == 699 * 8192 + 4096, "seed {seed}: {size}");
            for n in 0..size.div_ceil(8192) {
                assert_eq!(read(&fs, node, n * 8192, 4096).await, [n as u8; 4096], "seed {seed}");
            }
            if size == 3 * 8192 {
                assert!(matches!(
                    fs.seek(node, size - 4096, Seek::Data).await,
                    Err(FsError::PastEnd)
                ));
            }
            check_space(&fs).await;
            world.close(fs).await;
        });
    }
}

#[test]
fn a_full_pool_refuses_writes_loses_none_and_can_be_emptied() {
    let world = World::new(3, 4096);
    world.run(async {
        let fs = world.open_with(Options { dirty_bytes_max: 2 << 20, ..Options::default() }).await;
        let mut files: Vec<(NodeId, u64)> = Vec::new();
        let error = 'full: loop {
            let name = format!("file{}", files.len());
            let flags = OpenFlags::READ_WRITE;
            let made = fs.create(&Caller::ROOT, ROOT, name.as_bytes(), 0o600, flags, true).await;
            let node = match made {
                Ok((entry, _)) => entry.node,
                Err(error) => break error,
            };
            files.push((node, 0));
            for n in 0..16 {
                let data = pattern(files.len() as u8 ^ n, 65_536);
                let at = u64::from(n) * 65_536;
                match fs.write(node, at, &data, Default::default()).await {
                    Ok(()) => files.last_mut().unwrap().1 += 65_536,
                    Err(error) => break 'full error,
                }
            }
        };
        assert!(matches!(error, FsError::NoSpace(_)), "{error}");
        // Everything that was accepted can be made durable.
        fs.sync().await.unwrap();
        world.close(fs).await;
        let fs = world.open().await;
        let full = fs.statfs();
        assert!(full.blocks_available < 64, "{full:?}");
        for (index, (node, size)) in files.iter().enumerate() {
            let found = read(&fs, *node, 0, 1 << 20).await;
            assert_eq!(found.len() as u64, *size);
            for (n, part) in found.chunks(65_536).enumerate() {
                assert!(part == pattern((index + 1) as u8 ^ n as u8, 65_536));
            }
        }
        // Deleting works, and what it frees is usable at once.
        for (index, _) in files.iter().enumerate() {
            fs.unlink(ROOT, format!("file{index}").as_bytes()).await.unwrap();
        }
        let node = create(&fs, "again").await;
        for n in 0..64 {
            write(&fs, node, n * 65_536, &pattern(n as u8, 65_536)).await;
        }
        fs.fsync(node, false).await.unwrap();
        world.close(fs).await;
        let fs = world.open().await;
        check_space(&fs).await;
        world.close(fs).await;
    });
}

/// The pool has 256 MiB, so maps need more than what rounding leaves.
#[test]
fn a_file_as_large_as_what_is_available_fits() {
    let world = World::new(23, 65_536);
    world.run(async {
        let fs = world.open().await;
        let available = fs.statfs().blocks_available;
        let node = create(&fs, "allocated").await;
        let all = FallocateMode::Allocate { keep_size: false };
        fs.fallocate(node, 0, (available - 128) * 4096, all).await.unwrap();
        fs.unlink(ROOT, b"allocated").await.unwrap();
        fs.release(node);
        fs.forget(node, 1);
        fs.sync().await.unwrap();
        let node = create(&fs, "written").await;
        let data = pattern(1, 1 << 20);
        let pieces = (fs.statfs().blocks_available - 128) / 256;
        for n in 0..pieces {
            write(&fs, node, n << 20, &data).await;
        }
        fs.sync().await.unwrap();
        world.close(fs).await;
    });
}

#[test]
fn a_damaged_block_is_an_error_with_its_place_and_never_wrong_bytes() {
    let world = World::new(4, 16384);
    let data = pattern(1, 64 << 10);
    let (fs, node) = world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "file").await;
        write(&fs, node, 0, &data).await;
        fs.sync().await.unwrap();
        world.close(fs.clone()).await;
        (fs, node)
    });
    let mut image = world.device.crash(1);
    drop(fs);
    let block = (0..image.blocks())
        .find(|block| image.read_block(*block)[..] == data[5 * 4096..6 * 4096])
        .unwrap();
    image.corrupt(block, |bytes| bytes[77] ^= 1);
    let world = World::on(4, image);
    world.run(async {
        let fs = world.open().await;
        let error = fs.read(node, 0, 64 << 10).await.unwrap_err();
        let FsError::Damaged { ino, offset, .. } = &error else { panic!("{error}") };
        assert_eq!((*ino, *offset), (node.ino, 5 * 4096));
        assert_eq!(read(&fs, node, 0, 5 * 4096).await, data[..5 * 4096]);
        // Changing a part of the block would keep the damage: refused. All of it: repaired.
        assert!(fs.write(node, 5 * 4096 + 7, b"x", Default::default()).await.is_err());
        write(&fs, node, 5 * 4096, &data[5 * 4096..6 * 4096]).await;
        fs.sync().await.unwrap();
        assert_eq!(read(&fs, node, 0, 64 << 10).await, data);
        world.close(fs).await;
    });
}

#[test]
fn a_read_only_pool_can_be_read_and_nothing_else() {
    let world = World::new(5, 16384);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "file").await;
        write(&fs, node, 0, b"content").await;
        world.close(fs).await;
        let pool = world.pool(true).await;
        let fs = copyhold_fs::Filesystem::open(pool.clone(), Options::default()).await.unwrap();
        assert_eq!(read(&fs, node, 0, 100).await, b"content");
        let root = Caller::ROOT;
        for result in [
            fs.write(node, 0, b"x", Default::default()).await,
            fs.unlink(ROOT, b"file").await,
            fs.mkdir(&root, ROOT, b"dir", 0o700).await.map(drop),
            fs.setattr(&root, node, &resized(0)).await.map(drop),
            fs.open_node(node, OpenFlags::READ_WRITE).await,
            fs.fallocate(node, 0, 4096, FallocateMode::Punch).await,
        ] {
            assert!(matches!(result, Err(FsError::ReadOnly { .. })), "{result:?}");
        }
        fs.fsync(node, false).await.unwrap();
        fs.sync().await.unwrap();
        fs.close().await.unwrap();
        pool.close().await.unwrap();
    });
}

#[test]
fn preallocated_space_reads_as_zero_and_counts() {
    let world = World::new(6, 16384);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "file").await;
        let allocate = FallocateMode::Allocate { keep_size: false };
        fs.fallocate(node, 0, 1 << 20, allocate).await.unwrap();
        let attr = fs.getattr(node).await.unwrap();
        assert_eq!((attr.size, attr.blocks), (1 << 20, 2048));
        assert!(matches!(fs.seek(node, 0, Seek::Data).await, Err(FsError::PastEnd)));
        write(&fs, node, 500_000, &pattern(1, 10_000)).await;
        fs.sync().await.unwrap();
        assert_eq!(fs.seek(node, 0, Seek::Data).await.unwrap(), 500_000 / 4096 * 4096);
        let found = read(&fs, node, 0, 1 << 20).await;
        assert_eq!(found[500_000..510_000], pattern(1, 10_000));
        assert!(found[..500_000].iter().chain(&found[510_000..]).all(|byte| *byte == 0));
        assert_eq!(fs.getattr(node).await.unwrap().blocks, 2048);
        world.close(fs).await;
        let fs = world.open().await;
        check_space(&fs).await;
        world.close(fs).await;
    });
}

#[test]
fn going_down_loses_what_was_not_synced_and_nothing_else() {
    let mut world = World::new(7, 16384);
    let rt = world.rt.clone();
    let fs = rt.block_on(async {
        let fs = world.open().await;
        let (kept, lost) = (create(&fs, "kept").await, create(&fs, "lost").await);
        write(&fs, kept, 0, &pattern(1, 10_000)).await;
        fs.fsync(kept, false).await.unwrap();
        write(&fs, lost, 0, &pattern(2, 10_000)).await;
        fs.shut_down(false).await.unwrap();
        assert!(matches!(fs.read(kept, 0, 10).await, Err(FsError::ShutDown)));
        assert!(matches!(fs.getattr(kept).await, Err(FsError::ShutDown)));
        fs
    });
    world = world.crash(fs, 3);
    world.run(async {
        let fs = world.open().await;
        let kept = lookup(&fs, "kept").await.unwrap();
        assert_eq!(read(&fs, kept.node, 0, 20_000).await, pattern(1, 10_000));
        assert_eq!(lookup(&fs, "lost").await.map(|entry| entry.attr.size).unwrap_or(0), 0);
        world.close(fs).await;
    });
}

#[test]
fn regression_punching_beside_a_cut_does_not_bring_back_what_was_cut_off() {
    let world = World::new(8, 16384);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "file").await;
        write(&fs, node, 0, &[0xff; 8192]).await;
        fs.fsync(node, false).await.unwrap();
        fs.setattr(&Caller::ROOT, node, &resized(3000)).await.unwrap();
        fs.fsync(node, false).await.unwrap();
        fs.fallocate(node, 1000, 500, FallocateMode::Punch).await.unwrap();
        write(&fs, node, 10_000, b"x").await;
        let found = read(&fs, node, 0, 20_000).await;
        assert!(found[3000..10_000].iter().all(|byte| *byte == 0));
        world.close(fs).await;
    });
}

#[test]
fn what_fallocate_promised_can_be_written_when_the_pool_is_full() {
    for seed in 0..8 {
        let mut world = World::new(seed, 4096);
        let rt = world.rt.clone();
        let size = 2 << 20;
        let (fs, node) = rt.block_on(async {
            let fs = world.open().await;
            let node = create(&fs, "promised").await;
            let allocate = FallocateMode::Allocate { keep_size: seed % 2 == 0 };
            fs.fallocate(node, 0, size, allocate).await.unwrap();
            let filler = create(&fs, "filler").await;
            let mut at = 0;
            while fs.write(filler, at, &pattern(1, 4096), Default::default()).await.is_ok() {
                at += 4096;
            }
            for at in (0..size).step_by(98_304) {
                let len = 98_304.min(size - at) as usize;
                write(&fs, node, at, &pattern(seed as u8, size as usize)[at as usize..][..len])
                    .await;
            }
            fs.fsync(node, false).await.unwrap();
            let more = fs.write(node, size, b"more", Default::default()).await;
            assert!(matches!(more, Err(FsError::NoSpace(_))), "{more:?}");
            (fs, node)
        });
        world = world.crash(fs, seed);
        world.run(async {
            let fs = world.open().await;
            let found = read(&fs, node, 0, 4 << 20).await;
            assert!(found == pattern(seed as u8, size as usize), "seed {seed}");
            check_space(&fs).await;
            world.close(fs).await;
        });
    }
}

#[test]
fn a_write_error_is_told_once_and_the_data_is_kept() {
    for background in [false, true] {
        let mut world = World::new(9, 16384);
        let rt = world.rt.clone();
        let data = pattern(7, 1 << 20);
        let fs = rt.block_on(async {
            let fs = world.open().await;
            let node = create(&fs, "file").await;
            write(&fs, node, 0, &data).await;
            let next_data = Trigger::Write { nth: 0, why: Some(Purpose::Data) };
            world.device.arm(next_data, Fault::Error(5));
            if background {
                fs.pool().runtime().sleep(Duration::from_secs(20)).await;
                assert_eq!(fs.dirty_bytes(), 0, "it was written again");
            }
            let told = fs.fsync(node, false).await;
            assert!(matches!(told, Err(FsError::Pool(_))), "{told:?}");
            assert_eq!(read(&fs, node, 0, 2 << 20).await, data);
            fs.fsync(node, false).await.unwrap();
            fs
        });
        world = world.crash(fs, 1);
        world.run(async {
            let fs = world.open().await;
            let node = lookup(&fs, "file").await.unwrap().node;
            assert!(read(&fs, node, 0, 2 << 20).await == data);
            check_space(&fs).await;
            world.close(fs).await;
        });
    }
}

#[test]
fn what_the_timer_wrote_is_durable_after_fsync() {
    for seed in 0..10 {
        let mut world = World::new(seed, 16384);
        let rt = world.rt.clone();
        let data = pattern(7, 500_000);
        let fs = rt.block_on(async {
            let fs = world.open().await;
            let node = create(&fs, "file").await;
            write(&fs, node, 0, &data).await;
            while fs.dirty_bytes() > 0 {
                fs.pool().runtime().sleep(Duration::from_millis(100)).await;
            }
            // Nothing is dirty any more; the txg that has it may still be open.
            fs.fsync(node, false).await.unwrap();
            fs
        });
        world = world.crash(fs, seed);
        world.run(async {
            let fs = world.open().await;
            let node = lookup(&fs, "file").await.unwrap().node;
            assert!(read(&fs, node, 0, 1 << 20).await == data, "seed {seed}");
            world.close(fs).await;
        });
    }
}

#[test]
fn a_pool_that_has_stopped_answers_writers_with_an_error() {
    let world = World::new(10, 16384);
    world.run(async {
        let options = Options { dirty_bytes_max: 1 << 20, ..Options::default() };
        let fs = world.open_with(options).await;
        let node = create(&fs, "file").await;
        fs.sync().await.unwrap();
        world.device.arm(Trigger::Flush { nth: 0 }, Fault::Error(5));
        write(&fs, node, 0, &pattern(1, 5000)).await;
        assert!(fs.fsync(node, false).await.is_err());
        for n in 0..1000 {
            if fs.write(node, n * 4096, &[1; 4096], Default::default()).await.is_err() {
                assert!(fs.fsync(node, false).await.is_err());
                assert!(fs.mkdir(&Caller::ROOT, ROOT, b"dir", 0o700).await.is_err());
                return;
            }
        }
        panic!("writes go on");
    });
}

/// Data that the device refuses stays in memory and is tried again, but whoever would wait for room
/// there is told.
#[test]
fn a_device_that_takes_no_data_answers_writers_with_an_error_until_it_does() {
    let world = World::new(14, 16384);
    world.run(async {
        let options = Options { dirty_bytes_max: 1 << 20, ..Options::default() };
        let fs = world.open_with(options).await;
        let rt = fs.pool().runtime().clone();
        let (node, other) = (create(&fs, "file").await, create(&fs, "other").await);
        fs.sync().await.unwrap();
        let data = pattern(3, 8 << 20);
        let all_data = Trigger::Write { nth: 0, why: Some(Purpose::Data) };
        world.device.arm_for_good(all_data, Fault::Error(5));
        for node in [node, other] {
            let write = fs.write(node, 0, &data, Default::default());
            let patience = rt.sleep(Duration::from_secs(600));
            pin_mut!(write);
            match select(write, patience).await {
                Either::Left((told, _)) => {
                    assert!(matches!(told, Err(FsError::Pool(_))), "{told:?}");
                }
                Either::Right(_) => panic!("a writer waits for ever"),
            }
        }
        world.device.disarm();
        for node in [node, other] {
            fs.write(node, 0, &data, Default::default()).await.unwrap();
            // What the background has met is told once.
            let told = fs.fsync(node, false).await;
            assert!(matches!(told, Ok(()) | Err(FsError::Pool(_))), "{told:?}");
            fs.fsync(node, false).await.unwrap();
            assert!(read(&fs, node, 0, data.len()).await == data);
        }
        check_space(&fs).await;
        world.close(fs).await;
    });
}

/// What a tiny file and its map look like on the device.
async fn has_inline_and_first_extent(fs: &Filesystem, node: NodeId) -> (bool, bool) {
    let pool = fs.pool();
    let system = pool.range(Pool::SYSTEM, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
    let (_, subvol) = system.iter().find(|(key, _)| key.kind == item::SUBVOL).unwrap();
    let table = item::SubvolItem::parse(subvol).unwrap().table;
    let inline = pool.get(table, item::inline_key(node.ino)).await.unwrap();
    let extent = pool.get(table, item::extent_key(node.ino, 0)).await.unwrap();
    (inline.is_some(), extent.is_some())
}

#[test]
fn a_tiny_file_is_preallocated_or_punched_while_it_is_written_back() {
    for seed in 0..300 {
        let world = World::new(seed, 4096);
        world.run(async {
            let fs = world.open().await;
            let rt = fs.pool().runtime().clone();
            let node = create(&fs, "tiny").await;
            write(&fs, node, 0, b"tiny").await;
            fs.sync().await.unwrap();
            let punches = seed % 2 == 0;
            let mode = match punches {
                true => FallocateMode::Punch,
                false => FallocateMode::Allocate { keep_size: true },
            };
            let others = async {
                for _ in 0..4 {
                    fs.sync().await.unwrap();
                    rt.sleep(Duration::from_nanos(rt.random() % 100_000)).await;
                }
            };
            let (done, ()) = futures_util::join!(fs.fallocate(node, 0, 8192, mode), others);
            done.unwrap();
            fs.sync().await.unwrap();
            let (inline, extent) = has_inline_and_first_extent(&fs, node).await;
            assert!(!inline || !extent, "seed {seed}: both");
            let wanted = if punches { [0; 4] } else { *b"tiny" };
            assert_eq!(read(&fs, node, 0, 4).await, wanted, "seed {seed}");
            world.close(fs).await;
        });
    }
}
