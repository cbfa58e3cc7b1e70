//! Background work: pending releases, records of owners that are over, and deletions, in steps.
//!
//! Problem.  A task at its pace takes steps, and so does a request that lacks space; `subvolume
//!           sync` and tests take all. Each wants other steps, and no two may take one at once.
//! Idea.     A [`Worker`] is the right to take steps. It chooses the next step, and each
//!           kind of step is a function elsewhere.
//!
//! STEPS-B1  There is one worker at a time.
//! STEPS-B2  Pending releases come before deletions, which wait for them.
//! STEPS-B3  The task and a request that lacks space skip a step that is refused space, as a later
//!           one may free some. The task counts refusals, since each takes commits and a flush.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use copyhold_pool::PoolError;
use copyhold_runtime::FifoMutexGuard;
use futures_util::future::{Either, select};

use crate::error::{Result, VolumeError};
use crate::family::FamilyId;
use crate::pace::{Load, Pace};
use crate::quota::GroupId;
use crate::sabotage::Sabotage;
use crate::volumes::{Subvol, Volumes};

/// How long a request waits for the step of another.
const WORKER_PATIENCE: Duration = Duration::from_secs(10);
/// Deletions that one step tries although each is refused space.
const REFUSALS_MAX: usize = 8;
/// How often background work is looked for when there was none.
const IDLE: Duration = Duration::from_millis(100);

impl Volumes {
    /// Works in the background until the pool is closed or stopped, at its pace (`pace`).
    pub fn begin_background(self: &Arc<Self>) {
        let (rt, weak) = (self.pool.runtime().clone(), Arc::downgrade(self));
        self.pool.runtime().spawn(Box::pin(async move {
            let mut pace = Pace::default();
            loop {
                match background(&weak, &mut pace).await {
                    Some(Duration::ZERO) => copyhold_runtime::yield_now().await,
                    Some(rest) => rt.sleep(rest).await,
                    None => return,
                }
            }
        }));
    }

    /// One bounded step of waiting work; a step of each deletion that may go on. Whether there was
    /// anything to do.
    pub async fn background_step(&self) -> Result<bool> {
        Worker::of(self).await.step_of_all().await
    }

    /// Works until nothing is left to do now; for tests, and for calls that wait for deletions.
    pub async fn finish_background(&self) -> Result<()> {
        while self.background_step().await? {}
        Ok(())
    }

    /// Takes one step that may free space. False: nothing is left to do, or the step failed.
    pub async fn free_step(&self) -> bool {
        match Worker::in_time(self).await {
            Some(worker) => has_done(worker.step_of_one().await),
            None => false,
        }
    }

    /// Takes one step that may free space which counts in this group: of pending releases, or of a
    /// deletion that pays into it or is in the way of one. False: nothing is left to do for the
    /// group, or the step failed.
    pub async fn free_step_for(&self, group: GroupId) -> bool {
        match Worker::in_time(self).await {
            Some(worker) => has_done(worker.step_for(group).await),
            None => false,
        }
    }
}

/// The right to take steps (STEPS-B1).
struct Worker<'v> {
    volumes: &'v Volumes,
    _working: FifoMutexGuard<'v>,
}

impl<'v> Worker<'v> {
    async fn of(volumes: &'v Volumes) -> Worker<'v> {
        Worker::new(volumes, volumes.state.working.lock().await)
    }

    /// `None`: a step of another takes too long.
    async fn in_time(volumes: &'v Volumes) -> Option<Worker<'v>> {
        let late = volumes.pool.runtime().sleep(WORKER_PATIENCE);
        match select(pin!(volumes.state.working.lock()), late).await {
            Either::Left((working, _)) => Some(Worker::new(volumes, working)),
            Either::Right(_) => None,
        }
    }

    fn new(volumes: &'v Volumes, working: FifoMutexGuard<'v>) -> Worker<'v> {
        let worker = Worker { volumes, _working: working };
        worker.retry_if_due();
        worker
    }

    /// Retries work that damage stopped, once the pause is over (`aside`).
    fn retry_if_due(&self) {
        let volumes = self.volumes;
        let now = volumes.pool.runtime().now();
        if volumes.state.aside.lock().take_retry(now) {
            volumes.state.map.write().dying.retry_all();
        }
    }

    async fn step_of_all(&self) -> Result<bool> {
        if self.volumes.pending_step().await? || self.volumes.sweep_step().await? {
            return Ok(true);
        }
        let mut any = false;
        for subvol in self.deletions() {
            any |= self.step_of(&subvol).await?;
        }
        Ok(any)
    }

    /// As [`Self::step_of_all`], but of one deletion only: each time of another one. A step that is
    /// refused space is skipped (STEPS-B3).
    async fn step_of_one(&self) -> Result<bool> {
        let volumes = self.volumes;
        let mut refused = None;
        if skip_if_full(volumes.pending_step().await, &mut refused)?
            || skip_if_full(volumes.sweep_step().await, &mut refused)?
        {
            return Ok(true);
        }
        let ready = volumes.state.map.read().dying.ready_len();
        let mut refusals = 0;
        for _ in 0..ready {
            let next = {
                let mut map = volumes.state.map.write();
                map.dying.next().and_then(|id| map.subvols.get(id).cloned())
            };
            let Some(subvol) = next else { continue };
            let mut full = None;
            if skip_if_full(self.step_of(&subvol).await, &mut full)? {
                return Ok(true);
            }
            // The next step begins with the next deletion.
            refusals += usize::from(full.is_some());
            refused = full.or(refused);
            if refusals == REFUSALS_MAX {
                break;
            }
        }
        refused.map_or(Ok(false), Err)
    }

    async fn step_for(&self, group: GroupId) -> Result<bool> {
        let mut refused = None;
        if skip_if_full(self.volumes.pending_step().await, &mut refused)? {
            return Ok(true);
        }
        for of in self.deletions_for(group) {
            if skip_if_full(self.step_of(&of).await, &mut refused)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn step_of(&self, subvol: &Subvol) -> Result<bool> {
        match self.volumes.deletion_step(subvol).await {
            Ok(done) => Ok(done),
            Err(error) => self.step_failed(subvol, error),
        }
    }

    /// Stops a damaged deletion until the next retry; other deletions continue.
    fn step_failed(&self, subvol: &Subvol, error: VolumeError) -> Result<bool> {
        if !error.is_damage() {
            return Err(error);
        }
        tracing::error!("subvolume {} cannot be freed now: {error}", subvol.id());
        let state = &self.volumes.state;
        state.aside.lock().note_failure(self.volumes.pool.runtime().now());
        state.map.write().dying.stop(subvol.id());
        Ok(false)
    }

    /// The deletions that are ready (`queue`).
    fn deletions(&self) -> Vec<Arc<Subvol>> {
        let map = self.volumes.state.map.read();
        let together = self.volumes.ledger().breaks(Sabotage::DeleteTogether);
        let ids = if together { map.dying.all() } else { map.dying.ready() };
        ids.iter().filter_map(|id| map.subvols.get(*id).cloned()).collect()
    }

    /// The ready deletions of families in which a subvolume pays into this group: an extent is
    /// charged to its creator, and only its family refers to it; except for reflinks, whose
    /// references may be in any family.
    fn deletions_for(&self, group: GroupId) -> Vec<Arc<Subvol>> {
        let mut ready: Vec<Arc<Subvol>> = {
            let map = self.volumes.state.map.read();
            let ready = map.dying.ready().into_iter();
            ready.filter_map(|id| map.subvols.get(id).cloned()).collect()
        };
        if self.volumes.state.sharing.load(Ordering::Acquire) {
            return ready;
        }
        // Only their own families are looked at.
        let ledger = self.volumes.ledger();
        let mut pays: BTreeMap<FamilyId, bool> = BTreeMap::new();
        for of in &ready {
            // A deletion that has passed its leaf is in its family's place no more.
            *pays.entry(of.family.id).or_default() |= ledger.pays_into(of.id(), group);
        }
        ready.retain(|of| {
            let pays = pays.get_mut(&of.family.id).expect("each has been looked at");
            let has_payer =
                || of.family.read_tree().subvols().any(|id| ledger.pays_into(id, group));
            *pays = *pays || has_payer();
            *pays
        });
        ready
    }
}

/// Whether a step did anything; its error is logged.
fn has_done(step: Result<bool>) -> bool {
    step.unwrap_or_else(|error| {
        tracing::debug!(%error, "released space cannot be freed now");
        false
    })
}

/// Turns "pool is full" into "no step taken", and notes the error in `refused` (STEPS-B3).
fn skip_if_full(step: Result<bool>, refused: &mut Option<VolumeError>) -> Result<bool> {
    match step {
        Err(full @ VolumeError::Pool(PoolError::Full { .. })) => {
            *refused = Some(full);
            Ok(false)
        }
        step => step,
    }
}

/// A step, if there still is a pool to make it in; how long to rest before the next.
async fn background(volumes: &Weak<Volumes>, pace: &mut Pace) -> Option<Duration> {
    let volumes = volumes.upgrade()?;
    let rt = volumes.pool.runtime();
    let since = rt.now();
    let step = Worker::of(&volumes).await.step_of_one().await;
    match step {
        Ok(true) => {
            let took = rt.now().saturating_sub(since);
            let rest = pace.rest(took, load(&volumes));
            volumes.state.freeing.note(took, rest);
            Some(rest)
        }
        Ok(false) => Some(IDLE),
        Err(VolumeError::Pool(PoolError::Stopped { .. } | PoolError::ReadOnly { .. })) => None,
        Err(error) => {
            tracing::error!("freeing in the background: {error}");
            Some(IDLE)
        }
    }
}

fn load(volumes: &Volumes) -> Load {
    let pool = &volumes.pool;
    let space = pool.space();
    let (now, asked) = (pool.runtime().now(), pool.asked());
    Load { now, asked, blocks: space.total, available: space.available() }
}
