//! A pool without a free block: what users may not take is enough for all that is admitted.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::{Fault, Trigger};
use copyhold_fs::{
    Caller, FallocateMode, Filesystem, FsError, NodeId, OpenFlags, Options, SetAttr, XattrSet,
};
use copyhold_pool::Tier;
use copyhold_types::{InodeNo, Purpose, SubvolId};
use copyhold_volume::quota::{GroupId, Ledger, LimitKind};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::common::*;

const WRITE: OpenFlags = OpenFlags::READ_WRITE;
const FILES: usize = 2000;
const CLONES: usize = 60;
const BLOCK: u64 = 4096;

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

/// Writes into one file until nothing is free.
async fn fill(fs: &Arc<Filesystem>, name: &str) -> NodeId {
    let node = create(fs, name).await;
    let mut at = 0;
    for len in [1 << 20, 1 << 16, 4096] {
        let data = pattern(at as u8, len);
        while fs.write(node, at, &data, Default::default()).await.is_ok() {
            at += len as u64;
        }
    }
    assert!(matches!(fs.fsync(node, false).await, Ok(()) | Err(FsError::NoSpace(_))));
    node
}

/// Changes files here and there, until it is refused. How many were changed.
async fn touch(fs: &Arc<Filesystem>, clone: SubvolId, every: usize) -> usize {
    let mut changed = 0;
    for n in (0..FILES).step_by(every) {
        let node = fs.lookup(root_of(clone), format!("f{n}").as_bytes()).await.unwrap().node;
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        match fs.setattr(&Caller::ROOT, node, &mode).await {
            Ok(_) => changed += 1,
            Err(FsError::NoSpace(_)) => break,
            Err(error) => panic!("after {changed}: {error}"),
        }
    }
    changed
}

#[test]
fn clones_that_are_all_changed_on_a_full_pool_leave_what_deletes_need() {
    let world = World::new(7, 16384);
    world.run(async {
        let fs = world.open().await;
        let origin = fs.create_subvolume(&Caller::ROOT, ROOT, b"origin", None).await.unwrap();
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        for n in 0..FILES {
            let name = format!("f{n}");
            let dir = root_of(origin);
            let made = fs.create(&Caller::ROOT, dir, name.as_bytes(), 0o644, WRITE, false).await;
            let mut content = vec![0; 1024];
            random.fill_bytes(&mut content);
            write(&fs, made.unwrap().0.node, 0, &content).await;
        }
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        let mut clones = Vec::new();
        for n in 0..CLONES {
            let name = format!("c{n}");
            let clone = fs.snapshot(origin, ROOT, name.as_bytes(), false, None).await;
            clones.push(clone.unwrap());
        }
        let full = fill(&fs, "full").await;
        let mut changed = 0;
        for clone in &clones {
            changed += touch(&fs, *clone, 20).await;
        }
        assert!(changed > FILES / 20, "{changed}");
        fs.pool().flush_all().await.unwrap();
        fs.sync().await.unwrap();
        let space = fs.pool().space();
        assert!(space.free >= space.reserve / 4, "{space:?}");
        fs.setattr(&Caller::ROOT, full, &SetAttr { size: Some(0), ..SetAttr::default() })
            .await
            .expect("what frees is never refused");
        for n in 0..CLONES {
            fs.delete_subvolume(ROOT, format!("c{n}").as_bytes(), None).await.unwrap();
        }
        fs.volumes().finish_background().await.unwrap();
        world.close(fs).await;
    });
}

const BIG_BLOCKS: u64 = 1024;

/// A subvolume with a file of as many blocks, every other of which is a hole if `holey`; clones of
/// it; then nothing is free. The files of the clones.
async fn clones_in_a_full_pool(
    fs: &Arc<Filesystem>,
    count: usize,
    blocks: u64,
    holey: bool,
) -> Vec<NodeId> {
    let origin = fs.create_subvolume(&Caller::ROOT, ROOT, b"origin", None).await.unwrap();
    let dir = root_of(origin);
    let big = fs.create(&Caller::ROOT, dir, b"big", 0o644, WRITE, false).await.unwrap().0.node;
    for n in 0..blocks / 32 {
        write(fs, big, n * 32 * BLOCK, &pattern(n as u8, 32 * 4096)).await;
    }
    for block in (0..if holey { blocks } else { 0 }).step_by(2) {
        fs.fallocate(big, block * BLOCK, BLOCK, FallocateMode::Punch).await.unwrap();
    }
    fs.sync().await.unwrap();
    fs.pool().flush_all().await.unwrap();
    let mut clones = Vec::new();
    for n in 0..count {
        let name = format!("c{n}");
        let clone = fs.snapshot(origin, ROOT, name.as_bytes(), false, None).await.unwrap();
        clones.push(fs.lookup(root_of(clone), b"big").await.unwrap().node);
    }
    create(fs, "small").await;
    fill(fs, "full").await;
    clones
}

/// What is free and promised to nobody when all is flushed, and the reserve.
async fn left(fs: &Arc<Filesystem>) -> (u64, u64) {
    fs.pool().flush_all().await.unwrap();
    fs.pool().flush_all().await.unwrap();
    let space = fs.pool().space();
    ((space.free + space.freeing).saturating_sub(space.reserved), space.reserve)
}

/// Deletes those of the clones that are there: then the reserve is whole, but for what a few
/// flushes take; and with the file that has filled the pool, all is as ever.
async fn delete_clones(fs: &Arc<Filesystem>, clones: usize) {
    for n in 0..clones {
        match fs.delete_subvolume(ROOT, format!("c{n}").as_bytes(), None).await {
            Ok(_) | Err(FsError::NotFound) => {}
            Err(error) => panic!("c{n}: {error}"),
        }
    }
    fs.sync_subvolumes(&[]).await.unwrap();
    let (there, reserve) = left(fs).await;
    assert!(there >= reserve / 16 * 15, "{there} blocks are left of {reserve}");
    fs.unlink(ROOT, b"full").await.unwrap();
    let node = create(fs, "more").await;
    write(fs, node, 0, &pattern(1, 1 << 20)).await;
    fs.fsync(node, false).await.unwrap();
    assert_eq!(read(fs, node, 0, 1 << 20).await, pattern(1, 1 << 20));
}

/// R21: a hole in a clone gives nothing back, so making holes ends before the reserve does.
#[test]
fn holes_in_clones_of_a_full_pool_leave_what_deletions_need() {
    const CLONES: usize = 60;
    for mode in [FallocateMode::Punch, FallocateMode::Zero { keep_size: true }] {
        let world = World::new(7, 8192);
        let fs = world.run(async {
            let fs = world.open().await;
            let clones = clones_in_a_full_pool(&fs, CLONES, BIG_BLOCKS, false).await;
            let places = (0..BIG_BLOCKS).step_by(2).map(|block| block * BLOCK);
            let all = clones.iter().flat_map(|node| places.clone().map(move |at| (*node, at)));
            let mut refused = None;
            for (node, at) in all {
                refused = fs.fallocate(node, at, BLOCK, mode).await.err();
                if refused.is_some() {
                    break;
                }
            }
            let refused = refused.expect("there is no space for so many holes");
            assert!(matches!(refused, FsError::NoSpace(_)), "{refused}");
            assert!(refused.to_string().contains("delete files, or subvolumes"), "{refused}");
            let (left, reserve) = left(&fs).await;
            assert!(left >= reserve / 2, "{left} blocks are left of {reserve}");
            fs.unlink(ROOT, b"small").await.expect("a name can be removed");
            for n in 0..CLONES / 2 {
                fs.delete_subvolume(ROOT, format!("c{n}").as_bytes(), None).await.unwrap();
            }
            fs
        });
        let world = world.crash(fs, 3);
        world.run(async {
            let fs = world.open().await;
            delete_clones(&fs, CLONES).await;
            world.close(fs).await;
        });
    }
}

/// R21: neither does a cut in a clone, which takes a step for each hundred extents.
#[test]
fn cutting_clones_on_a_full_pool_leaves_what_deletions_need() {
    const CLONES: usize = 150;
    let world = World::new(8, 4096);
    let fs = world.run(async {
        let fs = world.open().await;
        let clones = clones_in_a_full_pool(&fs, CLONES, 512, true).await;
        let set = SetAttr { size: Some(BLOCK), ..SetAttr::default() };
        let mut cut = 0;
        for node in clones {
            match fs.setattr(&Caller::ROOT, node, &set).await {
                Ok(_) => cut += 1,
                Err(FsError::NoSpace(_)) => {}
                Err(error) => panic!("after {cut}: {error}"),
            }
            if cut % 10 == 0 {
                fs.pool().flush_all().await.unwrap();
            }
        }
        assert!(cut > 0, "deletes may take half of the reserve");
        let (left, reserve) = left(&fs).await;
        assert!(left >= reserve / 4, "{left} blocks are left of {reserve}");
        fs
    });
    let world = world.crash(fs, 3);
    world.run(async {
        let fs = world.open().await;
        delete_clones(&fs, CLONES).await;
        world.close(fs).await;
    });
}

/// R21: reading takes nothing of a full pool.
#[test]
fn access_times_are_given_up_where_nothing_is_free() {
    let world = World::new(9, 8192);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "read").await;
        write(&fs, node, 0, &pattern(1, 8192)).await;
        fs.sync().await.unwrap();
        let before = fs.getattr(node).await.unwrap().atime;
        let all = fs.pool().reserve_now(fs.pool().space().available(), Tier::Write).unwrap();
        fs.pool().runtime().sleep(Duration::from_secs(1)).await;
        read(&fs, node, 0, 8192).await;
        assert!(fs.getattr(node).await.unwrap().atime > before, "it was read");
        fs.sync().await.expect("a time that cannot be logged is no error");
        assert_eq!(fs.getattr(node).await.unwrap().atime, before);
        drop(all);
        read(&fs, node, 0, 8192).await;
        fs.sync().await.unwrap();
        assert!(fs.getattr(node).await.unwrap().atime > before, "there is room again");
        world.close(fs).await;
    });
}

/// R22: what was accepted stays promised, whatever becomes of the first try to write it.
#[test]
fn a_write_that_fails_once_finds_its_space_again_on_a_pool_that_has_none_left() {
    for together in [false, true] {
        let world = World::new(9, 8192);
        world.run(async {
            // Not beside a commit, where what fails is final (R12).
            let options = Options { attach_bytes_max: 0, ..Options::default() };
            let fs = world.open_with(options).await;
            let nodes = [create(&fs, "a").await, create(&fs, "b").await];
            fs.sync().await.unwrap();
            for (node, salt) in nodes.into_iter().zip(1..) {
                write(&fs, node, 0, &pattern(salt, 40_000)).await;
            }
            // What the pool does for itself may take from what writes may not.
            let pool = fs.pool();
            let reserve = pool.space().reserve;
            let rest = pool.space().available() + reserve / 2;
            let taken = pool.reserve(rest, Tier::Internal).await.unwrap();
            let trigger = Trigger::Write { nth: 0, why: Some(Purpose::Data) };
            world.device.arm(trigger, Fault::Error(5));
            match together {
                // In the background, the little that there is of each file.
                true => fs.pool().runtime().sleep(Duration::from_secs(60)).await,
                false => assert!(fs.fsync(nodes[0], false).await.is_err(), "the device failed"),
            }
            for node in nodes {
                let synced = fs.fsync(node, false).await;
                assert!(!matches!(synced, Err(FsError::NoSpace(_))), "it was accepted: {synced:?}");
                fs.fsync(node, false).await.expect("an error is told once");
            }
            drop(taken);
            for (node, salt) in nodes.into_iter().zip(1..) {
                assert_eq!(read(&fs, node, 0, 40_000).await, pattern(salt, 40_000));
            }
            fs.sync().await.unwrap();
            pool.flush_all().await.unwrap();
            check_space(&fs).await;
            world.close(fs).await;
        });
    }
}

/// R22: who waits for space under a file's locks is not waited for by who keeps that space.
#[test]
fn a_reader_that_waits_for_a_lock_keeps_nobodys_space() {
    let world = World::new(11, 8192);
    world.run(async {
        let fs = world.open_with(Options { attach_bytes_max: 0, ..Options::default() }).await;
        let (read, freed) = (create(&fs, "read").await, create(&fs, "freed").await);
        for node in [read, freed] {
            write(&fs, node, 0, &pattern(1, 400_000)).await;
        }
        fs.sync().await.unwrap();
        let (pool, rt) = (fs.pool(), fs.pool().runtime());
        let all = pool.reserve(pool.space().available(), Tier::Write).await.unwrap();
        let change = fs.set_xattr(&Caller::ROOT, read, b"user.a", &[7; 9000], XattrSet::Any, false);
        let look = async {
            rt.sleep(Duration::from_micros(10)).await;
            fs.read(read, 0, 4096).await
        };
        let free = async {
            rt.sleep(Duration::from_micros(20)).await;
            fs.fallocate(freed, 0, 400_000, FallocateMode::Punch).await
        };
        let (changed, looked, punched) = futures_util::join!(change, look, free);
        looked.unwrap();
        punched.unwrap();
        changed.expect("what was punched out is free now");
        drop(all);
        world.close(fs).await;
    });
}

/// R10, R22: what is accepted for preallocated space is written there, or nowhere; so it is not
/// accepted between the moment when a snapshot has the source written and when it shares all.
#[test]
fn what_is_written_into_preallocated_space_while_a_snapshot_is_made_is_kept() {
    for delay in 0..60 {
        let world = World::new(12, 8192);
        world.run(async {
            let fs = world.open().await;
            let node = create(&fs, "preallocated").await;
            let mode = FallocateMode::Allocate { keep_size: false };
            fs.fallocate(node, 0, 400_000, mode).await.unwrap();
            fs.sync().await.unwrap();
            let pool = fs.pool();
            // Enough for a snapshot, not for the write.
            let rest = pool.space().available() - 12;
            let all = pool.reserve(rest, Tier::Write).await.unwrap();
            let write = async {
                pool.runtime().sleep(Duration::from_micros(50 * delay)).await;
                fs.write(node, 0, &pattern(1, 200_000), Default::default()).await
            };
            let snapshot = fs.snapshot(SubvolId::ROOT, ROOT, b"s", false, None);
            let (written, made) = futures_util::join!(write, snapshot);
            made.unwrap();
            match written {
                Ok(()) => {
                    fs.fsync(node, true).await.expect("it was accepted");
                    assert_eq!(read(&fs, node, 0, 200_000).await, pattern(1, 200_000));
                }
                Err(error) => assert!(matches!(error, FsError::NoSpace(_)), "{error}"),
            }
            drop(all);
            world.close(fs).await;
        });
    }
}

/// A file that nobody uses any more holds its space until the kernel has said so, which is a little
/// after the program that unlinked it goes on.
#[test]
fn what_is_unlinked_makes_room_although_the_kernel_has_not_forgotten_it_yet() {
    for (limited, allocates) in [(false, false), (false, true), (true, false), (true, true)] {
        let world = World::new(12, 8192);
        world.run(async {
            let fs = world.open().await;
            let rt = fs.pool().runtime().clone();
            if limited {
                fs.enable_quotas().await.unwrap();
                let own = GroupId::of(ROOT.subvol);
                let limit =
                    |ledger: &Ledger| ledger.limit(own, LimitKind::Referenced, Some(8 << 20));
                fs.change_quotas(limit).await.unwrap();
            }
            let other = create(&fs, "other").await;
            let full = fill(&fs, "full").await;
            let refused = fs.write(other, 0, &[1; 4096], Default::default()).await;
            assert!(matches!(refused, Err(FsError::NoSpace(_) | FsError::Quota(_))), "{refused:?}");
            fs.unlink(ROOT, b"full").await.unwrap();
            let task = fs.clone();
            let sleep = rt.sleep(Duration::from_millis(40));
            rt.spawn(Box::pin(async move {
                task.release(full);
                sleep.await;
                task.forget(full, 1);
            }));
            let done = match allocates {
                true => {
                    let mode = FallocateMode::Allocate { keep_size: false };
                    fs.fallocate(other, 0, 6 << 20, mode).await
                }
                false => fs.write(other, 0, &vec![1; 6 << 20], Default::default()).await.map(drop),
            };
            assert!(done.is_ok(), "limited: {limited}, allocates: {allocates}: {done:?}");
            world.close(fs).await;
        });
    }
}

/// Who keeps a file open without a name keeps its space, and makes nobody wait for it.
#[test]
fn a_file_that_stays_open_without_a_name_is_not_waited_for() {
    let world = World::new(13, 8192);
    world.run(async {
        let fs = world.open().await;
        let rt = fs.pool().runtime().clone();
        let other = create(&fs, "other").await;
        let full = fill(&fs, "full").await;
        fs.unlink(ROOT, b"full").await.unwrap();
        rt.sleep(Duration::from_secs(2)).await;
        let since = rt.now();
        let refused = fs.write(other, 0, &vec![1; 1 << 20], Default::default()).await;
        assert!(matches!(refused, Err(FsError::NoSpace(_))), "{refused:?}");
        let waited = Duration::from_nanos(rt.now() - since);
        assert!(waited < Duration::from_millis(50), "{waited:?}");
        fs.release(full);
        fs.forget(full, 1);
        world.close(fs).await;
    });
}
