//! Random histories of several subvolumes on a simulated device, against plain copies.
//!
//! `world` plays writes, partial overwrites, drops, reflinks, snapshots, deletions, flushes and
//! crashes, with background work in between or beside; `recount` compares every live subvolume's
//! content, block by block, and counts what is allocated, shared and paid for from what they refer
//! to.

mod aside;
mod epochs;
mod life;
mod recount;
mod scans;
mod world;

use world::{Config, World};

const OPS: usize = 90;

/// Whether any release had to wait.
fn play(seed: u64, config: Config) -> bool {
    let mut world = World::new(seed, config);
    for n in 0..OPS {
        world.step();
        if n % 30 == 29 {
            world.compare();
            world.recount();
        }
    }
    world.crash();
    world.compare();
    world.recount();
    world.delete_everything();
    world.recount();
    let seen_pending = world.seen_pending;
    world.close();
    seen_pending
}

#[test]
fn subvolumes_are_what_was_written_and_only_that_is_allocated() {
    for seed in 0..40 {
        play(seed, Config::default());
    }
}

#[test]
fn a_cache_of_few_nodes_leaves_releases_pending_and_loses_none() {
    let config = Config { cache: 160 << 10, ..Config::default() };
    let waited = (100..140).filter(|&seed| play(seed, config)).count();
    assert!(waited > 0, "nothing was ever pending");
}

#[test]
fn background_work_beside_writes_changes_nothing() {
    for seed in 200..240 {
        play(seed, Config { beside: true, ..Config::default() });
    }
}

/// As the plan's model says, which knows nothing of tables and steps.
#[test]
fn blocks_shares_deadlists_and_usage_are_those_of_the_plain_model() {
    for seed in 400..430 {
        let config = Config { quotas: true, plain: true, ..Config::default() };
        let mut world = World::new(seed, config);
        for n in 0..OPS {
            world.step();
            if n % 10 == 9 {
                world.compare_epochs();
            }
        }
        world.crash();
        world.compare_epochs();
        world.delete_everything();
        world.compare_epochs();
        world.close();
    }
}

#[test]
fn usage_is_what_each_owner_began_and_somebody_refers_to() {
    for seed in 300..340 {
        play(seed, Config { quotas: true, ..Config::default() });
    }
}
