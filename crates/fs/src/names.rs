//! Names that do not exist: a bounded cache of them, for the filesystem and its front end.
//!
//! Problem.  A look-up of a name that does not exist leaves an entry in the kernel's cache of
//!           names, and nothing there bounds them: one loop over random names fills the memory of
//!           a host. And each such look-up that comes here searches a directory again.
//! Idea.     One table with an entry for each name that the front end may hold as absent. The
//!           entry answers the next look-up of that name without a lock of the directory, and is
//!           the record by which the front end is made to forget the name when there are too
//!           many.
//! In core.  [`Shard`]s of 64-byte entries, under one lock each.
//!
//! NAMES-N1  An entry exists only while its name is absent. A look-up inserts under the
//!           directory's shared lock; a change that makes the name removes the entry under the
//!           exclusive lock, before it is applied; a removal inserts under that lock, after it is
//!           applied. So a hit without any lock is an answer from a moment within the look-up.
//! NAMES-N2  Entries created = live + pruned + forced + turned positive + dropped + replaced,
//!           for each tenant.
//! NAMES-N3  An entry that the front end is being made to forget is *doomed* until that is done.
//!           It counts until then. If a look-up hits it meanwhile, it stays: the front end may
//!           know the name again.
//! NAMES-N4  Entries take memory of their tenant (class `name`), and are shared out by weight
//!           when they are scarce. Above its part a tenant loses the cold names of its own first;
//!           a tenant within its part loses none to others.
//! NAMES-N5  Beyond the limit and a small excess, a new entry takes the place of a cold one,
//!           also if the front end keeps that name: so the memory for entries has a bound.
//!
//! Without a front end that keeps names, an insertion at the limit evicts at once. With one
//! ([`AbsentNames::keep_for_front_end`]) an insertion never waits and never fails: the front end
//! takes entries out ([`AbsentNames::pick`]), and delays the answers of a tenant above its part.

mod counts;
mod entry;
mod shard;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use copyhold_format::item::{HashKey, dirent_bucket};
use copyhold_memory::{Arm, Memory, MemoryClass, MemoryOwner, Room, Scarce, Slot};
use copyhold_sync::{Mutex, of};
use copyhold_types::SubvolId;
use rustc_hash::FxHashMap;

use crate::inode::{Inode, InodeRef};
use crate::{NodeId, Options};

use counts::CountCells;
pub use counts::{NameCounts, NameEvent};
use entry::{ENTRY_BYTES, LONG};
use shard::{Key, Picked, Shard};

const SHARDS: usize = 32;

/// An answer is believed for so long where there is room for it: names change only through the
/// front end.
const VALID: Duration = Duration::from_secs(24 * 3600);
/// The first answer where there is little room; eight times that for each further request.
const SHORT: Duration = Duration::from_secs(1);
/// Entries with answers of this length expire in the front end before they are removed.
const IS_LONG: Duration = Duration::from_secs(60);

/// A shard, apart from the others in the processors' caches.
#[derive(Default)]
#[repr(align(128))]
struct Apart(Mutex<Shard, of::Names>);

/// The absent names that are known.
pub struct AbsentNames {
    memory: Arc<Memory>,
    scarce: Scarce,
    /// The highest limit.
    most: u64,
    shards: Box<[Apart]>,
    /// By subvolume.
    tenants: Mutex<FxHashMap<SubvolId, Arc<CountCells>>, of::NameTenants>,
    /// Counters of tenants that are gone.
    gone: Arc<CountCells>,
    /// Names that became entries.
    created: AtomicU64,
    for_front_end: AtomicBool,
    /// The shard where the last choice began.
    turn: AtomicU64,
}

/// A directory, as far as its names are concerned.
#[derive(Clone, Copy)]
pub(crate) struct Directory<'d> {
    node: NodeId,
    hash_key: &'d HashKey,
    owner: &'d MemoryOwner,
}

impl<'d> From<&'d Inode> for Directory<'d> {
    fn from(dir: &'d Inode) -> Directory<'d> {
        Directory { node: dir.node, hash_key: &dir.subvol.hash_key, owner: dir.owner() }
    }
}

impl<'d> From<&'d InodeRef> for Directory<'d> {
    fn from(dir: &'d InodeRef) -> Directory<'d> {
        Directory::from(&**dir)
    }
}

/// The answer for a name that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// How long the front end may believe it.
    pub valid: Duration,
    /// The limit is reached, and the tenant is above its part.
    pub is_over: bool,
}

/// An entry that the front end is to forget.
#[derive(Debug)]
pub struct Victim {
    pub dir: NodeId,
    /// The front end is to ask again, and may keep it.
    pub expires: bool,
    shard: usize,
    picked: Picked,
}

/// The result of a search for a name.
pub enum Looked {
    Found(crate::Entry),
    Absent(Absent),
}

/// The names of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameFigures {
    pub subvol: SubvolId,
    pub live: u64,
    /// Live names that a program looked up again.
    pub hot: u64,
    pub counts: NameCounts,
}

impl AbsentNames {
    pub(crate) fn new(memory: Arc<Memory>, options: &Options) -> AbsentNames {
        let Options { names_max: limit, names_room: most, .. } = *options;
        AbsentNames {
            memory,
            scarce: Scarce::new(MemoryClass::Name, limit.min(most) * ENTRY_BYTES),
            most,
            shards: (0..SHARDS).map(|_| Apart::default()).collect(),
            tenants: Mutex::default(),
            gone: Arc::default(),
            created: AtomicU64::new(0),
            for_front_end: AtomicBool::new(false),
            turn: AtomicU64::new(0),
        }
    }

    /// The front end keeps absent names, and removes entries itself from here on.
    pub fn keep_for_front_end(&self) {
        self.for_front_end.store(true, Relaxed);
    }

    /// The limit, in entries.
    pub fn limit(&self) -> u64 {
        self.scarce.limit() / ENTRY_BYTES
    }

    /// The highest limit that there can be: the daemon's own memory for names.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// With 0 all entries are dropped, and the front end keeps any number of names.
    pub fn set_limit(&self, entries: u64) {
        self.scarce.set_limit(entries.min(self.most) * ENTRY_BYTES);
        if entries == 0 {
            self.shards.iter().for_each(|shard| drop_all(shard, &self.scarce, None));
        }
    }

    /// Entries, as far as shards have published them: 16 less or more for each shard and tenant.
    pub fn published(&self) -> u64 {
        self.scarce.used() / ENTRY_BYTES
    }

    /// All entries.
    pub fn live(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.lock().len() as u64).sum()
    }

    fn key<'a>(dir: Directory<'_>, name: &'a [u8]) -> (usize, Key<'a>) {
        let node = dir.node.raw();
        // Keyed by a secret of the subvolume, so no tenant chooses its bucket.
        let mixed = dirent_bucket(dir.hash_key, name) ^ node.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = mixed.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let hash = (mixed >> 24) as u32;
        ((mixed >> 59) as usize % SHARDS, Key { dir: node, hash, name })
    }

    /// The answer, if the name is known to be absent. Takes no lock of the directory.
    pub(crate) fn ask<'d>(&self, dir: impl Into<Directory<'d>>, name: &[u8]) -> Option<Absent> {
        if self.limit() == 0 {
            return None;
        }
        let dir = dir.into();
        let (shard, key) = AbsentNames::key(dir, name);
        let tight = self.is_tight(dir.owner);
        let level = self.shards[shard].0.lock().ask(key, |level| valid(tight, level) >= IS_LONG)?;
        // A request that hits uses nothing more.
        Some(Absent { valid: valid(tight, level), is_over: false })
    }

    /// The name is absent. The caller holds the directory's entry lock, at least shared
    /// (NAMES-N1).
    pub(crate) fn insert<'d>(
        &self,
        dir: impl Into<Directory<'d>>,
        name: &[u8],
        event: Option<NameEvent>,
    ) -> Absent {
        let unbounded = Absent { valid: VALID, is_over: false };
        if self.limit() == 0 {
            return unbounded;
        }
        let dir = dir.into();
        let (at, key) = AbsentNames::key(dir, name);
        let owner = dir.owner;
        let tight = self.is_tight(owner);
        let answer = Absent { valid: valid(tight, 0), is_over: self.is_over(owner) };
        let ended_by = self.makes_room();
        let rival = ended_by.map(|_| self.rival(owner));
        let mut shard = self.shards[at].0.lock();
        // All entries are dropped behind the end of the limit, under this lock.
        if self.limit() == 0 {
            return unbounded;
        }
        if shard.ask(key, |level| valid(tight, level) >= IS_LONG).is_some() {
            return answer;
        }
        let evict = |shard: &mut Shard, of: &MemoryOwner| {
            ended_by.is_some_and(|event| shard.evict(of.slot(), event, &self.scarce))
        };
        if let Some(rival) = rival
            && !evict(&mut shard, &rival)
            && !evict(&mut shard, owner)
        {
            // The next name finds room.
            drop(shard);
            let at = self.turn.fetch_add(1, Relaxed) as usize % SHARDS;
            evict(&mut self.shards[at].0.lock(), &rival);
            return answer;
        }
        let subvol = dir.node.subvol;
        shard.tenant(subvol, owner, || self.cells(subvol));
        self.created.fetch_add(1, Relaxed);
        let long = if answer.valid >= IS_LONG { LONG } else { 0 };
        shard.add(key, owner.slot(), long, event);
        shard.settle(owner.slot(), &self.scarce);
        answer
    }

    /// The tenant that loses an entry so that this one can have another.
    fn rival(&self, owner: &MemoryOwner) -> MemoryOwner {
        let other = match self.scarce.has_part(owner) {
            true => None,
            false => self.scarce.most_over(&self.memory),
        };
        other.unwrap_or_else(|| owner.clone())
    }

    /// Whether a new entry takes the place of another, and how that one is counted.
    fn makes_room(&self) -> Option<NameEvent> {
        if !self.for_front_end.load(Relaxed) {
            return self.is_full().then_some(NameEvent::Pruned);
        }
        // NAMES-N5.
        let limit = self.limit();
        (self.published() >= limit + excess(limit)).then_some(NameEvent::Replaced)
    }

    /// Whether answers for the tenant are valid for a short time.
    fn is_tight(&self, owner: &MemoryOwner) -> bool {
        match self.scarce.room(&self.memory, owner) {
            Room::Free => false,
            Room::OverPart => true,
            // The others of a tenant above its part; without parts, all (SCARCE-P4).
            Room::Full => self.memory.arm() == Arm::Off,
        }
    }

    /// Whether the limit is reached and the tenant has its part.
    pub fn is_over(&self, owner: &MemoryOwner) -> bool {
        self.is_full() && self.scarce.has_part(owner)
    }

    /// Names that became entries since the beginning.
    pub fn created(&self) -> u64 {
        self.created.load(Relaxed)
    }

    fn cells(&self, subvol: SubvolId) -> Arc<CountCells> {
        self.tenants.lock().entry(subvol).or_default().clone()
    }

    /// A file gets the name. The caller holds the directory's entry lock, and applies the change
    /// behind this (NAMES-N1).
    pub(crate) fn remove<'d>(&self, dir: impl Into<Directory<'d>>, name: &[u8]) {
        // There may be entries without a limit: doomed ones. An insertion is before this, by the
        // directory's lock.
        if self.created() == 0 {
            return;
        }
        let (shard, key) = AbsentNames::key(dir.into(), name);
        self.shards[shard].0.lock().remove(key, &self.scarce);
    }

    /// Whether a rename to this name is to be refused: the front end is forgetting the name at
    /// this moment, and would forget the file that it names then. If not, the front end does not
    /// begin to.
    pub(crate) fn refuses<'d>(&self, dir: impl Into<Directory<'d>>, name: &[u8]) -> bool {
        if !self.for_front_end.load(Relaxed) || self.created() == 0 {
            return false;
        }
        let (shard, key) = AbsentNames::key(dir.into(), name);
        self.shards[shard].0.lock().refuses(key)
    }

    /// All names of a subvolume that is gone. Doomed ones end by themselves.
    pub(crate) fn drop_tenant(&self, subvol: SubvolId, owner: &MemoryOwner) {
        for shard in &self.shards {
            shard.0.lock().end_tenant(owner.slot(), &self.gone, &self.scarce);
        }
        self.drop_names(owner);
        if let Some(cells) = self.tenants.lock().remove(&subvol) {
            self.gone.publish(&mut cells.read());
        }
    }

    /// Drops entries without asking the front end.
    fn drop_names(&self, owner: &MemoryOwner) {
        self.shards.iter().for_each(|shard| drop_all(shard, &self.scarce, Some(owner)));
    }

    // -- for the front end -----------------------------------------------------------------------

    /// Whether entries are to be removed ahead of the limit: less than a twentieth is free.
    pub fn is_short(&self) -> bool {
        let limit = self.scarce.limit();
        limit > 0 && self.scarce.used() > limit - limit / 20
    }

    /// Whether the limit is reached.
    pub fn is_full(&self) -> bool {
        let limit = self.scarce.limit();
        limit > 0 && self.scarce.used() >= limit
    }

    /// The free part of the limit, in thousandths.
    pub fn free(&self) -> u64 {
        let limit = self.scarce.limit().max(1);
        limit.saturating_sub(self.scarce.used()) / limit.div_ceil(1000)
    }

    /// About `most` cold entries of the tenant with most beyond its part, to be forgotten by
    /// the front end. Each is then handed to [`Self::confirm`] and [`Self::finish`].
    pub fn pick(&self, most: usize) -> Vec<Victim> {
        let Some(owner) = self.scarce.most_over(&self.memory) else { return Vec::new() };
        self.pick_of(&owner, most)
    }

    /// Cold entries of this tenant.
    fn pick_of(&self, owner: &MemoryOwner, most: usize) -> Vec<Victim> {
        self.pick_by(most, |shard, each, picked| shard.pick(owner.slot(), each, picked))
    }

    /// As [`Self::pick`], of this tenant, hot entries too.
    pub fn pick_all(&self, owner: &MemoryOwner, most: usize) -> Vec<Victim> {
        self.pick_by(most, |shard, each, picked| shard.pick_any(owner.slot(), each, picked))
    }

    fn pick_by(
        &self,
        most: usize,
        pick: impl Fn(&mut Shard, usize, &mut Vec<Picked>),
    ) -> Vec<Victim> {
        let mut victims = Vec::with_capacity(most);
        let each = most.div_ceil(SHARDS);
        let first = self.turn.fetch_add(1, Relaxed) as usize;
        let mut picked = Vec::new();
        for at in (first..first + SHARDS).map(|at| at % SHARDS) {
            pick(&mut self.shards[at].0.lock(), each, &mut picked);
            victims.extend(picked.drain(..).filter_map(|picked| {
                let dir = NodeId::from_raw(picked.dir)?;
                Some(Victim { dir, expires: picked.expires, shard: at, picked })
            }));
        }
        victims
    }

    /// Whether the front end is still to forget it: the name is absent, without a look-up since.
    pub fn confirm(&self, victim: &Victim) -> bool {
        let mut shard = self.shards[victim.shard].0.lock();
        victim.expires || shard.confirm(&victim.picked, &self.scarce)
    }

    /// The front end cannot forget it now.
    pub fn put_back(&self, victim: &Victim) {
        if !victim.expires {
            self.shards[victim.shard].0.lock().put_back(&victim.picked, &self.scarce);
        }
    }

    /// The front end has forgotten the name.
    pub fn finish(&self, victim: &Victim, event: NameEvent) {
        if !victim.expires {
            let mut shard = self.shards[victim.shard].0.lock();
            shard.finish(&victim.picked, event, &self.scarce);
        }
    }

    /// An answer for this subvolume was delayed.
    pub fn note_delay(&self, subvol: SubvolId, delay: Duration) {
        let tenants = self.tenants.lock();
        if let Some(cells) = tenants.get(&subvol) {
            cells.add(NameEvent::Delayed, 1);
            cells.add(NameEvent::DelayUs, delay.as_micros() as u64);
        }
    }

    /// The figures of all tenants, by subvolume.
    pub fn figures(&self) -> Vec<NameFigures> {
        let mut live: FxHashMap<SubvolId, [u64; 2]> = FxHashMap::default();
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            shard.publish();
            for tenant in shard.tenants() {
                let sum = live.entry(tenant.subvol).or_default();
                let [all, hot] = tenant.entries();
                *sum = [sum[0] + all as u64, sum[1] + hot as u64];
            }
        }
        let tenants = self.tenants.lock();
        let figures = tenants.iter().map(|(subvol, cells)| {
            let [live, hot] = live.get(subvol).copied().unwrap_or_default();
            NameFigures { subvol: *subvol, live, hot, counts: cells.read() }
        });
        let mut figures: Vec<NameFigures> = figures.collect();
        figures.sort_by_key(|figures| figures.subvol);
        figures
    }

    /// The counters of all tenants, and of those that are gone.
    pub fn totals(&self) -> NameCounts {
        let mut sum = NameCounts::default();
        self.figures().iter().for_each(|figures| sum += figures.counts);
        // Last: a tenant that goes meanwhile is not missing.
        sum += self.gone.read();
        sum
    }
}

impl Victim {
    pub fn name(&self) -> &[u8] {
        &self.picked.name
    }
}

impl Drop for AbsentNames {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            shard.0.get_mut().end_charges(&self.scarce);
        }
    }
}

/// How long the answer to this request may be believed.
fn valid(tight: bool, level: u8) -> Duration {
    match tight {
        false => VALID,
        true => VALID.min(SHORT * 8_u32.pow(u32::from(level.min(6)))),
    }
}

/// Entries by which the limit may be passed while the front end forgets others.
fn excess(limit: u64) -> u64 {
    (limit / 64).max(64)
}

/// Drops the entries of a tenant, or of all, a few under each lock.
fn drop_all(shard: &Apart, scarce: &Scarce, of: Option<&MemoryOwner>) {
    const AT_ONCE: usize = 4096;
    let drop_of = |slot| while shard.0.lock().drop_some(slot, AT_ONCE, scarce) {};
    match of {
        Some(owner) => drop_of(owner.slot()),
        None => shard_slots(shard).into_iter().for_each(drop_of),
    }
}

fn shard_slots(shard: &Apart) -> Vec<Slot> {
    shard.0.lock().slots()
}
