//! Rolling back, moving and removing subvolumes by their entries.

use std::sync::Arc;

use copyhold_fs::{Caller, Filesystem, FsError, NodeId, OpenFlags, RenameFlags};
use copyhold_memory::{GroupLimits, Promise};
use copyhold_types::{InodeNo, SubvolId};
use copyhold_volume::quota::{GroupId, Ledger, LimitKind, QuotaError};
use copyhold_volume::{MemoryGroup, VolumeError, change_memory_limits};

use crate::common::*;

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

async fn put(fs: &Arc<Filesystem>, dir: NodeId, name: &str, data: &[u8]) -> NodeId {
    let flags = OpenFlags::READ_WRITE;
    let made = fs.create(&Caller::ROOT, dir, name.as_bytes(), 0o644, flags, false).await;
    let node = made.unwrap().0.node;
    write(fs, node, 0, data).await;
    node
}

async fn content(fs: &Filesystem, dir: NodeId, name: &str) -> Vec<u8> {
    let node = fs.lookup(dir, name.as_bytes()).await.unwrap().node;
    read(fs, node, 0, 1 << 20).await
}

async fn subvolume(fs: &Arc<Filesystem>, dir: NodeId, name: &str) -> SubvolId {
    fs.create_subvolume(&Caller::ROOT, dir, name.as_bytes(), None).await.unwrap()
}

async fn snapshot(fs: &Arc<Filesystem>, of: SubvolId, name: &str) -> SubvolId {
    fs.snapshot(of, ROOT, name.as_bytes(), true, None).await.unwrap()
}

async fn dir(fs: &Arc<Filesystem>, parent: NodeId, name: &str) -> NodeId {
    fs.mkdir(&Caller::ROOT, parent, name.as_bytes(), 0o755).await.unwrap().node
}

async fn roll_back(
    fs: &Arc<Filesystem>,
    name: &str,
    to: SubvolId,
    keep: Option<(NodeId, &str)>,
) -> Result<SubvolId, FsError> {
    let keep = keep.map(|(dir, name)| (dir, name.as_bytes()));
    let done = fs.roll_back_subvolume(ROOT, name.as_bytes(), to, keep).await?;
    Ok(done.subvol)
}

async fn rename(
    fs: &Arc<Filesystem>,
    (from, name): (NodeId, &str),
    (to, new_name): (NodeId, &str),
    flags: RenameFlags,
) -> Result<(), FsError> {
    fs.rename(&Caller::ROOT, from, name.as_bytes(), to, new_name.as_bytes(), flags).await
}

const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAIN };

async fn where_is(fs: &Filesystem, dir: NodeId, name: &str) -> NodeId {
    fs.lookup(dir, name.as_bytes()).await.unwrap().node
}

#[test]
fn a_subvolume_becomes_what_its_snapshot_was() {
    let world = World::new(1, 16384);
    let (made, old_node) = world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, ROOT, "a").await;
        let node = put(&fs, root_of(a), "f", &pattern(1, 100_000)).await;
        let s = snapshot(&fs, a, "s").await;
        write(&fs, node, 0, &pattern(2, 60_000)).await;
        put(&fs, root_of(a), "later", b"x").await;
        let done = fs.roll_back_subvolume(ROOT, b"a", s, None).await.unwrap();
        assert!(done.stale.contains(&node) && done.stale.contains(&root_of(a)), "{done:?}");
        assert!(done.subvol != a && done.subvol != s);
        assert_eq!(where_is(&fs, ROOT, "a").await, root_of(done.subvol));
        assert_eq!(names(&fs, root_of(done.subvol)).await, [".", "..", "f"]);
        assert_eq!(content(&fs, root_of(done.subvol), "f").await, pattern(1, 100_000));
        assert!(matches!(fs.getattr(node).await, Err(FsError::Stale)));
        let late = fs.write(node, 0, b"x", Default::default()).await;
        assert!(matches!(late, Err(FsError::Stale)), "{late:?}");
        let up = where_is(&fs, root_of(done.subvol), "..").await;
        assert_eq!(up, ROOT);
        // The snapshot stays as it is, and the new one goes its own way.
        put(&fs, root_of(done.subvol), "f", &pattern(3, 10)).await;
        assert_eq!(content(&fs, root_of(s), "f").await, pattern(1, 100_000));
        assert_eq!(
            fs.subvolumes().iter().find(|one| one.id == a).map(|one| one.is_dying),
            Some(true)
        );
        fs.sync_subvolumes(&[]).await.unwrap();
        assert!(fs.subvolumes().iter().all(|one| one.id != a));
        world.close(fs).await;
        (done.subvol, node)
    });
    world.run(async {
        let fs = world.open().await;
        assert_eq!(where_is(&fs, ROOT, "a").await, root_of(made));
        let mut expected = pattern(1, 100_000);
        expected[..10].copy_from_slice(&pattern(3, 10));
        assert_eq!(content(&fs, root_of(made), "f").await, expected);
        assert!(matches!(fs.getattr(old_node).await, Err(FsError::Stale)));
        world.close(fs).await;
    });
}

#[test]
fn the_old_state_can_be_kept_with_all_that_is_inside() {
    let world = World::new(2, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, ROOT, "a").await;
        let node = put(&fs, root_of(a), "f", b"old").await;
        let other = subvolume(&fs, ROOT, "other").await;
        let deep = dir(&fs, root_of(other), "deep").await;
        let s = snapshot(&fs, a, "s").await;
        let inner = subvolume(&fs, root_of(a), "inner").await;
        write(&fs, node, 0, b"new").await;
        let held = roll_back(&fs, "a", s, None).await;
        let FsError::Volume(held) = held.unwrap_err() else { panic!("it holds another one") };
        assert!(matches!(*held, VolumeError::Holds(..)), "{held}");
        let taken = roll_back(&fs, "a", s, Some((ROOT, "other"))).await;
        assert!(matches!(taken, Err(FsError::Exists)));
        let inside = roll_back(&fs, "a", s, Some((root_of(a), "x"))).await;
        assert!(matches!(inside, Err(FsError::Invalid(_))), "{inside:?}");
        let inside = roll_back(&fs, "a", s, Some((root_of(inner), "x"))).await;
        assert!(matches!(inside, Err(FsError::Invalid(_))), "{inside:?}");
        let made = roll_back(&fs, "a", s, Some((deep, "kept"))).await.unwrap();
        assert_eq!(where_is(&fs, deep, "kept").await, root_of(a));
        assert_eq!(where_is(&fs, root_of(a), "..").await, deep);
        assert_eq!(where_is(&fs, root_of(a), "inner").await, root_of(inner));
        // Its open files go on.
        write(&fs, node, 3, b"er").await;
        assert_eq!(content(&fs, root_of(a), "f").await, b"newer");
        assert_eq!(content(&fs, root_of(made), "f").await, b"old");
        // Also beside itself, in the same directory.
        let next = roll_back(&fs, "a", s, Some((ROOT, "b"))).await.unwrap();
        assert_eq!(where_is(&fs, ROOT, "b").await, root_of(made));
        assert_eq!(where_is(&fs, ROOT, "a").await, root_of(next));
        assert_eq!(names(&fs, ROOT).await, [".", "..", "a", "b", "other", "s"]);
        let of_root = fs.getattr(ROOT).await.unwrap();
        assert_eq!((of_root.nlink, of_root.size), (6, 4));
        assert_eq!(fs.getattr(deep).await.unwrap().nlink, 3);
        world.close(fs).await;
    });
}

#[test]
fn what_is_no_state_of_the_subvolume_is_refused() {
    let world = World::new(3, 16384);
    world.run(async {
        let fs = world.open().await;
        let (a, b) = (subvolume(&fs, ROOT, "a").await, subvolume(&fs, ROOT, "b").await);
        let s = snapshot(&fs, a, "s").await;
        let unrelated = |done: Result<SubvolId, FsError>| match done.unwrap_err() {
            FsError::Volume(error) => matches!(*error, VolumeError::Unrelated { .. }),
            other => panic!("{other}"),
        };
        assert!(unrelated(roll_back(&fs, "a", b, None).await));
        assert!(unrelated(roll_back(&fs, "a", a, None).await));
        assert!(matches!(roll_back(&fs, "none", s, None).await, Err(FsError::NotFound)));
        dir(&fs, ROOT, "plain").await;
        assert!(matches!(roll_back(&fs, "plain", s, None).await, Err(FsError::Invalid(_))));
        let read_only = roll_back(&fs, "s", a, None).await;
        assert!(matches!(read_only, Err(FsError::ReadOnly { .. })), "{read_only:?}");
        let nobody = roll_back(&fs, "a", SubvolId(99), None).await;
        assert!(matches!(nobody, Err(FsError::Stale)), "{nobody:?}");
        let root = snapshot(&fs, SubvolId::ROOT, "of-root").await;
        let up = fs.roll_back_subvolume(root_of(a), b"..", root, None).await;
        assert!(up.is_err(), "the root has no entry");
        fs.delete_subvolume(ROOT, b"s", None).await.unwrap();
        assert!(matches!(roll_back(&fs, "a", s, None).await, Err(FsError::Stale)));
        assert_eq!(where_is(&fs, ROOT, "a").await, root_of(a));
        world.close(fs).await;
    });
}

#[test]
fn a_tenant_that_is_rolled_back_keeps_its_limit() {
    let world = World::new(4, 32768);
    world.run(async {
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let a = subvolume(&fs, ROOT, "a").await;
        let group = GroupId::new(1, 7).unwrap();
        fs.change_quotas(|ledger: &Ledger| ledger.create(group)).await.unwrap();
        fs.change_quotas(|ledger| ledger.assign(GroupId::of(a), group)).await.unwrap();
        let limit =
            |ledger: &Ledger| ledger.limit(GroupId::of(a), LimitKind::Referenced, Some(4 << 20));
        fs.change_quotas(limit).await.unwrap();
        put(&fs, root_of(a), "f", &pattern(1, 1 << 20)).await;
        let s = snapshot(&fs, a, "s").await;
        let node = put(&fs, root_of(a), "g", b"").await;
        let mut at = 0;
        let full = loop {
            match fs.write(node, at, &pattern(2, 256 << 10), Default::default()).await {
                Ok(()) => at += 256 << 10,
                Err(full) => break full,
            }
        };
        assert!(matches!(full, FsError::Quota(QuotaError::Exceeded(_))), "{full}");
        // It works at the limit, and gives back what the snapshot does not have.
        let made = roll_back(&fs, "a", s, None).await.unwrap();
        fs.sync_subvolumes(&[]).await.unwrap();
        let shown = fs.volumes().ledger().show_group(GroupId::of(made)).unwrap();
        assert_eq!((shown.data, shown.limits.referenced), (1 << 20, Some(4 << 20)));
        assert_eq!(shown.parents, [group]);
        assert_eq!(fs.volumes().ledger().show_group(group).unwrap().data, 1 << 20);
        let node = put(&fs, root_of(made), "g", b"").await;
        let refused = fs.write(node, 0, &pattern(3, 4 << 20), Default::default()).await;
        assert!(matches!(refused, Err(FsError::Quota(_))), "{refused:?}");
        write(&fs, node, 0, &pattern(3, 512 << 10)).await;
        world.close(fs).await;
    });
}

#[test]
fn an_entry_of_a_subvolume_goes_to_any_directory() {
    let world = World::new(5, 16384);
    let (a, b, inner) = world.run(async {
        let fs = world.open().await;
        let (a, b) = (subvolume(&fs, ROOT, "a").await, subvolume(&fs, ROOT, "b").await);
        put(&fs, root_of(a), "f", b"in a").await;
        let d = dir(&fs, ROOT, "d").await;
        let inner = subvolume(&fs, root_of(a), "inner").await;
        // To another directory, and to another subvolume.
        rename(&fs, (ROOT, "a"), (d, "a"), PLAIN).await.unwrap();
        assert_eq!(where_is(&fs, d, "a").await, root_of(a));
        assert_eq!(where_is(&fs, root_of(a), "..").await, d);
        assert_eq!((fs.getattr(d).await.unwrap().nlink, names(&fs, ROOT).await.len()), (3, 4));
        let e = dir(&fs, root_of(b), "e").await;
        rename(&fs, (root_of(a), "inner"), (e, "moved"), PLAIN).await.unwrap();
        assert_eq!(where_is(&fs, e, "moved").await, root_of(inner));
        assert_eq!(where_is(&fs, root_of(inner), "..").await, e);
        assert_eq!(names(&fs, root_of(a)).await, [".", "..", "f"]);
        // None inside itself, and nothing else to another subvolume.
        let under = rename(&fs, (ROOT, "b"), (root_of(inner), "b"), PLAIN).await;
        assert!(matches!(under, Err(FsError::Invalid(_))), "{under:?}");
        let file = rename(&fs, (root_of(a), "f"), (ROOT, "f"), PLAIN).await;
        assert!(matches!(file, Err(FsError::CrossSubvolume)), "{file:?}");
        let both = rename(&fs, (d, "a"), (e, "moved"), EXCHANGE).await;
        both.unwrap();
        assert_eq!(where_is(&fs, d, "a").await, root_of(inner));
        assert_eq!(where_is(&fs, e, "moved").await, root_of(a));
        let one = rename(&fs, (root_of(a), "f"), (d, "a"), EXCHANGE).await;
        assert!(matches!(one, Err(FsError::CrossSubvolume)), "{one:?}");
        // A subvolume that holds another cannot be deleted, wherever the entry came from.
        assert!(fs.delete_subvolume(ROOT, b"b", None).await.is_err());
        world.close(fs).await;
        (a, b, inner)
    });
    world.run(async {
        let fs = world.open().await;
        let d = where_is(&fs, ROOT, "d").await;
        let e = where_is(&fs, root_of(b), "e").await;
        assert_eq!(where_is(&fs, d, "a").await, root_of(inner));
        assert_eq!(where_is(&fs, e, "moved").await, root_of(a));
        assert_eq!(content(&fs, root_of(a), "f").await, b"in a");
        fs.delete_subvolume(e, b"moved", None).await.unwrap();
        fs.delete_subvolume(ROOT, b"b", None).await.unwrap();
        world.close(fs).await;
    });
}

#[test]
fn only_empty_directories_give_way_to_a_subvolume() {
    let world = World::new(6, 16384);
    world.run(async {
        let fs = world.open().await;
        let (a, b) = (subvolume(&fs, ROOT, "a").await, subvolume(&fs, ROOT, "b").await);
        let d = dir(&fs, ROOT, "d").await;
        let f = put(&fs, d, "f", b"x").await;
        let not_empty = rename(&fs, (ROOT, "a"), (ROOT, "d"), PLAIN).await;
        assert!(matches!(not_empty, Err(FsError::NotEmpty)), "{not_empty:?}");
        for (from, onto) in [("a", "b"), ("d", "b")] {
            let onto = rename(&fs, (ROOT, from), (ROOT, onto), PLAIN).await;
            assert!(matches!(onto, Err(FsError::NotEmpty)), "{onto:?}");
        }
        let no_replace = RenameFlags { no_replace: true, ..PLAIN };
        let taken = rename(&fs, (ROOT, "a"), (ROOT, "d"), no_replace).await;
        assert!(matches!(taken, Err(FsError::Exists)));
        let whiteout = RenameFlags { whiteout: true, ..PLAIN };
        assert!(rename(&fs, (ROOT, "a"), (ROOT, "w"), whiteout).await.is_err());
        fs.unlink(d, b"f").await.unwrap();
        fs.release(f);
        fs.forget(f, 1);
        rename(&fs, (ROOT, "a"), (ROOT, "d"), PLAIN).await.unwrap();
        assert_eq!(where_is(&fs, ROOT, "d").await, root_of(a));
        // With a directory and with a file beside it they change places.
        let g = dir(&fs, ROOT, "g").await;
        let h = dir(&fs, g, "h").await;
        rename(&fs, (ROOT, "b"), (g, "h"), EXCHANGE).await.unwrap();
        assert_eq!((where_is(&fs, ROOT, "b").await, where_is(&fs, g, "h").await), (h, root_of(b)));
        assert_eq!(where_is(&fs, h, "..").await, ROOT);
        let x = put(&fs, ROOT, "x", b"x").await;
        rename(&fs, (ROOT, "x"), (g, "h"), EXCHANGE).await.unwrap();
        assert_eq!((where_is(&fs, ROOT, "x").await, where_is(&fs, g, "h").await), (root_of(b), x));
        assert_eq!(
            (fs.getattr(g).await.unwrap().nlink, fs.getattr(ROOT).await.unwrap().nlink),
            (2, 6)
        );
        world.close(fs).await;
    });
}

#[test]
fn what_moves_counts_where_it_is() {
    let world = World::new(7, 32768);
    world.run(async {
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let (a, b) = (subvolume(&fs, ROOT, "a").await, subvolume(&fs, ROOT, "b").await);
        let inner = subvolume(&fs, root_of(a), "inner").await;
        for holder in [a, b] {
            let group = GroupId::of(holder);
            let change =
                |ledger: &Ledger| ledger.limit(group, LimitKind::Referenced, Some(8 << 20));
            fs.change_quotas(change).await.unwrap();
        }
        put(&fs, root_of(inner), "f", &pattern(1, 6 << 20)).await;
        fs.sync().await.unwrap();
        let left = |fs: &Filesystem, subvol| fs.volumes().ledger().available(subvol).unwrap() >> 20;
        assert!(left(&fs, a) < 2 && left(&fs, b) >= 7);
        rename(&fs, (root_of(a), "inner"), (root_of(b), "inner"), PLAIN).await.unwrap();
        assert!(left(&fs, b) < 2 && left(&fs, a) >= 7, "{} {}", left(&fs, b), left(&fs, a));
        let node = where_is(&fs, root_of(inner), "f").await;
        let refused = fs.write(node, 6 << 20, &pattern(1, 3 << 20), Default::default()).await;
        assert!(matches!(refused, Err(FsError::Quota(_))), "a child cannot escape: {refused:?}");
        world.close(fs).await;
    });
}

#[test]
fn placeholders_move_and_go_like_empty_directories() {
    let world = World::new(8, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, ROOT, "a").await;
        let inner = subvolume(&fs, root_of(a), "inner").await;
        let s = fs.snapshot(a, ROOT, b"s", false, None).await.unwrap();
        let d = dir(&fs, root_of(s), "d").await;
        rename(&fs, (root_of(s), "inner"), (d, "was"), PLAIN).await.unwrap();
        let placeholder = where_is(&fs, d, "was").await;
        assert!(placeholder != root_of(inner) && placeholder.subvol == s);
        let out = rename(&fs, (d, "was"), (ROOT, "out"), PLAIN).await;
        assert!(matches!(out, Err(FsError::CrossSubvolume)), "{out:?}");
        dir(&fs, root_of(s), "e").await;
        rename(&fs, (root_of(s), "e"), (d, "was"), PLAIN).await.unwrap();
        assert_eq!(names(&fs, d).await, [".", "..", "was"]);
        assert_eq!(names(&fs, root_of(s)).await, [".", "..", "d"]);
        assert_eq!(where_is(&fs, root_of(a), "inner").await, root_of(inner));
        world.close(fs).await;
    });
}

/// Else both entries would lead to it (R39).
#[test]
fn a_subvolume_is_not_brought_where_something_stands_for_it() {
    let world = World::new(18, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, ROOT, "a").await;
        let inner = root_of(subvolume(&fs, root_of(a), "inner").await);
        let s = root_of(fs.snapshot(a, ROOT, b"s", false, None).await.unwrap());
        let d = dir(&fs, s, "d").await;
        let refused = |done: Result<(), FsError>| {
            assert!(matches!(done, Err(FsError::Busy(_))), "{done:?}");
        };
        refused(rename(&fs, (root_of(a), "inner"), (s, "two"), PLAIN).await);
        // Elsewhere, and in its place, it may be; keeping what is rolled back is a move, too.
        rename(&fs, (root_of(a), "inner"), (d, "two"), PLAIN).await.unwrap();
        refused(rename(&fs, (s, "inner"), (d, "three"), PLAIN).await);
        rename(&fs, (d, "two"), (s, "inner"), PLAIN).await.unwrap();
        assert_eq!(where_is(&fs, s, "inner").await, inner);
        assert_eq!(names(&fs, s).await, [".", "..", "d", "inner"]);

        let t = root_of(fs.snapshot(s.subvol, ROOT, b"t", false, None).await.unwrap());
        let v = fs.snapshot(inner.subvol, ROOT, b"v", false, None).await.unwrap();
        let kept = Some((t, &b"old"[..]));
        refused(fs.roll_back_subvolume(s, b"inner", v, kept).await.map(drop));
        let kept = Some((t, &b"inner"[..]));
        let there = fs.roll_back_subvolume(s, b"inner", v, kept).await;
        assert!(matches!(there, Err(FsError::Exists)), "{there:?}");
        world.close(fs).await;
    });
}

#[test]
fn an_empty_subvolume_is_removed_and_a_full_one_is_not() {
    let world = World::new(9, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, ROOT, "a").await;
        let refused = fs.rmdir(ROOT, b"a").await;
        assert!(matches!(refused, Err(FsError::IsSubvolume(id)) if id == a), "{refused:?}");
        let node = put(&fs, root_of(a), "f", b"x").await;
        let full = fs.remove_empty_subvolume(ROOT, b"a").await;
        assert!(matches!(full, Err(FsError::NotEmpty)), "{full:?}");
        fs.unlink(root_of(a), b"f").await.unwrap();
        // One that is open without a name does not keep it.
        let gone = fs.remove_empty_subvolume(ROOT, b"a").await.unwrap();
        assert_eq!(gone.subvol, a);
        assert!(gone.stale.contains(&node), "{gone:?}");
        assert!(matches!(fs.getattr(node).await, Err(FsError::Stale)));
        let plain = dir(&fs, ROOT, "plain").await;
        let plain = (fs.remove_empty_subvolume(ROOT, b"plain").await, plain);
        assert!(matches!(plain.0, Err(FsError::Invalid(_))));
        fs.sync_subvolumes(&[]).await.unwrap();
        assert_eq!(fs.subvolumes().len(), 1);
        world.close(fs).await;
    });
}

/// LIMITS-M2: rollbacks multiply no promise of memory.
#[test]
fn a_state_that_is_kept_has_no_promise_beside_the_new_one() {
    let world = World::new(14, 16384);
    let promise = Promise { min: 1 << 20, low: 2 << 20 };
    let promised = GroupLimits { promise, ..GroupLimits::default() };
    let limits_of = |fs: &Filesystem, subvols: [SubvolId; 2]| {
        subvols.map(|subvol| fs.volumes().subvol(subvol).unwrap().owner().limits())
    };
    let subvols = world.run(async {
        let fs = world.open().await;
        let old = subvolume(&fs, ROOT, "a").await;
        let state = snapshot(&fs, old, "s").await;
        let subvol = fs.volumes().subvol(old).unwrap();
        let group = MemoryGroup::Of(&subvol);
        change_memory_limits(fs.volumes(), group, |_| promised).await.unwrap();
        drop(subvol);
        let new = roll_back(&fs, "a", state, Some((ROOT, "kept"))).await.unwrap();
        assert_eq!(limits_of(&fs, [old, new]), [GroupLimits::default(), promised]);
        world.close(fs).await;
        [old, new]
    });
    world.run(async {
        let fs = world.open().await;
        assert_eq!(limits_of(&fs, subvols), [GroupLimits::default(), promised]);
        world.close(fs).await;
    });
}
