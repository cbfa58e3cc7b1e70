use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::{GroupLimits, Promise, fit_parts};

/// Hashed as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

fn rings(memory: &Memory, kind: Kind, bytes_max: usize) -> Rings<Key, u64> {
    let mut rings = Rings::new(MemoryClass::Data, kind);
    drop(rings.set_bytes_max(memory, bytes_max));
    rings
}

/// Between two uses of a hot object the scan passes through more than the cold part: CLOCK
/// alone evicts hot objects, two rings keep them all (RINGS-N3).
#[test]
fn a_long_scan_leaves_objects_that_were_used_again() {
    let kept = |kind: Kind| {
        let memory = Memory::default();
        let owner = memory.add_owner();
        let mut rings = rings(&memory, kind, 1000);
        let put = |rings: &mut Rings<Key, u64>, n: u64| {
            let _ = rings.insert(&memory, Key(n), n, 10, &owner);
        };
        (0..40).for_each(|n| put(&mut rings, n));
        (0..40).for_each(|n| assert!(rings.get(&Key(n)).is_some()));
        for round in 1..50 {
            (0..80).for_each(|n| put(&mut rings, round * 1000 + n));
            assert!(rings.bytes() <= 1000 && rings.bytes() > 900 - 1000 / 16);
            (0..40).for_each(|n| _ = rings.get(&Key(n)));
        }
        (0..40).filter(|n| rings.contains(&Key(*n))).count()
    };
    assert_eq!(kept(Kind::TwoRings), 40, "RINGS-N3");
    assert!(kept(Kind::OneRing) < 30);
}

/// A hot set that is no longer used makes place for the next one.
#[test]
fn a_new_hot_set_replaces_the_one_before() {
    let memory = Memory::default();
    let owner = memory.add_owner();
    let mut rings = rings(&memory, Kind::TwoRings, 1000);
    for round in 0..200 {
        let first = if round < 100 { 0 } else { 500 };
        for n in first..first + 80 {
            if rings.get(&Key(n)).is_none() {
                let _ = rings.insert(&memory, Key(n), n, 10, &owner);
            }
        }
    }
    let new = (500..580).filter(|n| rings.contains(&Key(*n))).count();
    assert!(new >= 79, "{new} of 80");
}

/// A tenant that uses more than its room pays for objects that it had before, and its neighbour, of
/// which all is kept, for none.
#[test]
fn objects_that_come_again_are_counted_to_their_owner() {
    let memory = Memory::default();
    let [owner, small, shared] = std::array::from_fn(|_| memory.add_owner());
    let mut rings = rings(&memory, Kind::OneRing, 1000);
    let refaults = |of: &MemoryOwner| of.counts().stat(Stat::Refault);
    let read = |rings: &mut Rings<Key, u64>, n: u64, owner: &MemoryOwner| {
        if rings.get(&Key(n)).is_none() {
            let _ = rings.insert(&memory, Key(n), n, 10, owner);
        }
    };
    small.set_limits(&min(1000));
    (0..20).for_each(|n| read(&mut rings, n, &small));
    (1000..1200).for_each(|n| read(&mut rings, n, &owner));
    assert_eq!(refaults(&owner), 0, "they were read once");
    let gone: Vec<u64> = (1000..1200).filter(|n| !rings.contains(&Key(*n))).collect();
    assert!(gone.len() > 100);
    // Their content has changed, or the owner is another one.
    let (changed, again) = gone.split_at(10);
    changed.iter().for_each(|n| assert!(rings.remove(&Key(*n)).is_none()));
    changed.iter().for_each(|n| read(&mut rings, *n, &owner));
    assert_eq!(refaults(&owner), 0, "RINGS-N7");
    read(&mut rings, again[0], &shared);
    again[1..40].iter().for_each(|n| read(&mut rings, *n, &owner));
    assert_eq!([refaults(&owner), refaults(&shared)], [390, 10], "RINGS-N7");
    (0..20).for_each(|n| read(&mut rings, n, &small));
    assert_eq!(refaults(&small), 0);
}

fn min(min: u64) -> GroupLimits {
    GroupLimits { promise: Promise { min, low: 0 }, ..GroupLimits::default() }
}

/// All that is protected is in one part: a new bound leaves it, and the other gives the room.
#[test]
fn a_new_bound_evicts_nothing_that_is_protected() {
    let memory = Memory::default();
    let [owner, other] = std::array::from_fn(|_| memory.add_owner());
    owner.set_limits(&min(700));
    let parts = [rings(&memory, Kind::OneRing, 1000), rings(&memory, Kind::OneRing, 1000)];
    let parts = parts.map(std::cell::RefCell::new);
    for n in 0..70 {
        let _ = parts[0].borrow_mut().insert(&memory, Key(n), n, 10, &owner);
        let _ = parts[1].borrow_mut().insert(&memory, Key(n), n, 10, &other);
    }
    let fit = |bytes: usize| {
        let bound = |part: usize| parts[part].borrow().bytes_max();
        let fit = |part: usize, bytes| parts[part].borrow_mut().fit_bytes_max(&memory, bytes).0;
        fit_parts(2, bytes, bound, fit)
    };
    let left = || [&owner, &other].map(|of| of.charged(MemoryClass::Data));
    for (bytes, kept) in [(1000, 1000), (1200, 1200), (600, 700)] {
        assert_eq!((fit(bytes), left()[0]), (kept, 700), "{:?}", left());
        assert!(left()[1] <= kept as i64 - 700);
    }
}

#[test]
fn a_walk_in_vain_is_not_repeated_at_each_insertion() {
    let memory = Memory::default();
    let [owner, other] = std::array::from_fn(|_| memory.add_owner());
    owner.set_limits(&min(1 << 30));
    let mut rings = rings(&memory, Kind::OneRing, 1600 << 10);
    let put = |rings: &mut Rings<Key, u64>, n: u64, owner: &MemoryOwner| {
        rings.insert(&memory, Key(n), n, 16 << 10, owner).0
    };
    assert!((0..100).all(|n| put(&mut rings, n, &owner)));
    // One in seven, as a walk frees a sixteenth: the others only count.
    let walks = |rings: &mut Rings<Key, u64>| {
        let is_new = |rings: &mut Rings<Key, u64>| {
            assert!(!put(rings, 1000, &other));
            rings.brake.as_ref().is_some_and(|brake| brake.holds(&memory, (100 << 10) - 1))
        };
        (0..700).filter(|_| is_new(rings)).count()
    };
    assert_eq!(walks(&mut rings), 100, "RINGS-N4");
    assert!(!put(&mut rings, 1000, &other));
    owner.set_limits(&min(0));
    assert!(put(&mut rings, 1000, &other), "RINGS-N4: a limit has changed");
}

#[test]
fn a_group_at_its_max_gives_its_own_objects_and_no_others() {
    let memory = Memory::default();
    let [group, inside, other] = std::array::from_fn(|_| memory.add_owner());
    inside.set_holder(Some(&group));
    let mut rings = rings(&memory, Kind::OneRing, 64 << 20);
    const OBJECT: usize = 4 << 10;
    let put = |rings: &mut Rings<Key, u64>, n: u64, owner: &MemoryOwner| {
        rings.insert(&memory, Key(n), n, OBJECT, owner).0
    };
    assert!((0..100).all(|n| put(&mut rings, n, &other)));
    group.set_limits(&GroupLimits { max: 1 << 20, ..min(1 << 30) });
    // Twice its limit, by both.
    for n in 1000..1512 {
        assert!(put(&mut rings, n, if n % 2 == 0 { &group } else { &inside }), "RINGS-N5");
        let both = group.usage() + inside.usage();
        assert!(both <= (1 << 20) + (64 << 10), "LEDGER-L1: {both}");
    }
    assert!(group.usage() + inside.usage() > 900 << 10);
    assert_eq!(other.usage(), 100 * OBJECT as u64);
    assert!(group.counts().event(Event::Max) > 0);
    // Nothing of it is here: other classes have all that it may have.
    drop(rings.clear());
    let charge = inside.charge(MemoryClass::Dirty, 2 << 20);
    let kept = (0..100).take_while(|n| put(&mut rings, *n, &group)).count();
    assert!(kept * OBJECT <= 64 << 10, "LEDGER-L1: {kept}");
    assert_eq!(group.counts().event(Event::Bypass), 1);
    drop((charge, rings.clear()));
    let high = GroupLimits { high: 100 << 10, ..GroupLimits::default() };
    group.set_limits(&high);
    assert!((0..200).all(|n| put(&mut rings, n, &inside)), "it is no bound for one object");
    assert!(inside.usage() <= (100 << 10) + OBJECT as u64, "{}", inside.usage());
    assert!(group.counts().event(Event::High) > 0);
}

#[derive(Clone, Debug)]
enum Step {
    Insert { key: u64, bytes: usize, owner: usize },
    Get(u64),
    Remove(u64),
    Bound(usize),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..60_u64, 1..40_usize, 0..3_usize)
            .prop_map(|(key, bytes, owner)| Step::Insert { key, bytes, owner }),
        8 => (0..60_u64).prop_map(Step::Get),
        2 => (0..60_u64).prop_map(Step::Remove),
        1 => (0..600_usize).prop_map(Step::Bound),
        1 => Just(Step::Clear),
    ]
}

type Model = BTreeMap<Key, (u64, usize, usize)>;

fn forget(model: &mut Model, evicted: &Evicted<Key, u64>) {
    evicted.0.iter().for_each(|entry| _ = model.remove(&entry.key));
}

proptest! {
    /// Beside a plain map: an object is there as it was put, or evicted; bytes and charges are
    /// sums; the bound is kept; and an owner without objects has no list (RINGS-N2).
    #[test]
    fn objects_are_as_in_a_map_that_forgets(
        steps in prop::collection::vec(step(), 0..200), two in any::<bool>(),
    ) {
        let memory = Memory::default();
        let owners = [memory.shared().clone(), memory.add_owner(), memory.add_owner()];
        let kind = if two { Kind::TwoRings } else { Kind::OneRing };
        let (mut rings, mut max) = (rings(&memory, kind, 300), 300);
        let mut model = Model::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert { key, bytes, owner } => {
                    let was = rings.contains(&Key(key));
                    let value = n as u64;
                    let (kept, evicted) =
                        rings.insert(&memory, Key(key), value, bytes, &owners[owner]);
                    forget(&mut model, &evicted);
                    prop_assert!(!(was && kept));
                    // Marks of all objects keep a new one out once: they are gone then.
                    let (kept, evicted) = match kept || was {
                        true => (kept, evicted),
                        false => {
                            let key = Key(key);
                            forget(&mut model, &evicted);
                            rings.insert(&memory, key, value, bytes, &owners[owner])
                        }
                    };
                    forget(&mut model, &evicted);
                    prop_assert!(was || kept || bytes > max, "nothing is protected");
                    if kept {
                        model.insert(Key(key), (value, bytes, owner));
                    }
                }
                Step::Get(key) => {
                    let wanted = model.get(&Key(key)).map(|(value, _, _)| value);
                    prop_assert_eq!(rings.get(&Key(key)), wanted);
                }
                Step::Remove(key) => {
                    let removed = rings.remove(&Key(key)).is_some();
                    prop_assert_eq!(removed, model.remove(&Key(key)).is_some());
                }
                Step::Bound(bytes) => {
                    max = bytes;
                    let evicted = rings.set_bytes_max(&memory, bytes);
                    forget(&mut model, &evicted);
                }
                Step::Clear => {
                    drop(rings.clear());
                    model.clear();
                }
            }
            prop_assert_eq!(rings.len(), model.len());
            prop_assert_eq!(rings.bytes(), model.values().map(|(_, bytes, _)| bytes).sum());
            prop_assert!(rings.bytes() <= max);
            for (owner, memory) in owners.iter().enumerate() {
                let of = model.values().filter(|(_, _, of)| *of == owner);
                let sum: usize = of.map(|(_, bytes, _)| bytes).sum();
                prop_assert_eq!(memory.charged(MemoryClass::Data), sum as i64);
            }
            let with: BTreeSet<OwnerSlot> =
                model.values().map(|(_, _, owner)| owners[*owner].slot()).collect();
            let lists: BTreeSet<OwnerSlot> = rings.lists.keys().copied().collect();
            prop_assert_eq!(lists, with, "RINGS-N2");
        }
        drop(rings);
        prop_assert_eq!(memory.charged(MemoryClass::Data), 0);
    }
}
