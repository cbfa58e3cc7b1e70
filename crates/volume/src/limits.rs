//! The limits of memory groups as records.
//!
//! LIMITS-M1  Of subvolumes, only living ones have a record: the transaction that deletes one
//!            deletes it. The shared group may always have one.
//! LIMITS-M2  A rollback gives the limits to the state that takes the place. A snapshot has none of
//!            its source's: limits are for the users of a subvolume, not for its content.

use copyhold_format::item::{MemoryItem, memory_key};
use copyhold_memory::{GroupLimits, MemoryOwner, Promise};
use copyhold_pool::{Pool, Transaction};
use copyhold_types::SubvolId;

const _: () = assert!(GroupLimits::WEIGHT_MAX == MemoryItem::WEIGHT_MAX);

/// The record of a living subvolume, or of the shared group; the defaults need none.
pub(crate) fn put(tx: &mut Transaction, subvol: SubvolId, limits: &GroupLimits) {
    let item = item(limits);
    match item == MemoryItem::default() {
        true => tx.delete(Pool::SYSTEM, memory_key(subvol)),
        false => tx.put(Pool::SYSTEM, memory_key(subvol), &item.encode()[..]),
    }
}

/// A new subvolume takes the place of the one with this memory (LIMITS-M2).
pub(crate) fn copy(tx: &mut Transaction, old: &MemoryOwner, new: SubvolId) {
    let limits = old.limits();
    if limits != GroupLimits::default() {
        put(tx, new, &limits);
    }
}

/// A subvolume that is being deleted has none (LIMITS-M1).
pub(crate) fn forget(tx: &mut Transaction, subvol: SubvolId, memory: &MemoryOwner) {
    if memory.limits() != GroupLimits::default() {
        tx.delete(Pool::SYSTEM, memory_key(subvol));
    }
}

pub(crate) fn limits(item: &MemoryItem) -> GroupLimits {
    let MemoryItem { min, low, high, max, weight } = *item;
    GroupLimits { promise: Promise { min, low }, high, max, weight }
}

fn item(limits: &GroupLimits) -> MemoryItem {
    let GroupLimits { promise: Promise { min, low }, high, max, weight } = *limits;
    MemoryItem { min, low, high, max, weight }
}
