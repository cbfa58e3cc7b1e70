//! Lives of subvolumes, one matter at a time.

use copyhold_device::PurposeCount;
use copyhold_format::label::Features;
use copyhold_memory::GroupLimits;
use copyhold_pool::{Credit, FORK_DEPTH_MAX, Tier, Transaction, read_labels};
use copyhold_types::{InodeNo, SubvolId};
use copyhold_volume::quota::Hold;
use copyhold_volume::{
    Leaving, MemoryGroup, NewSubvol, VolumeError, Volumes, change_memory_limits,
};

use crate::world::{Config, ROOT_PLACE, World};

fn world(seed: u64) -> World {
    World::new(seed, Config::default())
}

fn fill(world: &mut World, subvol: SubvolId, writes: usize) {
    let subvol = world.volumes.subvol(subvol).unwrap();
    (0..writes).for_each(|_| world.write_to(&subvol));
}

fn flush(world: &World) {
    world.rt.block_on(world.pool().flush_all()).unwrap();
}

/// Allocated blocks when nothing is on its way.
fn used(world: &mut World) -> u64 {
    world.finish();
    let space = world.pool().space_map();
    let runs = space.metaslabs().flat_map(|id| space.allocated_runs(id));
    runs.map(|run| u64::from(run.blocks)).sum()
}

#[test]
fn a_deletion_survives_a_crash_after_each_of_its_steps() {
    for steps in 0..14 {
        let mut world = world(steps);
        fill(&mut world, SubvolId::ROOT, 20);
        let middle = world.snapshot_in_root(SubvolId::ROOT);
        fill(&mut world, middle, 10);
        flush(&world);
        let last = world.snapshot_in_root(middle);
        fill(&mut world, SubvolId::ROOT, 10);
        fill(&mut world, last, 10);
        let subvol = world.volumes.subvol(middle).unwrap();
        assert!(world.delete_one(&subvol));
        drop(subvol);
        world.crash_after(steps);
        world.compare();
        world.recount();
        world.delete_everything();
        world.recount();
        world.close();
    }
}

#[test]
fn a_deletion_tells_how_far_it_has_come() {
    let mut world = world(13);
    fill(&mut world, SubvolId::ROOT, 5);
    let gone = world.snapshot_in_root(SubvolId::ROOT);
    fill(&mut world, gone, 30);
    let subvol = world.volumes.subvol(gone).unwrap();
    assert_eq!(world.volumes.walked_percent(&subvol), None);
    assert!(world.delete_one(&subvol));
    let mut seen = Vec::new();
    for _ in 0..1000 {
        seen.extend(world.volumes.walked_percent(&subvol));
        world.background();
    }
    assert!(world.volumes.subvol(gone).is_none());
    assert!(seen.is_sorted());
    assert_eq!((seen.first(), seen.last()), (Some(&0), Some(&100)));
    drop(subvol);
    world.close();
}

#[test]
fn a_chain_of_snapshots_goes_in_any_order() {
    for order in 0..6 {
        let mut world = world(order);
        fill(&mut world, SubvolId::ROOT, 10);
        let mut chain = vec![];
        let mut from = SubvolId::ROOT;
        for _ in 0..3 {
            from = world.snapshot_in_root(from);
            chain.push(from);
            fill(&mut world, from, 6);
            fill(&mut world, SubvolId::ROOT, 3);
        }
        let at = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for at in at[order as usize] {
            let subvol = world.volumes.subvol(chain[at]).unwrap();
            assert!(world.delete_one(&subvol));
            world.compare();
            world.recount();
        }
        world.close();
    }
}

#[test]
fn layers_of_unflushed_tables_stay_few() {
    let mut world = world(7);
    for _ in 0..20 {
        fill(&mut world, SubvolId::ROOT, 2);
        world.snapshot_in_root(SubvolId::ROOT);
        let files = world.volumes.subvol(SubvolId::ROOT).unwrap().files();
        assert!(world.pool().fork_depth(files) <= FORK_DEPTH_MAX, "R29");
    }
    world.compare();
    world.recount();
    world.close();
}

#[test]
fn a_snapshot_reads_nothing_and_writes_as_little_whatever_its_size() {
    let mut costs = Vec::new();
    for writes in [1, 200] {
        let mut world = world(8);
        fill(&mut world, SubvolId::ROOT, writes);
        flush(&world);
        let before = world.pool().devices().counters();
        world.snapshot_in_root(SubvolId::ROOT);
        let pool = world.pool().clone();
        world.rt.block_on(pool.commit(pool.open_txg())).unwrap();
        let after = pool.devices().counters();
        let pairs = after.purposes.iter().zip(&before.purposes);
        costs.push(pairs.map(|(now, then)| cost(now, then)).collect::<Vec<_>>());
        world.close();
    }
    assert_eq!(costs[0], costs[1]);
}

/// Reads and written bytes.
fn cost(now: &PurposeCount, then: &PurposeCount) -> (u64, u64) {
    (now.reads - then.reads, now.written_bytes - then.written_bytes)
}

#[test]
fn what_a_clone_alone_had_is_free_when_it_is_gone() {
    let mut world = world(9);
    fill(&mut world, SubvolId::ROOT, 30);
    flush(&world);
    let before = used(&mut world);
    let clone = world.snapshot_in_root(SubvolId::ROOT);
    fill(&mut world, clone, 30);
    let with = used(&mut world);
    let subvol = world.volumes.subvol(clone).unwrap();
    assert!(world.delete_one(&subvol));
    drop(subvol);
    let after = used(&mut world);
    assert!(with > before + 100, "{before} blocks, {with} with a clone");
    // Records of the deletion may have changed the shape of the pool's own tables.
    assert!(after <= before + 16, "{before} blocks before, {after} after");
    world.close();
}

/// What a release has to look up must be in memory for a moment, however small the cache is said to
/// be: else it would wait for ever.
#[test]
fn a_cache_without_room_lets_subvolumes_go() {
    for seed in 0..4 {
        let mut world = World::new(seed, Config { cache: 0, ..Config::default() });
        fill(&mut world, SubvolId::ROOT, 40);
        let snapshot = world.snapshot_in_root(SubvolId::ROOT);
        for subvol in [SubvolId::ROOT, snapshot] {
            fill(&mut world, subvol, 30);
            flush(&world);
        }
        let subvol = world.volumes.subvol(snapshot).unwrap();
        assert!(world.delete_one(&subvol));
        drop(subvol);
        let volumes = world.volumes.clone();
        let step = || world.rt.block_on(volumes.background_step()).unwrap();
        assert!((0..5000).any(|_| !step()), "the background work does not end");
        drop(volumes);
        world.compare();
        world.recount();
        world.close();
    }
}

#[test]
fn a_full_pool_lets_subvolumes_go() {
    let mut world = world(13);
    fill(&mut world, SubvolId::ROOT, 40);
    let snapshot = world.snapshot_in_root(SubvolId::ROOT);
    fill(&mut world, SubvolId::ROOT, 40);
    let before = used(&mut world);
    let pool = world.pool().clone();
    // All that ordinary writes may have is somebody else's.
    let mut blocks = pool.space().free;
    let hog = loop {
        match pool.reserve_now(blocks, Tier::Write) {
            Ok(hog) => break hog,
            Err(_) => blocks -= 1,
        }
    };
    assert!(pool.reserve_now(1, Tier::Write).is_err());
    let subvol = world.volumes.subvol(snapshot).unwrap();
    assert!(world.delete_one(&subvol));
    drop(subvol);
    let after = used(&mut world);
    assert!(world.volumes.dying().is_empty(), "R21: a deletion has a way");
    assert!(after + 100 < before, "{before} blocks before, {after} after");
    drop(hog);
    world.compare();
    world.recount();
    world.close();
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut world = world(10);
    fill(&mut world, SubvolId::ROOT, 5);
    let holder = world.snapshot_in_root(SubvolId::ROOT);
    let root = world.volumes.subvol(SubvolId::ROOT).unwrap();
    let volumes = world.volumes.clone();
    let pool = volumes.pool().clone();
    let credit = || {
        let (edits, bytes) = (Volumes::LIFE_EDITS, Volumes::LIFE_BYTES);
        world.rt.block_on(pool.admit(Tier::Write, edits, bytes)).unwrap()
    };
    let leaving = Leaving { since: Default::default(), name: b"x", heir: None };
    let refused = volumes.delete(&root, &leaving, credit(), Transaction::new());
    assert!(matches!(refused, Err(VolumeError::Root(_))));

    let inside = NewSubvol {
        place: copyhold_format::item::ParentDirectory { subvol: holder, ..ROOT_PLACE },
        ..new()
    };
    let numbers = world.rt.block_on(volumes.numbers(None)).unwrap();
    let (inside, _) = volumes.create(&numbers, &inside, credit(), Transaction::new()).unwrap();
    let held = volumes.subvol(holder).unwrap();
    let refused = volumes.delete(&held, &leaving, credit(), Transaction::new());
    assert!(matches!(refused, Err(VolumeError::Holds(_, by)) if by == inside.id()));

    volumes.delete(&inside, &leaving, credit(), Transaction::new()).unwrap();
    let again = volumes.delete(&inside, &leaving, credit(), Transaction::new());
    assert!(matches!(again, Err(VolumeError::Dying(_))));
    let numbers = world.rt.block_on(volumes.numbers(None)).unwrap();
    let (next, funds) = (InodeNo(9), (credit(), None));
    let refused = volumes.snapshot(&inside, &numbers, &new(), next, funds, Transaction::new());
    assert!(matches!(refused, Err(VolumeError::Dying(_))), "no snapshot of what is deleted");
    let nothing = |_| Transaction::new();
    let from = volumes.reflink(&inside, &root, &[], (credit(), None), nothing);
    let refused = world.rt.block_on(from);
    assert!(matches!(refused, Err(VolumeError::Dying(_))), "no reflink from what is deleted");
    let in_it = NewSubvol {
        place: copyhold_format::item::ParentDirectory { subvol: inside.id(), ..ROOT_PLACE },
        ..new()
    };
    let refused = volumes.create(&numbers, &in_it, credit(), Transaction::new());
    assert!(refused.is_err(), "nothing new in what is deleted");
    drop((volumes, root, held, inside));
    world.compare();
    world.recount();
    world.close();
}

#[test]
fn numbers_are_never_given_out_again() {
    let mut world = world(11);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let snapshot = world.snapshot_in_root(SubvolId::ROOT);
        assert!(seen.insert(snapshot));
        let subvol = world.volumes.subvol(snapshot).unwrap();
        assert!(seen.iter().all(|id| *id <= subvol.id()));
        world.delete_one(&subvol);
        drop(subvol);
        world.crash();
        world.finish();
    }
    world.close();
}

#[test]
fn a_read_only_mark_and_a_place_survive_a_crash() {
    let mut world = world(12);
    let snapshot = world.snapshot_in_root(SubvolId::ROOT);
    let moved = copyhold_format::item::ParentDirectory { directory: InodeNo(7), ..ROOT_PLACE };
    let volumes = world.volumes.clone();
    let subvol = volumes.subvol(snapshot).unwrap();
    let credit = || world.rt.block_on(volumes.pool().admit(Tier::Write, 2, 512)).unwrap();
    volumes.set_read_only(&subvol, true, credit()).unwrap();
    let root = volumes.subvol(SubvolId::ROOT).unwrap();
    let (moves, tx) = ([(&*subvol, moved)], Transaction::new());
    volumes.moved(&moves, [&*root; 2], None, false, (credit(), Hold::nothing()), tx).unwrap();
    drop(root);
    drop((volumes, subvol));
    world.crash();
    let item = world.volumes.subvol(snapshot).unwrap().item();
    assert!(item.flags.read_only());
    assert_eq!((item.place, item.origin), (moved, Some(SubvolId::ROOT)));
    world.close();
}

/// Futures may go from thread to thread.
#[allow(dead_code)]
fn moves_between_threads(
    volumes: &Volumes,
    subvol: &copyhold_volume::Subvol,
    credit: fn() -> Credit,
) {
    fn is_send<T: Send>(_: T) {}
    is_send(volumes.numbers(Some(subvol)));
    is_send(volumes.renew(subvol, credit()));
    is_send(volumes.enable_quotas(credit()));
    is_send(volumes.background_step());
    is_send(volumes.get(subvol, copyhold_types::Key::MIN));
    is_send(volumes.reflink(subvol, subvol, &[], (credit(), None), |_| Transaction::new()));
}

fn new() -> NewSubvol {
    NewSubvol {
        place: ROOT_PLACE,
        read_only: false,
        hash_key: copyhold_format::item::HashKey([3; 16]),
        created: Default::default(),
        identity: [3; 16],
        inherit: copyhold_volume::quota::Inherit::FromHolder,
    }
}

/// The features in the labels on the device, if both are the same.
fn features(world: &World) -> Features {
    let labels = world.rt.block_on(read_labels(world.pool().device())).unwrap();
    assert_eq!(labels.problems, [None, None]);
    labels.label.features
}

fn heavy(limits: &GroupLimits) -> GroupLimits {
    GroupLimits { weight: 300, ..*limits }
}

#[test]
fn the_shared_group_keeps_its_limits_and_the_labels_say_that_there_are_some() {
    let mut world = world(21);
    let before = features(&world);
    let shared = |world: &World, change: fn(&GroupLimits) -> GroupLimits| {
        let changed = change_memory_limits(&world.volumes, MemoryGroup::Shared, change);
        world.rt.block_on(changed).map(|_| features(world))
    };
    // The defaults need no record, so no feature.
    assert_eq!(shared(&world, |limits| *limits).unwrap(), before);
    let after = shared(&world, heavy).unwrap();
    assert_eq!(after, Features { ro_compat: Features::MEMORY_LIMITS, ..before }, "FEATURE-F1");
    world.commit();
    world.crash_after(0);
    assert_eq!(features(&world), after);
    assert_eq!(world.pool().memory().shared().limits(), heavy(&GroupLimits::default()));
    assert_eq!(shared(&world, |_| GroupLimits::default()).unwrap(), after);
    world.commit();
    world.crash_after(0);
    assert_eq!(world.pool().memory().shared().limits(), GroupLimits::default());
    world.close();
}

#[test]
fn a_deleted_subvolume_gets_no_limits() {
    let mut world = world(22);
    let id = world.create_in_root();
    let subvol = world.volumes.subvol(id).unwrap();
    assert!(world.delete_one(&subvol));
    let changed = change_memory_limits(&world.volumes, MemoryGroup::Of(&subvol), heavy);
    let refused = world.rt.block_on(changed).unwrap_err();
    assert!(matches!(refused, VolumeError::Dying(_) | VolumeError::NoSubvolume(_)), "{refused}");
    assert_eq!(subvol.owner().limits(), GroupLimits::default());
    drop(subvol);
    world.recount();
    world.close();
}

/// Each change is judged by the limits of the others, and a refused one changes nothing.
#[test]
fn promises_beyond_the_limit_above_are_refused() {
    let mut world = world(23);
    let [one, two] = [world.create_in_root(), world.create_in_root()];
    world.pool().memory().set_budget(100);
    let set = |world: &World, id, min: u64| {
        let subvol = world.volumes.subvol(id).unwrap();
        let change = |limits: &GroupLimits| {
            let mut new = *limits;
            new.promise.min = min;
            new
        };
        world.rt.block_on(change_memory_limits(&world.volumes, MemoryGroup::Of(&subvol), change))
    };
    set(&world, one, 60).unwrap();
    let refused = set(&world, two, 41).unwrap_err();
    assert!(matches!(refused, VolumeError::MemoryLimits(_)), "{refused}");
    set(&world, two, 40).unwrap();
    let refused = set(&world, one, 61).unwrap_err();
    assert!(refused.to_string().contains("promised 101, more"), "{refused}");
    let mins = [one, two].map(|id| world.volumes.subvol(id).unwrap().owner().limits().promise.min);
    assert_eq!(mins, [60, 40]);
    world.delete_everything();
    world.close();
}
