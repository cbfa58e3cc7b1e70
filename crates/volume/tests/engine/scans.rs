//! What scans find, against everything read and compared.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_pool::Value;
use copyhold_types::{EpochId, Key, SubvolId};
use copyhold_volume::{Fresh, Tally, VolumeError, WeighAt, Weighing};

use crate::world::{Config, World};

const OPS: usize = 60;

impl World {
    fn live(&self) -> Vec<SubvolId> {
        self.model.keys().copied().collect()
    }

    fn items(&self, subvol: SubvolId) -> BTreeMap<Key, Value> {
        let subvol = self.volumes.subvol(subvol).unwrap();
        let all = self.volumes.range(&subvol, Key::MIN, Key::MAX, usize::MAX);
        self.rt.block_on(all).unwrap().into_iter().collect()
    }

    /// Keys that differ; `None`: they have nothing to do with each other.
    fn differing(&self, one: SubvolId, two: SubvolId, most: usize) -> Option<BTreeSet<Key>> {
        let [one, two] = [one, two].map(|id| self.volumes.subvol(id).unwrap());
        let (mut keys, mut from) = (BTreeSet::new(), Some(Key::MIN));
        while let Some(start) = from {
            let step = self.volumes.differing(&one, &two, start..Key::MAX, most);
            let found = match self.rt.block_on(step) {
                Err(VolumeError::Incomparable(..)) => return None,
                found => found.unwrap(),
            };
            keys.extend(found.items.into_iter().map(|(key, _)| key));
            from = found.next;
        }
        Some(keys)
    }

    fn fresh(&self, subvol: SubvolId, since: EpochId, most: usize) -> BTreeSet<Key> {
        let subvol = self.volumes.subvol(subvol).unwrap();
        let (mut keys, mut from) = (BTreeSet::new(), Some(Key::MIN));
        while let Some(start) = from {
            let step = self.volumes.fresh(&subvol, since, start, most);
            let found = self.rt.block_on(step).unwrap();
            let extents = found.items.iter().filter(|(_, it)| matches!(it, Fresh::Extent(_)));
            keys.extend(extents.map(|(key, _)| *key));
            from = found.next;
        }
        keys
    }

    pub(crate) fn weigh(&self, subvol: SubvolId, what: Weighing, most: usize) -> Tally {
        let subvol = self.volumes.subvol(subvol).unwrap();
        let (mut tally, mut at) = (Tally::default(), Some(WeighAt::START));
        while let Some(from) = at {
            let step = self.rt.block_on(self.volumes.weigh(&subvol, what, from, most)).unwrap();
            tally.add(&step);
            at = step.next;
        }
        tally
    }

    fn blocks(&self, subvol: SubvolId) -> BTreeSet<u64> {
        let extents = self.extents(subvol).into_iter();
        extents.flat_map(|(_, it)| it.pointer.run.addr.block()..it.pointer.run.end()).collect()
    }

    fn compare_differences(&mut self) {
        let most = 1 + self.below(200) as usize;
        let items: BTreeMap<_, _> = self.live().iter().map(|id| (*id, self.items(*id))).collect();
        let mut related = 0;
        for (one, has) in &items {
            for (two, other) in &items {
                let Some(found) = self.differing(*one, *two, most) else { continue };
                related += 1;
                let all: BTreeSet<&Key> = has.keys().chain(other.keys()).collect();
                let differs = |key: &&&Key| has.get(**key) != other.get(**key);
                let wanted: BTreeSet<Key> = all.iter().filter(differs).map(|key| **key).collect();
                assert!(found == wanted, "{one} and {two}: {found:?}, but {wanted:?}");
            }
        }
        assert!(related >= items.len(), "everything is related to itself");
    }

    fn compare_fresh(&mut self) {
        for subvol in self.live() {
            let newest = self.volumes.generation(&self.volumes.subvol(subvol).unwrap()).unwrap();
            for since in 1..=newest.0 + 1 {
                let since = EpochId(since);
                let found = self.fresh(subvol, since, 50);
                let all = self.extents(subvol).into_iter();
                let newer = all.filter(|(_, extent)| extent.pointer.epoch >= since);
                assert!(found.iter().copied().eq(newer.map(|(key, _)| key)), "{subvol} {since}");
            }
        }
    }

    /// At rest.
    fn compare_weights(&mut self) {
        let most = 1 + self.below(100) as usize;
        let blocks: BTreeMap<_, _> = self.live().iter().map(|id| (*id, self.blocks(*id))).collect();
        for (subvol, own) in &blocks {
            let others = blocks.iter().filter(|(id, _)| *id != subvol);
            let others: BTreeSet<u64> = others.flat_map(|(_, blocks)| blocks).copied().collect();
            let alone = own.difference(&others).count() as u64;
            let all = self.weigh(*subvol, Weighing::All, most);
            assert_eq!((all.total(), all.exclusive()), (own.len() as u64, alone), "{subvol}");
            assert_eq!(self.weigh(*subvol, Weighing::Exclusive, most).exclusive(), alone);
        }
    }
}

fn play(seed: u64, config: Config) {
    let mut world = World::new(seed, config);
    for n in 0..OPS {
        world.step();
        if n % 10 == 9 {
            world.compare_differences();
            world.compare_fresh();
        }
        if n % 20 == 19 {
            world.finish();
            world.compare_weights();
        }
    }
    world.compare_differences();
    world.close();
}

#[test]
fn scans_find_what_reading_everything_finds() {
    for seed in 400..412 {
        play(seed, Config::default());
    }
}

#[test]
fn scans_with_a_cache_of_few_nodes_find_the_same() {
    for seed in 430..435 {
        play(seed, Config { cache: 160 << 10, ..Config::default() });
    }
}

/// Data blocks that are allocated: what somebody refers to, as `recount` has just made sure.
fn data(world: &mut World) -> u64 {
    world.recount();
    let live = world.live();
    let all: BTreeSet<u64> = live.into_iter().flat_map(|id| world.blocks(id)).collect();
    all.len() as u64
}

#[test]
fn what_is_exclusive_is_what_a_deletion_frees() {
    for seed in 440..450 {
        let mut world = World::new(seed, Config::default());
        for _ in 0..OPS {
            world.step();
        }
        let mut left = world.live();
        left.retain(|id| *id != SubvolId::ROOT);
        let mut before = data(&mut world);
        while !left.is_empty() {
            let at = world.below(left.len() as u64) as usize;
            let exclusive = world.weigh(left[at], Weighing::Exclusive, 64).exclusive();
            let subvol = world.volumes.subvol(left[at]).unwrap();
            if world.delete_one(&subvol) {
                left.remove(at);
                drop(subvol);
                let after = data(&mut world);
                assert_eq!(before - after, exclusive, "seed {seed}");
                before = after;
            }
        }
        world.close();
    }
}
