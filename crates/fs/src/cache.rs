//! The inodes in memory, and how often the front end holds each.
//!
//! A node id says by itself where its inode is, so an inode that is clean may leave memory although
//! the front end knows it, or has it open: only the counts stay, until they are released. So a
//! file that a tenant has open takes a few words, and no inode for which there is no room.
//!
//! Every request looks here, so all of it is in one entry of a hash map. The deletion of a
//! subvolume removes its inodes: the subvolume counts them, and the search for them goes through
//! all inodes.
//!
//! CACHE-C1  An inode is in memory at most once: it is loaded under its shard's load lock, and
//!           leaves only when nothing but the cache refers to it.
//! CACHE-C2  The last change that an inode logged before it left is in a txg up to `evicted_txg`
//!           (R34).
//! CACHE-C3  Under the lock of a shard's map no inode's state is waited for: inodes are added while
//!           the state of their directory is held.
//! CACHE-C4  A full shard lets inodes go by groups, as far as their memory is above its protection
//!           (`memory::reclaim`); of an owner's inodes, those that were not asked for since they
//!           were looked at last. Beyond its bound it has inodes that are in use or dirty, and
//!           protected ones up to a quarter of it.
//!
//! CACHE-C5  Before an inode of a group at its `max` or `high` comes, the shard lets others of that
//!           group go (ATLIMIT-A1). If it finds none, the inode comes all the same, since a request
//!           needs it (`forced`).
//!
//! The front end may hold any number of nodes. `held` counts them, and finds some to release when
//! they are too many (docs/memory.md, LOOKUP-L1 to LOOKUP-L3).

mod held;
mod queues;
mod runs;

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use copyhold_memory::{
    AtLimit, Carry, Cause, Event, INODE_BYTES, LOOKUP_BYTES, Look, LookupCharge, Memory,
    MemoryClass, MemoryOwner, Need, OwnerLists, Slot,
};
use copyhold_runtime::{FifoMutex, FifoMutexGuard};
use copyhold_sync::{Mutex, MutexGuard, of};
use copyhold_types::{InodeNo, SubvolId, Txg};
use rustc_hash::FxHashMap;

use self::held::{Held, Surplus};
use self::queues::Queues;
use self::runs::Runs;
use crate::inode::{Inode, InodeRef, InodeState};
use crate::subvol::Subvol;
use crate::uses::Notes;
use crate::{NodeId, Options, Uses};

const SHARDS: usize = 64;
/// A full shard lets one in so many inodes go at once, and after a search that was in vain it
/// searches again when it has that many more.
const BATCH: usize = 16;

pub(crate) struct InodeCache {
    memory: Arc<Memory>,
    shards: Vec<Shard>,
    per_shard_max: usize,
    lookups_max: usize,
    /// A shard is, or was when it was last looked at.
    crowded: AtomicBool,
    /// Look-ups of inodes that are not in memory.
    runs: Runs,
}

type Guard<'a> = MutexGuard<'a, ShardMap>;

#[derive(Default)]
struct Shard {
    /// Held while an inode of this shard is read from the table.
    load: FifoMutex,
    map: Mutex<ShardMap, of::InodeCache>,
}

#[derive(Default)]
struct ShardMap {
    /// By [`NodeId::raw`].
    nodes: FxHashMap<u64, Known>,
    /// Inodes in memory.
    cached: usize,
    /// Nodes that are open, and their inodes not in memory.
    away: usize,
    held: Held,
    /// Candidates for leaving.
    queues: Queues,
    /// With fewer inodes it is in vain to search for some that may leave: the last search was.
    search_from: usize,
    at_limit: AtLimit,
    evicted_txg: Option<Txg>,
}

/// The state of a node in memory.
#[derive(Default)]
struct Known {
    inode: Option<InodeRef>,
    /// A request has used the inode since reclaim looked at it last.
    used: bool,
    lookups: u64,
    /// While there are look-ups.
    held: Option<LookupCharge>,
    opens: u32,
    /// While it is open.
    notes: Notes,
}

impl Known {
    fn is_nothing(&self) -> bool {
        self.inode.is_none() && self.lookups == 0 && self.opens == 0
    }

    fn is_away(&self) -> bool {
        self.inode.is_none() && self.opens > 0
    }
}

impl InodeCache {
    pub(crate) fn new(memory: Arc<Memory>, options: &Options) -> InodeCache {
        let held_max = options.lookups_max.div_ceil(SHARDS);
        let shard = |_| {
            let map = ShardMap { held: Held::new(held_max), ..Default::default() };
            Shard { load: FifoMutex::default(), map: Mutex::new(map) }
        };
        InodeCache {
            memory,
            shards: (0..SHARDS).map(shard).collect(),
            per_shard_max: options.inodes_max.div_ceil(SHARDS).max(1),
            lookups_max: options.lookups_max,
            crowded: AtomicBool::new(false),
            runs: Runs::default(),
        }
    }

    fn shard(&self, node: NodeId) -> &Shard {
        &self.shards[(node.raw() % SHARDS as u64) as usize]
    }

    pub(crate) fn get(&self, node: NodeId) -> Option<InodeRef> {
        let mut map = self.shard(node).map.lock();
        let known = map.nodes.get_mut(&node.raw())?;
        known.used = true;
        known.inode.clone()
    }

    /// Whether an inode is in memory; no use of it.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.shard(node).map.lock().is_cached(node)
    }

    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Taken, and the cache asked again, before an inode is read from the table (CACHE-C1).
    pub(crate) async fn loading(&self, node: NodeId) -> FifoMutexGuard<'_> {
        self.shard(node).load.lock().await
    }

    /// No change of an inode of this shard that is not in memory is in a later txg (CACHE-C2).
    pub(crate) fn evicted_txg(&self, node: NodeId) -> Option<Txg> {
        self.shard(node).map.lock().evicted_txg
    }

    /// Adds an inode that was not in memory; others may leave for it.
    pub(crate) fn insert(&self, inode: InodeRef) {
        let before = self.put(inode);
        assert!(before.is_none(), "CACHE-C1: an inode is in memory once");
    }

    /// Adds a new inode. No other inode has its number, unless the high-water mark of numbers is
    /// damaged: then users of the other inode continue with one that is no longer cached.
    pub(crate) fn insert_new(&self, inode: InodeRef) {
        let node = inode.node;
        if self.put(inode).is_some() {
            tracing::error!(
                "{node} exists already: the high-water mark of inode numbers is \
                             damaged"
            );
        }
    }

    fn put(&self, inode: InodeRef) -> Option<InodeRef> {
        let memory = &self.memory;
        let needs_picture = |map: &Guard<'_>| {
            let walks = map.is_full(self.per_shard_max);
            (walks && !memory.shows(&map.queues.owners()))
                || map.at_limit.needs_picture(memory, inode.owner(), INODE_BYTES)
        };
        let shard = self.shard(inode.node);
        let mut map = memory.lock_with_picture(|| shard.map.lock(), needs_picture);
        map.fit_limits(memory, inode.owner());
        map.make_room(&self.memory, self.per_shard_max);
        let before = map.put(inode);
        drop(map);
        // The count of its subvolume changes before later questions about the subvolume.
        fence(Ordering::SeqCst);
        before
    }

    /// Takes out a removed inode.
    pub(crate) fn remove(&self, node: NodeId) {
        self.shard(node).map.lock().take(node);
    }

    pub(crate) fn add_lookup(&self, inode: &Inode) {
        if self.shard(inode.node).map.lock().add_lookup(inode) {
            self.crowded.store(true, Ordering::Relaxed);
        }
    }

    /// Whether none is left.
    pub(crate) fn drop_lookups(&self, node: NodeId, count: u64) -> bool {
        self.shard(node).map.lock().drop_lookups(node, count)
    }

    pub(crate) fn add_open(&self, node: NodeId, uses: Uses) {
        self.shard(node).map.lock().change(node, |known| {
            known.opens += 1;
            known.notes.add(uses);
        });
    }

    /// Reads or changes the notes of a file while it is open.
    pub(crate) fn with_notes<T>(
        &self,
        node: NodeId,
        notes: impl FnOnce(&mut Notes) -> T,
    ) -> Option<T> {
        let mut map = self.shard(node).map.lock();
        let known = map.nodes.get_mut(&node.raw()).filter(|known| known.opens > 0);
        known.map(|known| notes(&mut known.notes))
    }

    /// Whether none is left.
    pub(crate) fn drop_open(&self, node: NodeId) -> bool {
        self.shard(node).map.lock().change(node, |known| {
            known.opens = known.opens.saturating_sub(1);
            if known.opens == 0 {
                known.notes = Notes::default();
            }
            known.opens == 0
        })
    }

    pub(crate) fn is_open(&self, node: NodeId) -> bool {
        self.shard(node).map.lock().known(node).is_some_and(|known| known.opens > 0)
    }

    /// Whether the front end may still ask for it.
    pub(crate) fn is_held(&self, node: NodeId) -> bool {
        let map = self.shard(node).map.lock();
        map.known(node).is_some_and(|known| known.lookups > 0 || known.opens > 0)
    }

    /// The nodes of a subvolume that are open, and their inodes not in memory.
    pub(crate) fn away_of(&self, subvol: SubvolId) -> Vec<NodeId> {
        let mut away = Vec::new();
        for shard in &self.shards {
            shard.map.lock().away_of(subvol, &mut away);
        }
        away
    }

    /// How many inodes are in memory, and how many nodes the front end holds.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let count = |(inodes, held), shard: &Shard| {
            let map = shard.map.lock();
            (inodes + map.cached, held + map.held.count())
        };
        self.shards.iter().fold((0, 0), count)
    }

    /// Whether the front end holds so many nodes that it should be asked to release some.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Nodes that the front end may release: held, but not in memory, of owners that hold more than
    /// their part (LOOKUP-L5). Each call names others until more have come.
    pub(crate) fn surplus(&self) -> Vec<NodeId> {
        self.crowded.store(false, Ordering::Relaxed);
        let bound = self.lookups_max as u64 * LOOKUP_BYTES;
        let over = self.memory.over_parts(MemoryClass::Lookup, bound);
        let mut surplus = Surplus::of(&over, self.lookups_max.div_ceil(8));
        for shard in &self.shards {
            shard.map.lock().surplus(&mut surplus);
        }
        surplus.nodes
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Lets inodes of a group go in one shard ([`Memory::reclaim_below`]); how many bytes.
    pub(crate) fn reclaim_in(&self, shard: usize, group: &MemoryOwner, bytes: u64) -> u64 {
        let needs_picture = |map: &Guard<'_>| !self.memory.shows(&map.queues.owners());
        let shard = &self.shards[shard].map;
        let mut map = self.memory.lock_with_picture(|| shard.lock(), needs_picture);
        self.memory.reclaim_below(group, &mut *map, bytes, Cause::Order)
    }

    /// The inodes in memory of one subvolume. Goes through all others, unless there is none but its
    /// root. If the subvolume was marked as gone before, a later insertion finds it gone (see
    /// `put`).
    pub(crate) fn of_subvol(&self, subvol: &Subvol) -> Vec<InodeRef> {
        // While it is held here it stays, so it is among those that are counted.
        let root = self.get(subvol.node(InodeNo::ROOT));
        fence(Ordering::SeqCst);
        match (subvol.cached.load(Ordering::Relaxed), root) {
            (0, _) => Vec::new(),
            (1, Some(root)) if std::ptr::eq(&*root.subvol, subvol) => vec![root],
            _ => self.collect(|inode| inode.node.subvol == subvol.id()),
        }
    }

    /// Whether the state of an inode in memory `is` so; asked against CACHE-C3.
    pub(crate) fn any_state(&self, is: impl Fn(&InodeState) -> bool) -> bool {
        self.shards.iter().any(|shard| {
            let map = shard.map.lock();
            map.inodes().any(|inode| is(&inode.state()))
        })
    }

    /// All inodes in memory, by number.
    pub(crate) fn all(&self) -> Vec<InodeRef> {
        self.collect(|_| true)
    }

    /// Those in memory that are `wanted`, by number.
    fn collect(&self, wanted: impl Fn(&Inode) -> bool) -> Vec<InodeRef> {
        let mut found: Vec<InodeRef> = Vec::new();
        for shard in &self.shards {
            found.extend(shard.map.lock().inodes().filter(|inode| wanted(inode)).cloned());
        }
        found.sort_unstable_by_key(|inode| inode.node);
        found
    }
}

impl ShardMap {
    fn known(&self, node: NodeId) -> Option<&Known> {
        self.nodes.get(&node.raw())
    }

    fn inodes(&self) -> impl Iterator<Item = &InodeRef> {
        self.nodes.values().filter_map(|known| known.inode.as_ref())
    }

    /// Changes the entry of `node`, be it empty, and keeps no entry of nothing.
    fn change<T>(&mut self, node: NodeId, change: impl FnOnce(&mut Known) -> T) -> T {
        match self.nodes.entry(node.raw()) {
            Entry::Vacant(place) => {
                let mut known = Known::default();
                let result = change(&mut known);
                self.away += usize::from(known.is_away());
                if !known.is_nothing() {
                    place.insert(known);
                }
                result
            }
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                self.away -= usize::from(known.is_away());
                let result = change(known);
                self.away += usize::from(known.is_away());
                if known.is_nothing() {
                    entry.remove();
                }
                result
            }
        }
    }

    /// Whether the shard is crowded (LOOKUP-L1).
    fn add_lookup(&mut self, inode: &Inode) -> bool {
        let is_first = self.change(inode.node, |known| {
            known.lookups += 1;
            known.held.get_or_insert_with(|| LookupCharge::new(inode.subvol.volume.owner()));
            known.lookups == 1
        });
        is_first && self.held.add()
    }

    fn drop_lookups(&mut self, node: NodeId, count: u64) -> bool {
        let (before, left) = self.change(node, |known| {
            let before = known.lookups;
            known.lookups = before.saturating_sub(count);
            if known.lookups == 0 {
                known.held = None;
            }
            (before, known.lookups)
        });
        if before > 0 && left == 0 {
            self.held.drop();
        }
        left == 0
    }

    /// Adds the surplus to `surplus`, of nodes that are not in memory (LOOKUP-L2).
    fn surplus(&mut self, surplus: &mut Surplus) {
        let count = self.held.take_surplus();
        if count == 0 {
            return;
        }
        let is_idle = |known: &Known| known.inode.is_none() && known.opens == 0;
        let idle = self.nodes.iter().filter(|(_, known)| is_idle(known));
        let held = idle.filter_map(|(&raw, known)| {
            Some((NodeId::from_raw(raw)?, known.held.as_ref()?.owner().slot()))
        });
        surplus.take(held, count);
    }

    fn away_of(&self, subvol: SubvolId, away: &mut Vec<NodeId>) {
        if self.away == 0 {
            return;
        }
        let open = self.nodes.iter().filter(|(_, known)| known.is_away());
        let nodes = open.filter_map(|(&raw, _)| NodeId::from_raw(raw));
        away.extend(nodes.filter(|node| node.subvol == subvol));
    }

    fn put(&mut self, inode: InodeRef) -> Option<InodeRef> {
        inode.subvol.cached.fetch_add(1, Ordering::Relaxed);
        self.cached += 1;
        self.queues.push(inode.owner().slot(), inode.node);
        let before = self.change(inode.node, |known| {
            known.used = false;
            known.inode.replace(inode)
        });
        before.inspect(|before| self.has_left(before))
    }

    fn take(&mut self, node: NodeId) -> Option<InodeRef> {
        let taken = self.change(node, |known| known.inode.take());
        taken.inspect(|taken| self.has_left(taken))
    }

    fn has_left(&mut self, inode: &Inode) {
        self.cached -= 1;
        inode.subvol.cached.fetch_sub(1, Ordering::Relaxed);
        let nodes = &self.nodes;
        self.queues.left(inode.owner().slot(), |node| {
            nodes.get(&node.raw()).is_some_and(|known| known.inode.is_some())
        });
    }

    /// Whether inodes have to leave, and a search was not in vain of late.
    fn is_full(&self, max: usize) -> bool {
        self.cached >= max && self.cached >= self.search_from
    }

    /// Lets clean inodes go if there are `max` (CACHE-C4).
    fn make_room(&mut self, memory: &Memory, max: usize) {
        if self.cached < max {
            self.search_from = max;
        } else if self.is_full(max) {
            let wanted = (self.cached + 1 - max).max(max / BATCH);
            memory.reclaim(self, wanted as u64 * INODE_BYTES, Cause::Request);
            // Promises of memory do not make the class larger without a bound.
            let most = max + max.div_ceil(4);
            let over = self.cached.saturating_sub(most) as u64;
            if over > 0 {
                memory.reclaim_anyway(self, over * INODE_BYTES);
            }
            self.search_from = self.cached + max.div_ceil(BATCH);
        }
    }

    /// Lets inodes of a group go that is at a limit (CACHE-C5).
    fn fit_limits(&mut self, memory: &Memory, owner: &MemoryOwner) {
        let need = Need { bytes: INODE_BYTES, at_least: 0, is_forced: true };
        let mut at_limit = std::mem::take(&mut self.at_limit);
        if !at_limit.make_room(memory, self, owner, need) {
            owner.count(Event::Forced);
        }
        self.at_limit = at_limit;
    }

    /// Lets an inode go if nothing needs it.
    fn let_go(&mut self, node: NodeId) -> bool {
        let Some(known) = self.nodes.get_mut(&node.raw()) else { return false };
        let Some(inode) = &known.inode else { return false };
        let was_used = std::mem::take(&mut known.used);
        // Every other reference was cloned from this one under this lock, or from such a clone.
        // States come before the map in the order of locks, so they are not waited for here.
        let is_idle = !was_used
            && Arc::strong_count(inode) == 1
            && inode.try_state().is_some_and(|state| state.is_clean() && !state.atime_lazy);
        if is_idle {
            let gone = self.take(node).expect("looked up above");
            let last_txg = gone.try_state().expect("nobody else has it").last_txg;
            self.evicted_txg = self.evicted_txg.max(last_txg);
        }
        is_idle
    }

    fn is_cached(&self, node: NodeId) -> bool {
        self.known(node).is_some_and(|known| known.inode.is_some())
    }
}

impl OwnerLists for ShardMap {
    fn owners(&self) -> Vec<Slot> {
        self.queues.owners()
    }

    fn count(&self) -> usize {
        self.queues.count()
    }

    fn size(&self, owner: Slot) -> u64 {
        self.queues.size(owner)
    }

    fn carry(&mut self, owner: Slot) -> &mut Carry {
        self.queues.carry(owner)
    }

    fn shrink(&mut self, owner: Slot, look: Look) -> (u64, u64) {
        let (mut seen, mut freed) = (0, 0);
        while look.goes_on(seen, freed, INODE_BYTES) {
            let Some(node) = self.queues.next(owner) else { break };
            if !self.is_cached(node) {
                continue;
            }
            seen += INODE_BYTES;
            match self.let_go(node) {
                true => freed += INODE_BYTES,
                false => self.queues.again(owner, node),
            }
        }
        (seen, freed)
    }
}
