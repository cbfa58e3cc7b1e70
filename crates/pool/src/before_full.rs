//! What the pool does before it says that it is full (R22).
//!
//! Problem.  Space that a user has given up is not free at once. What was freed is allocatable two
//!           commits later, and when the last reader has let go of it (R3). Edits take less than
//!           was held for them, which shows when they are flushed. And a deleted snapshot only
//!           leaves work: its space is free when the layer above has found out, step by step,
//!           that no other snapshot has it.
//! Idea.     A refusal waits for each of these, from the cheapest to the dearest, and asks again
//!           in between.
//!
//! FULL-B1  A request is refused only when nothing is on its way and the layer above has nothing to
//!          free, or when a bound of time is over.
//! FULL-B2  The steps of the layer above ask for space themselves, with [`Tier::FinishSubvolume`];
//!          for that tier and those below no step is waited for.
//! FULL-B3  No commit is made out of the part of the log that trims it: a user who asks again and
//!          again for space that is not there would use that up.

use std::sync::Arc;
use std::time::Duration;

use copyhold_space::{Reservation, Tier};
use copyhold_types::Nanos;

use crate::{Pool, PoolError, Sabotage};

/// How long space that readers hold back is waited for, and how often it is looked at.
const READERS_PATIENCE: Duration = Duration::from_secs(2);
const READERS_STEP: Duration = Duration::from_millis(5);
const READERS_STEP_MAX: Duration = Duration::from_millis(320);
/// How long steps are taken that may free nothing: what a deleted snapshot shares with others is
/// walked, too.
const STEPS_PATIENCE: Duration = Duration::from_secs(30);

impl Pool {
    /// Promises `blocks` blocks; before it refuses, it waits for space that is on its way.
    pub async fn reserve(
        self: &Arc<Self>,
        blocks: u64,
        tier: Tier,
    ) -> Result<Reservation, PoolError> {
        self.check_writable()?;
        let tier = self.tier(tier);
        for attempt in 0..3 {
            match self.space.reserve(blocks, tier) {
                Ok(reservation) => return Ok(reservation),
                Err(full) if self.sabotaged(Sabotage::RefuseAtOnce) => return Err(full.into()),
                Err(_) => {}
            }
            if attempt == 1 {
                // What it could not flush is no reason to refuse: there may be enough now.
                if let Err(error) = self.flush_all().await {
                    self.check_writable()?;
                    tracing::error!("flushing for space: {error}");
                }
            }
            self.hasten_frees().await?;
        }
        self.wait_for_space(blocks, tier).await
    }

    /// Takes steps of the layer above until enough is on its way, and waits for the readers of
    /// that. Where writes wait for the host, waits at least as long as they do.
    async fn wait_for_space(
        self: &Arc<Self>,
        blocks: u64,
        tier: Tier,
    ) -> Result<Reservation, PoolError> {
        let after = |patience: Duration| self.rt.now() + patience.as_nanos() as Nanos;
        let steps_until = after(STEPS_PATIENCE);
        let mut patience = after(READERS_PATIENCE);
        let mut pause = READERS_STEP;
        loop {
            self.release_deferred();
            if self.host.writes_wait() {
                patience = after(READERS_PATIENCE);
            }
            let full = match self.space.reserve(blocks, tier) {
                Ok(reservation) => return Ok(reservation),
                Err(full) => full,
            };
            let is_over = full.on_the_way == 0 || self.rt.now() > patience;
            let is_enough = full.on_the_way >= self.space.missing(blocks, tier);
            let may_step = (is_over || !is_enough) && self.rt.now() < steps_until;
            if may_step && self.free_some(tier).await {
                self.check_writable()?;
                patience = after(READERS_PATIENCE);
                pause = READERS_STEP;
                continue;
            }
            if is_over {
                return Err(full.into());
            }
            self.rt.sleep(pause).await;
            pause = (pause * 2).min(READERS_STEP_MAX);
            self.hasten_frees().await?;
            self.check_writable()?;
        }
    }

    /// One step of the layer above (FULL-B2). Whether it did anything.
    async fn free_some(&self, tier: Tier) -> bool {
        let steps_ask = matches!(tier, Tier::FinishSubvolume | Tier::Internal);
        if steps_ask || self.sabotaged(Sabotage::RefuseBeforeDeletions) {
            return false;
        }
        let tenancy = self.tenancy();
        tenancy.free_some().await
    }

    /// Commits twice, so that what was freed until now is allocatable if nobody reads it (FULL-B3).
    async fn hasten_frees(self: &Arc<Self>) -> Result<(), PoolError> {
        for _ in 0..2 {
            if !self.is_full() {
                self.commit_empty().await?;
            }
        }
        Ok(())
    }
}
