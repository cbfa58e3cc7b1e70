//! What a write was promised before it was accepted: blocks of the pool, and room under the limits
//! of whoever pays (R23). Both go with the dirty data until it is installed.

use copyhold_pool::{Credit, Pool, PoolError, Reservation, Tier};
use copyhold_types::BLOCK_BYTES;
use copyhold_volume::quota::{self, Hold, QuotaError, Request};
use std::sync::Arc;

use crate::subvol::Subvol;
use crate::{Filesystem, FsError, Result};

/// Steps of background work that an EDQUOT waits for.
const STEPS: usize = 64;

/// Blocks to be claimed, and the hold that they are charged to.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(crate) space: Reservation,
    pub(crate) hold: Hold,
}

/// Credit of a transaction, with the hold for what it adds to tables.
pub(crate) struct Charge {
    pub(crate) credit: Credit,
    pub(crate) hold: Hold,
}

impl From<Credit> for Charge {
    fn from(credit: Credit) -> Charge {
        Charge { credit, hold: Hold::nothing() }
    }
}

impl Promise {
    pub(crate) fn blocks(&self) -> u64 {
        self.space.blocks()
    }

    pub(crate) fn join(&mut self, other: Promise) {
        self.space.join(other.space);
        // One from before quotas were turned off and on again is given back.
        drop(self.hold.join(other.hold));
    }

    pub(crate) fn split(&mut self, blocks: u64) -> Promise {
        let hold = self.hold.split(data(blocks));
        Promise { space: self.space.split(blocks), hold }
    }
}

/// What a block of data adds to nodes, in two copies: an extent takes 11 to 25 bytes in a leaf.
const NODES_PER_BLOCK: u64 = 128;

/// What `blocks` blocks of data need.
pub(crate) fn data(blocks: u64) -> Request {
    let (data, metadata) = (blocks * BLOCK_BYTES as u64, blocks * NODES_PER_BLOCK);
    Request { data, metadata, ..Request::default() }
}

impl Filesystem {
    /// A promise of `blocks` blocks, if there is room for them at once.
    pub(crate) fn try_promise(&self, subvol: &Subvol, blocks: u64) -> Option<Promise> {
        let hold =
            self.volumes.ledger().hold(subvol.id(), data(blocks), quota::Tier::Write).ok()?;
        Some(Promise { space: self.pool.try_reserve(blocks, Tier::Write)?, hold })
    }

    /// A promise of `blocks` blocks. Before it is refused, what this filesystem could free is
    /// (R22).
    pub(crate) async fn promise(self: &Arc<Self>, subvol: &Subvol, blocks: u64) -> Result<Promise> {
        if let Some(promise) = self.try_promise(subvol, blocks) {
            return Ok(promise);
        }
        let tier = quota::Tier::Write;
        let hold = match self.hold(subvol, data(blocks), tier).await {
            Err(FsError::Quota(_)) => {
                self.free_what_is_pending().await;
                self.hold(subvol, data(blocks), tier).await.inspect_err(|error| {
                    tracing::info!(subvol = subvol.id().0, "{error}");
                })?
            }
            hold => hold?,
        };
        let space = match self.pool.reserve(blocks, Tier::Write).await {
            Err(PoolError::Full { .. }) => {
                self.free_what_is_pending().await;
                self.pool.reserve(blocks, Tier::Write).await?
            }
            other => other?,
        };
        Ok(Promise { space, hold })
    }

    /// Credit for a transaction of names and attributes, charged to its subvolume's owner.
    pub(crate) async fn charge(
        self: &Arc<Self>,
        subvol: &Subvol,
        tier: Tier,
        edits: usize,
        bytes: usize,
    ) -> Result<Charge> {
        let strict = match tier {
            Tier::Write => quota::Tier::Write,
            _ => quota::Tier::Tidy,
        };
        let wanted = Request::for_edits(edits, bytes);
        let hold = self.hold(subvol, wanted, strict).await.inspect_err(|error| {
            tracing::info!(subvol = subvol.id().0, "{error}");
        })?;
        Ok(Charge { credit: self.pool.admit(tier, edits, bytes).await?, hold })
    }

    async fn hold(
        self: &Arc<Self>,
        subvol: &Subvol,
        wanted: Request,
        tier: quota::Tier,
    ) -> Result<Hold> {
        let ledger = self.volumes.ledger();
        match ledger.hold(subvol.id(), wanted, tier) {
            Err(QuotaError::Exceeded(_)) => {}
            other => return Ok(other?),
        }
        // What was freed comes back, and edits take less than was held for them (R22). No lock of
        // an inode may be waited for: the caller has some.
        for _ in 0..STEPS {
            if !self.volumes.background_step().await? {
                break;
            }
        }
        settle_edits(&self.pool, subvol).await?;
        Ok(ledger.hold(subvol.id(), wanted, tier)?)
    }
}

/// Turns the estimate of a subvolume's unflushed edits into what they really take.
async fn settle_edits(pool: &Arc<Pool>, subvol: &Subvol) -> Result<()> {
    if pool.table(subvol.table()).unflushed_bytes() > 0 {
        pool.flush_edits_of(subvol.table()).await?;
    }
    Ok(())
}
