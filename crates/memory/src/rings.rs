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
//! RINGS-N4  After a walk in vain, for which protections left too little to look at, there is a
//!           pause (BRAKE-B1).
//! RINGS-N5  An object of a group at its `max` is kept if the lists of that group give as much, or
//!           else none is evicted; above `high`, as many as there are, up to a batch
//!           (ATLIMIT-A1, ATLIMIT-A2).
//! RINGS-N6  A picture of the groups is drawn without the lock, unless an owner gets its first list
//!           meanwhile.
//! RINGS-N7  An object that comes again after reclaim has evicted it is counted to the owner for
//!           which it comes ([`Stat::Refault`]), as long as its hash is known ([`Ghosts`]): once,
//!           and not if it was removed since. A hit costs nothing for that.

use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hash, Hasher};

use slab::Slab;

use crate::brake::batch;
use crate::{
    AtLimit, Brake, Carry, Cause, Event, Ghosts, Look, Memory, MemoryCharge, MemoryClass,
    MemoryOwner, Need, OwnerLists, Slot as OwnerSlot, Stat,
};

/// The hot ring is looked at once for so many looks at the cold one.
const AGE: u32 = 8;
/// Two to this power: evicted objects of which the hashes are known, 4 bytes each.
const GHOST_BITS: u32 = 13;

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
    /// RINGS-N4.
    brake: Option<Brake>,
    at_limit: AtLimit,
    /// RINGS-N7.
    ghosts: Ghosts,
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
            brake: None,
            at_limit: AtLimit::default(),
            ghosts: Ghosts::new(GHOST_BITS),
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

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
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
            let need = ((self.bytes - bytes_max) as u64).max(self.batch());
            memory.reclaim_anyway(&mut Walk::new(self, &mut evicted), need);
        }
        evicted
    }

    /// A new bound, as far as protections allow. Returns the bound that is kept now.
    pub fn fit_bytes_max(&mut self, memory: &Memory, bytes_max: usize) -> (usize, Evicted<K, V>) {
        let mut evicted = Evicted(Vec::new());
        (self.bytes_max, self.brake) = (bytes_max, None);
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
        if self.ghosts.take(hash_of(&key)) {
            owner.add_stat(Stat::Refault, bytes as u64);
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
        let Some(at) = self.places.get(key) else {
            self.ghosts.take(hash_of(key));
            return None;
        };
        Some(self.take(*at))
    }

    pub fn clear(&mut self) -> Evicted<K, V> {
        self.places.clear();
        self.lists.clear();
        self.ghosts = Ghosts::new(GHOST_BITS);
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

    /// The owners with lists.
    pub fn owners(&self) -> Vec<OwnerSlot> {
        self.lists.keys().copied().collect()
    }

    /// Whether an insertion has to look at groups of which there is no picture (RINGS-N6).
    pub fn needs_picture(&self, memory: &Memory, bytes: usize, owner: &MemoryOwner) -> bool {
        let holds = |brake: &Brake| brake.holds(memory, bytes as u64);
        let walks = !self.has_room(bytes) && !self.brake.as_ref().is_some_and(holds);
        (walks && !memory.shows(&self.owners()))
            || self.at_limit.needs_picture(memory, owner, bytes as u64)
    }

    /// Evicts `bytes` of a group and of all that it holds, if there are as many
    /// ([`Memory::reclaim_below`]).
    pub fn reclaim(&mut self, memory: &Memory, group: &MemoryOwner, bytes: u64) -> Evicted<K, V> {
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
        let at_least = (self.bytes + bytes).saturating_sub(self.bytes_max) as u64;
        let need = Need { bytes: bytes as u64, at_least, is_forced: false };
        let mut at_limit = std::mem::take(&mut self.at_limit);
        let fits = at_limit.make_room(memory, &mut Walk::new(self, evicted), owner, need);
        self.at_limit = at_limit;
        fits
    }

    /// Evicts, so that `bytes` more keep the bound if that is possible.
    fn make_room(&mut self, memory: &Memory, bytes: usize, evicted: &mut Evicted<K, V>) {
        let over = (self.bytes + bytes).saturating_sub(self.bytes_max) as u64;
        if over == 0 {
            return;
        }
        if let Some(brake) = self.brake.as_mut().filter(|of| of.holds(memory, bytes as u64)) {
            return brake.count(bytes as u64);
        }
        let (need, lists) = (over.max(self.batch()), self.lists.len());
        let mut walk = Walk::new(self, evicted);
        let freed = memory.reclaim(&mut walk, need, Cause::Request);
        // Objects that were in use lost their marks: the next walk finds them.
        let is_vain = freed < over && walk.seen < over;
        self.brake = is_vain.then(|| Brake::new(memory, self.bytes_max as u64, lists));
    }

    /// Bytes that a walk frees at least.
    fn batch(&self) -> u64 {
        batch(self.bytes_max as u64, self.lists.len())
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
                    let gone = self.take(at);
                    self.ghosts.note(hash_of(&gone.key));
                    evicted.0.push(gone);
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

fn hash_of(key: &impl Hash) -> u64 {
    let mut hasher = AsIs::default();
    key.hash(&mut hasher);
    hasher.finish()
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
        self.rings.owners()
    }

    fn count(&self) -> usize {
        self.rings.lists.len()
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
mod tests;
