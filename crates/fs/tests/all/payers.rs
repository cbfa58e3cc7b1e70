//! Which group pays in memory for content that snapshots and clones share (OWNFROM-E1).

use std::sync::Arc;

use copyhold_fs::{Caller, DataCache, Filesystem, NodeId, ReadFlags, RenameFlags, evict};
use copyhold_memory::{MemoryClass, MemoryOwner};
use copyhold_types::{EpochId, SubvolId};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::common::tenants::*;
use crate::common::*;

const LEN: usize = 64 << 10;

/// The payer for `f` of a subvolume, when it is read and nothing is in memory before; none: shared.
async fn payer(fs: &Arc<Filesystem>, subvol: SubvolId) -> Option<SubvolId> {
    let groups = || fs.volumes().list().into_iter().map(|of| (Some(of.id()), of.owner().clone()));
    let shared = (None, fs.pool().memory().shared().clone());
    let groups: Vec<_> = groups().chain([shared]).collect();
    for (_, group) in &groups {
        let _ = evict(fs, group, u64::MAX).await;
    }
    assert_eq!(fs.pool().memory().charged(MemoryClass::Data), 0);
    let node = fs.lookup(root_of(subvol), b"f").await.unwrap().node;
    let flags = ReadFlags { direct: true, ..ReadFlags::default() };
    assert_eq!(fs.read_with(node, 0, LEN, flags).await.unwrap().len(), LEN);
    fs.forget(node, 1);
    let paid = |(_, group): &&(Option<SubvolId>, MemoryOwner)| group.charged(MemoryClass::Data) > 0;
    let payers: Vec<_> = groups.iter().filter(paid).map(|(of, _)| *of).collect();
    assert_eq!(payers.len(), 1);
    payers[0]
}

async fn put(fs: &Arc<Filesystem>, subvol: SubvolId, seed: u8) {
    let node = match fs.lookup(root_of(subvol), b"f").await {
        Ok(entry) => entry.node,
        Err(_) => file(fs, root_of(subvol), "f").await,
    };
    write(fs, node, 0, &pattern(seed, LEN)).await;
    fs.sync().await.unwrap();
}

async fn snapshot_in(fs: &Arc<Filesystem>, of: SubvolId, dir: NodeId, name: &str) -> SubvolId {
    let made = fs.snapshot(of, dir, name.as_bytes(), false, None).await.unwrap();
    fs.sync().await.unwrap();
    made
}

async fn delete(fs: &Arc<Filesystem>, dir: NodeId, name: &str) {
    fs.delete_subvolume(dir, name.as_bytes(), None).await.unwrap();
    fs.volumes().finish_background().await.unwrap();
}

#[test]
fn a_tenant_pays_for_what_it_made_and_the_shared_group_for_what_another_made() {
    let world = World::new(21, 32_768);
    world.run(async {
        let mut fs = world.open_clean(DataCache::All).await;
        let golden = subvolume(&fs, "golden").await;
        put(&fs, golden, 1).await;
        let tenant = snapshot_in(&fs, golden, ROOT, "tenant").await;
        let second = snapshot_in(&fs, tenant, ROOT, "second").await;
        assert_eq!(payer(&fs, golden).await, Some(golden));
        assert_eq!(payer(&fs, tenant).await, None, "a clone of another tenant's image");
        assert_eq!(payer(&fs, second).await, None, "a clone of a clone");

        put(&fs, tenant, 2).await;
        let snap = snapshot_in(&fs, tenant, root_of(tenant), "snap").await;
        let again = snapshot_in(&fs, snap, root_of(tenant), "again").await;
        let third = snapshot_in(&fs, tenant, ROOT, "third").await;
        // Also when the pool is opened again.
        for _ in 0..2 {
            for of in [tenant, snap, again] {
                assert_eq!(payer(&fs, of).await, Some(of), "snapshots within the tenant");
                assert_eq!(owner(&fs, of).tenant(), owner(&fs, tenant));
            }
            assert_eq!(payer(&fs, third).await, None);
            assert_eq!(payer(&fs, second).await, None);
            world.close(fs).await;
            fs = world.open_clean(DataCache::All).await;
        }

        delete(&fs, root_of(tenant), "snap").await;
        assert_eq!(payer(&fs, tenant).await, Some(tenant), "the snapshot is deleted");
        let to = (ROOT, &b"moved"[..]);
        let keep = RenameFlags::default();
        fs.rename(&Caller::ROOT, root_of(tenant), b"again", to.0, to.1, keep).await.unwrap();
        assert_eq!(payer(&fs, again).await, None, "it is another tenant now");
        assert_eq!(payer(&fs, tenant).await, Some(tenant));
        world.close(fs).await;
    });
}

#[test]
fn the_last_that_refers_to_content_pays_for_it() {
    let world = World::new(22, 32_768);
    world.run(async {
        let fs = world.open_clean(DataCache::All).await;
        let golden = subvolume(&fs, "golden").await;
        put(&fs, golden, 1).await;
        let tenant = snapshot_in(&fs, golden, ROOT, "tenant").await;
        assert_eq!(payer(&fs, tenant).await, None);
        delete(&fs, ROOT, "golden").await;
        assert_eq!(payer(&fs, tenant).await, Some(tenant), "the origin is deleted");
        world.close(fs).await;
    });
}

#[test]
fn the_state_of_a_rollback_is_the_tenants_when_no_other_has_it() {
    let world = World::new(23, 32_768);
    world.run(async {
        let fs = world.open_clean(DataCache::All).await;
        let tenant = subvolume(&fs, "tenant").await;
        put(&fs, tenant, 1).await;
        // As an operator keeps it, beside the tenant.
        let kept = snapshot_in(&fs, tenant, ROOT, "kept").await;
        put(&fs, tenant, 2).await;
        let done = fs.roll_back_subvolume(ROOT, b"tenant", kept, None).await.unwrap();
        fs.volumes().finish_background().await.unwrap();
        fs.sync().await.unwrap();
        assert_eq!(payer(&fs, done.subvol).await, None, "the snapshot's tenant has it, too");
        delete(&fs, ROOT, "kept").await;
        assert_eq!(payer(&fs, done.subvol).await, Some(done.subvol));
        let inside = snapshot_in(&fs, done.subvol, root_of(done.subvol), "inside").await;
        assert_eq!(payer(&fs, inside).await, Some(inside));
        world.close(fs).await;
    });
}

/// The first epoch of the own content of each subvolume.
fn own_content(fs: &Filesystem) -> Vec<(SubvolId, EpochId)> {
    let all = fs.volumes().list();
    let live = all.iter().filter(|of| !of.is_dying());
    live.map(|of| (of.id(), of.owner().own_from())).collect()
}

/// A subvolume by its entry.
#[derive(Clone, Copy)]
struct Made {
    subvol: SubvolId,
    dir: NodeId,
    name: u64,
}

/// One change of subvolumes, where it is allowed.
async fn change(
    fs: &Arc<Filesystem>,
    made: &mut Vec<Made>,
    random: &mut Xoshiro256PlusPlus,
    next: u64,
) {
    let mut pick = |of: &[Made]| of[random.next_u64() as usize % of.len()];
    let (one, other) = (pick(made), pick(made));
    let old = one.name.to_string();
    let dir = if next.is_multiple_of(3) { ROOT } else { root_of(other.subvol) };
    let name = next.to_string();
    match random.next_u64() % 8 {
        0..=3 => {
            if let Ok(subvol) = fs.snapshot(one.subvol, dir, name.as_bytes(), false, None).await {
                made.push(Made { subvol, dir, name: next });
            }
        }
        4 | 5 => {
            let keep = RenameFlags::default();
            let (from, to) = (old.as_bytes(), name.as_bytes());
            if fs.rename(&Caller::ROOT, one.dir, from, dir, to, keep).await.is_ok() {
                let moved = made.iter_mut().find(|of| of.subvol == one.subvol);
                *moved.expect("it was picked") = Made { dir, name: next, ..one };
            }
        }
        6 if made.len() > 2 => {
            if fs.delete_subvolume(one.dir, old.as_bytes(), None).await.is_ok() {
                made.retain(|of| of.subvol != one.subvol);
            }
        }
        _ => {
            let done = fs.roll_back_subvolume(one.dir, old.as_bytes(), other.subvol, None).await;
            if let Ok(done) = done {
                let of = made.iter_mut().find(|of| of.subvol == one.subvol);
                of.expect("it was picked").subvol = done.subvol;
            }
        }
    }
}

/// MADEBY-M3.
#[test]
fn a_mount_finds_the_payers_that_there_were_before() {
    for seed in 0..12 {
        let world = World::new(100 + seed, 32_768);
        world.run(async {
            let mut fs = world.open_clean(DataCache::All).await;
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut made = Vec::new();
            for name in 0..3 {
                let subvol = subvolume(&fs, &name.to_string()).await;
                made.push(Made { subvol, dir: ROOT, name });
            }
            for next in 3..60 {
                change(&fs, &mut made, &mut random, next).await;
                if next % 5 == 0 {
                    fs.volumes().finish_background().await.unwrap();
                }
                if next % 9 == 0 {
                    fs.sync().await.unwrap();
                    let before = own_content(&fs);
                    world.close(fs).await;
                    fs = world.open_clean(DataCache::All).await;
                    let after = own_content(&fs);
                    let both: Vec<_> =
                        after.iter().filter(|of| before.iter().any(|was| was.0 == of.0)).collect();
                    let was: Vec<_> =
                        before.iter().filter(|of| after.iter().any(|is| is.0 == of.0)).collect();
                    assert_eq!(both, was, "seed {seed} at {next}: MADEBY-M3");
                    assert!(!both.is_empty());
                }
            }
            world.close(fs).await;
        });
    }
}
