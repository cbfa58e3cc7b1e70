//! Limits of subvolumes: number, nesting, owners, and the cost to the subvolume that holds them.

use std::sync::Arc;

use copyhold_fs::{
    Caller, Filesystem, FsError, NodeId, RenameFlags, Right, SetAttr, SubvolumeCalls,
};
use copyhold_table::LAYERS_HANDED;
use copyhold_types::SubvolId;
use copyhold_volume::NESTING_MAX;
use copyhold_volume::quota::{GroupId, LimitKind};

use crate::common::*;
use crate::quotas::{is_over_quota, limit, make, root_of, shown, subvolume};
use crate::walls::{KIB, MIB, name, open, used};

/// The root of a new subvolume in the root subvolume.
async fn made_by(fs: &Arc<Filesystem>, caller: &Caller, name: &str) -> NodeId {
    root_of(fs.create_subvolume(caller, ROOT, name.as_bytes(), None).await.unwrap())
}

#[test]
fn subvolumes_count_in_the_one_that_holds_them() {
    let world = World::new(41, 16384);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        limit(&fs, GroupId::of(a), LimitKind::Subvolumes, 3).await;
        let create = async |dir, name: String| {
            fs.create_subvolume(&Caller::ROOT, dir, name.as_bytes(), None).await
        };
        let inner = create(root_of(a), "b".into()).await.unwrap();
        create(root_of(inner), "c".into()).await.unwrap();
        fs.snapshot(inner, root_of(a), b"s", true, None).await.unwrap();
        assert!(is_over_quota(create(root_of(inner), "d".into()).await));
        assert!(is_over_quota(fs.snapshot(a, root_of(inner), b"d", false, None).await));
        fs.delete_subvolume(root_of(inner), b"c", None).await.unwrap();
        create(root_of(inner), "d".into()).await.unwrap();
        // And each takes of the limit in bytes.
        let b = subvolume(&fs, "bytes").await;
        limit(&fs, GroupId::of(b), LimitKind::Referenced, MIB).await;
        let mut n = 0;
        while create(root_of(b), format!("{n}")).await.is_ok() {
            n += 1;
            assert!(n < 1000);
        }
        world.close(fs).await;
    });
}

#[test]
fn subvolumes_nest_to_a_bounded_depth() {
    let world = World::new(43, 16384);
    world.run(async {
        let fs = world.open().await;
        let create = async |dir| fs.create_subvolume(&Caller::ROOT, dir, b"in", None).await;
        let (mut dirs, mut dir) = (vec![], ROOT);
        while let Ok(made) = create(dir).await {
            dir = root_of(made);
            dirs.push(dir);
        }
        assert_eq!(dirs.len(), NESTING_MAX);
        let refused = create(dir).await.unwrap_err().to_string();
        assert!(refused.contains("nested at most 32 deep"), "{refused}");
        // A move takes along those inside.
        let two = fs.create_subvolume(&Caller::ROOT, ROOT, b"two", None).await.unwrap();
        create(root_of(two)).await.unwrap();
        let go = async |into: NodeId| {
            let flags = RenameFlags::default();
            fs.rename(&Caller::ROOT, ROOT, b"two", into, b"two", flags).await
        };
        go(dirs[NESTING_MAX - 2]).await.unwrap_err();
        go(dirs[NESTING_MAX - 3]).await.unwrap();
        world.close(fs).await;
    });
}

#[test]
fn a_subvolume_comes_to_another_by_that_ones_owner_only() {
    let world = World::new(45, 16384);
    world.run(async {
        let fs = world.open().await;
        let (alice, bob) = (Caller::new(1, 1, 0), Caller::new(2, 2, 0));
        let (of_alice, of_bob) =
            (made_by(&fs, &alice, "alice").await, made_by(&fs, &bob, "bob").await);
        let open = fs.mkdir(&bob, of_bob, b"open", 0o777).await.unwrap().node;
        fs.create_subvolume(&alice, of_alice, b"gift", None).await.unwrap();
        let rename = async |caller: &Caller, from: NodeId, to: NodeId| {
            fs.rename(caller, from, b"gift", to, b"gift", RenameFlags::default()).await
        };
        let refused = rename(&alice, of_alice, open).await.unwrap_err();
        assert!(matches!(refused, FsError::NotPermitted(_)), "{refused}");
        rename(&bob, of_alice, open).await.unwrap();
        rename(&alice, open, of_alice).await.unwrap();
        // User 0 of a container is a user like others; an administrator is more.
        let refused = rename(&Caller::new(0, 0, 0), of_alice, open).await.unwrap_err();
        assert!(matches!(refused, FsError::NotPermitted(_)), "{refused}");
        rename(&Caller::ROOT, of_alice, open).await.unwrap();
        rename(&alice, open, ROOT).await.unwrap();
        let of_root = made_by(&fs, &Caller::ROOT, "root").await;
        rename(&Caller::new(0, 0, 0), ROOT, of_root).await.unwrap();
        world.close(fs).await;
    });
}

#[test]
fn a_rollback_brings_no_owner_over_its_limit() {
    let world = World::new(47, 16384);
    world.run(async {
        let fs = open(&world).await;
        let alice = Caller::new(1, 1, 0);
        let calls = SubvolumeCalls::new(&fs, Right::Owner(1));
        let own = fs.create_subvolume(&alice, ROOT, b"own", None).await.unwrap();
        let top = root_of(own);
        let a = calls.create(&alice, top, b"a", None).await.unwrap();
        for n in 0..5 {
            let file = make(&fs, root_of(a), &name(n)).await.unwrap();
            fs.release(file);
        }
        let s = calls.snapshot(a, top, b"s", true, None).await.unwrap();
        // The old state that is kept is a subvolume more: with inodes, bytes and a name.
        let keep = async |n: u64| {
            let name = name(n);
            calls.roll_back(top, b"a", s, Some((top, name.as_bytes()))).await
        };
        for (kind, most) in [(LimitKind::Subvolumes, 2), (LimitKind::Inodes, 15)] {
            limit(&fs, GroupId::of(own), kind, most).await;
            assert!(is_over_quota(keep(0).await), "{kind:?}");
            fs.change_quotas(|ledger| ledger.limit(GroupId::of(own), kind, None)).await.unwrap();
        }
        limit(&fs, GroupId::of(own), LimitKind::Referenced, 256 * KIB).await;
        let mut kept = 0;
        while keep(kept).await.is_ok() {
            kept += 1;
            assert!(kept < 100, "no rollback is refused");
        }
        // A rollback that adds nothing is the way out. One that adds inodes asks their limit.
        limit(&fs, GroupId::of(own), LimitKind::Inodes, 1).await;
        let a = calls.roll_back(top, b"a", s, None).await.unwrap().subvol;
        for n in 0..5 {
            fs.unlink(root_of(a), name(n).as_bytes()).await.unwrap();
        }
        fs.reaper_idle().await;
        assert!(is_over_quota(calls.roll_back(top, b"a", s, None).await));
        world.close(fs).await;
    });
}

#[test]
fn a_subvolume_is_made_in_another_by_that_ones_owner_only() {
    let world = World::new(48, 16384);
    world.run(async {
        let fs = world.open().await;
        let (alice, bob) = (Caller::new(1, 1, 0), Caller::new(2, 2, 0));
        let (of_alice, of_bob) =
            (made_by(&fs, &alice, "alice").await, made_by(&fs, &bob, "bob").await);
        let open = fs.mkdir(&bob, of_bob, b"open", 0o1777).await.unwrap().node;
        let (hers, his) = (
            fs.mkdir(&alice, open, b"hers", 0o755).await.unwrap().node,
            fs.mkdir(&bob, of_bob, b"his", 0o755).await.unwrap().node,
        );
        let free = fs.mkdir(&alice, ROOT, b"free", 0o755).await.unwrap().node;
        let hers_inside = fs.mkdir(&alice, of_alice, b"inside", 0o755).await.unwrap().node;
        let refused = |done: Result<SubvolId, FsError>| {
            assert!(matches!(done, Err(FsError::NotPermitted(_))), "{done:?}");
        };
        let calls = SubvolumeCalls::new(&fs, Right::Owner(1));
        refused(calls.create(&alice, hers, b"new", None).await);
        calls.create(&alice, hers_inside, b"new", None).await.unwrap();
        let a = calls.create(&alice, free, b"a", None).await.unwrap();
        refused(calls.snapshot(a, hers, b"s", true, None).await);
        let s = calls.snapshot(a, free, b"s", true, None).await.unwrap();
        let keep = async |to: NodeId| {
            let kept = Some((to, &b"kept"[..]));
            Ok(calls.roll_back(free, b"a", s, kept).await?.subvol)
        };
        refused(keep(hers).await);
        keep(of_alice).await.unwrap();
        let calls = SubvolumeCalls::new(&fs, Right::Owner(2));
        calls.create(&bob, his, b"new", None).await.unwrap();
        world.close(fs).await;
    });
}

/// A flush rewrites the leaf of the changed directory, at its owner's cost.
#[test]
fn deletions_and_rollbacks_inside_a_subvolume_count_there() {
    let world = World::new(53, 16384);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let inner = fs.create_subvolume(&Caller::ROOT, root_of(a), b"inner", None).await.unwrap();
        let state = fs.snapshot(inner, ROOT, b"state", true, None).await.unwrap();
        used(&fs, a).await;
        assert_eq!(shown(&fs, a).unflushed, 0);
        fs.roll_back_subvolume(root_of(a), b"inner", state, None).await.unwrap();
        assert!(shown(&fs, a).unflushed > 0, "a rollback");
        used(&fs, a).await;
        assert_eq!(shown(&fs, a).unflushed, 0);
        fs.delete_subvolume(root_of(a), b"inner", None).await.unwrap();
        assert!(shown(&fs, a).unflushed > 0, "a deletion");
        world.close(fs).await;
    });
}

/// Each snapshot inherits the layers of its source, and gets one of its own.
#[test]
fn a_chain_of_snapshots_hands_on_few_layers() {
    let world = World::with_log(55, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let mut last = subvolume(&fs, "a").await;
        for n in 0..8000 {
            let file = make(&fs, root_of(last), &name(n)).await.unwrap();
            fs.release(file);
        }
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let files = |subvol| fs.volumes().subvol(subvol).unwrap().files();
        let mut most = 0;
        for n in 0..24 {
            for changed in 0..100 {
                let file = name(changed * 79 + n);
                let node = fs.lookup(root_of(last), file.as_bytes()).await.unwrap().node;
                fs.setattr(&Caller::ROOT, node, &mode).await.unwrap();
            }
            fs.sync().await.unwrap();
            fs.pool().flush_edits_of(files(last)).await.unwrap();
            let handed_on = fs.pool().table(files(last));
            let next = format!("next{n}");
            last = fs.snapshot(last, ROOT, next.as_bytes(), false, None).await.unwrap();
            most = most.max(handed_on.layers_most());
        }
        assert!((2..=LAYERS_HANDED).contains(&most), "{most}");
        world.close(fs).await;
    });
}
