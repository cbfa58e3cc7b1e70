//! What the front end holds is counted, and when it is too much, what may be given up is named
//! (docs/memory.md), against a model that counts by itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_fs::{Caller, Filesystem, NodeId, Options};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::common::tenants::{file, root_of, subvolume};
use crate::common::{self, World, seeds};

const FILES: u64 = 1500;
/// Two for each shard.
const LOOKUPS_MAX: usize = 128;

fn options() -> Options {
    Options { lookups_max: LOOKUPS_MAX, inodes_max: 64, ..Options::default() }
}

async fn make(fs: &Arc<Filesystem>, n: u64) -> NodeId {
    let name = format!("f{n}");
    fs.mknod(&Caller::ROOT, NodeId::ROOT, name.as_bytes(), 0o100_644, 0).await.unwrap().node
}

struct Player {
    fs: Arc<Filesystem>,
    rng: Xoshiro256PlusPlus,
    held: BTreeMap<NodeId, u64>,
}

impl Player {
    async fn look_up(&mut self) {
        let name = format!("f{}", self.rng.next_u64() % FILES);
        let entry = common::lookup(&self.fs, &name).await.unwrap();
        *self.held.entry(entry.node).or_default() += 1;
    }

    fn forget(&mut self, node: NodeId) {
        let count = self.held.remove(&node).expect("held");
        self.fs.forget(node, count);
    }

    fn forget_any(&mut self) {
        let nth = self.rng.next_u64() as usize % self.held.len().max(1);
        if let Some(node) = self.held.keys().nth(nth).copied() {
            self.forget(node);
        }
    }

    /// Gives up what it is asked to, but for some that are in use.
    fn give_up(&mut self) {
        for node in self.fs.surplus_lookups() {
            assert!(self.held.contains_key(&node), "{node} is not held");
            if !self.rng.next_u64().is_multiple_of(4) {
                self.forget(node);
            }
        }
    }
}

#[test]
fn look_ups_stay_near_their_bound_when_most_of_the_surplus_is_given_up() {
    for seed in seeds(6) {
        let world = World::new(seed, 20_000);
        world.run(async {
            let fs = world.open_with(options()).await;
            for n in 0..FILES {
                let node = make(&fs, n).await;
                fs.forget(node, 1);
            }
            let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut player = Player { fs: fs.clone(), rng, held: BTreeMap::new() };
            let mut asked = 0;
            for step in 0..4000 {
                match player.rng.next_u64() % 16 {
                    0 => player.forget_any(),
                    _ => player.look_up().await,
                }
                if fs.is_crowded() {
                    asked += 1;
                    player.give_up();
                }
                let (inodes, lookups) = fs.inodes_and_lookups();
                assert_eq!(lookups, player.held.len(), "seed {seed}, step {step}");
                // What is in memory is not given up, nor what a quarter uses.
                assert!(lookups <= 3 * LOOKUPS_MAX + inodes, "{lookups}: seed {seed}, step {step}");
            }
            assert!(asked > 10, "seed {seed}");
            let held: Vec<NodeId> = player.held.keys().copied().collect();
            held.into_iter().for_each(|node| player.forget(node));
            assert_eq!(fs.inodes_and_lookups().1, 0);
            drop(player);
            world.close(fs).await;
        });
    }
}

#[test]
fn a_front_end_that_gives_up_nothing_is_not_asked_each_time() {
    let world = World::new(1, 20_000);
    world.run(async {
        let fs = world.open_with(options()).await;
        let mut asked = 0;
        for n in 0..FILES {
            make(&fs, n).await;
            if fs.is_crowded() {
                asked += 1;
                fs.surplus_lookups();
            }
        }
        assert!((1..=FILES / 2).contains(&asked), "{asked} of {FILES}");
        assert_eq!(fs.inodes_and_lookups().1 as u64, FILES);
        world.close(fs).await;
    });
}

/// LOOKUP-L5: a walk beside a tenant that holds its part.
#[test]
fn a_walk_costs_no_tenant_within_its_part_a_look_up() {
    let world = World::new(1, 20_000);
    world.run(async {
        let fs = world.open_with(options()).await;
        let (rogue, neighbour) = (subvolume(&fs, "rogue").await, subvolume(&fs, "other").await);
        let mut kept = Vec::new();
        for n in 0..LOOKUPS_MAX / 4 {
            kept.push(file(&fs, root_of(neighbour), &format!("f{n}")).await);
        }
        kept.iter().for_each(|node| fs.release(*node));
        let (mut asked, mut most) = (0, 0);
        for n in 0..FILES {
            let node = file(&fs, root_of(rogue), &format!("f{n}")).await;
            fs.release(node);
            if fs.is_crowded() {
                for node in fs.surplus_lookups() {
                    assert_eq!(node.subvol, rogue, "LOOKUP-L5");
                    fs.forget(node, 1);
                    asked += 1;
                }
            }
            let (inodes, lookups) = fs.inodes_and_lookups();
            most = most.max(lookups.saturating_sub(inodes));
        }
        assert!(asked > FILES / 2, "{asked} of {FILES}");
        assert!(most <= 3 * LOOKUPS_MAX, "{most}");
        world.close(fs).await;
    });
}
