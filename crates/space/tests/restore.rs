//! Opening a pool whose maps, descriptors or log are not what they should be.

use copyhold_format::space_map::{Descriptor, Place, SpaceMap};
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
    let layout = MetaslabLayout::for_device(DeviceId(0), 4096, Some(1024));
    let config = Config { reserve_blocks: Some(0), ..Config::default() };
    Restore::new(&[layout], &[run(0, 64), run(4032, 64)], 1, config).unwrap()
}

fn map(index: u32, allocated: u64) -> (Descriptor, SpaceMap) {
    let first_block = u64::from(index) * 1024;
    let place = Place { device: DeviceId(0), index, first_block, blocks: 1024 };
    let mut words = vec![0; 16];
    words[2] = allocated;
    let map = SpaceMap::new(place, txg(10), words);
    let at = NodePtr {
        copies: [Some(BlockAddr::new(DeviceId(0), 3000)), None],
        blocks: 1,
        epoch: EpochId::POOL,
        digest: Digest(0),
    };
    let (allocated, longest_free) = (map.allocated(), map.longest_free());
    let (complete_to, quarantined) = (txg(10), false);
    (Descriptor { map: Some(at), allocated, complete_to, longest_free, quarantined }, map)
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
    let stale = Descriptor { complete_to: txg(11), ..descriptor };
    let error = restore().load(ID, stale, Some(&right)).unwrap_err();
    assert!(matches!(error, SpaceError::Mismatch { what: "complete_to", .. }), "{error}");
    let nowhere = MetaslabId { index: 4, ..ID };
    let error = restore().load(nowhere, descriptor, Some(&right)).unwrap_err();
    assert_eq!(error, SpaceError::NoMetaslab { metaslab: nowhere });
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
fn a_quarantined_metaslab_loses_space_and_nothing_else() {
    let mut restore = restore();
    restore.replay_alloc(txg(3), run(1000, 100)).unwrap();
    restore.quarantine(ID).unwrap();
    let space = restore.finish(Some(txg(3))).unwrap();
    space.check();
    assert_eq!(space.figures().free, 4096 - 128 - 1024 - 24);
    // The run lies across the border: its first part is known, of the rest nothing is.
    space.log_free(txg(4), run(1000, 100)).unwrap();
    assert_eq!(space.release_deferred(txg(4)), 24);
    let free = space.figures().free;
    let mut promise = space.reserve(free, Tier::Write).unwrap();
    let lane = Lane { cpu: 0, class: LaneClass::Data };
    for claim in space.claim(lane, free, &mut promise).unwrap() {
        let metaslab = claim.run().addr.block() / 1024;
        assert_ne!(metaslab, 1, "{claim:?}");
    }
    space.check();
}

#[test]
fn a_quarantined_metaslab_pins_the_log_until_its_descriptor_says_so() {
    let mut restore = restore();
    restore.replay_alloc(txg(3), run(1100, 100)).unwrap();
    restore.quarantine(ID).unwrap();
    let space = restore.finish(Some(txg(3))).unwrap();
    let pins: Vec<Pin> = space.pins().collect();
    assert_eq!(pins, [Pin { metaslab: ID, oldest: txg(3), edits: 1, flushing: false }]);
    let job = space.freeze(ID, txg(4)).unwrap();
    assert_eq!((job.encode(), job.replaces()), (None, None));
    let descriptor = job.descriptor(None);
    assert!(descriptor.quarantined);
    space.installed(job, None);
    space.log_free(txg(5), run(1100, 10)).unwrap();
    assert_eq!(space.oldest_pin(), None);
    space.check();

    // The next mount: nobody tries to read a map, and nothing is lost that was not before.
    let mut restore = self::restore();
    restore.replay_free(txg(5), run(1100, 10)).unwrap();
    restore.load(ID, descriptor, None).unwrap();
    let space = restore.finish(Some(txg(4))).unwrap();
    space.check();
    assert_eq!((space.oldest_pin(), space.figures().freeing), (None, 0));
    assert!(space.metaslab(ID).unwrap().quarantined);
}
