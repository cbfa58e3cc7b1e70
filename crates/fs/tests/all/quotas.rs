//! Limits as files meet them: inodes are counted, writes take what fits, and what is promised to
//! somebody is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use copyhold_format::item::{INODE, InodesItem, inodes_key};
use copyhold_fs::{
    Caller, FallocateMode, FileKind, Filesystem, FsError, NodeId, OpenFlags, Options, RenameFlags,
    Result, SetAttr, XattrSet,
};
use copyhold_pool::Pool;
use copyhold_runtime::Runtime;
use copyhold_types::{InodeNo, Key, SubvolId};
use copyhold_volume::quota::{GroupId, GroupUse, Ledger, LimitKind};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::common::*;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

pub(crate) fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

pub(crate) async fn subvolume(fs: &Arc<Filesystem>, name: &str) -> SubvolId {
    fs.create_subvolume(&Caller::ROOT, ROOT, name.as_bytes(), None).await.unwrap()
}

pub(crate) async fn make(fs: &Arc<Filesystem>, dir: NodeId, name: &str) -> Result<NodeId> {
    let flags = OpenFlags::READ_WRITE;
    let made = fs.create(&Caller::ROOT, dir, name.as_bytes(), 0o644, flags, true).await;
    made.map(|(entry, _)| entry.node)
}

pub(crate) async fn limit(fs: &Arc<Filesystem>, group: GroupId, kind: LimitKind, limit: u64) {
    fs.change_quotas(|ledger: &Ledger| ledger.limit(group, kind, Some(limit))).await.unwrap();
}

pub(crate) fn shown(fs: &Arc<Filesystem>, subvol: SubvolId) -> GroupUse {
    fs.volumes().ledger().show_group(GroupId::of(subvol)).unwrap()
}

/// Lets what works in the background come to rest.
async fn rest(world: &World) {
    for _ in 0..20 {
        world.rt.sleep(Duration::from_millis(1)).await;
    }
}

pub(crate) fn is_over_quota<T: std::fmt::Debug>(result: Result<T>) -> bool {
    match result {
        Err(FsError::Quota(refused)) => refused.code() == "EDQUOT",
        other => panic!("{other:?}"),
    }
}

/// What the table of a subvolume's files has of inodes that count, and what its record says.
async fn recount(fs: &Arc<Filesystem>, subvol: SubvolId) -> (u64, u64) {
    let record = fs.pool().get(Pool::SYSTEM, inodes_key(subvol)).await.unwrap();
    let record = record.map_or(InodesItem { counted_from: InodeNo(u64::MAX), count: 0 }, |bytes| {
        InodesItem::parse(&bytes).unwrap()
    });
    let table = fs.volumes().subvol(subvol).unwrap().files();
    let items = fs.pool().range(table, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
    let counts = |key: &Key| key.kind == INODE && key.object >= record.counted_from.0;
    (items.iter().filter(|(key, _)| counts(key)).count() as u64, record.count)
}

#[test]
fn a_limit_of_inodes_refuses_every_way_to_make_one_more_before_anything_is_changed() {
    let world = World::new(31, 16384);
    world.run(async {
        let fs = world.open_with(Options { count_lookups: false, ..Options::default() }).await;
        let old = make(&fs, ROOT, "old").await.unwrap();
        fs.enable_quotas().await.unwrap();
        let a = subvolume(&fs, "a").await;
        let dir = root_of(a);
        assert_eq!(shown(&fs, a).inodes, 1, "its root directory");
        limit(&fs, GroupId::of(a), LimitKind::Inodes, 5).await;
        let open = make(&fs, dir, "f").await.unwrap();
        fs.mkdir(&Caller::ROOT, dir, b"d", 0o755).await.unwrap();
        fs.symlink(&Caller::ROOT, dir, b"l", b"f").await.unwrap();
        let unnamed = fs.tmpfile(&Caller::ROOT, dir, 0o600).await.unwrap().node;
        assert_eq!(shown(&fs, a).inodes, 5);
        let room = fs.statfs_of(dir);
        assert_eq!((room.files, room.files_free), (5, 0));

        assert!(is_over_quota(make(&fs, dir, "g").await));
        assert!(is_over_quota(fs.mkdir(&Caller::ROOT, dir, b"g", 0o755).await));
        assert!(is_over_quota(fs.symlink(&Caller::ROOT, dir, b"g", b"f").await));
        assert!(is_over_quota(fs.mknod(&Caller::ROOT, dir, b"g", 0o010644, 0).await));
        assert!(is_over_quota(fs.tmpfile(&Caller::ROOT, dir, 0o600).await));
        let white = RenameFlags { whiteout: true, ..RenameFlags::default() };
        assert!(is_over_quota(fs.rename(&Caller::ROOT, dir, b"f", dir, b"g", white).await));
        let inner = fs.create_subvolume(&Caller::ROOT, dir, b"g", None).await;
        assert!(is_over_quota(inner), "a subvolume inside has a directory, too");
        assert_eq!(names(&fs, dir).await, [".", "..", "d", "f", "l"]);
        assert_eq!(shown(&fs, a).inodes, 5);

        fs.link(open, dir, b"second").await.unwrap();
        fs.rename(&Caller::ROOT, dir, b"l", dir, b"m", Default::default()).await.unwrap();
        for name in [&b"f"[..], b"second"] {
            fs.unlink(dir, name).await.unwrap();
        }
        rest(&world).await;
        assert_eq!(shown(&fs, a).inodes, 5, "an open file counts until it is closed");
        assert!(is_over_quota(make(&fs, dir, "g").await));
        fs.release(open);
        make(&fs, dir, "g").await.expect("whoever is at the limit waits for what was unlinked");
        fs.release(unnamed);
        fs.rename(&Caller::ROOT, dir, b"g", dir, b"h", white).await.unwrap();
        let kind = fs.lookup(dir, b"g").await.unwrap().attr.kind;
        assert_eq!((kind, shown(&fs, a).inodes), (FileKind::CharDevice, 5));
        fs.rmdir(dir, b"d").await.unwrap();
        rest(&world).await;
        assert_eq!(shown(&fs, a).inodes, 4);

        // What is older than quotas never counted.
        assert_eq!(shown(&fs, SubvolId::ROOT).inodes, 0);
        fs.unlink(ROOT, b"old").await.unwrap();
        fs.release(old);
        rest(&world).await;
        assert_eq!(shown(&fs, SubvolId::ROOT).inodes, 0);
        world.close(fs).await;
    });
}

#[test]
fn inodes_of_snapshots_and_of_the_dead_are_counted_where_they_are() {
    let world = World::new(32, 16384);
    world.run(async {
        let fs = world.open_with(Options { count_lookups: false, ..Options::default() }).await;
        fs.enable_quotas().await.unwrap();
        let one = GroupId::new(1, 1).unwrap();
        fs.change_quotas(|ledger: &Ledger| ledger.create(one)).await.unwrap();
        let groups = || Some(vec![one]);
        let a = fs.create_subvolume(&Caller::ROOT, ROOT, b"a", groups()).await.unwrap();
        for n in 0..9 {
            let node = make(&fs, root_of(a), &format!("f{n}")).await.unwrap();
            fs.release(node);
        }
        let in_group = |fs: &Arc<Filesystem>| fs.volumes().ledger().show_group(one).unwrap().inodes;
        let s = fs.snapshot(a, ROOT, b"s", false, groups()).await.unwrap();
        assert_eq!((shown(&fs, a).inodes, shown(&fs, s).inodes, in_group(&fs)), (10, 10, 20));
        limit(&fs, one, LimitKind::Inodes, 25).await;
        assert!(is_over_quota(fs.snapshot(a, ROOT, b"t", false, groups()).await));
        assert_eq!(names(&fs, ROOT).await, [".", "..", "a", "s"]);
        for n in 0..4 {
            fs.unlink(root_of(s), format!("f{n}").as_bytes()).await.unwrap();
        }
        rest(&world).await;
        assert_eq!((shown(&fs, a).inodes, shown(&fs, s).inodes, in_group(&fs)), (10, 6, 16));
        fs.delete_subvolume(ROOT, b"a", None).await.unwrap();
        assert_eq!(in_group(&fs), 6, "at once, whatever is still to be freed");
        fs.sync().await.unwrap();
        assert_eq!(recount(&fs, s).await, (6, 6));
        assert_eq!(fs.pool().get(Pool::SYSTEM, inodes_key(a)).await.unwrap(), None);
        world.close(fs).await;
    });
}

/// A subvolume of the history: names of files, and files without one that are open.
#[derive(Clone, Default)]
struct Plain {
    names: BTreeMap<String, NodeId>,
    unnamed: BTreeSet<NodeId>,
    counts: u64,
}

/// Whatever is made, removed, snapshotted and deleted: each subvolume's count is that of its
/// inodes, in the ledger at any time and in the records after each crash.
#[test]
fn inodes_are_counted_exactly_through_histories_with_crashes() {
    for seed in seeds(12) {
        let mut world = World::new(seed, 16384);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut made = 0;
        for life in 0..3 {
            let world_now = &world;
            let rng_now = &mut rng;
            let made_now = &mut made;
            let fs = world.run(async move {
                let options = Options { count_lookups: false, ..Options::default() };
                let fs = world_now.open_with(options).await;
                if life == 0 {
                    make(&fs, ROOT, "old").await.unwrap();
                    fs.enable_quotas().await.unwrap();
                } else {
                    rest(world_now).await;
                    fs.sync().await.unwrap();
                    for subvol in fs.subvolumes().iter().filter(|subvol| !subvol.is_dying) {
                        let (found, said) = recount(&fs, subvol.id).await;
                        assert_eq!(found, said, "seed {seed} life {life}: {:?}", subvol.id);
                        assert_eq!(shown(&fs, subvol.id).inodes, said);
                    }
                }
                history(world_now, &fs, rng_now, made_now, life).await;
                fs
            });
            world = world.crash(fs, rng.next_u64());
        }
    }
}

async fn history(
    world: &World,
    fs: &Arc<Filesystem>,
    rng: &mut Xoshiro256PlusPlus,
    made: &mut u32,
    life: u32,
) {
    let mut below = |n: u64| rng.next_u64() % n;
    let mut plain: BTreeMap<SubvolId, (String, Plain)> = BTreeMap::new();
    for _ in 0..60 {
        *made += 1;
        let name = format!("{life}-{made}");
        let pick = |at: u64| plain.keys().nth(at as usize % plain.len().max(1)).copied();
        let at = pick(below(8));
        match (below(20), at) {
            (0..2, _) | (_, None) => {
                let id = subvolume(fs, &name).await;
                plain.insert(id, (name, Plain { counts: 1, ..Plain::default() }));
            }
            (2, Some(at)) => {
                let id = fs.snapshot(at, ROOT, name.as_bytes(), false, None).await.unwrap();
                let mut copy = plain[&at].1.clone();
                // What has no name in the snapshot is removed there when it is looked at.
                copy.counts -= copy.unnamed.len() as u64;
                copy.unnamed.clear();
                let moved = |node: &mut NodeId| node.subvol = id;
                copy.names.values_mut().for_each(moved);
                fs.getattr(root_of(id)).await.unwrap();
                plain.insert(id, (name, copy));
            }
            (3, Some(at)) if plain.len() > 1 => {
                let (name, _) = plain.remove(&at).unwrap();
                fs.delete_subvolume(ROOT, name.as_bytes(), None).await.unwrap();
            }
            (4..12, Some(at)) => {
                let node = make(fs, root_of(at), &name).await.unwrap();
                let (_, sub) = plain.get_mut(&at).unwrap();
                sub.counts += 1;
                if below(3) == 0 {
                    sub.unnamed.insert(node);
                    fs.unlink(root_of(at), name.as_bytes()).await.unwrap();
                } else {
                    fs.release(node);
                    sub.names.insert(name, node);
                }
            }
            (12, Some(at)) => {
                let node = fs.tmpfile(&Caller::ROOT, root_of(at), 0o600).await.unwrap().node;
                let (_, sub) = plain.get_mut(&at).unwrap();
                sub.counts += 1;
                sub.unnamed.insert(node);
            }
            (13..16, Some(at)) => {
                let (_, sub) = plain.get_mut(&at).unwrap();
                if let Some((name, _)) = sub.names.pop_first() {
                    fs.unlink(root_of(at), name.as_bytes()).await.unwrap();
                    sub.counts -= 1;
                }
            }
            (16..18, Some(at)) => {
                let (_, sub) = plain.get_mut(&at).unwrap();
                if let Some(node) = sub.unnamed.pop_first() {
                    fs.release(node);
                    sub.counts -= 1;
                }
            }
            (18, _) => fs.sync().await.unwrap(),
            _ => rest(world).await,
        }
    }
    rest(world).await;
    for (id, (_, sub)) in &plain {
        assert_eq!(shown(fs, *id).inodes, sub.counts, "{id}");
    }
    // What follows may be lost, or in part.
    if let Some((id, (_, sub))) = plain.first_key_value() {
        make(fs, root_of(*id), "late").await.unwrap();
        for name in sub.names.keys().take(3) {
            fs.unlink(root_of(*id), name.as_bytes()).await.unwrap();
        }
        drop(fs.pool().commit(fs.pool().open_txg()).await);
        make(fs, root_of(*id), "later").await.unwrap();
    }
}

#[test]
fn a_write_near_the_limit_takes_the_blocks_that_fit() {
    let world = World::new(33, 32768);
    world.run(async {
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let a = subvolume(&fs, "a").await;
        limit(&fs, GroupId::of(a), LimitKind::Referenced, 4 * MIB).await;
        let node = make(&fs, root_of(a), "f").await.unwrap();
        let data = pattern(1, 3 * MIB as usize);
        let some = Default::default();
        assert_eq!(fs.write_some(node, 0, &data, some).await.unwrap() as u64, 3 * MIB);
        let all = fs.write(node, 3 * MIB, &data, some).await;
        assert!(is_over_quota(all), "all or nothing, where that is asked for");
        let mut end = fs.getattr(node).await.unwrap().size;
        assert_eq!(end % BLOCK, 0);
        // Unaligned: the first block is taken in part, the last one is not.
        let taken = fs.write_some(node, end + 100, &data, some).await.unwrap() as u64;
        assert_eq!((end + 100 + taken) % BLOCK, 0, "whole blocks");
        end += 100 + taken;
        assert_eq!(fs.getattr(node).await.unwrap().size, end);
        // What is flushed meanwhile takes less than was estimated.
        let refused = loop {
            match fs.write_some(node, end, &data, some).await {
                Ok(more) => end += more as u64,
                refused => break refused,
            }
        };
        assert!(is_over_quota(refused));
        fs.fsync(node, false).await.unwrap();
        while let Ok(more) = fs.write_some(node, end, &data, some).await {
            end += more as u64;
            fs.fsync(node, false).await.unwrap();
        }
        let group = shown(&fs, a);
        let load = group.referenced + group.reserved + group.unflushed;
        let room = 64 * 1024;
        assert!(load + room + BLOCK + 128 > 4 * MIB, "room for a block is left: {group:?}");
        assert!(load <= 4 * MIB, "{group:?}");
        // What is left is for names and nodes.
        make(&fs, root_of(a), "empty").await.unwrap();
        assert!(group.data >= 4 * MIB - 256 * 1024, "{group:?}");
        let start = read(&fs, node, 0, 3 * MIB as usize).await;
        assert!(start == data);
        world.close(fs).await;
    });
}

#[test]
fn a_write_takes_what_fits_in_the_pool_and_in_preallocated_blocks() {
    let world = World::new(34, 8192);
    world.run(async {
        let fs = world.open().await;
        let kept = create(&fs, "kept").await;
        fs.fallocate(kept, 0, 64 * BLOCK, FallocateMode::Allocate { keep_size: false })
            .await
            .unwrap();
        let node = create(&fs, "f").await;
        let data = pattern(2, MIB as usize);
        let (mut end, mut short) = (0, 0);
        let full = loop {
            match fs.write_some(node, end, &data, Default::default()).await {
                Ok(taken) => {
                    assert!(taken > 0);
                    short += u32::from(taken < data.len());
                    end += taken as u64;
                }
                Err(full) => break full,
            }
            assert!(end < 64 * MIB);
        };
        assert!(matches!(full, FsError::NoSpace(_)), "{full:?}");
        assert!(short > 0, "the last megabyte was taken in part");
        let taken = fs.write_some(kept, 32 * BLOCK, &data, Default::default()).await.unwrap();
        assert_eq!(taken as u64, 32 * BLOCK, "what fallocate has promised is there");
        fs.sync().await.unwrap();
        assert!(read(&fs, kept, 32 * BLOCK, 32 * BLOCK as usize).await == data[..taken]);
        world.close(fs).await;
    });
}

#[test]
fn the_estimate_of_unflushed_edits_shrinks_by_what_was_flushed_and_to_nothing() {
    let world = World::new(35, 32768);
    world.run(async {
        let fs = world.open_with(Options { count_lookups: false, ..Options::default() }).await;
        fs.enable_quotas().await.unwrap();
        let a = subvolume(&fs, "a").await;
        let fill = async |from: u32| {
            for n in from..from + 200 {
                fs.release(make(&fs, root_of(a), &format!("f{n}")).await.unwrap());
            }
        };
        fill(0).await;
        let before = shown(&fs, a).unflushed;
        let sealed = fs.volumes().subvol(a).unwrap().files();
        let s = fs.snapshot(a, ROOT, b"s", true, None).await.unwrap();
        assert_eq!(shown(&fs, s).unflushed, 0);
        fill(1000).await;
        let both = shown(&fs, a).unflushed;
        assert!(both > before * 3 / 2, "{both} {before}");
        // Half of what `a` owes lies in the table that it shares with the snapshot.
        fs.pool().commit(fs.pool().open_txg()).await.unwrap();
        let top = fs.pool().table(fs.volumes().subvol(a).unwrap().files());
        assert_eq!(top.under().map(|under| under.id()), Some(sealed));
        fs.pool().settle_under(&top).await.unwrap();
        let half = shown(&fs, a).unflushed;
        assert!((both / 4..both * 3 / 4).contains(&half), "{half} of {both}");
        fs.pool().flush_all().await.unwrap();
        assert_eq!(shown(&fs, a).unflushed, 0);
        world.close(fs).await;
    });
}

#[test]
fn what_is_reserved_for_one_subvolume_no_other_gets() {
    let world = World::new(36, 16384);
    world.run(async {
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let (a, b) = (subvolume(&fs, "a").await, subvolume(&fs, "b").await);
        let free = fs.statfs().blocks_available * BLOCK;
        let reserve = free - 8 * MIB;
        let promise = |ledger: &Ledger| ledger.reserve(GroupId::of(a), reserve, free);
        fs.change_quotas(promise).await.unwrap();
        let left = fs.statfs_of(root_of(b)).blocks_available * BLOCK;
        assert!((6 * MIB..=9 * MIB).contains(&left), "{left}");
        assert!(fs.statfs_of(root_of(a)).blocks_available * BLOCK > reserve);
        let data = pattern(3, MIB as usize);
        let greedy = make(&fs, root_of(b), "f").await.unwrap();
        let mut end = 0;
        let refused = loop {
            match fs.write_some(greedy, end, &data, Default::default()).await {
                Ok(taken) => end += taken as u64,
                Err(refused) => break refused,
            }
        };
        assert!(matches!(refused, FsError::Kept { .. }), "{refused:?}");
        assert!((5 * MIB..=9 * MIB).contains(&end), "{end}");
        let own = make(&fs, root_of(a), "f").await.unwrap();
        let mut at = 0;
        while at < reserve * 8 / 10 {
            fs.write(own, at, &data, Default::default()).await.unwrap();
            at += data.len() as u64;
        }
        fs.sync().await.unwrap();
        fs.unlink(root_of(b), b"f").await.unwrap();
        world.close(fs).await;
    });
}

#[test]
fn quotas_that_were_turned_off_can_be_turned_on_while_their_records_go() {
    let world = World::new(37, 16384);
    world.run(async {
        let fs = world.open().await;
        for _ in 0..2 {
            fs.enable_quotas().await.unwrap();
            for n in 1..200 {
                let group = GroupId::new(1, n).unwrap();
                fs.change_quotas(|ledger: &Ledger| ledger.create(group)).await.unwrap();
            }
            fs.disable_quotas().await.unwrap();
            assert!(fs.volumes().ledger().status().leftovers > 100);
        }
        fs.enable_quotas().await.unwrap();
        assert_eq!(fs.volumes().ledger().show().unwrap().len(), 1);
        assert_eq!(fs.volumes().ledger().status().leftovers, 0);
        world.close(fs).await;
    });
}

/// An ACL of a mask and `named` users beside owner, group and others.
fn acl(named: u32) -> Vec<u8> {
    let mut acl = 2u32.to_le_bytes().to_vec();
    let users = (0..named).map(|uid| (2u16, 6u16, uid));
    let rest = [(4, 4, !0), (16, 6, !0), (32, 0, !0)];
    for (tag, permissions, id) in [(1, 6, !0)].into_iter().chain(users).chain(rest) {
        acl.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    }
    acl
}

const ACCESS: &[u8] = b"system.posix_acl_access";

/// chmod, and an ACL with fewer entries or none: what takes rights away is not refused.
async fn restrict(fs: &Arc<Filesystem>, file: NodeId) {
    let root = &Caller::ROOT;
    let set = SetAttr { mode: Some(0o600), ..Default::default() };
    fs.setattr(root, file, &set).await.expect("chmod works");
    for named in [150, 149, 2, 1] {
        let set = fs.set_xattr(root, file, ACCESS, &acl(named), XattrSet::Any, false).await;
        set.expect("setfacl -x works");
    }
    fs.setattr(root, file, &set).await.expect("chmod works");
    fs.remove_xattr(file, ACCESS).await.expect("setfacl -b works");
}

#[test]
fn rights_are_taken_away_at_the_limit() {
    let world = World::new(79, 16384);
    world.run(async {
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let a = subvolume(&fs, "a").await;
        let dir = root_of(a);
        let file = make(&fs, dir, "f").await.unwrap();
        let (root, any) = (&Caller::ROOT, XattrSet::Any);
        fs.set_xattr(root, file, ACCESS, &acl(150), any, false).await.unwrap();
        limit(&fs, GroupId::of(a), LimitKind::Referenced, 0).await;
        let more = fs.set_xattr(root, file, ACCESS, &acl(151), any, false).await;
        assert!(is_over_quota(more), "an ACL that grows is refused");
        restrict(&fs, file).await;
        world.close(fs).await;
    });
}

#[test]
fn rights_are_taken_away_on_a_full_pool() {
    let world = World::new(80, 8192);
    world.run(async {
        let fs = world.open().await;
        let file = make(&fs, ROOT, "f").await.unwrap();
        let (root, any) = (&Caller::ROOT, XattrSet::Any);
        fs.set_xattr(root, file, ACCESS, &acl(150), any, false).await.unwrap();
        fs.sync().await.unwrap();
        let full = make(&fs, ROOT, "full").await.unwrap();
        let mut at = 0;
        for len in [1 << 20, 1 << 16, 4096] {
            while fs.write(full, at, &vec![7; len], Default::default()).await.is_ok() {
                at += len as u64;
            }
        }
        fs.sync().await.unwrap();
        restrict(&fs, file).await;
        world.close(fs).await;
    });
}
