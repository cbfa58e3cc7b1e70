//! A bounded map of cached objects that groups share: a part of a cache, under a lock of its own.
//!
//! Each owner has a list of its objects. When the bound is reached, reclaim says how much of which
//! list is looked at ([`crate::reclaim`]), by the owners' usage and protection. In a list eviction
//! is CLOCK: a use sets a mark, the hand clears marks and evicts objects without one. Which object
//! goes depends on the order of calls only, never on a hash's seed.
//!
//! ```text
//!   insertion → cold ring: hand → without a mark: evicted
//!                               → with a mark, Kind::OneRing:  another round
//!                               → with a mark, Kind::TwoRings: hot ring; back when hot > cold
//! ```
//!
//! RINGS-N1  If protections leave too little to evict, an object is not kept: its reader has it,
//!           and no request fails.
//! RINGS-N2  An owner without objects has no list.
//! RINGS-N3  With two rings, the hot one is at most half of its owner's list, and is looked at an
//!           eighth as often as the cold one. So a scan of any length leaves hot objects that are
//!           used once while it passes through several times their bytes; and objects that are not
//!           used any more make place for others.
//! RINGS-N4  A walk in vain, for which protections left too little to look at, is not repeated
//!           before as many bytes were refused as a walk frees, or a limit has changed.
//! RINGS-N5  An object of a group at its `max` is kept if the lists of that group give as much; for
//!           a group above its `high`, they give what they can.

use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hash, Hasher};

use slab::Slab;

use crate::{
    Carry, Cause, Event, Limit, Look, Memory, MemoryCharge, MemoryClass, MemoryOwner, OverLimit,
    OwnerLists, Slot as OwnerSlot,
};

/// A full map evicts one in so many of its bytes at once;
const BATCH: usize = 64;
/// but so many bytes at least, or one in so many.
const BATCH_LEAST: (usize, usize) = (128 << 10, 16);
/// The hot ring is looked at once for so many looks at the cold one.
const AGE: u32 = 8;

/// The rings of an owner's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    OneRing,
    TwoRings,
}

/// Keys are hashed as one number that is random enough as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key is hashed as one number");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[derive(Debug)]
pub struct Rings<K, V> {
    class: MemoryClass,
    kind: Kind,
    places: HashMap<K, usize, BuildHasherDefault<AsIs>>,
    entries: Slab<Entry<K, V>>,
    lists: BTreeMap<OwnerSlot, List>,
    /// Lists that there were.
    lists_made: u64,
    bytes: usize,
    bytes_max: usize,
    evictions: u64,
    vain: Option<Vain>,
}

/// After a walk in vain (RINGS-N4).
#[derive(Debug)]
struct Vain {
    /// Bytes that found no room since.
    refused: usize,
    /// Changes of limits then.
    changes: u64,
}

/// An object in the map, or removed from it.
#[derive(Debug)]
#[must_use = "it is dropped without the lock"]
pub struct Entry<K, V> {
    key: K,
    value: V,
    charge: MemoryCharge,
    used: bool,
    hot: bool,
    /// The neighbours in its ring, by place in the slab.
    before: usize,
    behind: usize,
}

/// The objects of one owner; never empty (RINGS-N2).
#[derive(Debug, Default)]
struct List {
    cold: Ring,
    hot: Ring,
    carry: Carry,
    /// Looks at the cold ring since the last one at the hot ring.
    cold_looks: u32,
}

#[derive(Debug, Default)]
struct Ring {
    /// The object that is looked at next: new ones come before it. None: the ring is empty.
    hand: Option<usize>,
    bytes: usize,
}

/// Objects that were evicted, to be dropped without the lock.
#[derive(Debug)]
#[must_use = "it is dropped without the lock"]
pub struct Evicted<K, V>(Vec<Entry<K, V>>);

/// Divides the bound of a cache among its `parts`, as far as protections allow: a part that keeps
/// more takes room from the others. `fit` gives a part a bound, and returns the one that it keeps.
/// Returns the sum.
pub fn fit_parts(parts: usize, bytes_max: usize, fit: impl Fn(usize, usize) -> usize) -> usize {
    let mut kept: Vec<usize> = (0..parts).map(|part| fit(part, bytes_max / parts)).collect();
    for part in 0..parts {
        let over = kept.iter().sum::<usize>().saturating_sub(bytes_max);
        if over > 0 {
            kept[part] = fit(part, kept[part].saturating_sub(over.div_ceil(parts - part)));
        }
    }
    kept.iter().sum()
}

impl<K, V> Evicted<K, V> {
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|entry| entry.charge.bytes() as usize).sum()
    }
}

impl<K: Copy + Eq + Hash, V> Rings<K, V> {
    /// Keeps nothing before [`Self::set_bytes_max`].
    pub fn new(class: MemoryClass, kind: Kind) -> Rings<K, V> {
        Rings {
            class,
            kind,
            places: HashMap::default(),
            entries: Slab::new(),
            lists: BTreeMap::new(),
            lists_made: 0,
            bytes: 0,
            bytes_max: 0,
            evictions: 0,
            vain: None,
        }
    }

    /// The bytes that the map itself takes for each object.
    pub const fn overhead() -> usize {
        size_of::<Entry<K, V>>() + size_of::<(K, usize)>()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether `bytes` more need no eviction.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= self.bytes_max
    }

    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// A use of an object.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        let entry = &mut self.entries[*self.places.get(key)?];
        entry.used = true;
        Some(&entry.value)
    }

    pub fn contains(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    /// A new bound, kept at once, whatever is protected.
    pub fn set_bytes_max(&mut self, memory: &Memory, bytes_max: usize) -> Evicted<K, V> {
        self.bytes_max = bytes_max;
        let mut evicted = Evicted(Vec::new());
        while self.bytes > bytes_max {
            let need = (self.bytes - bytes_max).max(bytes_max / BATCH) as u64;
            memory.reclaim_anyway(&mut Walk::new(self, &mut evicted), need);
        }
        evicted
    }

    /// A new bound, as far as protections allow. Returns the bound that is kept now.
    pub fn fit_bytes_max(&mut self, memory: &Memory, bytes_max: usize) -> (usize, Evicted<K, V>) {
        let mut evicted = Evicted(Vec::new());
        (self.bytes_max, self.vain) = (bytes_max, None);
        self.make_room(memory, 0, &mut evicted);
        self.bytes_max = bytes_max.max(self.bytes);
        (self.bytes_max, evicted)
    }

    /// Keeps `value`, which takes `bytes` with [`Self::overhead`] and for which `owner` pays. A new
    /// object has no mark: the objects of a scan are evicted before those that were used again.
    /// Whether it is kept.
    pub fn insert(
        &mut self,
        memory: &Memory,
        key: K,
        value: V,
        bytes: usize,
        owner: &MemoryOwner,
    ) -> (bool, Evicted<K, V>) {
        let mut evicted = Evicted(Vec::new());
        if self.places.contains_key(&key) {
            return (false, evicted);
        }
        let fits = bytes <= self.bytes_max && self.fits_limits(memory, bytes, owner, &mut evicted);
        if fits {
            self.make_room(memory, bytes, &mut evicted);
        }
        if !fits || !self.has_room(bytes) {
            owner.count(Event::Bypass);
            return (false, evicted);
        }
        let charge = owner.charge(self.class, bytes as i64);
        let (used, hot, before, behind) = (false, false, 0, 0);
        let at = self.entries.insert(Entry { key, value, charge, used, hot, before, behind });
        self.places.insert(key, at);
        self.bytes += bytes;
        self.link(at, false);
        (true, evicted)
    }

    pub fn remove(&mut self, key: &K) -> Option<Entry<K, V>> {
        let at = *self.places.get(key)?;
        Some(self.take(at))
    }

    pub fn clear(&mut self) -> Evicted<K, V> {
        self.places.clear();
        self.lists.clear();
        self.bytes = 0;
        Evicted(self.entries.drain().collect())
    }

    /// Puts an object at the end of a ring of its owner: before the hand.
    fn link(&mut self, at: usize, hot: bool) {
        let entry = &mut self.entries[at];
        entry.hot = hot;
        let bytes = entry.charge.bytes() as usize;
        let slot = entry.charge.owner().slot();
        let ring = match self.lists.entry(slot) {
            Occupied(list) => list.into_mut(),
            Vacant(place) => {
                self.lists_made += 1;
                place.insert(List::new(self.lists_made, bytes as u64))
            }
        }
        .ring(hot);
        ring.bytes += bytes;
        let hand = *ring.hand.get_or_insert(at);
        if hand == at {
            (entry.before, entry.behind) = (at, at);
            return;
        }
        let last = self.entries[hand].before;
        (self.entries[at].before, self.entries[at].behind) = (last, hand);
        self.entries[last].behind = at;
        self.entries[hand].before = at;
    }

    /// Takes an object out of its ring; its list may be empty now.
    fn unlink(&mut self, at: usize) {
        let entry = &self.entries[at];
        let (before, behind, bytes) = (entry.before, entry.behind, entry.charge.bytes() as usize);
        let list = self.lists.get_mut(&entry.charge.owner().slot());
        let ring = list.expect("RINGS-N2: it has objects").ring(entry.hot);
        ring.bytes -= bytes;
        if ring.hand == Some(at) {
            ring.hand = Some(behind).filter(|behind| *behind != at);
        }
        self.entries[before].behind = behind;
        self.entries[behind].before = before;
    }

    /// Takes out the object at `at`.
    fn take(&mut self, at: usize) -> Entry<K, V> {
        self.unlink(at);
        let entry = self.entries.remove(at);
        self.places.remove(&entry.key);
        self.bytes -= entry.charge.bytes() as usize;
        let owner = entry.charge.owner().slot();
        if self.lists[&owner].size() == 0 {
            self.lists.remove(&owner);
        }
        entry
    }

    /// Evicts `bytes` of a group and of all that it holds, if there are as many
    /// ([`Memory::reclaim_below`]).
    pub fn reclaim(&mut self, memory: &Memory, group: OwnerSlot, bytes: u64) -> Evicted<K, V> {
        let mut evicted = Evicted(Vec::new());
        let mut walk = Walk::new(self, &mut evicted);
        memory.reclaim_below(group, &mut walk, bytes, Cause::Order);
        evicted
    }

    /// Whether limits leave room for `bytes` more of an owner (RINGS-N5).
    fn fits_limits(
        &mut self,
        memory: &Memory,
        bytes: usize,
        owner: &MemoryOwner,
        evicted: &mut Evicted<K, V>,
    ) -> bool {
        let Some(OverLimit { group, limit, over, need }) = owner.over_any_limit(bytes as u64)
        else {
            return true;
        };
        group.count(limit.event());
        let mut walk = Walk::new(self, evicted);
        let freed = memory.reclaim_below(group.slot(), &mut walk, need, Cause::Request);
        limit == Limit::High || freed >= over
    }

    /// Evicts, so that `bytes` more keep the bound if that is possible.
    fn make_room(&mut self, memory: &Memory, bytes: usize, evicted: &mut Evicted<K, V>) {
        let over = (self.bytes + bytes).saturating_sub(self.bytes_max);
        if over == 0 || self.is_in_vain(memory, bytes) {
            return;
        }
        let need = over.max(self.batch()) as u64;
        let mut walk = Walk::new(self, evicted);
        let freed = memory.reclaim(&mut walk, need, Cause::Request);
        // Objects that were in use lost their marks: the next walk finds them.
        let is_vain = freed < over as u64 && walk.seen < over as u64;
        self.vain = is_vain.then(|| Vain { refused: 0, changes: memory.changes() });
    }

    /// Bytes that a walk frees at least.
    fn batch(&self) -> usize {
        let (bytes, part) = BATCH_LEAST;
        (self.bytes_max / BATCH).max(bytes.min(self.bytes_max / part))
    }

    /// RINGS-N4.
    fn is_in_vain(&mut self, memory: &Memory, bytes: usize) -> bool {
        let batch = self.batch();
        self.vain.as_mut().is_some_and(|vain| {
            vain.refused += bytes;
            vain.refused < batch && vain.changes == memory.changes()
        })
    }

    /// As [`OwnerLists::shrink`].
    fn shrink(&mut self, owner: OwnerSlot, look: Look, evicted: &mut Evicted<K, V>) -> (u64, u64) {
        let (mut seen, mut freed) = (0, 0);
        while let Some(list) = self.lists.get_mut(&owner) {
            let hot = list.looks_at_hot();
            let ring = list.ring(hot);
            let at = ring.hand.expect("a list has objects, and the larger ring has some");
            let entry = &mut self.entries[at];
            let size = entry.charge.bytes() as u64;
            if !look.goes_on(seen, freed, size) {
                break;
            }
            list.cold_looks = if hot { 0 } else { list.cold_looks + 1 };
            let ring = list.ring(hot);
            let used = std::mem::take(&mut entry.used);
            // A move to the cold ring is free: one look at it evicts the object.
            seen += if hot && !used { 0 } else { size };
            match (hot, used) {
                (true, true) => ring.hand = Some(entry.behind),
                (false, true) if self.kind == Kind::OneRing => ring.hand = Some(entry.behind),
                (false, false) => {
                    evicted.0.push(self.take(at));
                    self.evictions += 1;
                    freed += size;
                }
                // To the other ring.
                (true, false) | (false, true) => {
                    self.unlink(at);
                    self.link(at, !hot);
                }
            }
        }
        (seen, freed)
    }
}

impl List {
    /// The `nth`, with a first object of so many bytes.
    fn new(nth: u64, object: u64) -> List {
        List { carry: Carry::of_list(nth, object), ..List::default() }
    }

    fn ring(&mut self, hot: bool) -> &mut Ring {
        if hot { &mut self.hot } else { &mut self.cold }
    }

    fn size(&self) -> usize {
        self.cold.bytes + self.hot.bytes
    }

    /// Which ring is next: the larger one; but the hot one grows old, too (RINGS-N3).
    fn looks_at_hot(&self) -> bool {
        let is_due = self.cold_looks >= AGE && self.hot.hand.is_some();
        self.hot.bytes > self.cold.bytes || is_due
    }
}

struct Walk<'a, K, V> {
    rings: &'a mut Rings<K, V>,
    evicted: &'a mut Evicted<K, V>,
    seen: u64,
}

impl<'a, K, V> Walk<'a, K, V> {
    fn new(rings: &'a mut Rings<K, V>, evicted: &'a mut Evicted<K, V>) -> Walk<'a, K, V> {
        Walk { rings, evicted, seen: 0 }
    }
}

impl<K: Copy + Eq + Hash, V> OwnerLists for Walk<'_, K, V> {
    fn owners(&self) -> Vec<OwnerSlot> {
        self.rings.lists.keys().copied().collect()
    }

    fn size(&self, owner: OwnerSlot) -> u64 {
        self.rings.lists.get(&owner).map_or(0, |list| list.size() as u64)
    }

    fn carry(&mut self, owner: OwnerSlot) -> &mut Carry {
        &mut self.rings.lists.get_mut(&owner).expect("it has a size").carry
    }

    fn shrink(&mut self, owner: OwnerSlot, look: Look) -> (u64, u64) {
        let (seen, freed) = self.rings.shrink(owner, look, self.evicted);
        self.seen += seen;
        (seen, freed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::{GroupLimits, Promise};

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
                assert!(rings.bytes() <= 1000 && rings.bytes() > 900 - 1000 / BATCH_LEAST.1);
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
            fit_parts(2, bytes, |part, bytes| {
                parts[part].borrow_mut().fit_bytes_max(&memory, bytes).0
            })
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
        owner.set_limits(&min(1 << 20));
        let mut rings = rings(&memory, Kind::OneRing, 1600);
        let put = |rings: &mut Rings<Key, u64>, n: u64, owner: &MemoryOwner| {
            rings.insert(&memory, Key(n), n, 16, owner).0
        };
        assert!((0..100).all(|n| put(&mut rings, n, &owner)));
        // One in seven, as a walk frees a sixteenth: the others only count.
        let walks = |rings: &mut Rings<Key, u64>| {
            let is_new = |rings: &mut Rings<Key, u64>| {
                assert!(!put(rings, 1000, &other));
                rings.vain.as_ref().is_some_and(|vain| vain.refused == 0)
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
}
