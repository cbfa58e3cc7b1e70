//! Writes side by side, dropped, torn by a crash: PIDEV-E2 and PIDEV-E3 against a plain model.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join_all, select};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use super::*;

/// Blocks that are written: entries of three blocks.
const USED: u64 = 600;
const ROUNDS: u64 = 12;

/// The possible contents of each block.
#[derive(Default)]
struct Model {
    /// Births whose writes a flush has covered.
    durable: BTreeMap<u64, u32>,
    /// Births that may be there instead, in part or as a whole.
    pending: BTreeMap<u64, BTreeSet<u32>>,
    /// Blocks of dropped writes: those may land at any time.
    abandoned: BTreeSet<u64>,
    /// Births of completed writes, not yet flushed.
    written: BTreeMap<u64, u32>,
}

fn of_birth(birth: u32, blocks: usize) -> Buf {
    content(birth as u8, blocks)
}

/// A block's content by its birth, at `nth` in the write.
fn block_of(birth: u32, nth: usize) -> Buf {
    Buf::from_bytes(&of_birth(birth, nth + 1)[nth * BLOCK_BYTES..])
}

struct History {
    world: World,
    rng: Xoshiro256PlusPlus,
    model: Model,
    /// The first block of each write, by its birth.
    begins: BTreeMap<u32, u64>,
    birth: u32,
}

impl History {
    fn new(format: &str, seed: u64) -> History {
        History {
            world: World::new(format, seed),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            model: Model::default(),
            begins: BTreeMap::new(),
            birth: 1,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    /// Disjoint runs without abandoned blocks.
    fn pick_runs(&mut self) -> Vec<(u64, u64)> {
        let mut taken = BTreeSet::new();
        let mut runs = Vec::new();
        for _ in 0..1 + self.below(8) {
            let most = if self.below(6) == 0 { 300 } else { 6 };
            let length = 1 + self.below(most);
            let block = self.below(USED - length);
            let run: BTreeSet<u64> = (block..block + length).collect();
            if run.is_disjoint(&taken) && run.is_disjoint(&self.model.abandoned) {
                taken.extend(&run);
                runs.push((block, length));
            }
        }
        runs
    }

    /// Begins some writes at once, drops some of them on the way, and waits for the others.
    fn write_some(&mut self, can_drop: bool) {
        let mut waited = Vec::new();
        for (block, length) in self.pick_runs() {
            self.birth += 1;
            let (birth, data) = (self.birth, of_birth(self.birth, length as usize));
            self.begins.insert(birth, block);
            let protect = self.world.guarded(&data, birth);
            let write = self.world.device.write_protected(block, data.into(), WHY, protect);
            for block in block..block + length {
                self.model.pending.entry(block).or_default().insert(birth);
            }
            if can_drop && self.below(4) == 0 {
                self.model.abandoned.extend(block..block + length);
                let pause = std::time::Duration::from_nanos(self.below(400_000));
                let (rt, write) = (self.world.rt.clone(), write);
                waited.push(Box::pin(async move {
                    select(write, rt.sleep(pause)).await;
                    Ok(())
                }) as BoxFuture<'static, _>);
            } else {
                self.model.written.extend((block..block + length).map(|block| (block, birth)));
                waited.push(write);
            }
        }
        for done in self.world.rt.block_on(join_all(waited)) {
            done.unwrap();
        }
    }

    fn flush(&mut self) {
        self.world.rt.block_on(self.world.device.flush()).unwrap();
        for (block, birth) in std::mem::take(&mut self.model.written) {
            if !self.model.abandoned.contains(&block) {
                self.model.durable.insert(block, birth);
                self.model.pending.remove(&block);
            }
        }
    }

    /// Each block of `found` is as the model allows.
    fn check(&self, found: &World) {
        for block in 0..USED {
            let durable = self.model.durable.get(&block);
            let pending = self.model.pending.get(&block);
            let births = durable.into_iter().chain(pending.into_iter().flatten());
            let mut read_well = 0;
            for birth in births.copied() {
                let answer = found.read(block, 1, Expect::Guard { birth });
                match answer {
                    Ok(read) => {
                        let nth = (block - self.begins[&birth]) as usize;
                        assert!(*read == *block_of(birth, nth), "PIDEV-E3: block {block}");
                        read_well += 1;
                    }
                    Err(DeviceError::Integrity { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(read_well <= 1);
            assert!(pending.is_some() || durable.is_none() || read_well == 1, "block {block}");
        }
    }
}

#[test]
fn a_crash_touches_only_blocks_that_no_flush_has_covered() {
    for (format, seed) in ["4096+16:64b", "512+8:16b", "4096+24:32b"].into_iter().zip(0..) {
        for seed in (seed..30).step_by(3) {
            let mut history = History::new(format, seed);
            for _ in 0..1 + seed % ROUNDS {
                history.write_some(true);
                if history.below(2) == 0 {
                    history.flush();
                }
            }
            for cut in 0..2 {
                let image = history.world.disk.crash(seed * 100 + cut);
                history.check(&World::found(image, seed));
            }
        }
    }
}

#[test]
fn writes_side_by_side_in_one_block_of_entries_keep_each_others_tuples() {
    for seed in 0..30 {
        let mut history = History::new("4096+16:64b", seed);
        for _ in 0..6 {
            history.write_some(false);
        }
        history.flush();
        let Model { durable, .. } = &history.model;
        for (block, birth) in durable {
            let read = history.world.read(*block, 1, Expect::Guard { birth: *birth });
            assert!(read.is_ok(), "PIDEV-E2: block {block}, seed {seed}: {read:?}");
        }
    }
}

#[test]
fn a_write_whose_future_is_dropped_leaves_the_tuples_of_others_alone() {
    for seed in 0..40 {
        let mut history = History::new("4096+16:64b", seed);
        for _ in 0..8 {
            history.write_some(true);
        }
        // Until each dropped one has landed, or never will.
        let pause = std::time::Duration::from_secs(60);
        history.world.rt.block_on(history.world.rt.sleep(pause));
        for _ in 0..200 {
            history.world.read(0, 1, Expect::Plain).unwrap();
        }
        let Model { written, abandoned, .. } = &history.model;
        for (block, birth) in written.iter().filter(|(block, _)| !abandoned.contains(block)) {
            let read = history.world.read(*block, 1, Expect::Guard { birth: *birth });
            assert!(read.is_ok(), "PIDEV-E2: block {block}, seed {seed}: {read:?}");
        }
    }
}

#[test]
fn writes_that_overlap_may_damage_the_blocks_of_both_and_no_others() {
    for seed in 0..20 {
        let world = World::new("4096+16:64b", seed);
        let (many, one) = (content(1, 512), content(2, 1));
        let (of_many, of_one) = (world.guarded(&many, 2), world.guarded(&one, 3));
        let many = world.device.write_protected(0, many.into(), WHY, of_many);
        let one = world.device.write_protected(5, one.into(), WHY, of_one);
        for done in world.rt.block_on(join_all([one, many])) {
            done.unwrap();
        }
        for block in (0..512).filter(|block| *block != 5) {
            let read = world.read(block, 1, Expect::Guard { birth: 2 });
            assert!(read.is_ok(), "ENTRY-T1: block {block}, seed {seed}: {read:?}");
        }
    }
}
