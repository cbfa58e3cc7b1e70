//! The limits of subvolumes' memory, as records and in memory.
//!
//! LIMITS-M1  Only a living subvolume has a record: the transaction that deletes one deletes it.
//! LIMITS-M2  A rollback gives the limits to the state that takes the place. A snapshot has none of
//!            its source's: limits are for those who use a subvolume, not for what is in it.

use copyhold_format::item::{MemoryItem, memory_key};
use copyhold_memory::{GroupLimits, Promise};
use copyhold_pool::{Credit, Pool, Tier, Transaction};
use copyhold_types::{Key, SubvolId, Txg};

use crate::error::Result;
use crate::volumes::{Subvol, Volumes};

/// Changes the limits of a living subvolume; the defaults need no record.
pub async fn set_memory_limits(
    volumes: &Volumes,
    subvol: &Subvol,
    limits: &GroupLimits,
) -> Result<Txg> {
    let credit = admit(volumes).await?;
    // No rollback nor deletion meanwhile.
    let _still = subvol.family.write_tree();
    subvol.check_live()?;
    let mut tx = Transaction::new();
    put(&mut tx, subvol.id(), limits);
    let txg = volumes.pool().apply(credit, tx)?;
    subvol.owner().set_limits(limits);
    Ok(txg)
}

async fn admit(volumes: &Volumes) -> Result<Credit> {
    Ok(volumes.pool().admit(Tier::Change, 1, Key::BYTES + MemoryItem::BYTES).await?)
}

fn put(tx: &mut Transaction, subvol: SubvolId, limits: &GroupLimits) {
    let item = item(limits);
    match item == MemoryItem::default() {
        true => tx.delete(Pool::SYSTEM, memory_key(subvol)),
        false => tx.put(Pool::SYSTEM, memory_key(subvol), &item.encode()[..]),
    }
}

/// The subvolume `new` takes the place of `old` (LIMITS-M2).
pub(crate) fn copy(tx: &mut Transaction, old: &Subvol, new: SubvolId) {
    let limits = old.owner().limits();
    if limits != GroupLimits::default() {
        put(tx, new, &limits);
    }
}

/// A subvolume that is being deleted has none (LIMITS-M1).
pub(crate) fn forget(tx: &mut Transaction, subvol: &Subvol) {
    if subvol.owner().limits() != GroupLimits::default() {
        tx.delete(Pool::SYSTEM, memory_key(subvol.id()));
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
