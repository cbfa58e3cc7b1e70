//! Many threads allocate and free at once: no block has two owners, and nothing gets lost.

// The machine's threads are what is tested.
#![allow(clippy::disallowed_methods)]

use std::sync::atomic::{AtomicBool, Ordering};

use copyhold_space::*;
use copyhold_types::{DeviceId, Run, Txg};

const CPUS: usize = 4;
const BLOCKS: u64 = 24 * 256;
const ROUNDS: u64 = 4000;

/// One thread's work: it never holds more than its share of the space, so it is never refused.
fn work(space: &Space, owned: &[AtomicBool], cpu: usize) {
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
            let Ok(mut promise) = space.reserve(blocks, Tier::Write) else { continue };
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
    }
    for run in mine {
        own(run, false);
        space.log_free(Txg::new(ROUNDS).unwrap(), run).unwrap();
    }
}

#[test]
fn no_block_has_two_owners() {
    let layout = MetaslabLayout::for_device(DeviceId(0), BLOCKS, Some(1024));
    let config = Config { reserve_blocks: Some(0), ..Config::default() };
    let space = Space::new(&[layout], &[], CPUS, config);
    let owned: Vec<AtomicBool> = (0..BLOCKS).map(|_| AtomicBool::new(false)).collect();
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (space, owned) = (&space, &owned);
            scope.spawn(move || work(space, owned, cpu));
        }
    });
    space.check();
    space.release_deferred(Txg::new(ROUNDS).unwrap());
    space.check();
    assert_eq!(space.figures().free, BLOCKS);
}
