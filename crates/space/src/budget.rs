//! Free and reserved space, and the part of it that each tier may use (R21).
//!
//! BUDGET-B1  `free` is every block that a claim could get now: those that the metaslabs offer and
//!            lanes hold. `available` is `free` less the outstanding reservations.
//! BUDGET-B2  A reservation is accepted while `available` stays at or above the floor of its tier.
//!            The internal tier has none: flush, trim and uberblock are never refused by
//!            accounting, and may make `available` negative for a while.
//! BUDGET-B3  A claim moves blocks from reserved to claimed: `free` falls, `available` stays. So
//!            accepted data can be placed, as long as the internal tier stays within the reserve.
//!
//! All figures are blocks. They are single atomics: a reader may see one before and another after
//! a change, never a wrong sum once the change is over.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use copyhold_types::BLOCK_BYTES;

use crate::space::Shared;

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

#[derive(Debug, Default)]
pub(crate) struct Budget {
    total: AtomicI64,
    reserve: AtomicI64,
    free: AtomicI64,
    available: AtomicI64,
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
    pub(crate) fn new(reserve: u64, free: u64, allocated: u64, freeing: u64, total: u64) -> Budget {
        let budget = Budget::default();
        add(&budget.total, total);
        add(&budget.reserve, reserve);
        add(&budget.free, free);
        add(&budget.available, free);
        add(&budget.allocated, allocated);
        add(&budget.freeing, freeing);
        budget
    }

    /// Blocks kept back from writes.
    pub(crate) fn reserve_blocks(&self) -> u64 {
        read(&self.reserve)
    }

    /// So many more blocks are free, and so many more are allocated, for all that is known. The
    /// reserve is no smaller than before.
    pub(crate) fn grow(&self, free: u64, allocated: u64, reserve: u64) {
        add(&self.total, free + allocated);
        add(&self.allocated, allocated);
        add(&self.free, free);
        add(&self.available, free);
        self.reserve.store(reserve as i64, Relaxed);
    }

    pub(crate) fn total(&self) -> u64 {
        read(&self.total)
    }

    fn floor(&self, tier: Tier) -> i64 {
        let reserve = self.reserve.load(Relaxed);
        match tier {
            Tier::Write => reserve,
            Tier::Change => reserve - reserve / 4,
            Tier::Delete => reserve / 2,
            Tier::FinishDelete => reserve / 8 * 3,
            Tier::DeleteSubvolume => reserve / 4,
            Tier::FinishSubvolume => reserve / 8,
            Tier::Internal => i64::MIN,
        }
    }

    pub(crate) fn reserve(&self, blocks: u64, tier: Tier) -> Result<(), NoSpace> {
        let floor = self.floor(tier);
        let take = |available: i64| {
            let left = available.checked_sub_unsigned(blocks)?;
            (left >= floor).then_some(left)
        };
        match self.available.fetch_update(Relaxed, Relaxed, take) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.no_space(blocks)),
        }
    }

    /// By how many blocks a reservation falls short.
    pub(crate) fn missing(&self, blocks: u64, tier: Tier) -> u64 {
        let wanted = self.floor(tier).saturating_add_unsigned(blocks);
        wanted.saturating_sub(self.available.load(Relaxed)).max(0) as u64
    }

    pub(crate) fn unreserve(&self, blocks: u64) {
        add(&self.available, blocks);
    }

    pub(crate) fn no_space(&self, wanted: u64) -> NoSpace {
        let on_the_way = read(&self.freeing) + read(&self.discarding);
        NoSpace { wanted, free: read(&self.available), reserve: self.reserve_blocks(), on_the_way }
    }

    /// Blocks that a claim could get.
    pub(crate) fn free(&self) -> u64 {
        read(&self.free)
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

    /// Frees that no pin or pending commit delays any more.
    pub(crate) fn release(&self, blocks: u64) {
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
