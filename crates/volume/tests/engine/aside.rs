//! Pending releases that cannot be taken up stop nothing but themselves.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::Lasting;
use copyhold_format::item::{Content, EpochItem, PendingItem, epoch_key, pending_key};
use copyhold_pool::{Pool, Tier, Transaction};
use copyhold_runtime::Runtime;
use copyhold_types::{EpochId, Key, Pointer, SubvolId, TableId};
use copyhold_volume::{Subvol, VolumeError};

use crate::world::{Config, World};

const EIO: i32 = 5;

/// Two families, each a subvolume with a snapshot; nothing is in the cache of nodes.
struct Families {
    world: World,
    /// Of the family whose releases cannot be taken up: this one and its snapshot.
    bad: Arc<Subvol>,
    bad_snapshot: SubvolId,
    good: Arc<Subvol>,
    good_snapshot: SubvolId,
}

impl Families {
    fn new(seed: u64) -> Families {
        let mut world = World::new(seed, Config { cache: 0, ..Config::default() });
        let bad = world.volumes.subvol(SubvolId::ROOT).unwrap();
        fill(&mut world, &bad, 60);
        let bad_snapshot = world.snapshot_in_root(SubvolId::ROOT);
        fill(&mut world, &bad, 20);
        let good = world.create_in_root();
        let good = world.volumes.subvol(good).unwrap();
        fill(&mut world, &good, 60);
        let good_snapshot = world.snapshot_in_root(good.id());
        fill(&mut world, &good, 20);
        let good = good.id();
        drop(bad);
        world.finish();
        reopen(&mut world);
        let [bad, good] = [SubvolId::ROOT, good].map(|id| world.volumes.subvol(id).unwrap());
        Families { world, bad, bad_snapshot, good, good_snapshot }
    }
}

/// Empties the caches: what is released waits until background work has read what it needs.
fn reopen(world: &mut World) {
    world.commit();
    world.lose_power();
}

fn fill(world: &mut World, subvol: &Arc<Subvol>, writes: usize) {
    (0..writes).for_each(|_| world.write_to(subvol));
}

fn epoch(world: &World, subvol: &Subvol) -> EpochItem {
    let key = epoch_key(subvol.item().epoch);
    let value = world.rt.block_on(world.pool().get(Pool::SYSTEM, key)).unwrap().unwrap();
    EpochItem::parse(key, &value).unwrap()
}

/// No node of the table can be read any more.
fn make_unreadable(world: &World, table: TableId) {
    let descriptors = world.pool().table(table).descriptors();
    let roots: Vec<_> = descriptors.iter().filter_map(|(_, partition)| partition.root).collect();
    assert!(!roots.is_empty(), "the table has been flushed");
    for run in roots.iter().flat_map(|root| root.runs()) {
        (0..u64::from(run.blocks))
            .for_each(|n| world.disk.break_block(run.addr.block() + n, EIO, Lasting::Forever));
    }
}

fn pending(world: &World) -> Vec<EpochId> {
    let items = world.pool().range(Pool::PENDING, Key::MIN, Key::MAX, usize::MAX);
    let items = world.rt.block_on(items).unwrap();
    items.iter().map(|(key, _)| EpochId(key.object)).collect()
}

/// Steps until there is nothing to do.
fn work(world: &World) -> Result<(), VolumeError> {
    let volumes = world.volumes.clone();
    for _ in 0..5000 {
        if !world.rt.block_on(volumes.background_step())? {
            return Ok(());
        }
    }
    panic!("the background work does not end");
}

fn reads(world: &World) -> u64 {
    world.pool().devices().counters().purposes.iter().map(|count| count.reads).sum()
}

/// More references are dropped than there can be.
fn put_pending(world: &World, holder: EpochId, pointer: Pointer) {
    let pool = world.pool();
    let item = PendingItem { pointer, content: Content::Data, count: 9 };
    let mut tx = Transaction::new();
    tx.put(Pool::PENDING, pending_key(holder, 1), &item.encode());
    let credit = world.rt.block_on(pool.admit(Tier::Write, 1, 512)).unwrap();
    pool.apply(credit, tx).unwrap();
}

#[test]
fn an_unreadable_deadlist_keeps_only_its_own_releases_waiting() {
    let Families { mut world, bad, bad_snapshot, good, good_snapshot } = Families::new(1);
    let deadlist = epoch(&world, &bad).deadlist.expect("it has a sibling");
    make_unreadable(&world, deadlist);
    // More than one step takes, and all before those of the other family.
    fill(&mut world, &bad, 80);
    fill(&mut world, &good, 10);
    let holder = bad.item().epoch;
    assert!(pending(&world).iter().filter(|of| **of == holder).count() > 64);
    assert!(pending(&world).contains(&good.item().epoch));
    let snapshot = world.volumes.subvol(good_snapshot).unwrap();
    assert!(world.delete_one(&snapshot));
    drop(snapshot);

    work(&world).unwrap();
    assert!(world.volumes.subvol(good_snapshot).is_none(), "the deletion is done");
    assert!(pending(&world).iter().all(|of| *of == holder), "the others were taken up");
    let before = reads(&world);
    work(&world).unwrap();
    assert_eq!(reads(&world), before, "what cannot be read is not read again");

    // What comes later is tried, too, and is in nobody's way.
    fill(&mut world, &bad, 10);
    fill(&mut world, &good, 10);
    work(&world).unwrap();
    assert!(pending(&world).iter().all(|of| *of == holder));

    // Its own family's deletion cannot be done, and says so.
    let snapshot = world.volumes.subvol(bad_snapshot).unwrap();
    assert!(world.delete_one(&snapshot));
    drop(snapshot);
    work(&world).unwrap();
    assert_eq!(world.volumes.unfreeable(), Some(bad_snapshot));
    drop((bad, good));
    world.compare();
    world.close();
}

/// A deadlist is unreadable for a while: once for pending releases, once for a deletion.
#[test]
fn unreadable_space_is_freed_after_a_pause_once_it_is_readable() {
    for deletes in [false, true] {
        let Families { mut world, bad, bad_snapshot, good, .. } = Families::new(5);
        let deadlist = epoch(&world, &bad).deadlist.expect("it has a sibling");
        make_unreadable(&world, deadlist);
        fill(&mut world, &bad, 80);
        if deletes {
            let snapshot = world.volumes.subvol(bad_snapshot).unwrap();
            assert!(world.delete_one(&snapshot));
        }
        drop((bad, good));
        let is_freed = |world: &World| match deletes {
            true => world.volumes.subvol(bad_snapshot).is_none(),
            false => pending(world).is_empty(),
        };
        let pause = Duration::from_secs(12);
        work(&world).unwrap();
        assert!(!is_freed(&world));
        world.rt.block_on(world.rt.sleep(pause));
        work(&world).unwrap();
        assert!(!is_freed(&world), "the first further try comes too early");
        world.disk.heal();
        work(&world).unwrap();
        assert!(!is_freed(&world), "nothing is tried without a pause");
        world.rt.block_on(world.rt.sleep(2 * pause));
        work(&world).unwrap();
        assert!(is_freed(&world) && world.volumes.unfreeable().is_none());
        world.finish();
        world.compare();
        world.recount();
        world.close();
    }
}

#[test]
fn releases_are_tried_again_after_a_mount() {
    let Families { mut world, bad, good, .. } = Families::new(2);
    let deadlist = epoch(&world, &bad).deadlist.expect("it has a sibling");
    make_unreadable(&world, deadlist);
    fill(&mut world, &bad, 40);
    work(&world).unwrap();
    assert!(!pending(&world).is_empty());
    drop((bad, good));
    // The image that is left has no bad blocks.
    reopen(&mut world);
    world.finish();
    assert_eq!(pending(&world), []);
    world.compare();
    world.recount();
    world.close();
}

#[test]
fn releases_that_contradict_themselves_stop_no_others() {
    let families = Families::new(3);
    let mut world = families.world;
    let (holder, epoch) = (families.bad.item().epoch, epoch(&world, &families.bad).current);
    let run = world.extents(families.bad.id())[0].1.pointer.run;
    let pointer = Pointer { run, epoch, origin: epoch };
    // One of a holder that does not exist.
    put_pending(&world, EpochId(u64::MAX >> 8), pointer);
    put_pending(&world, holder, pointer);
    fill(&mut world, &families.bad, 20);
    fill(&mut world, &families.good, 20);
    assert!(pending(&world).len() > 4);
    work(&world).unwrap();
    assert_eq!(pending(&world).len(), 2);
    drop((families.bad, families.good));
    world.compare();
    world.close();
}

/// The table of pending releases itself.
#[test]
fn an_unreadable_part_of_the_pending_releases_stops_no_deletion() {
    let Families { mut world, bad, good, good_snapshot, .. } = Families::new(4);
    fill(&mut world, &bad, 20);
    world.rt.block_on(world.pool().flush_all()).unwrap();
    assert!(!pending(&world).is_empty());
    drop((bad, good));
    reopen(&mut world);
    make_unreadable(&world, Pool::PENDING);
    let snapshot = world.volumes.subvol(good_snapshot).unwrap();
    assert!(world.delete_one(&snapshot));
    drop(snapshot);
    work(&world).unwrap();
    let stopped = world.volumes.unfreeable();
    assert_eq!(stopped, Some(good_snapshot), "whether something is pending is not known");
    let before = reads(&world);
    work(&world).unwrap();
    assert_eq!(reads(&world), before, "what cannot be read is not read again");
    world.compare();
    world.close();
}
