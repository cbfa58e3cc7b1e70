//! One shard of the names: a hash table, and two lists for each tenant.
//!
//! A new name goes to the end of its tenant's *cold* list. The pruner takes cold names from the
//! front. A name that a look-up found since goes to the *hot* list instead; a hot name without a
//! look-up goes back to the end of the cold list. So the pruner removes a name only after a turn
//! without a look-up.
//!
//! All of a shard is under one lock.
//!
//! The charges of a tenant are published when they have changed by [`BATCH`] bytes divided by the
//! tenants with entries in the shard, by less if the limit is small, or are zero (NAMES-N6). At
//! most `m` tenants with entries had their last change among `m` or fewer. So all `n` tenants of a
//! shard owe at most `BATCH * (1 + 1/2 + … + 1/n)`.
//!
//! The hashes of names that were removed to make room are kept for a while ([`Ghosts`]), so that a
//! name that comes back is recognised. Of a large limit one name in so many is looked at, and
//! counts for all of those.

use std::sync::Arc;

use copyhold_memory::{Ghosts, MemoryOwner, Scarce, Slot};
use copyhold_types::SubvolId;

use super::counts::{CountCells, NameCounts, NameEvent};
use super::entry::{DOOMED, ENTRY_BYTES, Entry, FLIES, HOT, LONG, NONE, REF, Slab, cost};

/// Bytes that a shard may owe the counter of its only tenant: 16 entries.
const BATCH: u64 = 16 * ENTRY_BYTES;
/// Two to this power: removed names of which a shard has the hashes, 4 bytes each.
const GHOST_BITS: u32 = 11;
/// Tenants without entries that a shard keeps lists for.
const IDLE_MAX: usize = 64;
const BUCKETS_MIN: usize = 64;
/// Entries of a shard: half of those that a [`Head`] can name.
pub(super) const ENTRIES_MAX: u64 = 1 << 23;

/// The names of a shard.
pub(super) struct Shard {
    /// Of each bucket; a power of two.
    heads: Vec<Head>,
    slab: Slab,
    /// By the slot of the tenant's memory owner.
    tenants: Vec<Option<Box<Tenant>>>,
    /// Those with entries, and those without.
    busy: usize,
    idle: usize,
    /// Tenants of which the entries are unwanted.
    leaving: Vec<Slot>,
    /// Names that were removed to make room.
    ghosts: Ghosts,
}

/// The names of one tenant in a shard.
pub(super) struct Tenant {
    pub(super) subvol: SubvolId,
    pub(super) owner: MemoryOwner,
    pub(super) cells: Arc<CountCells>,
    counts: NameCounts,
    cold: List,
    hot: List,
    entries: usize,
    bytes: u64,
    charged: u64,
    /// Its subvolume is gone: no entry is kept.
    is_gone: bool,
}

/// The first entry of a bucket, in 24 bits, and a mark for the hash of each entry: most look-ups of
/// other names need no entry's memory. Marks of entries that are gone may stay until the bucket is
/// empty.
#[derive(Clone, Copy)]
struct Head(u32);

/// Entries in the order of their turn.
struct List {
    first: u32,
    last: u32,
    len: usize,
}

/// A name that the front end is to forget, or to ask for again.
#[derive(Debug)]
pub(super) struct Picked {
    pub(super) dir: u64,
    pub(super) name: Box<[u8]>,
    /// It stays an entry: the front end has believed it for long, so no request was seen.
    pub(super) expires: bool,
    pub(super) at: u32,
    pub(super) stamp: u16,
}

/// The key of a name in its shard.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) dir: u64,
    pub(super) hash: u32,
    pub(super) name: &'a [u8],
}

impl Head {
    const FIRST: u32 = (1 << 24) - 1;
    const EMPTY: Head = Head(Head::FIRST);

    fn mark(hash: u32) -> u32 {
        // The other end of the hash finds the bucket.
        1 << (24 + (hash >> 29))
    }

    fn first(self) -> u32 {
        match self.0 & Head::FIRST {
            Head::FIRST => NONE,
            at => at,
        }
    }

    fn may_have(self, hash: u32) -> bool {
        self.0 & Head::mark(hash) != 0
    }

    /// With an entry before the others.
    fn with(self, at: u32, hash: u32) -> Head {
        debug_assert!(at < Head::FIRST, "a shard that is full gets no entry");
        Head((self.0 & !Head::FIRST) | Head::mark(hash) | at)
    }

    /// Where the first entry is gone, and this is the next.
    fn without_first(self, next: u32) -> Head {
        if next == NONE { Head::EMPTY } else { Head((self.0 & !Head::FIRST) | next) }
    }
}

impl List {
    const EMPTY: List = List { first: NONE, last: NONE, len: 0 };

    fn push(&mut self, slab: &mut Slab, at: u32) {
        let before = std::mem::replace(&mut self.last, at);
        let entry = slab.get_mut(at);
        (entry.prev, entry.next) = (before, NONE);
        match before {
            NONE => self.first = at,
            before => slab.get_mut(before).next = at,
        }
        self.len += 1;
    }

    fn take_out(&mut self, slab: &mut Slab, at: u32) {
        let (prev, next) = (slab.get(at).prev, slab.get(at).next);
        match prev {
            NONE => self.first = next,
            prev => slab.get_mut(prev).next = next,
        }
        match next {
            NONE => self.last = prev,
            next => slab.get_mut(next).prev = prev,
        }
        self.len -= 1;
    }
}

impl Tenant {
    fn new(subvol: SubvolId, owner: &MemoryOwner, cells: Arc<CountCells>) -> Tenant {
        let (cold, hot) = (List::EMPTY, List::EMPTY);
        let (counts, entries, bytes, charged) = (NameCounts::default(), 0, 0, 0);
        let owner = owner.clone();
        let is_gone = false;
        Tenant { subvol, owner, cells, counts, cold, hot, entries, bytes, charged, is_gone }
    }

    fn list(&mut self, entry: &Entry) -> &mut List {
        if entry.has(HOT) { &mut self.hot } else { &mut self.cold }
    }

    /// Publishes counters and charges, if there is enough to publish for one of `busy` tenants
    /// (NAMES-N6).
    fn settle(&mut self, scarce: &Scarce, busy: usize) {
        let batch = BATCH.min(scarce.limit() / 512) / busy.max(1) as u64;
        if self.bytes.abs_diff(self.charged) < batch && self.bytes != 0 {
            return;
        }
        if self.bytes > self.charged {
            scarce.add(&self.owner, self.bytes - self.charged);
        } else if self.bytes < self.charged {
            scarce.forget(&self.owner, self.charged - self.bytes);
        }
        self.charged = self.bytes;
        self.cells.publish(&mut self.counts);
    }
}

impl Default for Shard {
    fn default() -> Shard {
        Shard {
            heads: Vec::new(),
            slab: Slab::default(),
            tenants: Vec::new(),
            busy: 0,
            idle: 0,
            leaving: Vec::new(),
            ghosts: Ghosts::new(GHOST_BITS),
        }
    }
}

/// A name's hash for [`Ghosts`], and the names for which it counts; none: it is not looked at. Of
/// its 32 bits, 11 are the place: another name is taken for a returned one with 2^-21 at most.
fn ghost(hash: u32, scarce: &Scarce) -> Option<(u64, u64)> {
    let of_shard = scarce.limit() / ENTRY_BYTES / super::SHARDS as u64;
    let count = (of_shard >> GHOST_BITS).max(1).next_power_of_two();
    let is_looked_at = u64::from(hash) & (count - 1) == 0;
    is_looked_at.then(|| (u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15), count))
}

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.slab.count()
    }

    pub(super) fn len_of(&self, slot: Slot) -> usize {
        let tenant = self.tenants.get(slot.0 as usize).and_then(Option::as_ref);
        tenant.map_or(0, |tenant| tenant.entries)
    }

    /// Whether it has as many entries as a [`Head`] can name.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= Head::FIRST as usize
    }

    fn find(&self, key: Key<'_>) -> Option<u32> {
        let head = self.heads[self.bucket(key.hash)?];
        let mut at = if head.may_have(key.hash) { head.first() } else { NONE };
        while at != NONE {
            let entry = self.slab.get(at);
            if entry.is(key.dir, key.hash, key.name) {
                return Some(at);
            }
            at = entry.chain;
        }
        None
    }

    fn bucket(&self, hash: u32) -> Option<usize> {
        let mask = self.heads.len().checked_sub(1)?;
        Some(hash as usize & mask)
    }

    fn of(&mut self, slot: Slot) -> &mut Tenant {
        self.tenants[slot.0 as usize].as_mut().expect("a tenant with entries has lists")
    }

    /// Counts a look-up of the name: the look-ups so far, if it is an entry. `long` says
    /// whether the front end will believe the answer for long.
    pub(super) fn ask(&mut self, key: Key<'_>, long: impl Fn(u8) -> bool) -> Option<u8> {
        let at = self.find(key)?;
        let entry = self.slab.get_mut(at);
        entry.level = entry.level.saturating_add(1);
        let (level, slot) = (entry.level, entry.slot);
        entry.flags = (entry.flags & !LONG) | REF | if long(level) { LONG } else { 0 };
        self.of(slot).counts.add(NameEvent::Hit);
        Some(level)
    }

    /// A tenant's lists, made when they are needed first.
    pub(super) fn tenant(
        &mut self,
        subvol: SubvolId,
        owner: &MemoryOwner,
        cells: impl FnOnce() -> Arc<CountCells>,
    ) -> &mut Tenant {
        let at = owner.slot().0 as usize;
        if self.tenants.len() <= at {
            self.tenants.resize_with(at + 1, || None);
        }
        let idle = &mut self.idle;
        self.tenants[at].get_or_insert_with(|| {
            *idle += 1;
            Box::new(Tenant::new(subvol, owner, cells()))
        })
    }

    /// Adds a name that is no entry, of a tenant with lists.
    pub(super) fn add(
        &mut self,
        key: Key<'_>,
        slot: Slot,
        flags: u8,
        event: Option<NameEvent>,
        scarce: &Scarce,
    ) {
        let ghost = ghost(key.hash, scarce);
        let returned = ghost.filter(|(hash, _)| self.ghosts.take(*hash)).map(|(_, count)| count);
        if self.slab.count() >= self.heads.len() {
            self.hash_into((2 * self.heads.len()).max(BUCKETS_MIN));
        }
        let bucket = self.bucket(key.hash).expect("there are some");
        let head = &mut self.heads[bucket];
        let at = self.slab.add(key.dir, key.hash, head.first(), slot, key.name);
        *head = head.with(at, key.hash);
        self.slab.get_mut(at).flags = flags;
        let tenant = self.tenants[slot.0 as usize].as_mut().expect("it has lists");
        tenant.cold.push(&mut self.slab, at);
        if tenant.entries == 0 {
            (self.busy, self.idle) = (self.busy + 1, self.idle - 1);
        }
        tenant.entries += 1;
        tenant.bytes += cost(key.name.len());
        tenant.counts.add(NameEvent::Created);
        event.into_iter().for_each(|event| tenant.counts.add(event));
        tenant.counts.add_some(NameEvent::Returned, returned.unwrap_or(0));
        self.settle(slot, scarce);
    }

    /// Makes this the number of buckets.
    fn hash_into(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.heads, vec![Head::EMPTY; buckets]);
        for head in old {
            let mut at = head.first();
            while at != NONE {
                let entry = self.slab.get_mut(at);
                let head = &mut self.heads[entry.hash as usize & (buckets - 1)];
                let next = std::mem::replace(&mut entry.chain, head.first());
                *head = head.with(at, entry.hash);
                at = next;
            }
        }
    }

    /// Publishes the charges of a tenant, if there is enough to publish.
    pub(super) fn settle(&mut self, slot: Slot, scarce: &Scarce) {
        let busy = self.busy;
        let tenant = self.of(slot);
        tenant.settle(scarce, busy);
        if tenant.is_gone && tenant.entries == 0 {
            self.tenants[slot.0 as usize] = None;
            self.idle -= 1;
        }
        if self.idle > IDLE_MAX {
            self.idle = 0;
            self.tenants.retain_some(|tenant| tenant.entries > 0);
        }
        if self.slab.count() * 8 < self.heads.len() && self.heads.len() > BUCKETS_MIN {
            self.hash_into(self.heads.len() / 4);
        }
    }

    /// Removes the name, if it is an entry.
    pub(super) fn remove(&mut self, key: Key<'_>, scarce: &Scarce) {
        if let Some(at) = self.find(key) {
            self.end(at, NameEvent::Positive, scarce);
        }
    }

    /// Removes an entry for this reason.
    fn end(&mut self, at: u32, event: NameEvent, scarce: &Scarce) {
        let (hash, slot) = (self.slab.get(at).hash, self.slab.get(at).slot);
        self.leave_list(at);
        self.leave_bucket(at, hash);
        let bytes = self.slab.remove(at);
        if matches!(event, NameEvent::Pruned | NameEvent::Forced | NameEvent::Replaced) {
            let ghost = ghost(hash, scarce);
            ghost.into_iter().for_each(|(hash, _)| self.ghosts.note(hash));
        }
        let tenant = self.of(slot);
        tenant.entries -= 1;
        tenant.bytes -= bytes;
        tenant.counts.add(event);
        if tenant.entries == 0 {
            (self.busy, self.idle) = (self.busy - 1, self.idle + 1);
        }
        self.settle(slot, scarce);
    }

    fn leave_bucket(&mut self, at: u32, hash: u32) {
        let chain = self.slab.get(at).chain;
        let bucket = self.bucket(hash).expect("it has entries");
        let head = &mut self.heads[bucket];
        let mut before = head.first();
        if before == at {
            *head = head.without_first(chain);
            return;
        }
        while self.slab.get(before).chain != at {
            before = self.slab.get(before).chain;
        }
        self.slab.get_mut(before).chain = chain;
    }

    /// Doomed entries are in none.
    fn leave_list(&mut self, at: u32) {
        let entry = self.slab.get(at);
        if entry.has(DOOMED) {
            return;
        }
        let tenant = self.tenants[entry.slot.0 as usize].as_mut().expect("it has lists");
        tenant.list(self.slab.get(at)).take_out(&mut self.slab, at);
    }

    fn join_list(&mut self, at: u32, set: u8, clear: u8) {
        let entry = self.slab.get_mut(at);
        entry.flags = (entry.flags & !clear) | set;
        let tenant = self.tenants[entry.slot.0 as usize].as_mut().expect("it has lists");
        tenant.list(self.slab.get(at)).push(&mut self.slab, at);
    }

    /// The next entry of a tenant to remove, after `looks` looks at most: cold, and without a
    /// look-up since the last turn.
    fn next_cold(&mut self, slot: Slot, looks: &mut usize) -> Option<u32> {
        while *looks > 0 {
            *looks -= 1;
            let tenant = self.tenants.get(slot.0 as usize)?.as_ref()?;
            let hot_first = tenant.cold.len == 0 || tenant.hot.len > 3 * tenant.cold.len;
            let at = if hot_first { tenant.hot.first } else { tenant.cold.first };
            if at == NONE {
                return None;
            }
            let is_asked = self.slab.get(at).has(REF);
            if !hot_first && !is_asked {
                return Some(at);
            }
            self.leave_list(at);
            match is_asked {
                true => {
                    self.join_list(at, HOT, REF);
                    self.of(slot).counts.add(NameEvent::Recycled);
                }
                false => self.join_list(at, 0, HOT),
            }
        }
        None
    }

    /// Removes the coldest entry of a tenant; whether there was one.
    pub(super) fn evict(&mut self, slot: Slot, event: NameEvent, scarce: &Scarce) -> bool {
        // All may be hot: the second look at one finds it cold.
        let mut looks = 16;
        let Some(at) = self.next_cold(slot, &mut looks).or_else(|| self.first(slot)) else {
            return false;
        };
        self.end(at, event, scarce);
        true
    }

    fn first(&self, slot: Slot) -> Option<u32> {
        let tenant = self.tenants.get(slot.0 as usize)?.as_ref()?;
        [tenant.cold.first, tenant.hot.first].into_iter().find(|at| *at != NONE)
    }

    /// Dooms up to `most` entries of a tenant that are cold. Those that the front end believes
    /// for long expire there first; `now`, only those of which it asked again.
    pub(super) fn pick(&mut self, slot: Slot, most: usize, now: bool, into: &mut Vec<Picked>) {
        let mut looks = 4 * most;
        for _ in 0..most {
            let Some(at) = self.next_cold(slot, &mut looks) else { return };
            self.leave_list(at);
            let entry = self.slab.get(at);
            let expires = entry.has(LONG) && !(now && entry.level == 0);
            match expires {
                true => self.join_list(at, 0, LONG),
                false => self.slab.get_mut(at).flags |= DOOMED,
            }
            into.push(self.picked(at, expires));
        }
    }

    /// Dooms up to `most` entries of a tenant, with look-ups or without.
    pub(super) fn pick_any(&mut self, slot: Slot, most: usize, into: &mut Vec<Picked>) {
        for _ in 0..most {
            let Some(at) = self.first(slot) else { return };
            self.leave_list(at);
            let entry = self.slab.get_mut(at);
            entry.flags = (entry.flags & !REF) | DOOMED;
            into.push(self.picked(at, false));
        }
    }

    fn picked(&self, at: u32, expires: bool) -> Picked {
        let entry = self.slab.get(at);
        let (dir, stamp, name) = (entry.dir, entry.stamp, entry.name().into());
        Picked { dir, name, expires, at, stamp }
    }

    /// Whether a doomed entry is still to be removed: no look-up found it since.
    pub(super) fn confirm(&mut self, picked: &Picked, scarce: &Scarce) -> bool {
        if !self.is_doomed(picked) {
            return false;
        }
        let is_asked = self.slab.get(picked.at).has(REF);
        match is_asked {
            true => self.spare(picked.at, scarce),
            false => self.slab.get_mut(picked.at).flags |= FLIES,
        }
        !is_asked
    }

    /// A doomed entry is one of the others again.
    pub(super) fn put_back(&mut self, picked: &Picked, scarce: &Scarce) {
        if self.is_doomed(picked) && !self.ends(picked.at, scarce) {
            self.join_list(picked.at, 0, DOOMED | FLIES);
        }
    }

    /// The front end has forgotten a doomed entry. The entry stays if a look-up found it meanwhile:
    /// the front end may know the name again.
    pub(super) fn finish(
        &mut self,
        picked: &Picked,
        event: NameEvent,
        forgets_asked: bool,
        scarce: &Scarce,
    ) {
        if !self.is_doomed(picked) {
            return;
        }
        match self.slab.get(picked.at).has(REF) && !forgets_asked {
            true => self.spare(picked.at, scarce),
            false => self.end(picked.at, event, scarce),
        }
    }

    fn is_doomed(&self, picked: &Picked) -> bool {
        self.slab.find(picked.at, picked.stamp).is_some_and(|entry| entry.has(DOOMED))
    }

    fn spare(&mut self, at: u32, scarce: &Scarce) {
        if self.ends(at, scarce) {
            return;
        }
        self.join_list(at, HOT, DOOMED | REF | FLIES);
        let slot = self.slab.get(at).slot;
        self.of(slot).counts.add(NameEvent::Recycled);
    }

    /// Drops an entry that cannot stay: there is no limit, or no subvolume; whether it did.
    fn ends(&mut self, at: u32, scarce: &Scarce) -> bool {
        let slot = self.slab.get(at).slot;
        let ends = scarce.limit() == 0 || self.of(slot).is_gone;
        if ends {
            self.end(at, NameEvent::Dropped, scarce);
        }
        ends
    }

    /// Whether the front end is being notified of the name. If not, it will not be now.
    pub(super) fn refuses(&mut self, key: Key<'_>) -> bool {
        let Some(at) = self.find(key) else { return false };
        let entry = self.slab.get_mut(at);
        entry.flags |= if entry.flags & (DOOMED | FLIES) == DOOMED { REF } else { 0 };
        entry.has(FLIES)
    }

    /// The subvolume is gone: its entries are unwanted, and later events count among those of
    /// `gone`.
    pub(super) fn end_tenant(&mut self, slot: Slot, gone: &Arc<CountCells>, scarce: &Scarce) {
        let tenant = self.tenants.get_mut(slot.0 as usize).and_then(Option::as_mut);
        let Some(tenant) = tenant else { return };
        tenant.cells.publish(&mut tenant.counts);
        (tenant.cells, tenant.is_gone) = (gone.clone(), true);
        self.leaving.push(slot);
        self.settle(slot, scarce);
    }

    /// Drops up to `most` entries of tenants that are gone, or of all without a limit; whether
    /// more are left. Doomed ones end behind their notification.
    pub(super) fn drop_unwanted(&mut self, mut most: usize, scarce: &Scarce) -> bool {
        let no_limit = scarce.limit() == 0;
        loop {
            if no_limit && self.leaving.is_empty() {
                let with_some = self.tenants().filter(|of| of.cold.len + of.hot.len > 0);
                self.leaving = with_some.map(|tenant| tenant.owner.slot()).collect();
            }
            let Some(slot) = self.leaving.last().copied() else { return false };
            let tenant = self.tenants.get(slot.0 as usize).and_then(Option::as_ref);
            let is_unwanted = no_limit || tenant.is_some_and(|tenant| tenant.is_gone);
            match self.first(slot).filter(|_| is_unwanted) {
                None => drop(self.leaving.pop()),
                Some(_) if most == 0 => return true,
                Some(at) => {
                    self.end(at, NameEvent::Dropped, scarce);
                    most -= 1;
                }
            }
        }
    }

    pub(super) fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.iter().flatten().map(|tenant| &**tenant)
    }

    /// Publishes the counters of a tenant. Returns its entries, and the hot ones of them.
    pub(super) fn publish(&mut self, subvol: SubvolId, slot: Slot) -> [usize; 2] {
        let tenant = self.tenants.get_mut(slot.0 as usize).and_then(Option::as_mut);
        let Some(tenant) = tenant.filter(|tenant| tenant.subvol == subvol) else { return [0; 2] };
        tenant.cells.publish(&mut tenant.counts);
        [tenant.entries, tenant.hot.len]
    }

    /// Ends all charges: the shard is being dropped.
    pub(super) fn end_charges(&mut self, scarce: &Scarce) {
        for tenant in self.tenants.iter_mut().flatten() {
            tenant.bytes = 0;
            tenant.settle(scarce, 1);
        }
    }
}

trait RetainSome<T> {
    fn retain_some(&mut self, keep: impl Fn(&T) -> bool);
}

impl RetainSome<Tenant> for Vec<Option<Box<Tenant>>> {
    /// Those in their places that are to be kept.
    fn retain_some(&mut self, keep: impl Fn(&Tenant) -> bool) {
        for place in self {
            if place.as_ref().is_some_and(|tenant| !keep(tenant)) {
                *place = None;
            }
        }
    }
}

#[cfg(test)]
impl Shard {
    /// Drops the entries of a tenant that stays.
    pub(super) fn drop_all_of(&mut self, slot: Slot, scarce: &Scarce) {
        while let Some(at) = self.first(slot) {
            self.end(at, NameEvent::Dropped, scarce);
        }
    }

    /// Each entry is found by its name, and is in one list unless it is doomed.
    pub(super) fn verify(&self) {
        let mut found = 0;
        for head in &self.heads {
            let mut at = head.first();
            while at != NONE {
                let entry = self.slab.get(at);
                let key = Key { dir: entry.dir, hash: entry.hash, name: entry.name() };
                assert_eq!(self.find(key), Some(at));
                (found, at) = (found + 1, entry.chain);
            }
        }
        assert_eq!(found, self.slab.count());
        let mut owed = 0;
        for tenant in self.tenants() {
            let mut bytes = 0;
            let mut listed = 0;
            for (list, hot) in [(&tenant.cold, false), (&tenant.hot, true)] {
                let (mut at, mut before, mut len) = (list.first, NONE, 0);
                while at != NONE {
                    let entry = self.slab.get(at);
                    assert_eq!(
                        (entry.prev, entry.has(HOT), entry.has(DOOMED)),
                        (before, hot, false)
                    );
                    bytes += entry.bytes();
                    (before, at, len) = (at, entry.next, len + 1);
                }
                assert_eq!((list.last, list.len), (before, len));
                listed += len;
            }
            assert!(listed <= tenant.entries && bytes <= tenant.bytes);
            assert!(listed < tenant.entries || bytes == tenant.bytes);
            owed += tenant.bytes.abs_diff(tenant.charged);
        }
        let busy = self.tenants().filter(|tenant| tenant.entries > 0).count();
        assert_eq!((self.busy, self.idle), (busy, self.tenants().count() - busy));
        let most: u64 = (1..=busy as u64).map(|nth| BATCH.div_ceil(nth)).sum();
        assert!(owed <= most, "NAMES-N6: {owed}");
    }
}
