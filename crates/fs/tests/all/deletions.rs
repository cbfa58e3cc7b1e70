//! Subvolumes that are deleted: what those see who are at them, and that all ends.

use std::time::Duration;

use copyhold_format::item::extent_key;
use copyhold_fs::{Caller, DirEntry, FsError, SetAttr};
use copyhold_pool::{Tier, Transaction};
use copyhold_volume::{Leaving, VolumeError, Volumes};
use futures_util::future::{join, join_all};

use crate::common::tenants::*;
use crate::common::*;

#[test]
fn who_looks_beside_a_deletion_finds_what_was_there_or_that_it_is_gone() {
    // So many that a name and its inode are in different leaves, each read when it is looked for.
    const FILES: usize = 2000;
    let mut gone = 0;
    for seed in seeds(10) {
        let world = World::new(seed, 16384);
        world.run(async {
            let fs = world.open().await;
            let a = subvolume(&fs, "a").await;
            for n in 0..FILES {
                file(&fs, root_of(a), &format!("f{n}")).await;
            }
            fs.sync().await.unwrap();
            fs.pool().flush_all().await.unwrap();
            world.close(fs).await;
            let fs = world.open().await;
            let looks = (0..8).map(|who| {
                let fs = fs.clone();
                async move {
                    for n in 0..40 {
                        let name = format!("f{}", (who * 40 + n) * 97 % FILES);
                        match fs.lookup(root_of(a), name.as_bytes()).await {
                            Ok(found) => fs.forget(found.node, 1),
                            Err(FsError::Stale) => return true,
                            Err(other) => panic!("seed {seed}: {other}"),
                        }
                    }
                    false
                }
            });
            // All names or none, however far the deletion has come meanwhile.
            let list = async {
                for _ in 0..40 {
                    let mut names = 0;
                    let count = &mut |_: &DirEntry<'_>| {
                        names += 1;
                        true
                    };
                    match fs.readdir(root_of(a), 0, count).await {
                        Ok(()) => assert_eq!(names, FILES + 2, "seed {seed}"),
                        Err(FsError::Stale) => return,
                        Err(other) => panic!("seed {seed}: {other}"),
                    }
                }
            };
            let delete = async {
                fs.lookup(root_of(a), b"f0").await.unwrap();
                fs.delete_subvolume(ROOT, b"a", None).await.unwrap();
                fs.volumes().finish_background().await.unwrap();
            };
            let (looked, (_, ())) = join(join_all(looks), join(list, delete)).await;
            gone += looked.into_iter().filter(|gone| *gone).count();
            world.close(fs).await;
        });
    }
    assert!(gone > 0, "no deletion came between");
}

#[test]
fn a_deletion_tells_how_far_it_has_come_within_a_partition() {
    let world = World::new(21, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        for n in 0..1000 {
            let node = file(&fs, root_of(a), &format!("f{n}")).await;
            write(&fs, node, 0, &pattern(n as u8, 4096)).await;
        }
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        let files = fs.volumes().subvol(a).unwrap().files();
        assert_eq!(fs.pool().table(files).stats().len(), 1);
        fs.delete_subvolume(ROOT, b"a", None).await.unwrap();
        let mut seen = Vec::new();
        while !fs.volumes().dying().is_empty() {
            let all = fs.subvolumes().into_iter();
            seen.extend(all.filter(|one| one.id == a).filter_map(|one| one.walked_percent));
            fs.volumes().background_step().await.unwrap();
        }
        assert!(seen.is_sorted() && seen.iter().any(|&percent| 0 < percent && percent < 100));
        assert_eq!((seen.first(), seen.last()), (Some(&0), Some(&100)), "{seen:?}");
        world.close(fs).await;
    });
}

#[test]
fn a_sync_between_the_halves_of_a_deletion_does_not_fail_for_what_is_deleted() {
    let world = World::new(71, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        let node = file(&fs, root_of(a), "f").await;
        write(&fs, node, 0, &pattern(1, 40_000)).await;
        let kept = file(&fs, ROOT, "kept").await;
        write(&fs, kept, 0, &pattern(2, 40_000)).await;
        // What `delete_subvolume` does before it tells the files, which another thread can see.
        let volume = fs.volumes().subvol(a).unwrap();
        let credit = fs.pool().admit(Tier::DeleteSubvolume, Volumes::LIFE_EDITS, 4096).await;
        let leaving = Leaving { since: volume.item().created, name: b"a", heir: None };
        let tx = Transaction::new();
        fs.volumes().delete(&volume, &leaving, credit.unwrap(), tx).unwrap();
        fs.sync().await.unwrap();
        assert_eq!(read(&fs, kept, 0, 50_000).await, pattern(2, 40_000));
        world.crash(fs, 1);
    });
}

/// Said to be durable, and back after a crash without it: a deletion need not be durable (R34).
#[test]
fn an_fsync_that_a_deletion_overtakes_does_not_say_that_all_is_well() {
    let (mut refused, mut kept) = (0, 0);
    for seed in seeds(120) {
        let world = World::new(seed, 16384);
        let synced = world.run(async {
            let fs = world.open().await;
            let a = subvolume(&fs, "a").await;
            let node = file(&fs, root_of(a), "f").await;
            fs.sync().await.unwrap();
            write(&fs, node, 0, &pattern(1, 150_000)).await;
            let rt = fs.pool().runtime().clone();
            let delay = Duration::from_nanos(rt.random() % 100_000);
            let deleted = async {
                rt.sleep(delay).await;
                fs.delete_subvolume(ROOT, b"a", None).await
            };
            let (synced, deleted) = join(fs.fsync(node, false), deleted).await;
            deleted.unwrap();
            (fs, synced)
        });
        let (fs, synced) = synced;
        let world = world.crash(fs, seed);
        world.run(async {
            let fs = world.open().await;
            match (synced, fs.lookup(ROOT, b"a").await) {
                (Ok(()), Ok(a)) => {
                    kept += 1;
                    assert!(content(&fs, a.node, "f").await == pattern(1, 150_000), "{seed}");
                }
                (Ok(()), Err(_)) => {}
                (Err(error), _) => {
                    refused += 1;
                    assert!(matches!(error, FsError::Stale), "{seed}: {error}");
                }
            }
            world.close(fs).await;
        });
    }
    assert!(refused > 10 && kept > 10, "{refused} refused, {kept} kept");
}

#[test]
fn what_is_dirty_of_a_deleted_subvolume_keeps_nobody_waiting() {
    let world = World::new(7, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        let node = file(&fs, root_of(a), "f").await;
        write(&fs, node, 0, &pattern(1, 100_000)).await;
        let s = snapshot(&fs, a, "s", false).await;
        let truncate = SetAttr { size: Some(0), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, node, &truncate).await.unwrap();
        write(&fs, node, 0, &pattern(2, 50_000)).await;
        fs.delete_subvolume(ROOT, b"a", None).await.unwrap();
        let late = fs.write(node, 0, b"x", Default::default()).await;
        assert!(matches!(late, Err(FsError::Stale)), "{late:?}");
        fs.sync().await.unwrap();
        fs.sync_subvolumes(&[]).await.unwrap();
        assert_eq!(content(&fs, root_of(s), "f").await, pattern(1, 100_000));
        world.close(fs).await;
    });
}

#[test]
fn waiting_for_a_deletion_that_meets_damage_ends() {
    let world = World::new(31, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        let node = file(&fs, root_of(a), "f").await;
        write(&fs, node, 0, &pattern(1, 100_000)).await;
        fs.sync().await.unwrap();
        let table = fs.volumes().subvol(a).unwrap().files();
        let mut tx = Transaction::new();
        tx.put(table, extent_key(node.ino, 4096), &b"junk"[..]);
        let credit = fs.pool().admit(Tier::Write, 1, 100).await.unwrap();
        fs.pool().apply(credit, tx).unwrap();
        fs.delete_subvolume(ROOT, b"a", None).await.unwrap();
        let waited = fs.sync_subvolumes(&[a]).await;
        let unfreeable = |error: &FsError| {
            matches!(error, FsError::Volume(error)
            if matches!(**error, VolumeError::Unfreeable(id) if id == a))
        };
        assert!(waited.as_ref().is_err_and(unfreeable), "{waited:?}");
        world.close(fs).await;
    });
}

/// Whatever of it was in memory, be it the root alone.
#[test]
fn no_inode_of_a_deleted_subvolume_stays_in_memory() {
    for files in [0, 1, 20] {
        let world = World::new(41 + files, 16384);
        world.run(async {
            let fs = world.open().await;
            let (a, b) = (subvolume(&fs, "a").await, subvolume(&fs, "b").await);
            let other = file(&fs, root_of(b), "f").await;
            let mut nodes = vec![root_of(a)];
            for n in 0..files {
                nodes.push(file(&fs, root_of(a), &format!("f{n}")).await);
            }
            fs.sync().await.unwrap();
            fs.delete_subvolume(ROOT, b"a", None).await.unwrap();
            for node in nodes {
                let found = fs.getattr(node).await;
                assert!(matches!(found, Err(FsError::Stale)), "{files} files, {node}: {found:?}");
            }
            fs.getattr(other).await.unwrap();
            world.close(fs).await;
        });
    }
}
