//! Opening a pool whose maps, descriptors or log are not what they should be.

use copyhold_format::space_map::{Descriptor, MapRange, SpaceMap};
use copyhold_space::*;
use copyhold_types::{BlockAddr, DeviceId, Digest, EpochId, NodePtr, Run, Txg};

const ID: MetaslabId = MetaslabId { device: DeviceId(0), index: 1 };

fn run(block: u64, blocks: u32) -> Run {
    Run::new(BlockAddr::new(DeviceId(0), block), blocks)
}

fn txg(n: u64) -> Txg {
    Txg::new(n).unwrap()
}

/// Four metaslabs of 1024 blocks; the first and the last blocks are labels.
fn restore() -> Restore {
    restore_with(0)
}

fn restore_with(reserve: u64) -> Restore {
    let layout = MetaslabLayout::for_device(DeviceId(0), 4096, Some(1024));
    let config = Config { reserve_blocks: Some(reserve), ..Config::default() };
    Restore::new(&[layout], &[run(0, 64), run(4032, 64)], 1, config).unwrap()
}

fn map(index: u32, allocated: u64) -> (Descriptor, SpaceMap) {
    let first_block = u64::from(index) * 1024;
    let place = MapRange { device: DeviceId(0), index, first_block, blocks: 1024 };
    let mut words = vec![0; 16];
    words[2] = allocated;
    let map = SpaceMap::new(place, txg(10), words);
    let at = NodePtr {
        copies: [Some(BlockAddr::new(DeviceId(0), 3000)), None],
        blocks: 1,
        fragmented: false,
        epoch: EpochId::POOL,
        digest: Digest(0),
    };
    let (allocated, longest_free) = (map.allocated(), map.longest_free());
    let complete_to = txg(10);
    let deltas = Vec::new();
    (
        Descriptor { map: Some(at), deltas, allocated, complete_to, longest_free, is_lost: false },
        map,
    )
}

#[test]
fn edits_that_the_map_has_are_not_applied_again() {
    let mut restore = restore();
    let (descriptor, map) = map(1, 0xff);
    // Free in the map; txg 9 had allocated it before the map was made.
    restore.replay_alloc(txg(9), run(1500, 10)).unwrap();
    restore.replay_free(txg(11), run(1024 + 128, 4)).unwrap();
    restore.load(ID, descriptor, Some(&map)).unwrap();
    let space = restore.finish(Some(txg(11))).unwrap();
    space.check();
    assert_eq!(space.allocated_runs(ID), [run(1024 + 132, 4)]);
    let pins: Vec<Pin> = space.pins().collect();
    assert_eq!(pins, [Pin { metaslab: ID, oldest: txg(11), edits: 1, flushing: false }]);
}

#[test]
fn edits_that_were_logged_again_count_once_while_the_map_is_away() {
    let mut restore = restore();
    let (descriptor, _) = map(1, 0xff);
    for txg in [txg(11), txg(13)] {
        restore.replay_alloc(txg, run(1100, 10)).unwrap();
        restore.replay_free(txg, run(1024 + 128, 4)).unwrap();
    }
    // Allocated and freed since the map was made.
    restore.replay_alloc(txg(12), run(1500, 3)).unwrap();
    restore.replay_free(txg(13), run(1500, 3)).unwrap();
    restore.leave(ID, descriptor).unwrap();
    let space = restore.finish(Some(txg(13))).unwrap();
    assert_eq!(space.figures().allocated, 8 + 10 - 4, "AWAY-A4");
    space.check();
}

#[test]
fn within_a_txg_the_order_of_edits_does_not_matter() {
    for frees_first in [false, true] {
        let mut restore = restore();
        if frees_first {
            restore.replay_free(txg(3), run(1100, 8)).unwrap();
        }
        restore.replay_alloc(txg(3), run(1100, 10)).unwrap();
        if !frees_first {
            restore.replay_free(txg(3), run(1100, 8)).unwrap();
        }
        let space = restore.finish(None).unwrap();
        assert_eq!(space.allocated_runs(ID), [run(1108, 2)]);
        assert_eq!(space.figures().freeing, 8);
    }
}

#[test]
fn what_the_last_txg_freed_waits_until_that_is_durable() {
    let mut restore = restore();
    restore.replay_alloc(txg(3), run(2000, 100)).unwrap();
    restore.replay_free(txg(4), run(2000, 30)).unwrap();
    restore.replay_free(txg(5), run(2030, 30)).unwrap();
    let space = restore.finish(Some(txg(4))).unwrap();
    space.check();
    assert_eq!(space.figures().freeing, 30);
    assert_eq!(space.release_deferred(txg(4)), 0);
    assert_eq!(space.release_deferred(txg(5)), 30);
    space.check();
}

#[test]
fn a_map_that_belongs_elsewhere_is_refused() {
    let (descriptor, other) = map(2, 1);
    let error = restore().load(ID, descriptor, Some(&other)).unwrap_err();
    assert!(matches!(error, SpaceError::Mismatch { metaslab: ID, what: "index", .. }), "{error}");
    let (descriptor, right) = map(1, 1);
    let stale = Descriptor { complete_to: txg(11), ..descriptor.clone() };
    let error = restore().load(ID, stale, Some(&right)).unwrap_err();
    assert!(matches!(error, SpaceError::Mismatch { what: "complete_to", .. }), "{error}");
    let nowhere = MetaslabId { index: 4, ..ID };
    let error = restore().load(nowhere, descriptor, Some(&right)).unwrap_err();
    assert_eq!(error, SpaceError::NoMetaslab { metaslab: nowhere });
}

#[test]
fn a_map_that_was_read_before_a_delta_was_added_is_refused() {
    let (descriptor, map) = map(1, 0xff);
    let mut restore = restore();
    restore.leave(ID, descriptor.clone()).unwrap();
    let space = restore.finish(Some(txg(10))).unwrap();
    space.log_free(txg(12), run(1024 + 128, 2)).unwrap();
    let job = space.freeze(ID, txg(12)).unwrap();
    assert!(job.is_delta() && job.replaces().next().is_none());
    // It comes while the delta is written.
    space.log_free(txg(13), run(1024 + 132, 2)).unwrap();
    let twice = space.log_free(txg(13), run(1024 + 129, 1));
    assert!(matches!(twice, Err(SpaceError::NotAllocated { .. })), "{twice:?}");
    let delta = job.encode().unwrap();
    let at = NodePtr { digest: Digest(1), ..descriptor.map.unwrap() };
    let wanted = Descriptor {
        deltas: vec![at],
        allocated: 6,
        complete_to: txg(12),
        longest_free: 768,
        ..descriptor
    };
    assert_eq!(job.descriptor(Some(at)), wanted);
    assert_eq!(space.oldest_pin(), Some(txg(12)), "MAPFLUSH-F3");
    space.installed(job, Some(at));
    assert_eq!(space.oldest_pin(), Some(txg(13)));
    assert_eq!(space.cold_map(ID), Some(StoredMap::of(&wanted)));

    let stale = space.load(ID, Some(&map)).unwrap_err();
    assert!(
        matches!(stale, SpaceError::Mismatch { what: "complete_to", .. }),
        "STORED-D3: {stale}"
    );
    let both = SpaceMap::parse_parts(&map.encode(), &[delta]).unwrap();
    assert_eq!(space.load(ID, Some(&both)), Ok(true));
    assert_eq!(space.allocated_runs(ID), [run(1024 + 130, 2), run(1024 + 134, 2)]);
    space.check();
}

#[test]
fn a_map_that_is_away_with_edits_of_a_recovery_is_loaded_to_be_flushed() {
    let (descriptor, map) = map(1, 0xff);
    let mut restore = restore();
    // The map may have it already (MAPFLUSH-F1).
    restore.replay_free(txg(11), run(1024 + 128, 2)).unwrap();
    restore.leave(ID, descriptor).unwrap();
    let space = restore.finish(Some(txg(11))).unwrap();
    assert!(space.freeze(ID, txg(11)).is_none());
    assert!(space.wants_load(ID), "STORED-D2");
    assert_eq!(space.load(ID, Some(&map)), Ok(true));
    assert!(!space.wants_load(ID));
    assert!(!space.freeze(ID, txg(11)).unwrap().is_delta(), "the whole map is one block");
}

#[test]
fn no_delta_is_written_while_users_may_write_no_more() {
    for (reserve, has_room) in [(0, true), (4096, false)] {
        let (descriptor, map) = map(1, 0xff);
        let mut restore = restore_with(reserve);
        restore.leave(ID, descriptor).unwrap();
        let space = restore.finish(Some(txg(10))).unwrap();
        assert_eq!(space.missing(0, Tier::Write) == 0, has_room);
        space.log_free(txg(12), run(1024 + 128, 2)).unwrap();
        let job = space.freeze(ID, txg(12));
        assert_eq!(job.is_some_and(|job| job.is_delta()), has_room, "STORED-D5");
        assert!(space.wants_load(ID), "the job is given up, or there was none");
        assert_eq!(space.load(ID, Some(&map)), Ok(true));
        assert!(!space.freeze(ID, txg(12)).unwrap().is_delta(), "the whole map is one block");
    }
}

#[test]
fn a_delta_is_given_up_if_its_metaslab_was_set_aside_meanwhile() {
    let (descriptor, map) = map(1, 0xff);
    let mut restore = restore();
    restore.leave(ID, descriptor).unwrap();
    let space = restore.finish(Some(txg(10))).unwrap();
    // The map has only eight blocks.
    space.log_free(txg(12), run(1024 + 500, 2)).unwrap();
    let job = space.freeze(ID, txg(12)).unwrap();
    assert!(job.is_delta() && !job.was_set_aside());
    let error = space.load(ID, Some(&map)).unwrap_err();
    assert!(matches!(error, SpaceError::NotAllocated { .. }), "AWAY-A5: {error}");
    space.set_unreadable(ID);
    assert!(job.was_set_aside());
    space.abort(job);
    assert_eq!(space.missing_map(ID).map(|found| found.1), Some(txg(10)), "the base is as it was");
    let carried = space.freeze(ID, txg(12)).unwrap();
    assert!(carried.is_set_aside() && !carried.was_set_aside());
    assert_eq!(space.carry(&carried, 0, 9, txg(13)).freed, [run(1024 + 500, 2)]);
}

#[test]
fn a_full_metaslab_whose_map_can_be_read_again_defers_nothing() {
    let mut restore = restore();
    restore.set_aside(ID, map(1, 0).0).unwrap();
    let space = restore.finish(Some(txg(10))).unwrap();
    assert_eq!(space.supply_runs(ID, [run(1024, 1024)], txg(12)), Ok(true));
    space.check();
    assert_eq!(space.figures().freeing, 0);
}

#[test]
fn an_allocation_of_a_label_is_refused() {
    let mut restore = restore();
    restore.replay_alloc(txg(3), run(4000, 40)).unwrap();
    let error = restore.finish(None).unwrap_err();
    assert!(matches!(error, SpaceError::Fixed { .. }), "{error}");
}

#[test]
fn an_edit_outside_of_all_devices_is_refused() {
    let mut restore = restore();
    let error = restore.replay_free(txg(3), run(4090, 10)).unwrap_err();
    assert_eq!(error, SpaceError::Outside { run: run(4090, 10) });
    let elsewhere = Run::new(BlockAddr::new(DeviceId(1), 0), 1);
    assert!(restore.replay_alloc(txg(3), elsewhere).is_err());
}

#[test]
fn a_metaslab_that_is_set_aside_loses_space_for_a_while_and_nothing_else() {
    let mut restore = restore();
    restore.replay_alloc(txg(13), run(1000, 100)).unwrap();
    restore.set_aside(ID, map(1, 0xff).0).unwrap();
    let space = restore.finish(Some(txg(13))).unwrap();
    space.check();
    assert_eq!(space.figures().free, 4096 - 128 - 1024 - 24);
    // The run lies across the border: its first part is known, of the rest nothing is.
    space.log_free(txg(14), run(1000, 100)).unwrap();
    assert_eq!(space.release_deferred(txg(14)), 24);
    let free = space.figures().free;
    let mut promise = space.reserve(free, Tier::Write).unwrap();
    let lane = Lane { cpu: 0, class: LaneClass::Data };
    for claim in space.claim(lane, free, &mut promise).unwrap() {
        let metaslab = claim.run().addr.block() / 1024;
        assert_ne!(metaslab, 1, "{claim:?}");
    }
    space.check();
}

/// What all steps log, and how many there are.
fn carry_all(space: &Space, job: &MapJob, runs_max: usize) -> (Carried, usize) {
    let (mut all, mut steps, mut from) = (Carried::default(), 0, Some(0));
    while let Some(at) = from {
        let step = space.carry(job, at, runs_max, txg(16));
        assert!(step.allocated.len() <= runs_max && step.freed.len() <= runs_max);
        all.allocated.extend(step.allocated);
        all.freed.extend(step.freed);
        (from, steps) = (step.next, steps + 1);
    }
    (all, steps)
}

#[test]
fn edits_of_a_metaslab_that_is_set_aside_are_logged_again_until_its_map_is_there() {
    let (descriptor, sound) = map(1, 0xff);
    let mut restore = restore();
    restore.replay_alloc(txg(9), run(1900, 10)).unwrap();
    restore.replay_alloc(txg(13), run(1500, 100)).unwrap();
    restore.set_aside(ID, descriptor.clone()).unwrap();
    let space = restore.finish(Some(txg(13))).unwrap();
    let pins: Vec<Pin> = space.pins().collect();
    assert_eq!(pins, [Pin { metaslab: ID, oldest: txg(13), edits: 1, flushing: false }]);
    space.log_free(txg(15), run(1500, 10)).unwrap();
    space.log_free(txg(15), run(1024 + 128, 2)).unwrap();

    let job = space.freeze(ID, txg(15)).unwrap();
    assert!(job.is_set_aside());
    assert_eq!((job.encode(), job.replaces().count()), (None, 0));
    let (carried, steps) = carry_all(&space, &job, 8);
    assert_eq!((&carried.allocated[..], steps), (&[run(1510, 90)][..], 1));
    assert_eq!(carried.freed, [run(1024 + 128, 2), run(1500, 10)]);
    assert_eq!(carry_all(&space, &job, 1).0, carried, "in smaller steps");
    assert_eq!(space.oldest_pin(), Some(txg(13)), "MAPFLUSH-F3: until the record is durable");
    space.installed(job, None);
    assert_eq!(space.oldest_pin(), Some(txg(16)));
    assert_eq!(space.missing_map(ID), StoredMap::of(&descriptor).map(|map| (map, txg(10))));

    // The next mount, whose log begins there, and which can read the map.
    let mut again = self::restore();
    carried.allocated.iter().for_each(|run| again.replay_alloc(txg(16), *run).unwrap());
    carried.freed.iter().for_each(|run| again.replay_free(txg(16), *run).unwrap());
    again.load(ID, descriptor.clone(), Some(&sound)).unwrap();
    let wanted = [run(1024 + 130, 6), run(1510, 90)];
    assert_eq!(again.finish(None).unwrap().allocated_runs(ID), wanted);

    // Or the map can be read again, while the pool is open.
    assert_eq!(space.supply(ID, &sound, txg(17)), Ok(true));
    space.check();
    assert_eq!(space.allocated_runs(ID), wanted);
    assert_eq!(space.release_deferred(txg(16)), 0);
    assert_eq!(space.release_deferred(txg(17)), 1024 - 96);
    space.check();
    let job = space.freeze(ID, txg(17)).unwrap();
    assert_eq!((job.is_set_aside(), job.replaces().next()), (false, descriptor.map));
    assert_eq!(space.supply(ID, &sound, txg(17)), Ok(false), "it is in use");
}

#[test]
fn a_map_is_made_anew_of_what_is_allocated() {
    let mut restore = restore();
    restore.set_aside(MetaslabId { index: 0, ..ID }, map(0, 1).0).unwrap();
    let space = restore.finish(None).unwrap();
    let id = MetaslabId { index: 0, ..ID };
    let label = space.supply_runs(id, [run(60, 10)], txg(20));
    assert!(matches!(label, Err(SpaceError::Fixed { .. })), "{label:?}");
    assert_eq!(space.supply_runs(id, [run(100, 10), run(1000, 100)], txg(20)), Ok(true));
    assert_eq!(space.allocated_runs(id), [run(100, 10), run(1000, 24)]);
    space.check();
}

#[test]
fn a_growth_in_a_metaslab_that_is_set_aside_takes_no_space_for_the_reserve() {
    let layout = MetaslabLayout::for_device(DeviceId(0), 4000, Some(1024));
    let fixed = [run(0, 64), run(3936, 64)];
    let mut restore = Restore::new(&[layout], &fixed, 1, Config::default()).unwrap();
    restore.set_aside(MetaslabId { index: 3, ..ID }, map(3, 0xff).0).unwrap();
    let space = restore.finish(None).unwrap();
    let before = space.figures();
    space.grow(4096, &[(3936, 64), (4000, 32)]);
    let now = space.figures();
    assert_eq!((now.free, now.available()), (before.free, before.available()));
    assert_eq!((now.total, now.reserve), (before.total + 96, before.reserve));
    space.grow(5000, &[(4096, 840)]);
    let larger = space.figures();
    assert!(larger.reserve > now.reserve && larger.available() > now.available(), "{larger:?}");
    space.check();
}
