//! A call that waits at a limit makes no other call wait: it has no lock that others need, and its
//! futile work is bounded.

use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{
    Caller, FallocateMode, Filesystem, FsError, NodeId, Options, RenameFlags, Right, SetAttr,
    SubvolumeCalls, XattrSet,
};
use copyhold_runtime::Runtime;
use copyhold_types::{Nanos, SubvolId};
use copyhold_volume::quota::{GroupId, Ledger, LimitKind};

use crate::common::*;
use crate::quotas::{is_over_quota, limit, make, root_of, shown, subvolume};

const KIB: u64 = 1 << 10;
const BLOCK: u64 = 4096;

async fn open(world: &World) -> Arc<Filesystem> {
    let fs = world.open_with(Options { count_lookups: false, ..Options::default() }).await;
    fs.enable_quotas().await.unwrap();
    fs
}

async fn chmod(fs: &Arc<Filesystem>, file: NodeId, n: u32) {
    let mode = SetAttr { mode: Some(0o600 + n % 2), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, file, &mode).await.unwrap();
}

/// Brings the owner to its limit, mostly by the estimate of changes in memory: a further addition
/// waits for a flush.
async fn owe_changes(fs: &Arc<Filesystem>, owner: SubvolId, file: NodeId) {
    fs.sync().await.unwrap();
    limit(fs, GroupId::of(owner), LimitKind::Referenced, 64 * KIB).await;
    for n in 0..200 {
        chmod(fs, file, n).await;
    }
}

/// As [`owe_changes`], until a change of more than 64 KiB waits, too.
async fn owe_all_changes(fs: &Arc<Filesystem>, owner: SubvolId, file: NodeId) {
    owe_changes(fs, owner, file).await;
    let mut most = 0;
    for n in 0.. {
        let owed = shown(fs, owner).unflushed;
        if owed < most {
            break;
        }
        most = owed;
        chmod(fs, file, n).await;
    }
    for n in 0.. {
        if shown(fs, owner).unflushed + 64 * KIB > most {
            break;
        }
        chmod(fs, file, n).await;
    }
}

/// Runs both, the second a little later. Returns the result of the first, and the times that they
/// took.
async fn race<T>(
    world: &World,
    first: impl Future<Output = T>,
    second: impl Future<Output = ()>,
) -> (T, Nanos, Nanos) {
    let begun = world.rt.now();
    let first = async {
        let done = first.await;
        (done, world.rt.now() - begun)
    };
    let second = async {
        world.rt.sleep(Duration::from_micros(1)).await;
        second.await;
        world.rt.now() - begun
    };
    let ((done, waited), other) = futures_util::join!(first, second);
    (done, waited, other)
}

#[test]
fn a_punch_that_waits_at_its_limit_has_no_map_lock() {
    let world = World::with_log(61, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let file = make(&fs, root_of(a), "file").await.unwrap();
        fs.set_xattr(&Caller::ROOT, file, b"user.a", b"1", XattrSet::Any, false).await.unwrap();
        for n in 0..200 {
            write(&fs, file, 2 * n * BLOCK, &pattern(1, 4096)).await;
        }
        owe_all_changes(&fs, a, file).await;
        let punch = fs.fallocate(file, 0, 400 * BLOCK, FallocateMode::Punch);
        let look = async { drop(fs.list_xattr(file).await.unwrap()) };
        let (done, waited, other) = race(&world, punch, look).await;
        done.unwrap();
        assert!(other < waited, "the map was free after {other} ns, punched after {waited} ns");
        world.close(fs).await;
    });
}

#[test]
fn an_attribute_that_waits_at_its_limit_has_no_map_lock() {
    let world = World::with_log(62, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let file = make(&fs, root_of(a), "file").await.unwrap();
        let set = async |name: &[u8]| {
            fs.set_xattr(&Caller::ROOT, file, name, b"1", XattrSet::Any, false).await
        };
        set(b"user.a").await.unwrap();
        write(&fs, file, 0, &pattern(1, 64 << 10)).await;
        owe_changes(&fs, a, file).await;
        let look = async { drop(fs.list_xattr(file).await.unwrap()) };
        let (done, waited, other) = race(&world, set(b"user.b"), look).await;
        assert!(is_over_quota(done));
        assert!(other < waited, "the map was free after {other} ns, refused after {waited} ns");
        world.close(fs).await;
    });
}

#[test]
fn a_move_that_waits_at_a_limit_lets_other_moves_pass() {
    let world = World::with_log(63, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let (a, b) = (subvolume(&fs, "a").await, subvolume(&fs, "b").await);
        subvolume(&fs, "gift").await;
        subvolume(&fs, "other").await;
        let file = make(&fs, root_of(a), "file").await.unwrap();
        write(&fs, file, 0, &pattern(1, 64 << 10)).await;
        owe_changes(&fs, a, file).await;
        let to = async |owner: SubvolId, name: &[u8]| {
            let flags = RenameFlags::default();
            fs.rename(&Caller::ROOT, ROOT, name, root_of(owner), name, flags).await
        };
        let pass = async { to(b, b"other").await.unwrap() };
        let (done, waited, other) = race(&world, to(a, b"gift"), pass).await;
        assert!(is_over_quota(done));
        assert!(other < waited, "one moved after {other} ns, one was refused after {waited} ns");
        world.close(fs).await;
    });
}

#[test]
fn a_rollback_that_waits_at_a_limit_lets_moves_pass() {
    let world = World::with_log(64, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let (a, b) = (subvolume(&fs, "a").await, subvolume(&fs, "b").await);
        let c = subvolume(&fs, "c").await;
        subvolume(&fs, "other").await;
        let state = fs.snapshot(c, ROOT, b"state", true, None).await.unwrap();
        let file = make(&fs, root_of(a), "file").await.unwrap();
        write(&fs, file, 0, &pattern(1, 64 << 10)).await;
        owe_changes(&fs, a, file).await;
        let calls = SubvolumeCalls::new(&fs, Right::Administrator);
        let kept = Some((root_of(a), &b"kept"[..]));
        let roll_back = calls.roll_back(ROOT, b"c", state, kept);
        let pass = async {
            let flags = RenameFlags::default();
            let moved = fs.rename(&Caller::ROOT, ROOT, b"other", root_of(b), b"other", flags).await;
            moved.unwrap();
        };
        let (done, waited, other) = race(&world, roll_back, pass).await;
        assert!(is_over_quota(done));
        assert!(other < waited, "one moved after {other} ns, one was refused after {waited} ns");
        world.close(fs).await;
    });
}

#[test]
fn a_call_that_waited_asks_again_who_owns_the_source() {
    let world = World::with_log(66, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let alice = Caller::new(1, 1, 0);
        let a = fs.create_subvolume(&alice, ROOT, b"a", None).await.unwrap();
        let c = fs.create_subvolume(&alice, root_of(a), b"c", None).await.unwrap();
        let state = fs.snapshot(c, ROOT, b"state", false, None).await.unwrap();
        let file = make(&fs, root_of(a), "file").await.unwrap();
        let give = async |uid: u32| {
            let owner = SetAttr { uid: Some(uid), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, root_of(state), &owner).await.unwrap();
        };
        let calls = SubvolumeCalls::new(&fs, Right::Owner(1));
        let kept = Some((root_of(a), &b"kept"[..]));
        let roll_back = async || calls.roll_back(root_of(a), b"c", state, kept).await.map(drop);
        let snapshot =
            async || calls.snapshot(state, root_of(a), b"snapshot", false, None).await.map(drop);
        for is_snapshot in [false, true] {
            give(1).await;
            write(&fs, file, 0, &pattern(1, 64 << 10)).await;
            owe_changes(&fs, a, file).await;
            let call = async { if is_snapshot { snapshot().await } else { roll_back().await } };
            let pass = async {
                give(2).await;
                let group = GroupId::of(a);
                let limits = |ledger: &Ledger| ledger.limit(group, LimitKind::Referenced, None);
                fs.change_quotas(limits).await.unwrap();
            };
            let (done, ..) = race(&world, call, pass).await;
            let refused = done.unwrap_err();
            assert!(matches!(refused, FsError::NotPermitted(_)), "{is_snapshot}: {refused}");
        }
        world.close(fs).await;
    });
}

/// An unlinked file that is still open lets a refused write look again several times.
#[test]
fn each_round_of_write_back_before_refusals_counts() {
    let world = World::with_log(65, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let (a, b) = (subvolume(&fs, "a").await, subvolume(&fs, "b").await);
        let file = make(&fs, root_of(a), "file").await.unwrap();
        let unlinked = make(&fs, root_of(a), "unlinked").await.unwrap();
        let neighbour = make(&fs, root_of(b), "file").await.unwrap();
        write(&fs, file, 0, &pattern(1, 64 << 10)).await;
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        limit(&fs, GroupId::of(a), LimitKind::Referenced, 64 * KIB).await;
        fs.unlink(root_of(a), b"unlinked").await.unwrap();
        let begun = world.rt.now();
        let is_over = || world.rt.now() > begun + 900_000_000;
        let refused = async {
            let mut calls = 0;
            while !is_over() {
                let done = fs.write(file, 64 * KIB, &pattern(2, 4096), Default::default()).await;
                assert!(is_over_quota(done));
                calls += 1;
                world.rt.sleep(Duration::from_millis(1)).await;
            }
            calls
        };
        let write_backs = async {
            let mut rounds = 0;
            while !is_over() {
                if fs.dirty_bytes() == 0 {
                    rounds += 1;
                    write(&fs, neighbour, 0, &pattern(3, 4096)).await;
                }
                world.rt.sleep(Duration::from_micros(100)).await;
            }
            rounds
        };
        let (calls, rounds) = futures_util::join!(refused, write_backs);
        assert!(calls > 5, "{calls} calls");
        assert!(rounds <= 1 + 4, "{rounds} rounds of write-back in {calls} calls");
        fs.release(unlinked);
        world.close(fs).await;
    });
}

#[test]
fn a_flush_for_one_group_needs_no_allowance_of_another() {
    let world = World::with_log(66, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let victim = subvolume(&fs, "victim").await;
        let mut rogues = vec![];
        for n in 0..17 {
            let rogue = subvolume(&fs, &format!("rogue{n}")).await;
            let file = make(&fs, root_of(rogue), "file").await.unwrap();
            write(&fs, file, 0, &pattern(1, 64 << 10)).await;
            rogues.push((rogue, file));
        }
        let file = make(&fs, root_of(victim), "file").await.unwrap();
        write(&fs, file, 0, &pattern(1, 64 << 10)).await;
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        let used = shown(&fs, victim).referenced;
        limit(&fs, GroupId::of(victim), LimitKind::Referenced, used + 64 * KIB).await;
        for n in 0..200 {
            chmod(&fs, file, n).await;
        }
        for (rogue, file) in rogues {
            limit(&fs, GroupId::of(rogue), LimitKind::Referenced, 4 * KIB).await;
            for n in 0..5 {
                chmod(&fs, file, n).await;
                assert!(is_over_quota(make(&fs, root_of(rogue), "more").await));
            }
        }
        let begun = shown(&fs, victim);
        assert!(begun.unflushed > 64 * KIB, "only a flush makes room");
        make(&fs, root_of(victim), "more").await.unwrap();
        world.close(fs).await;
    });
}
