//! Many threads allocate and free at once, and write, evict and load maps: no block has two owners,
//! and nothing gets lost.

// The machine's threads are what is tested.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use copyhold_format::space_map::SpaceMap;
use copyhold_space::*;
use copyhold_types::{BlockAddr, DeviceId, Digest, EpochId, NodePtr, Run, Txg};

const CPUS: usize = 4;
const BLOCKS: u64 = 24 * 256;
const ROUNDS: u64 = 4000;

/// The newest map of each metaslab. One thread loads at a time, as in a pool.
#[derive(Default)]
struct Disk {
    turn: Mutex<()>,
    maps: Mutex<BTreeMap<MetaslabId, Vec<u8>>>,
}

impl Disk {
    /// Writes the map of a metaslab, if it is loaded and has edits. All maps are of one txg:
    /// nothing is replayed.
    fn write(&self, space: &Space, id: MetaslabId) {
        let Some(job) = space.freeze(id, Txg::FIRST) else { return };
        let map = job.encode().map(|bytes| {
            self.maps.lock().unwrap().insert(id, bytes);
            let copies = [Some(BlockAddr::new(id.device, 0)), None];
            let (epoch, digest) = (EpochId::POOL, Digest(0));
            NodePtr { copies, blocks: 1, fragmented: false, epoch, digest }
        });
        space.installed(job, map);
    }

    fn load(&self, space: &Space, id: MetaslabId) {
        let _turn = self.turn.lock().unwrap();
        let Some(ptr) = space.cold_map(id) else { return };
        let map = ptr.map(|_: StoredMap| SpaceMap::parse(&self.maps.lock().unwrap()[&id]).unwrap());
        assert_eq!(space.load(id, map.as_ref()), Ok(true));
    }

    /// Reserves blocks in loaded maps; loads as many as that takes.
    fn reserve(&self, space: &Space, blocks: u64) -> Result<Reservation, NoSpace> {
        let _loading = space.begin_loads(blocks);
        while space.wants_map(blocks, Tier::Write) {
            let Some(best) = space.best_cold() else { break };
            self.load(space, best);
        }
        space.reserve(blocks, Tier::Write)
    }
}

/// One thread's work: it never holds more than its share of the space, so it is never refused.
/// `evicts`: it writes and evicts maps, too.
fn work(space: &Space, disk: &Disk, owned: &[AtomicBool], cpu: usize, evicts: bool) {
    let own = |run: Run, value: bool| {
        for block in run.addr.block()..run.end() {
            let before = owned[block as usize].swap(value, Ordering::AcqRel);
            assert_ne!(before, value, "block {block} has two owners, or none");
        }
    };
    let mut mine: Vec<Run> = Vec::new();
    let mut random = cpu as u64;
    for round in 1..=ROUNDS {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let class = [LaneClass::Data, LaneClass::Node, LaneClass::Sync][(round % 3) as usize];
        let blocks = 1 + (random >> 33) % [40, 8, 600][(round % 3) as usize];
        let txg = Txg::new(round).unwrap();
        let held: u64 = mine.iter().map(|run| u64::from(run.blocks)).sum();
        if held + blocks <= BLOCKS / CPUS as u64 / 2 {
            // What others have freed may still be on its way; it comes with a later round.
            let Ok(mut promise) = disk.reserve(space, blocks) else { continue };
            let claims = space.claim(Lane { cpu, class }, blocks, &mut promise).unwrap();
            for (at, claim) in claims.into_iter().enumerate() {
                own(claim.run(), true);
                if at == 7 {
                    own(claim.run(), false);
                    claim.cancel_into(&mut promise);
                } else {
                    mine.push(space.log_alloc(txg, claim));
                }
            }
        } else {
            for run in mine.drain(..mine.len().div_ceil(2)) {
                own(run, false);
                space.log_free(txg, run).unwrap();
            }
        }
        space.release_deferred(txg);
        if round % 16 == 0 {
            let metaslab = space.metaslabs().nth(cpu).unwrap();
            let _ = space.freeze(metaslab, txg).map(|job| space.abort(job));
        }
        if evicts && round % 8 == 0 {
            space.metaslabs().for_each(|id| disk.write(space, id));
            space.evict(0);
        }
    }
    for run in mine {
        own(run, false);
        space.log_free(Txg::new(ROUNDS).unwrap(), run).unwrap();
    }
}

fn no_block_has_two_owners(evicts: bool) {
    let layout = MetaslabLayout::for_device(DeviceId(0), BLOCKS, Some(1024));
    let config = Config { reserve_blocks: Some(0), ..Config::default() };
    let space = Space::new(&[layout], &[], CPUS, config);
    let owned: Vec<AtomicBool> = (0..BLOCKS).map(|_| AtomicBool::new(false)).collect();
    let disk = Disk::default();
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (space, disk, owned) = (&space, &disk, &owned);
            scope.spawn(move || work(space, disk, owned, cpu, evicts));
        }
    });
    space.check();
    space.release_deferred(Txg::new(ROUNDS).unwrap());
    space.check();
    assert_eq!(space.figures().free, BLOCKS);
    space.metaslabs().for_each(|id| disk.load(&space, id));
    space.check();
    assert_eq!(space.figures().free, BLOCKS);
}

#[test]
fn no_block_has_two_owners_among_threads() {
    no_block_has_two_owners(false);
}

#[test]
fn no_block_has_two_owners_while_maps_are_evicted_and_loaded() {
    no_block_has_two_owners(true);
}

/// GROWSPACE-G4: threads that walk over metaslabs meet none that the pool does not have yet.
#[test]
fn a_growth_disturbs_no_thread_that_evicts_or_discards() {
    const GROWTHS: u64 = 20;
    const MORE: u64 = 500 * 1024;
    let layout = MetaslabLayout::for_device(DeviceId(0), BLOCKS, Some(1024));
    let config = Config { reserve_blocks: Some(0), ..Config::default() };
    let space = Space::new(&[layout], &[], CPUS, config);
    let is_done = AtomicBool::new(false);
    let of_all = Discardable {
        least: 256,
        freed_before: None,
        keep_warm: true,
        unknown: true,
        from: 0,
        to: u64::MAX,
        runs: 1,
    };
    std::thread::scope(|scope| {
        let (space, is_done) = (&space, &is_done);
        let until_done = |step: Box<dyn Fn(&Space) + Send>| {
            scope.spawn(move || {
                while !is_done.load(Ordering::Acquire) {
                    step(space);
                }
            });
        };
        until_done(Box::new(move |space| drop(space.take_discardable(of_all))));
        until_done(Box::new(|space| _ = space.evict(0)));
        for n in 0..GROWTHS {
            let before = BLOCKS + n * MORE;
            space.grow(before + MORE, &[(before, MORE)]);
        }
        is_done.store(true, Ordering::Release);
    });
    space.check();
    assert_eq!(space.figures().free, BLOCKS + GROWTHS * MORE);
}
