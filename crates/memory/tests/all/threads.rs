//! Threads that charge, set limits, move, make and end groups, fill caches and evict from them, all
//! at the same time: no counter is left over, and no look at the groups fails.
#![allow(clippy::disallowed_methods, reason = "threads are the subject of this test")]

use std::thread;

use copyhold_memory::{GroupLimits, Memory, MemoryClass, MemoryOwner, Promise, RingKind, Rings};
use copyhold_sync::{Mutex, MutexGuard, of};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

const GROUPS: usize = 8;
const ROUNDS: u64 = 2000;
/// Of each object of the cache, and objects that it has room for.
const OBJECT: usize = 4096;
const OBJECTS: usize = 64;

type Objects = Rings<u64, ()>;

/// Any amount: nothing, a little, nearly all that a number can say.
fn any(random: &mut Xoshiro256PlusPlus) -> u64 {
    let number = random.next_u64();
    number.checked_shr((number % 70) as u32).unwrap_or(0)
}

fn limits(random: &mut Xoshiro256PlusPlus) -> GroupLimits {
    let promise = Promise { min: any(random), low: any(random) };
    let (high, max) = (any(random), any(random));
    GroupLimits { promise, high, max, weight: 1 + (random.next_u64() % 10_000) as u32 }
}

#[test]
fn counters_return_to_zero_after_threads_did_all_at_once() {
    let memory = Memory::default();
    let groups: Vec<MemoryOwner> = (0..GROUPS).map(|_| memory.add_owner()).collect();
    let pick = |random: &mut Xoshiro256PlusPlus| &groups[random.next_u64() as usize % GROUPS];
    let repeat = |seed: u64, step: &(dyn Fn(&mut Xoshiro256PlusPlus) + Sync)| {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        (0..ROUNDS).for_each(|_| step(&mut random));
    };
    let charge = |random: &mut Xoshiro256PlusPlus| {
        let class = MemoryClass::ALL[random.next_u64() as usize % MemoryClass::ALL.len()];
        let charge = pick(random).charge(class, (random.next_u64() % (1 << 40)) as i64);
        charge.change(-charge.bytes() / 2);
    };
    let set = |random: &mut Xoshiro256PlusPlus| pick(random).set_limits(&limits(random));
    let make = |random: &mut Xoshiro256PlusPlus| {
        let made = memory.add_owner();
        made.set_holder(Some(pick(random)));
        let _charge = made.charge(MemoryClass::Node, 5000);
        made.set_limits(&limits(random));
        // Circles come and go (HELD-T1).
        pick(random).set_holder(Some(pick(random)));
    };
    let look = |random: &mut Xoshiro256PlusPlus| {
        let picture = memory.picture();
        assert_eq!(copyhold_memory::protections(&picture.groups).len(), picture.groups.len());
        let _figures = memory.figures(pick(random));
    };
    let cache: Mutex<Objects, of::NodeCache> =
        Mutex::new(Rings::new(MemoryClass::Node, RingKind::OneRing));
    drop(cache.lock().set_bytes_max(&memory, OBJECT * OBJECTS));
    let fill = |random: &mut Xoshiro256PlusPlus| {
        let (owner, key) = (pick(random), random.next_u64() % (4 * OBJECTS as u64));
        let needs =
            |objects: &MutexGuard<'_, Objects>| objects.needs_picture(&memory, OBJECT, owner);
        let mut objects = memory.lock_with_picture(|| cache.lock(), needs);
        let (_, evicted) = objects.insert(&memory, key, (), OBJECT, owner);
        drop(objects);
        drop(evicted);
    };
    let evict = |random: &mut Xoshiro256PlusPlus| {
        let needs = |objects: &MutexGuard<'_, Objects>| !memory.shows(&objects.owners());
        let mut objects = memory.lock_with_picture(|| cache.lock(), needs);
        let evicted = objects.reclaim(&memory, pick(random), any(random));
        drop(objects);
        drop(evicted);
    };
    // Limits may refuse all other objects, but not this one: some are evicted in each run.
    let free = memory.add_owner();
    let shrink = |random: &mut Xoshiro256PlusPlus| {
        let mut objects = cache.lock();
        let all = objects.set_bytes_max(&memory, 0);
        let _none = objects.set_bytes_max(&memory, OBJECT * OBJECTS);
        let (kept, _none) = objects.insert(&memory, random.next_u64(), (), OBJECT, &free);
        let one = objects.set_bytes_max(&memory, 0);
        let _none = objects.set_bytes_max(&memory, OBJECT * OBJECTS);
        drop(objects);
        drop((all, one));
        assert!(kept, "an empty cache refused an object of an owner without limits");
    };
    thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || repeat(seed, &charge));
        }
        let others: [&(dyn Fn(&mut Xoshiro256PlusPlus) + Sync); 8] =
            [&set, &set, &make, &look, &fill, &fill, &evict, &shrink];
        for (seed, step) in (4..).zip(others) {
            scope.spawn(move || repeat(seed, step));
        }
    });
    let cached = cache.lock().bytes() as i64;
    assert_eq!(memory.charged(MemoryClass::Node), cached, "CHARGE-C1");
    assert!(cache.lock().evictions() > 0, "no object was evicted");
    drop(cache.lock().clear());
    for group in &groups {
        assert!(MemoryClass::ALL.iter().all(|class| group.charged(*class) == 0), "{group:?}");
    }
    drop((groups, free));
    assert_eq!(memory.owners().len(), 1, "CHARGE-C2: only the shared group is left");
}
