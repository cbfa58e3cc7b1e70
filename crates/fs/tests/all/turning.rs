//! Quotas are turned on while others work: beside deletions, snapshots and rollbacks.
//!
//! Turning on is one record; then each subvolume takes a new epoch, one after the other (R25). What
//! happens in between must neither fail nor be counted wrongly.

use std::sync::Arc;
use std::time::Duration;

use copyhold_format::item::{INODE, InodesItem, inodes_key};
use copyhold_fs::{Caller, Filesystem, NodeId, OpenFlags, Options};
use copyhold_pool::{IdSpace, Pool, Tier};
use copyhold_runtime::Runtime;
use copyhold_types::{InodeNo, Key, SubvolId};
use copyhold_volume::Volumes;
use copyhold_volume::quota::{GroupId, GroupUse};
use futures_util::future::join;

use crate::common::*;

const SEEDS: u64 = 24;

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

async fn subvolume(fs: &Arc<Filesystem>, name: &str) -> SubvolId {
    fs.create_subvolume(&Caller::ROOT, ROOT, name.as_bytes(), None).await.unwrap()
}

async fn make(fs: &Arc<Filesystem>, subvol: SubvolId, name: &str) -> NodeId {
    let (dir, flags) = (root_of(subvol), OpenFlags::READ_WRITE);
    let made = fs.create(&Caller::ROOT, dir, name.as_bytes(), 0o644, flags, true).await;
    let node = made.unwrap().0.node;
    fs.release(node);
    node
}

async fn make_many(fs: &Arc<Filesystem>, subvol: SubvolId, prefix: &str, count: u64) {
    for n in 0..count {
        make(fs, subvol, &format!("{prefix}{n}")).await;
    }
}

fn shown(fs: &Arc<Filesystem>, subvol: SubvolId) -> GroupUse {
    fs.volumes().ledger().show_group(GroupId::of(subvol)).unwrap()
}

/// Turns quotas on, and leaves every subvolume with the epoch that it has.
async fn only_the_record(fs: &Arc<Filesystem>) {
    let (edits, bytes) = (Volumes::LIFE_EDITS, Volumes::LIFE_BYTES);
    let credit = fs.pool().admit(Tier::Delete, edits, bytes).await.unwrap();
    fs.volumes().enable_quotas(credit).await.unwrap();
}

/// How many inodes count in the table of a subvolume's files, from where its record says.
async fn recount(fs: &Arc<Filesystem>, subvol: SubvolId) -> u64 {
    let record = fs.pool().get(Pool::SYSTEM, inodes_key(subvol)).await.unwrap();
    let from = InodesItem::parse(&record.expect("it counts")).unwrap().counted_from;
    let table = fs.volumes().subvol(subvol).unwrap().files();
    let items = fs.pool().range(table, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
    let counts = |key: &Key| key.kind == INODE && key.object >= from.0;
    items.iter().filter(|(key, _)| counts(key)).count() as u64
}

/// A pool with subvolumes that have some files each, opened anew: so nobody has any numbers in
/// hand, and whoever wants some waits for a commit.
async fn reopened(world: &World, names: &[&str]) -> (Arc<Filesystem>, Vec<SubvolId>) {
    let fs = world.open().await;
    let mut subvols = Vec::new();
    for name in names {
        let subvol = subvolume(&fs, name).await;
        make_many(&fs, subvol, "old", 3).await;
        subvols.push(subvol);
    }
    world.close(fs).await;
    (in_use(world, &subvols).await, subvols)
}

/// Opens the pool. Whoever has looked at a subvolume before quotas are turned on does not give it
/// its new epoch.
async fn in_use(world: &World, subvols: &[SubvolId]) -> Arc<Filesystem> {
    let fs = world.open_with(Options { count_lookups: false, ..Options::default() }).await;
    for subvol in subvols {
        fs.getattr(root_of(*subvol)).await.unwrap();
    }
    fs
}

#[test]
fn enabling_beside_deletions_skips_what_is_deleted() {
    for seed in 1..=SEEDS {
        let world = World::new(seed, 16384);
        world.run(async {
            let (fs, subvols) = reopened(&world, &["a", "b", "c", "d"]).await;
            let deleting = async {
                world.rt.sleep(Duration::from_micros(seed * 300)).await;
                for name in ["d", "c", "b", "a"] {
                    fs.delete_subvolume(ROOT, name.as_bytes(), None).await.unwrap();
                }
                fs.sync_subvolumes(&[]).await.unwrap();
            };
            let (enabled, ()) = join(fs.enable_quotas(), deleting).await;
            enabled.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(fs.volumes().ledger().is_on());
            fs.sync_subvolumes(&[]).await.unwrap();
            for subvol in subvols {
                let mark = fs.pool().get(Pool::SYSTEM, IdSpace::Inode(subvol).key()).await;
                assert_eq!(mark.unwrap(), None, "seed {seed}: a mark of {subvol}, which is gone");
            }
            world.close(fs).await;
        });
    }
}

#[test]
fn what_is_snapshotted_before_its_own_new_epoch_counts_all_inodes_made_since() {
    let world = World::new(7, 16384);
    world.run(async {
        let (fs, subvols) = reopened(&world, &["a"]).await;
        let a = subvols[0];
        // Somebody works in it: it has numbers in hand.
        make(&fs, a, "known").await;
        only_the_record(&fs).await;
        let s = fs.snapshot(a, ROOT, b"s", false, None).await.unwrap();
        make_many(&fs, a, "new", 5).await;
        make_many(&fs, s, "new", 2).await;
        assert_eq!((shown(&fs, a).inodes, shown(&fs, s).inodes), (5, 2));
        fs.enable_quotas().await.unwrap();
        make_many(&fs, a, "more", 1).await;
        assert_eq!(shown(&fs, a).inodes, 6);
        for subvol in [a, s] {
            fs.unlink(root_of(subvol), b"old1").await.unwrap();
            fs.unlink(root_of(subvol), b"new1").await.unwrap();
        }
        fs.sync().await.unwrap();
        fs.reaper_idle().await;
        fs.sync().await.unwrap();
        assert_eq!((shown(&fs, a).inodes, shown(&fs, s).inodes), (5, 1));
        assert_eq!((recount(&fs, a).await, recount(&fs, s).await), (5, 1));
        assert_eq!(fs.volumes().ledger().miscounts(), 0);
        world.close(fs).await;
    });
}

#[test]
fn what_is_rolled_back_to_before_its_own_new_epoch_counts_all_inodes_made_since() {
    let world = World::new(8, 16384);
    world.run(async {
        let (fs, subvols) = reopened(&world, &["a"]).await;
        let s = fs.snapshot(subvols[0], ROOT, b"s", false, None).await.unwrap();
        make(&fs, s, "known").await;
        only_the_record(&fs).await;
        let back = fs.roll_back_subvolume(ROOT, b"a", s, None).await.unwrap().subvol;
        make_many(&fs, s, "new", 5).await;
        make_many(&fs, back, "new", 2).await;
        assert_eq!((shown(&fs, s).inodes, shown(&fs, back).inodes), (5, 2));
        fs.sync().await.unwrap();
        assert_eq!((recount(&fs, s).await, recount(&fs, back).await), (5, 2));
        world.close(fs).await;
    });
}

#[test]
fn a_snapshot_overtaken_by_a_new_epoch_of_its_source_is_tried_again() {
    for seed in 1..=SEEDS {
        let world = World::new(seed, 16384);
        world.run(async {
            let (fs, subvols) = reopened(&world, &["a", "b"]).await;
            let a = subvols[0];
            only_the_record(&fs).await;
            let enable = async {
                world.rt.sleep(Duration::from_micros(seed * 100)).await;
                fs.enable_quotas().await
            };
            let snapshot = fs.snapshot(a, ROOT, b"s", false, None);
            let (enabled, made) = join(enable, snapshot).await;
            enabled.unwrap();
            let s = made.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            make_many(&fs, a, "new", 3).await;
            make_many(&fs, s, "new", 2).await;
            assert_eq!((shown(&fs, a).inodes, shown(&fs, s).inodes), (3, 2), "seed {seed}");
            assert_eq!(shown(&fs, a).snapshots, 1);
            world.close(fs).await;
        });
    }
}

#[test]
fn a_rollback_overtaken_by_a_new_epoch_of_its_source_is_tried_again() {
    for seed in 1..=SEEDS {
        let world = World::new(seed, 16384);
        world.run(async {
            let fs = world.open().await;
            let a = subvolume(&fs, "a").await;
            make_many(&fs, a, "old", 3).await;
            let s = fs.snapshot(a, ROOT, b"s", false, None).await.unwrap();
            world.close(fs).await;
            let fs = in_use(&world, &[a, s]).await;
            only_the_record(&fs).await;
            let enable = async {
                world.rt.sleep(Duration::from_micros(seed * 100)).await;
                fs.enable_quotas().await
            };
            let keep = (seed % 2 == 0).then_some((ROOT, &b"before"[..]));
            let rollback = fs.roll_back_subvolume(ROOT, b"a", s, keep);
            let (enabled, made) = join(enable, rollback).await;
            enabled.unwrap();
            let back = made.unwrap_or_else(|error| panic!("seed {seed}: {error}")).subvol;
            make_many(&fs, s, "new", 3).await;
            make_many(&fs, back, "new", 2).await;
            assert_eq!((shown(&fs, s).inodes, shown(&fs, back).inodes), (3, 2), "seed {seed}");
            world.close(fs).await;
        });
    }
}
