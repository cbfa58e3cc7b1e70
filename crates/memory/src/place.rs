//! The limits of a group, and its place in the tree of groups.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::protection::Promise;

/// The number of an owner, as small as possible: an index for lists by owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

impl Slot {
    /// Of the owner of shared objects.
    pub const SHARED: Slot = Slot(0);
}

/// The limits of a group in bytes. `high` and `max` are for the group with all that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    pub promise: Promise,
    /// Above it, reclaim and delays; `u64::MAX`: none.
    pub high: u64,
    /// Never above it; `u64::MAX`: none.
    pub max: u64,
    /// Its share of what is scarce, beside others with the same holder.
    pub weight: u32,
}

impl GroupLimits {
    pub const WEIGHT_MAX: u32 = 10_000;
}

impl Default for GroupLimits {
    fn default() -> GroupLimits {
        GroupLimits { promise: Promise::default(), high: u64::MAX, max: u64::MAX, weight: 100 }
    }
}

/// The limits and the place of an owner.
#[derive(Debug)]
pub(crate) struct Place {
    /// The serial number of its holder; [`Self::TOP`] without one.
    pub(crate) holder: AtomicU64,
    /// The slot of its holder.
    pub(crate) slot: AtomicU32,
    /// A group was put into it, ever.
    pub(crate) has_held: AtomicBool,
    pub(crate) min: AtomicU64,
    pub(crate) low: AtomicU64,
    pub(crate) high: AtomicU64,
    pub(crate) max: AtomicU64,
    pub(crate) weight: AtomicU32,
    /// OWNFROM-E1.
    pub(crate) own_from: AtomicU64,
}

impl Place {
    pub(crate) const TOP: u64 = u64::MAX;

    /// Slot and serial number of its holder. A change is two stores: a reader beside one compares
    /// the serial number with that of the slot's owner, and finds none at worst.
    pub(crate) fn holder(&self) -> Option<(u32, u64)> {
        let serial = self.holder.load(Relaxed);
        (serial != Self::TOP).then(|| (self.slot.load(Relaxed), serial))
    }
}

impl Default for Place {
    fn default() -> Place {
        let GroupLimits { promise, high, max, weight } = GroupLimits::default();
        Place {
            holder: AtomicU64::new(Self::TOP),
            slot: AtomicU32::new(0),
            has_held: AtomicBool::new(false),
            min: AtomicU64::new(promise.min),
            low: AtomicU64::new(promise.low),
            high: AtomicU64::new(high),
            max: AtomicU64::new(max),
            weight: AtomicU32::new(weight),
            own_from: AtomicU64::new(0),
        }
    }
}
