//! Waiting for space before a request is refused (R22).
//!
//! Problem.  Released space is not allocatable at once. Freed blocks are allocatable two commits
//!           later, when no reader pins them (R3). Edits reserve more than they need until they are
//!           flushed. A deleted snapshot is freed in steps, by the layer above.
//! Idea.     Do the cheapest of these first, and try the reservation again after each.
//!
//! FULL-B1  A request is refused only when no freed space is pending and the layer above has no
//!          step that succeeds, or when its time limit is over.
//! FULL-B2  The steps reserve space with [`Tier::FinishSubvolume`]. Requests of that tier and of
//!          [`Tier::Internal`] take no steps: a step would wait for itself. Nor does the reaper
//!          ([`Tier::FinishDelete`]), which others wait for and which tries again.
//! FULL-B3  While the log is above its limit, no commit is made for space: repeated requests would
//!          use up the part of the ring that trimming needs.
//! FULL-B4  A request that waits here reserves no log space, for which a step may wait.

use std::sync::Arc;
use std::time::Duration;

use copyhold_runtime::yield_now;
use copyhold_space::{NoSpace, Reservation, Tier, Wanted};
use copyhold_types::Nanos;

use crate::{Pool, PoolError, Sabotage, loads};

/// How long a request waits for readers that pin freed space, since the last step.
const READERS_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two attempts: the first, and the longest.
const READERS_STEP: Duration = Duration::from_millis(5);
const READERS_STEP_MAX: Duration = Duration::from_millis(320);
/// How long one request takes steps of the layer above. A step may free nothing: the walk also
/// visits nodes that other snapshots share.
const STEPS_PATIENCE: Duration = Duration::from_secs(30);

/// A step that finds nothing to do takes less, unless another is under way.
const WAITED: Nanos = 1_000_000;

impl Pool {
    /// Reserves blocks; before it refuses, it waits for space that is being freed.
    pub async fn reserve(
        self: &Arc<Self>,
        wanted: impl Into<Wanted>,
        tier: Tier,
    ) -> Result<Reservation, PoolError> {
        self.check_writable()?;
        let request = Request { pool: self, wanted: wanted.into(), tier: self.tier(tier) };
        match request.at_once() {
            Some(reservation) => Ok(reservation),
            // In a box, so that a request that does not wait is small.
            None => Box::pin(request.serve()).await,
        }
    }
}

/// A reservation that is wanted.
struct Request<'p> {
    pool: &'p Arc<Pool>,
    wanted: Wanted,
    tier: Tier,
}

impl Request<'_> {
    async fn serve(&self) -> Result<Reservation, PoolError> {
        for attempt in 0..3 {
            match self.load_and_attempt().await {
                Ok(reservation) => return Ok(reservation),
                Err(full) if self.pool.sabotaged(Sabotage::RefuseAtOnce) => return Err(full.into()),
                Err(_) => {}
            }
            if attempt == 1 {
                self.flush().await?;
            }
            self.hasten_frees().await?;
        }
        self.wait().await
    }

    /// The reservation, if it needs no wait.
    fn at_once(&self) -> Option<Reservation> {
        let may_wait = self.pool.sabotaged(Sabotage::GrantUnloaded)
            || self.pool.space.wants_map(self.wanted, self.tier);
        if may_wait { None } else { self.attempt().ok() }
    }

    async fn load_and_attempt(&self) -> Result<Reservation, NoSpace> {
        if self.pool.sabotaged(Sabotage::GrantUnloaded) && self.missing() == 0 {
            return self.pool.space.reserve(self.wanted, Tier::Internal);
        }
        let _loading = loads::load_for(self.pool, self.wanted, self.tier).await;
        self.attempt()
    }

    fn attempt(&self) -> Result<Reservation, NoSpace> {
        self.pool.space.reserve(self.wanted, self.tier)
    }

    fn missing(&self) -> u64 {
        self.pool.space.missing(self.wanted, self.tier)
    }

    fn now(&self) -> Nanos {
        self.pool.rt.now()
    }

    fn after(&self, patience: Duration) -> Nanos {
        self.now() + patience.as_nanos() as Nanos
    }

    /// Takes steps of the layer above until enough freed space is pending, then waits for the
    /// readers that pin it. While writes wait for the host, the wait for readers does not end.
    async fn wait(&self) -> Result<Reservation, PoolError> {
        let steps_until = self.after(STEPS_PATIENCE);
        let (mut patience, mut pause) = (self.after(READERS_PATIENCE), READERS_STEP);
        let mut unflushed_steps = false;
        loop {
            self.pool.release_deferred();
            if self.pool.host.writes_wait() {
                patience = self.after(READERS_PATIENCE);
            }
            let before = match self.load_and_attempt().await {
                Ok(reservation) => return Ok(reservation),
                Err(full) => full,
            };
            let wants_step = before.on_the_way < self.missing() || self.now() > patience;
            if wants_step && self.now() < steps_until {
                let since = self.now();
                let stepped = self.free_step().await;
                // It may have waited for steps of others.
                unflushed_steps |= stepped || self.now() - since > WAITED;
                if stepped {
                    (patience, pause) = (self.after(READERS_PATIENCE), READERS_STEP);
                    yield_now().await;
                    continue;
                }
            }
            self.pool.check_writable()?;
            // The last step may have been another task's, for which this one has waited.
            let full = match self.attempt() {
                Ok(reservation) => return Ok(reservation),
                Err(full) => full,
            };
            if full.on_the_way > before.on_the_way {
                patience = self.after(READERS_PATIENCE);
            }
            let is_over = full.on_the_way == 0 || self.now() > patience;
            if is_over && std::mem::take(&mut unflushed_steps) {
                // The edits of steps take less than their reservation, too.
                self.flush().await?;
            } else if is_over && self.missing() > 0 {
                // LOADS-M3
                return Err(full.into());
            } else {
                self.pool.rt.sleep(pause).await;
                pause = (pause * 2).min(READERS_STEP_MAX);
            }
            self.hasten_frees().await?;
            self.pool.check_writable()?;
        }
    }

    /// A failed flush is no reason to refuse: there may be enough space now.
    async fn flush(&self) -> Result<(), PoolError> {
        if let Err(error) = self.pool.flush_all().await {
            self.pool.check_writable()?;
            tracing::error!("flushing for space: {error}");
        }
        Ok(())
    }

    /// One step of the layer above (FULL-B2). Returns whether it did anything.
    async fn free_step(&self) -> bool {
        let is_own =
            matches!(self.tier, Tier::FinishDelete | Tier::FinishSubvolume | Tier::Internal);
        if is_own || self.pool.sabotaged(Sabotage::RefuseBeforeDeletions) {
            return false;
        }
        let tenancy = self.pool.tenancy();
        tenancy.free_step().await
    }

    /// Commits twice, so that all blocks freed until now are allocatable if no reader pins them
    /// (FULL-B3).
    async fn hasten_frees(&self) -> Result<(), PoolError> {
        for _ in 0..2 {
            if !self.pool.is_full() {
                self.pool.commit_empty().await?;
            }
        }
        Ok(())
    }
}
