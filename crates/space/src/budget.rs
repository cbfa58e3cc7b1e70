//! Free and reserved space, and the part of it that each tier may use (R21).
//!
//! BUDGET-B1  `free` is every block that a claim could get if all maps were loaded: those that
//!            metaslabs offer and lanes hold. `available` is `free` less the outstanding
//!            reservations.
//! BUDGET-B2  A reservation is accepted while `available` stays at or above the floor of its tier.
//!            The internal tier has none: flush, trim and uberblock are never refused by
//!            accounting, and may make `available` negative for a while.
//! BUDGET-B3  A claim moves blocks from reserved to claimed: `free` falls, `available` stays. So
//!            accepted data can be placed, as long as the internal tier stays within the reserve.
//! BUDGET-B4  `away` is the part of `free` in maps that are not loaded. A reservation needs as many
//!            free blocks in loaded maps, beside its tier's part of a reserve of its own there
//!            (AWAY-A2). Each side changes its figure first and then looks at the other: a
//!            reservation `available`, an eviction `away`.
//! BUDGET-B5  `wanted` is the sum of the requests that maps are being loaded for. An eviction
//!            leaves as many free blocks in loaded maps for them, so none waits for the same map
//!            twice.
//!
//! All figures are blocks. They are single atomics: a reader may see one before and another after
//! a change, never a wrong sum once the change is over.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicI64,
    Ordering::{Relaxed, SeqCst},
};

use copyhold_types::BLOCK_BYTES;

use crate::space::Shared;

/// The most of the reserve that is kept in loaded maps: the need of flush rounds at once (1 GiB).
const LOADED_RESERVE_MAX: u64 = 1 << 18;

/// How much of the reserve an operation may use. Operations of each tier: `docs/design.md`,
/// section 6 (R21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Leaves all of the reserve.
    Write,
    /// Leaves three quarters.
    Change,
    /// Leaves half.
    Delete,
    /// Leaves three eighths: removes an unlinked file.
    FinishDelete,
    /// Leaves a quarter.
    DeleteSubvolume,
    /// Leaves an eighth: removes a deleted subvolume.
    FinishSubvolume,
    /// Leaves nothing, and is never refused.
    Internal,
}

/// Blocks that are wanted, and blocks that are left available to others. Those are counted in the
/// whole pool: no map is loaded for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub blocks: u64,
    pub left: u64,
}

impl From<u64> for Wanted {
    fn from(blocks: u64) -> Wanted {
        Wanted { blocks, left: 0 }
    }
}

/// How much free space loaded maps have beside the reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stock {
    /// Twice what rounds may need, or all of the pool.
    Enough,
    /// As much as rounds may need; but a request may have to wait for a map.
    Low,
    Short,
}

/// A reservation or a claim that cannot be had. Figures are blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSpace {
    pub wanted: u64,
    /// Free and not reserved.
    pub free: u64,
    /// Of these kept back from writes.
    pub reserve: u64,
    /// Freed and soon to be allocatable: worth waiting for before refusing (R22).
    pub on_the_way: u64,
}

impl fmt::Display for NoSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |blocks: u64| blocks * (BLOCK_BYTES as u64 / 1024);
        write!(
            f,
            "pool is full: {} KiB wanted, {} KiB free, of which {} KiB are kept for deletes, {} KiB \
             on their way to be free; delete files, or subvolumes where snapshots share them",
            kib(self.wanted),
            kib(self.free),
            kib(self.reserve),
            kib(self.on_the_way)
        )
    }
}

impl std::error::Error for NoSpace {}

/// The numbers behind `statfs`, in blocks. `total` is the sum of `free`, allocated, claimed,
/// freeing and discarding blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// All blocks but the fixed areas.
    pub total: u64,
    /// Logged as allocated.
    pub allocated: u64,
    /// Taken, and not yet logged.
    pub claimed: u64,
    /// Allocatable now; contains the reserved blocks.
    pub free: u64,
    /// Reserved, and not yet claimed.
    pub reserved: u64,
    /// Kept back from writes.
    pub reserve: u64,
    /// Freed, but not yet allocatable.
    pub freeing: u64,
    /// Out of reach while a discard is under way.
    pub discarding: u64,
}

impl Figures {
    /// Blocks that ordinary writes can still reserve.
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved).saturating_sub(self.reserve)
    }
}

/// The blocks of a pool that is opened; estimates may be negative (AWAY-A4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) total: u64,
    pub(crate) reserve: u64,
    pub(crate) allocated: i64,
    pub(crate) free: i64,
    pub(crate) freeing: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Budget {
    total: AtomicI64,
    reserve: AtomicI64,
    free: AtomicI64,
    available: AtomicI64,
    /// Free blocks of maps that are not loaded.
    away: AtomicI64,
    wanted: AtomicI64,
    allocated: AtomicI64,
    claimed: AtomicI64,
    freeing: AtomicI64,
    discarding: AtomicI64,
}

fn add(figure: &AtomicI64, blocks: u64) {
    figure.fetch_add(blocks as i64, Relaxed);
}

fn sub(figure: &AtomicI64, blocks: u64) {
    figure.fetch_sub(blocks as i64, Relaxed);
}

fn read(figure: &AtomicI64) -> u64 {
    figure.load(Relaxed).max(0) as u64
}

impl Budget {
    /// `away`: of the free blocks those in maps that are not loaded.
    pub(crate) fn new(counts: Counts, away: i64) -> Budget {
        let Counts { total, reserve, allocated, free, freeing } = counts;
        Budget {
            total: (total as i64).into(),
            reserve: (reserve as i64).into(),
            free: free.into(),
            available: free.into(),
            away: away.into(),
            allocated: allocated.into(),
            freeing: (freeing as i64).into(),
            ..Budget::default()
        }
    }

    /// Blocks kept back from writes.
    pub(crate) fn reserve_blocks(&self) -> u64 {
        read(&self.reserve)
    }

    pub(crate) fn total(&self) -> u64 {
        read(&self.total)
    }

    /// So many more blocks are free, of which `away` in maps that are not loaded, and so many more
    /// are allocated, for all that is known. The reserve is no smaller than before.
    pub(crate) fn grow(&self, free: u64, away: u64, allocated: u64, reserve: u64) {
        add(&self.total, free + allocated);
        add(&self.allocated, allocated);
        self.away.fetch_add(away as i64, SeqCst);
        add(&self.free, free);
        add(&self.available, free);
        self.reserve.store(reserve as i64, Relaxed);
    }

    fn floor(&self, tier: Tier) -> i64 {
        floor(self.reserve_blocks(), tier)
    }

    /// The part of the reserve that is in loaded maps.
    pub(crate) fn loaded_reserve(&self) -> u64 {
        self.reserve_blocks().min(LOADED_RESERVE_MAX)
    }

    pub(crate) fn reserve(&self, wanted: Wanted, tier: Tier) -> Result<(), NoSpace> {
        let Wanted { blocks, left: others } = wanted;
        let floor = self.floor(tier).saturating_add_unsigned(others);
        let take = |available: i64| {
            let left = available.checked_sub_unsigned(blocks)?;
            (left >= floor).then_some(left)
        };
        let Ok(before) = self.available.fetch_update(SeqCst, Relaxed, take) else {
            return Err(self.no_space(blocks + others));
        };
        if tier != Tier::Internal && !self.is_loaded(before.saturating_sub_unsigned(blocks), tier) {
            self.unreserve(blocks);
            return Err(self.no_space(blocks));
        }
        Ok(())
    }

    /// Whether loaded maps have the reserved blocks, if `left` blocks are available afterwards
    /// (BUDGET-B4).
    fn is_loaded(&self, left: i64, tier: Tier) -> bool {
        let away = self.away.load(SeqCst);
        away <= 0 || left - away >= floor(self.loaded_reserve(), tier)
    }

    pub(crate) fn wants_map(&self, wanted: Wanted, tier: Tier) -> bool {
        let left = self.available.load(SeqCst).saturating_sub_unsigned(wanted.blocks);
        let floor = self.floor(tier).saturating_add_unsigned(wanted.left);
        left >= floor && !self.is_loaded(left, tier)
    }

    /// Free blocks of loaded maps beside the reservations.
    pub(crate) fn loaded_left(&self) -> i64 {
        let away = self.away.load(SeqCst);
        self.available.load(SeqCst) - away.max(0)
    }

    pub(crate) fn stock(&self) -> Stock {
        let reserve = self.loaded_reserve() as i64;
        match self.loaded_left() {
            _ if self.is_all_loaded() => Stock::Enough,
            left if left < reserve => Stock::Short,
            left if left < 2 * reserve => Stock::Low,
            _ => Stock::Enough,
        }
    }

    /// Whether a map with so many free blocks may be evicted, if nothing changes meanwhile.
    pub(crate) fn may_unload(&self, free: u64) -> bool {
        free == 0 || self.leaves_enough(self.away.load(SeqCst) + free as i64)
    }

    /// Whether loaded maps have the need of rounds and of waiting requests.
    fn leaves_enough(&self, away: i64) -> bool {
        let left = self.available.load(SeqCst) - away;
        left >= self.loaded_reserve() as i64 + self.wanted.load(SeqCst)
    }

    /// A map with so many free blocks is evicted, unless rounds or waiting requests may need them.
    pub(crate) fn unload(&self, free: u64) -> bool {
        let free = free as i64;
        let away = self.away.fetch_add(free, SeqCst) + free;
        let may = free == 0 || self.leaves_enough(away);
        if !may {
            self.away.fetch_sub(free, SeqCst);
        }
        may
    }

    /// A map is loaded whose metaslab was counted with so many free blocks; `more` of them are
    /// allocated than was known.
    pub(crate) fn load(&self, free: i64, more: i64) {
        self.allocated.fetch_add(more, Relaxed);
        self.free.fetch_sub(more, Relaxed);
        self.available.fetch_sub(more, SeqCst);
        self.away.fetch_sub(free, SeqCst);
    }

    /// A metaslab that was counted with so many free and deferred blocks is set aside.
    pub(crate) fn set_aside(&self, free: i64, freeing: i64) {
        self.free.fetch_sub(free, Relaxed);
        self.available.fetch_sub(free, SeqCst);
        self.away.fetch_sub(free, SeqCst);
        self.freeing.fetch_sub(freeing, Relaxed);
        self.allocated.fetch_add(free + freeing, Relaxed);
    }

    /// By how many blocks a reservation falls short.
    pub(crate) fn missing(&self, wanted: Wanted, tier: Tier) -> u64 {
        let Wanted { blocks, left } = wanted;
        let wanted = self.floor(tier).saturating_add_unsigned(blocks + left);
        wanted.saturating_sub(self.available.load(Relaxed)).max(0) as u64
    }

    pub(crate) fn unreserve(&self, blocks: u64) {
        add(&self.available, blocks);
    }

    pub(crate) fn no_space(&self, wanted: u64) -> NoSpace {
        let on_the_way = read(&self.freeing) + read(&self.discarding);
        NoSpace { wanted, free: read(&self.available), reserve: self.reserve_blocks(), on_the_way }
    }

    /// Blocks that a claim could get: those in loaded maps.
    pub(crate) fn loaded_free(&self) -> u64 {
        (self.free.load(Relaxed) - self.away.load(Relaxed)).max(0) as u64
    }

    /// Whether all free blocks are in loaded maps.
    pub(crate) fn is_all_loaded(&self) -> bool {
        self.away.load(Relaxed) <= 0
    }

    pub(crate) fn away(&self) -> i64 {
        self.away.load(Relaxed)
    }

    /// Reserved blocks become a claim.
    pub(crate) fn claim(&self, blocks: u64) {
        sub(&self.free, blocks);
        add(&self.claimed, blocks);
    }

    /// A claim becomes free blocks, still reserved.
    pub(crate) fn unclaim(&self, blocks: u64) {
        sub(&self.claimed, blocks);
        add(&self.free, blocks);
    }

    pub(crate) fn log_alloc(&self, blocks: u64) {
        sub(&self.claimed, blocks);
        add(&self.allocated, blocks);
    }

    pub(crate) fn log_free(&self, blocks: u64) {
        sub(&self.allocated, blocks);
        add(&self.freeing, blocks);
    }

    /// A claim is on its way to be free.
    pub(crate) fn defer(&self, blocks: u64) {
        sub(&self.claimed, blocks);
        add(&self.freeing, blocks);
    }

    /// A metaslab of so many usable blocks was set aside, and now it is known how many of them are
    /// allocated.
    pub(crate) fn supply(&self, usable: u64, allocated: u64) {
        sub(&self.allocated, usable - allocated);
        add(&self.freeing, usable - allocated);
    }

    /// Frees that no pin or pending commit delays any more; `cold`: those of maps that are not
    /// loaded, which come first (BUDGET-B4).
    pub(crate) fn release(&self, blocks: u64, cold: u64) {
        self.away.fetch_add(cold as i64, SeqCst);
        sub(&self.freeing, blocks);
        add(&self.free, blocks);
        add(&self.available, blocks);
    }

    /// Already reserved blocks are taken for a discard.
    pub(crate) fn begin_discard(&self, blocks: u64) {
        sub(&self.free, blocks);
        add(&self.discarding, blocks);
    }

    pub(crate) fn end_discard(&self, blocks: u64) {
        sub(&self.discarding, blocks);
        add(&self.free, blocks);
        add(&self.available, blocks);
    }

    pub(crate) fn figures(&self) -> Figures {
        let free = self.free.load(Relaxed);
        let reserved = free - self.available.load(Relaxed);
        Figures {
            total: self.total(),
            allocated: read(&self.allocated),
            claimed: read(&self.claimed),
            free: free.max(0) as u64,
            reserved: reserved.max(0) as u64,
            reserve: self.reserve_blocks(),
            freeing: read(&self.freeing),
            discarding: read(&self.discarding),
        }
    }
}

/// How many blocks of a reserve a tier leaves.
fn floor(reserve: u64, tier: Tier) -> i64 {
    match tier {
        Tier::Write => reserve as i64,
        Tier::Change => (reserve - reserve / 4) as i64,
        Tier::Delete => (reserve / 2) as i64,
        Tier::FinishDelete => (reserve / 8 * 3) as i64,
        Tier::DeleteSubvolume => (reserve / 4) as i64,
        Tier::FinishSubvolume => (reserve / 8) as i64,
        Tier::Internal => i64::MIN,
    }
}

/// A request that maps are being loaded for (BUDGET-B5), until this is dropped.
#[must_use = "dropping it ends the request"]
#[derive(Debug)]
pub struct Loading {
    shared: Arc<Shared>,
    blocks: u64,
}

impl Loading {
    pub(crate) fn begin(shared: &Arc<Shared>, blocks: u64) -> Loading {
        shared.budget.wanted.fetch_add(blocks as i64, SeqCst);
        Loading { shared: Arc::clone(shared), blocks }
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.shared.budget.wanted.fetch_sub(self.blocks as i64, SeqCst);
    }
}

/// Reserved blocks. Claims are made from it; dropping it releases the rest.
#[must_use = "dropping a reservation gives it back"]
pub struct Reservation {
    shared: Arc<Shared>,
    blocks: u64,
    tier: Tier,
}

impl Reservation {
    pub(crate) fn new(shared: &Arc<Shared>, blocks: u64, tier: Tier) -> Reservation {
        Reservation { shared: Arc::clone(shared), blocks, tier }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Takes `blocks` out into a reservation of its own.
    pub fn split(&mut self, blocks: u64) -> Reservation {
        self.take(blocks);
        Reservation::new(&self.shared, blocks, self.tier)
    }

    /// Adds `other` to this one.
    pub fn join(&mut self, mut other: Reservation) {
        self.blocks += std::mem::take(&mut other.blocks);
    }

    /// Releases `blocks` of it.
    pub fn give_back(&mut self, blocks: u64) {
        self.take(blocks);
        self.shared.budget.unreserve(blocks);
    }

    pub(crate) fn take(&mut self, blocks: u64) {
        assert!(blocks <= self.blocks, "{blocks} blocks of a reservation of {}", self.blocks);
        self.blocks -= blocks;
    }

    pub(crate) fn put(&mut self, blocks: u64) {
        self.blocks += blocks;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.budget.unreserve(self.blocks);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} blocks, {:?})", self.blocks, self.tier)
    }
}
