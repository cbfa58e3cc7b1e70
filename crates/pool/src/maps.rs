//! Space maps that cannot be read, and making them anew.
//!
//! A read error may pass. So a map is read several times when it is loaded (`loads`); if that
//! fails, its metaslab is set aside (`copyhold_space::Space::set_aside`). From then on a task reads
//! it again, after 1, 2, 4 … and at last every 64 seconds. A round waits for the first reads of a
//! map that it needs (LOADS-M1), never for these later ones; `flush_all` makes them itself, before
//! a pool is called full, too. A metaslab that has no map on disk is set aside if its edits
//! contradict each other. There is nothing to read then: no round waits, and no task reads. A map
//! whose copies are both damaged can be made anew by [`Pool::rebuild_map`] from the list of all
//! referenced blocks.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use copyhold_runtime::Rt;
use copyhold_space::MetaslabId;
use copyhold_types::Run;

use crate::admission::record_blocks;
use crate::round::Round;
use crate::units::{Aim, Unit};
use crate::{Pool, PoolError, Sabotage, loads};

/// Time from one read of the missing maps to the next, at first.
const RETRY: Duration = Duration::from_secs(1);
/// The time doubles after each read, up to this many [`RETRY`].
const RETRIES_APART: u32 = 64;
/// Edits without a map are logged again when the live log has at least this many times their
/// blocks, and where rounds are due anyway, at least the second.
const CARRY_FREES: u64 = 8;
const CARRY_FREES_IN_ROUNDS: u64 = 2;

/// Begins reading the missing maps again, if there are any and no task does.
pub(crate) fn begin_retries(pool: &Arc<Pool>) {
    let is_due = !pool.is_read_only() && waits_for_maps(pool);
    if is_due && !pool.nodes.loads.retrying.swap(true, Relaxed) {
        pool.rt.spawn(Box::pin(run(pool.rt.clone(), Arc::downgrade(pool))));
    }
}

/// Whether the map of a metaslab that is set aside may be read some time.
fn waits_for_maps(pool: &Pool) -> bool {
    pool.space.set_aside().into_iter().any(|id| pool.space.missing_map(id).is_some())
}

/// Reads maps that are missing, until there are none, or the pool is closed or stopped.
async fn run(rt: Rt, pool: Weak<Pool>) {
    let (mut pause, mut waited) = (1, 0);
    loop {
        // One [`RETRY`] at a time, so that the task ends soon after its pool.
        rt.sleep(RETRY).await;
        let Some(pool) = pool.upgrade() else { return };
        let is_over = pool.is_closing() || pool.check_writable().is_err();
        if is_over {
            return;
        }
        if !waits_for_maps(&pool) {
            pool.nodes.loads.retrying.store(false, Relaxed);
            // A map may have failed meanwhile.
            return begin_retries(&pool);
        }
        waited += 1;
        if waited == pause {
            pool.retry_maps().await;
            (pause, waited) = ((pause * 2).min(RETRIES_APART), 0);
        }
    }
}

impl Pool {
    /// Metaslabs set aside whose edits need not be logged again yet: another edit pins the log
    /// longer, or the log is too short for the little that this would free.
    pub(crate) fn not_due(&self) -> Vec<MetaslabId> {
        let mut aside = self.space.set_aside();
        if aside.is_empty() {
            return aside;
        }
        let (live, oldest) = (self.log_use().live_blocks, self.edits_pin());
        let frees = if self.wants_rounds() { CARRY_FREES_IN_ROUNDS } else { CARRY_FREES };
        aside.retain(|id| {
            let takes = record_blocks(self.space.carried_runs(*id), 0);
            live < frees * takes || self.pin_of(Unit::Metaslab(*id)) > oldest
        });
        aside
    }

    /// Tries once more to read the maps of metaslabs that are set aside.
    pub(crate) async fn retry_maps(&self) {
        for id in self.space.set_aside() {
            self.retry_map(id).await;
        }
    }

    async fn retry_map(&self, id: MetaslabId) {
        // A map is not freed while its metaslab is set aside, so the read needs no pin, which a
        // slow device would hold for long.
        let Some((stored, _)) = self.space.missing_map(id) else { return };
        let supplied = match self.nodes.read_map(&stored).await {
            _ if self.sabotaged(Sabotage::QuarantineOnError) => {
                let all = self.space.usable_runs(id);
                self.space.supply_runs(id, all, self.open_txg()).map_err(|e| e.to_string())
            }
            Ok(parts) => loads::parse(&parts).map_err(|error| error.to_string()).and_then(|map| {
                self.space.supply(id, &map, self.open_txg()).map_err(|error| error.to_string())
            }),
            Err(error) => Err(error.to_string()),
        };
        match supplied {
            Ok(true) => tracing::info!("the space map of {id} can be read again"),
            Ok(false) => {}
            Err(error) => tracing::warn!("the space map of {id} still cannot be read: {error}"),
        }
    }

    /// Makes the map of a metaslab that is set aside anew. `referred`: all referenced runs, at
    /// least those in this metaslab; they must not change meanwhile.
    ///
    /// # Errors
    /// The list contradicts the layout of the pool, or the map could not be written.
    pub async fn rebuild_map(
        self: &Arc<Self>,
        id: MetaslabId,
        referred: impl IntoIterator<Item = Run>,
    ) -> Result<(), PoolError> {
        self.check_writable()?;
        let wrong = |error: String| PoolError::damaged(format!("the space map of {id}"), error);
        let supplied = {
            // A round may be logging its edits again.
            let _rounds = self.flusher.rounds.lock().await;
            self.space.supply_runs(id, referred, self.open_txg())
        };
        if !supplied.map_err(|error| wrong(error.to_string()))? {
            return Ok(());
        }
        self.commit(self.open_txg()).await?;
        match self.flush_units(vec![Unit::Metaslab(id)], Aim::Settle).await? {
            Round { flushed: 1, .. } => Ok(()),
            Round { failed, .. } => {
                Err(failed.unwrap_or_else(|| wrong("the new one was not written".into())))
            }
        }
    }
}
