//! Births: the txg numbers that tags of blocks have.
//!
//! Problem.  A tuple agrees with its block even if the block is an old one: a write that the
//!           device lost does not show. Only a tag that no earlier content of the same place has
//!           tells them apart.
//! Idea.     The tag has the txg that was open when the block was written, and the extent's item
//!           says which. Freed space is allocatable two txgs later, so the next content has a
//!           later birth. Space that was written and is not needed waits as long.
//!
//! BIRTH-B1  Place and birth name one content. A claim of blocks with tags that is dropped, alone
//!           or with its transaction, is deferred, not free at once. Recovery continues at a txg of
//!           which the log has no trace.
//!           A mount writes no block with a tag before a batch of its own is durable: the next
//!           mount has later births, though this one may be killed before a block is installed.
//! BIRTH-B2  If a write fails, its claims become free at once: they are promised to its blocks
//!           (DIRTY-D2). That birth is spoiled: blocks that are written while its txg is open have
//!           their checksums in the item.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_format::item::ChecksumMode;
use copyhold_space::{Claim, Reservation};
use copyhold_types::Txg;

use crate::{Pool, PoolError, Sabotage};

/// Births of one pool.
#[derive(Debug, Default)]
pub(crate) struct Births {
    /// The newest txg that is spoiled.
    spoiled: AtomicU64,
    /// The newest txg that the mount found.
    found: AtomicU64,
}

/// The checksum mode of blocks that are written, and their birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMode {
    pub checksums: ChecksumMode,
    pub birth: u32,
}

impl Births {
    /// Of blocks that are written while `open` is the open txg.
    fn mode(&self, open: Txg, wanted: ChecksumMode, has_tags: bool) -> BlockMode {
        let has_tags = has_tags && self.spoiled.load(Relaxed) < open.get();
        BlockMode { checksums: wanted.on_device(has_tags), birth: birth_of(open) }
    }

    /// The newest txg of the log at the mount.
    pub(crate) fn begin(&self, found: Txg) {
        self.found.store(found.get(), Relaxed);
    }

    fn spoil(&self, open: Txg) {
        self.spoiled.fetch_max(open.get(), Relaxed);
    }
}

/// The mode of blocks whose space has just been claimed, by `claims`. Where the pool's device has
/// no tuples, modes that need them fall back to the item.
pub fn block_mode<'c>(
    pool: &Pool,
    wanted: ChecksumMode,
    claims: impl IntoIterator<Item = &'c mut Claim>,
) -> BlockMode {
    match wanted {
        ChecksumMode::Item => BlockMode::PLAIN,
        _ => {
            let has_tags = pool.device().protection().is_some() && has_trace(pool);
            let open = pool.open_txg();
            let mode = pool.data.births.mode(open, wanted, has_tags);
            if mode.has_tags() {
                claims.into_iter().for_each(|claim| claim.note_written(open));
            }
            match pool.sabotaged(Sabotage::NoBirth) {
                true => BlockMode { birth: 0, ..mode },
                false => mode,
            }
        }
    }
}

/// Makes tags possible, before space is claimed for blocks that want them. Once in each mount it
/// commits an empty batch, if there was none (BIRTH-B1).
pub async fn leave_trace(pool: &Arc<Pool>, wanted: ChecksumMode) -> Result<(), PoolError> {
    let wants_tags = BlockMode { checksums: wanted, birth: 0 }.has_tags();
    if !wants_tags || has_trace(pool) || pool.device().protection().is_none() {
        return Ok(());
    }
    Box::pin(pool.commit_empty()).await
}

/// Whether a batch of this mount is durable.
fn has_trace(pool: &Pool) -> bool {
    pool.durable_txg().get() > pool.data.births.found.load(Relaxed)
}

/// Releases a claim of which the writing has failed; its blocks stay reserved (BIRTH-B2).
pub fn cancel_written(pool: &Pool, claim: Claim, to: &mut Reservation) {
    pool.data.births.spoil(pool.open_txg());
    claim.cancel_into(to);
}

/// The birth of blocks that are written while `txg` is open.
pub fn birth_of(txg: Txg) -> u32 {
    txg.get() as u32
}

impl BlockMode {
    /// Nothing beside the blocks.
    pub const PLAIN: BlockMode = BlockMode { checksums: ChecksumMode::Item, birth: 0 };

    /// Whether blocks have tags beside them.
    pub fn has_tags(self) -> bool {
        matches!(self.checksums, ChecksumMode::Guard | ChecksumMode::Offload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spoiled_birth_is_given_to_no_block() {
        let births = Births::default();
        let txg = |number| Txg::new(number).unwrap();
        let at = |number| births.mode(txg(number), ChecksumMode::Guard, true);
        assert_eq!(at(7), BlockMode { checksums: ChecksumMode::Guard, birth: 7 });
        births.spoiled.store(7, Relaxed);
        assert_eq!(at(7).checksums, ChecksumMode::Item, "BIRTH-B2");
        assert_eq!(at(8).checksums, ChecksumMode::Guard);
        let none = births.mode(txg(7), ChecksumMode::None, true);
        assert_eq!(none.checksums, ChecksumMode::None, "needs no birth");
    }

    #[test]
    fn a_birth_is_the_low_half_of_a_txg() {
        assert_eq!(birth_of(Txg::new((1 << 32) + 5).unwrap()), 5);
    }
}
