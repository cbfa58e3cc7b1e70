//! Changes of the limits of memory groups.

use copyhold_format::item::{MemoryItem, SHARED_MEMORY};
use copyhold_format::label::Features;
use copyhold_memory::{GroupLimits, MemoryOwner};
use copyhold_pool::{Credit, Tier, Transaction, use_features};
use copyhold_types::{Key, Txg};

use crate::error::Result;
use crate::limits;
use crate::volumes::{Subvol, Volumes};

/// A group with limits.
#[derive(Clone, Copy)]
pub enum MemoryGroup<'a> {
    Of(&'a Subvol),
    /// The owner of objects that belong to no single subvolume.
    Shared,
}

impl MemoryGroup<'_> {
    pub fn owner(self, volumes: &Volumes) -> MemoryOwner {
        match self {
            MemoryGroup::Of(subvol) => subvol.owner().clone(),
            MemoryGroup::Shared => volumes.pool().memory().shared().clone(),
        }
    }
}

/// Changes the limits of the shared group, or of a living subvolume; the defaults need no record.
///
/// # Errors
/// The subvolume is being deleted, the pool is read-only, or the change promises more than there
/// is.
pub async fn change_memory_limits(
    volumes: &Volumes,
    group: MemoryGroup<'_>,
    change: impl Fn(&GroupLimits) -> GroupLimits,
) -> Result<Txg> {
    let (pool, owner) = (volumes.pool(), group.owner(volumes));
    let check = || {
        let new = change(&owner.limits());
        pool.memory().check_limits(&owner, &new).map(|()| new)
    };
    pool.check_writable()?;
    if check()? != GroupLimits::default() {
        let ro_compat = Features::MEMORY_LIMITS;
        use_features(pool, Features { ro_compat, ..Features::default() }).await?;
    }
    let credit = pool.admit(Tier::Change, 1, Key::BYTES + MemoryItem::BYTES).await?;
    let apply = |credit: Credit, id| {
        // One change at a time: each is judged by the limits of all others.
        let _others = volumes.state.owners.lock();
        let new = check()?;
        let mut tx = Transaction::new();
        limits::put(&mut tx, id, &new);
        let txg = pool.apply(credit, tx)?;
        owner.set_limits(&new);
        Ok(txg)
    };
    match group {
        MemoryGroup::Of(subvol) => {
            // No rollback nor deletion meanwhile.
            let _still = subvol.family.write_tree();
            subvol.check_live()?;
            apply(credit, subvol.id())
        }
        MemoryGroup::Shared => apply(credit, SHARED_MEMORY),
    }
}
