//! Changes of the limits of a subvolume's memory.

use copyhold_format::item::MemoryItem;
use copyhold_memory::GroupLimits;
use copyhold_pool::{Tier, Transaction};
use copyhold_types::{Key, Txg};

use crate::error::Result;
use crate::limits;
use crate::volumes::{Subvol, Volumes};

/// Changes the limits of a living subvolume; the defaults need no record.
pub async fn set_memory_limits(
    volumes: &Volumes,
    subvol: &Subvol,
    limits: &GroupLimits,
) -> Result<Txg> {
    let credit = volumes.pool().admit(Tier::Change, 1, Key::BYTES + MemoryItem::BYTES).await?;
    // No rollback nor deletion meanwhile.
    let _still = subvol.family.write_tree();
    subvol.check_live()?;
    let mut tx = Transaction::new();
    limits::put(&mut tx, subvol.id(), limits);
    let txg = volumes.pool().apply(credit, tx)?;
    subvol.owner().set_limits(limits);
    Ok(txg)
}
