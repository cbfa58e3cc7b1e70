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
//!           also if the front end keeps that name: so the memory for entries has a bound. This is
//!           the last resort: the front end holds tenants above their parts back before.
//! NAMES-N6  The count of entries is exact but for 16 entries a shard with one tenant, and ten
//!           times that with 10,000 tenants.
//!
//! Without a front end that keeps names, an insertion at the limit evicts at once. With one
//! ([`AbsentNames::keep_for_front_end`]) an insertion never waits and never fails: the front end
//! takes entries out ([`AbsentNames::pick`]), and holds a tenant above its part back.

mod counts;
mod entry;
mod pick;
mod shard;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use copyhold_format::item::{HashKey, dirent_bucket};
use copyhold_memory::{Admission, Arm, Memory, MemoryClass, MemoryOwner, Scarce, Slot};
use copyhold_runtime::{Rt, yield_now};
use copyhold_sync::{Mutex, of};
use copyhold_types::SubvolId;

use crate::inode::{Inode, InodeRef};
use crate::subvol::Subvol;
use crate::{NodeId, Options, Sabotage};

use counts::CountCells;
pub use counts::{NameCounts, NameEvent};
use entry::{ENTRY_BYTES, LONG};
pub use pick::Victim;
use shard::{ENTRIES_MAX, Key, Shard};

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
    /// The operator's limit, in entries.
    setting: AtomicU64,
    /// The highest limit.
    most: u64,
    shards: Box<[Apart]>,
    /// Those with counters.
    tenants: Mutex<BTreeMap<SubvolId, Tenant>, of::NameTenants>,
    /// Counters of tenants that are gone.
    gone: Arc<CountCells>,
    /// Names that became entries.
    created: AtomicU64,
    for_front_end: AtomicBool,
    /// The rule is broken that an entry stays if a look-up hits it meanwhile (NAMES-N3).
    forgets_asked: bool,
    /// The shard where the last choice began.
    turn: AtomicU64,
}

/// A tenant that has, or had, names.
struct Tenant {
    /// Of its memory owner.
    slot: Slot,
    cells: Arc<CountCells>,
}

/// A directory, as far as its names are concerned.
#[derive(Clone, Copy)]
pub(crate) struct Directory<'d> {
    node: NodeId,
    hash_key: &'d HashKey,
    owner: &'d MemoryOwner,
    subvol: &'d dyn Presence,
}

/// A subvolume that may be gone.
pub(crate) trait Presence: Sync {
    fn is_gone(&self) -> bool;
}

impl Presence for Subvol {
    fn is_gone(&self) -> bool {
        self.present().is_err()
    }
}

impl<'d> From<&'d Inode> for Directory<'d> {
    fn from(dir: &'d Inode) -> Directory<'d> {
        let (node, subvol) = (dir.node, &*dir.subvol);
        Directory { node, hash_key: &subvol.hash_key, owner: dir.owner(), subvol }
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
        let most = most.min(SHARDS as u64 * ENTRIES_MAX);
        AbsentNames {
            memory,
            scarce: Scarce::new(MemoryClass::Name, limit.min(most) * ENTRY_BYTES),
            setting: AtomicU64::new(limit),
            most,
            shards: (0..SHARDS).map(|_| Apart::default()).collect(),
            tenants: Mutex::default(),
            gone: Arc::default(),
            created: AtomicU64::new(0),
            for_front_end: AtomicBool::new(false),
            forgets_asked: options.breaks(Sabotage::ForgetAsked),
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

    /// The operator's limit, in entries. The daemon's memory for names may leave less
    /// ([`Self::limit`]).
    pub fn setting(&self) -> u64 {
        self.setting.load(Relaxed)
    }

    /// With 0 no name is answered from here, the front end keeps any number of names, and all
    /// entries are to be dropped ([`Self::drop_later`]).
    pub fn set_limit(&self, entries: u64) {
        self.setting.store(entries, Relaxed);
        self.scarce.set_limit(entries.min(self.most) * ENTRY_BYTES);
    }

    /// Entries, as far as shards have published them (NAMES-N6).
    pub fn published(&self) -> u64 {
        self.scarce.used() / ENTRY_BYTES
    }

    /// All entries.
    pub fn live(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.lock().len() as u64).sum()
    }

    /// The entries of one tenant.
    pub fn live_of(&self, owner: &MemoryOwner) -> u64 {
        self.shards.iter().map(|shard| shard.0.lock().len_of(owner.slot()) as u64).sum()
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
        // All entries are dropped behind the end of the limit or of the subvolume, under this lock.
        if self.limit() == 0 || dir.subvol.is_gone() {
            return unbounded;
        }
        if shard.ask(key, |level| valid(tight, level) >= IS_LONG).is_some() {
            return Absent { is_over: false, ..answer };
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
        let end = ended_by.unwrap_or(NameEvent::Replaced);
        if shard.is_full() && !shard.evict(owner.slot(), end, &self.scarce) {
            return answer;
        }
        let subvol = dir.node.subvol;
        shard.tenant(subvol, owner, || self.cells(subvol, owner));
        self.created.fetch_add(1, Relaxed);
        let long = if answer.valid >= IS_LONG { LONG } else { 0 };
        shard.add(key, owner.slot(), long, event, &self.scarce);
        answer
    }

    /// The tenant that loses an entry so that this one can have another.
    fn rival(&self, owner: &MemoryOwner) -> MemoryOwner {
        let other = match self.scarce.has_used_up_part(owner) {
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
        match self.scarce.admission(&self.memory, owner) {
            Admission::Free => false,
            Admission::OverPart => true,
            // The others of a tenant above its part; without parts, all (SCARCE-P4).
            Admission::Full => self.memory.arm() == Arm::Off,
        }
    }

    /// Whether the limit is reached and the tenant has its part.
    pub fn is_over(&self, owner: &MemoryOwner) -> bool {
        self.is_full() && self.scarce.has_used_up_part(owner)
    }

    /// No entries are to be removed now.
    pub fn end_turns(&self) {
        self.scarce.end_turns();
    }

    /// Names that became entries since the beginning.
    pub fn created(&self) -> u64 {
        self.created.load(Relaxed)
    }

    fn cells(&self, subvol: SubvolId, owner: &MemoryOwner) -> Arc<CountCells> {
        let begin = || Tenant { slot: owner.slot(), cells: Arc::default() };
        self.tenants.lock().entry(subvol).or_insert_with(begin).cells.clone()
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

    /// The subvolume is gone ([`Presence::is_gone`]): all its names are to be dropped
    /// ([`Self::drop_later`]). An insertion adds none behind this.
    pub(crate) fn end_tenant(&self, subvol: SubvolId, owner: &MemoryOwner) {
        for shard in &self.shards {
            shard.0.lock().end_tenant(owner.slot(), &self.gone, &self.scarce);
        }
        if let Some(tenant) = self.tenants.lock().remove(&subvol) {
            self.gone.publish(&mut tenant.cells.read());
        }
    }

    /// Drops all such in the background: few at once, and other tasks have turns between.
    pub fn drop_later(self: &Arc<Self>, rt: &Rt) {
        const AT_ONCE: usize = 2048;
        if !self.drop_unwanted(AT_ONCE) {
            return;
        }
        let names = self.clone();
        rt.spawn(Box::pin(async move {
            while names.drop_unwanted(AT_ONCE) {
                yield_now().await;
            }
        }));
    }

    /// Drops about `most` entries of subvolumes that are gone, or of all without a limit; whether
    /// more are left. Doomed ones end by themselves.
    pub fn drop_unwanted(&self, most: usize) -> bool {
        let each = most.div_ceil(SHARDS);
        let drop_of = |shard: &Apart| shard.0.lock().drop_unwanted(each, &self.scarce);
        self.shards.iter().filter(|shard| drop_of(shard)).count() > 0
    }

    /// An answer for this subvolume was delayed.
    pub fn note_delay(&self, subvol: SubvolId, delay: Duration) {
        let tenants = self.tenants.lock();
        if let Some(Tenant { cells, .. }) = tenants.get(&subvol) {
            cells.add(NameEvent::Delayed, 1);
            cells.add(NameEvent::DelayUs, delay.as_micros() as u64);
        }
    }

    /// The figures of all tenants, by subvolume.
    pub fn figures(&self) -> Vec<NameFigures> {
        self.figures_behind(SubvolId(0), usize::MAX)
    }

    /// Those of at most `most` tenants behind `after`. Each costs a look into each shard.
    pub fn figures_behind(&self, after: SubvolId, most: usize) -> Vec<NameFigures> {
        let page = (Bound::Excluded(after), Bound::Unbounded);
        let one =
            |(subvol, tenant): (&SubvolId, &Tenant)| (*subvol, tenant.slot, tenant.cells.clone());
        let page: Vec<_> = self.tenants.lock().range(page).take(most).map(one).collect();
        let mut live = vec![[0; 2]; page.len()];
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            for ((subvol, slot, _), sum) in page.iter().zip(&mut live) {
                let [all, hot] = shard.publish(*subvol, *slot);
                *sum = [sum[0] + all as u64, sum[1] + hot as u64];
            }
        }
        // A tenant that has ended meanwhile has a row, too: a short page ends the list.
        let rows = page.into_iter().zip(live).map(|((subvol, _, cells), [live, hot])| {
            NameFigures { subvol, live, hot, counts: cells.read() }
        });
        rows.collect()
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

/// Entries by which the limit may be passed while the front end forgets others: at least as many
/// as there may be look-ups under way.
fn excess(limit: u64) -> u64 {
    (limit / 128).max(256)
}
