//! Admission: log, memory and metadata space for a transaction, before it joins (rules R1, R20,
//! R21).
//!
//! Every edit in memory will be flushed, and that takes space: its own bytes in some leaf, in two
//! copies, at the leaf's fill. This *growth* is reserved when the edit is admitted and released
//! when the edit has reached a base. A merge may need far more, if leaves are shared with
//! snapshots and free nothing; it is made if users' space suffices for that, and else the edits
//! become a layer, which takes the reserved space: its bytes, and for each partition with edits
//! one block more in two copies. Space that a flush needs temporarily (new nodes before the old
//! ones are free) comes out of the reserve, which user transactions cannot touch.
//!
//! ADMIT-A1  User transactions are admitted while the log is below its limit; flushes, ids and all
//!           other trimming use the rest of the ring. Admitted records that are not yet logged
//!           count, too (`log_room`).
//! ADMIT-A2  The reserved growth covers every edit that is in no base. An edit that replaces
//!           another has reserved growth of its own: each commit and each flush release the
//!           excess, so an idle pool keeps none of it.
//! ADMIT-A4  A transaction uses at most the growth that its credit holds. The pool counts those
//!           that use more; the simulation allows none. (LOGROOM-A3 is in `log_room`.)

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};

use copyhold_space::{Reservation, Space, Tier};
use copyhold_sync::{Mutex, of};
use copyhold_table::{EDIT_BYTES, Weight};
use copyhold_types::{BLOCK_BYTES, Nanos, Purpose};

use crate::edit_parts::EditParts;
use crate::log_room::{self, LogRoom, Room};
use crate::nodes::COPIES;
use crate::transaction::Credit;
use crate::{Pool, PoolError, Sabotage};

/// Bytes that an edit takes in a leaf beside its value, and the worst fill of leaves.
const EDIT_OVERHEAD: u64 = 16;
const WORST_FILL: u64 = 3;
/// Key and value of an edit that takes no more memory than any other: a value in place is at most
/// 38 bytes, a key 17.
const SHORT_EDIT_BYTES: usize = 56;
/// Blocks of the smallest layer.
const LAYER_BLOCKS: u64 = COPIES;

#[derive(Debug, Default)]
pub(crate) struct Admission {
    growth: Mutex<Growth, of::Growth>,
    /// For the layers of partitions with edits.
    layers: Mutex<Option<Reservation>, of::LayerSpace>,
    waiters: Mutex<Vec<Waker>, of::AdmissionWaiters>,
    room: Arc<Room>,
    pub(crate) tickets: AtomicU64,
    /// Admissions so far, except those of transactions that free deleted data.
    asked: AtomicU64,
    /// Transactions that used more growth than their credit held (ADMIT-A4).
    overdrawn: AtomicU64,
    pub(crate) parts: EditParts,
}

#[derive(Debug, Default)]
struct Growth {
    /// Bytes of growth of edits that are in no base.
    bytes: u64,
    held: Option<Reservation>,
}

impl Growth {
    fn blocks(bytes: u64) -> u64 {
        bytes.div_ceil(BLOCK_BYTES as u64)
    }

    fn held_blocks(&self) -> u64 {
        self.held.as_ref().map_or(0, Reservation::blocks)
    }
}

/// Bytes by which tables may grow on disk from `edits` edits of `bytes` bytes.
pub(crate) fn growth_of(edits: usize, bytes: usize) -> u64 {
    (bytes as u64 + edits as u64 * EDIT_OVERHEAD) * COPIES * WORST_FILL
}

/// An upper bound of the growth of edits in memory.
fn growth_of_unflushed(weight: Weight) -> u64 {
    let [edits, bytes] = [weight.edits, weight.bytes].map(|n| n.max(0) as usize);
    growth_of(edits, bytes.saturating_sub(edits * (EDIT_BYTES - SHORT_EDIT_BYTES)))
}

/// Blocks that `edits` edits of `bytes` bytes take in the log, before it is compressed.
pub(crate) fn record_blocks(edits: usize, bytes: usize) -> u64 {
    log_room::blocks_of(bytes as u64 + edits as u64 * EDIT_OVERHEAD)
}

/// Makes `held` hold so many blocks.
fn hold(held: &mut Option<Reservation>, space: &Space, blocks: u64) {
    let have = held.as_ref().map_or(0, Reservation::blocks);
    match held {
        Some(held) if blocks < have => held.give_back(have - blocks),
        _ => {
            let Ok(more) = space.reserve(blocks - have, Tier::Internal) else { return };
            match held {
                Some(held) => held.join(more),
                None => *held = Some(more),
            }
        }
    }
}

impl Admission {
    /// `delta_bytes`: the limit of edits in memory.
    pub(crate) fn new(delta_bytes: u64) -> Admission {
        Admission { parts: EditParts::new(delta_bytes), ..Admission::default() }
    }

    /// Edits have reached a base: keeps as much growth as the edits that are `left` may need, by
    /// their bytes. A share of all growth would not do: a flush of many small edits would release
    /// the growth of a few large ones.
    pub(crate) fn settled(&self, left: impl FnOnce() -> Weight) {
        let mut growth = self.growth.lock();
        // Looked at under the lock: an edit is counted before its growth comes here.
        growth.bytes = growth.bytes.min(growth_of_unflushed(left()));
        let keep = Growth::blocks(growth.bytes);
        let spare = growth.held_blocks().saturating_sub(keep);
        if let Some(held) = &mut growth.held {
            held.give_back(spare);
        }
    }

    /// A count of users' admissions.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// Blocks that are reserved for the growth of so large a share of all unflushed edits.
    pub(crate) fn promised(&self, share: f64) -> u64 {
        (self.growth.lock().held_blocks() as f64 * share.clamp(0.0, 1.0)) as u64
    }

    /// So many partitions have edits now. Their transactions were admitted, so this is not
    /// refused; the next transaction finds less.
    pub(crate) fn are_dirty(&self, space: &Space, partitions: impl FnOnce() -> u64) {
        let mut layers = self.layers.lock();
        hold(&mut layers, space, partitions() * LAYER_BLOCKS);
    }

    /// The flusher wakes this task when it has looked for units again.
    pub(crate) fn wake_later(&self, waker: &Waker) {
        self.waiters.lock().push(waker.clone());
    }

    /// Whether a caller waits for rounds.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiters.lock().is_empty()
    }

    pub(crate) fn wake(&self) {
        std::mem::take(&mut *self.waiters.lock()).into_iter().for_each(Waker::wake);
        self.room.wake();
    }

    fn take(&self, growth: Growth) {
        let mut mine = self.growth.lock();
        mine.bytes += growth.bytes;
        match (&mut mine.held, growth.held) {
            (Some(held), Some(more)) => held.join(more),
            (held @ None, more) => *held = more,
            (Some(_), None) => {}
        }
    }
}

impl Pool {
    /// Obtains the credit for a transaction of at most `edits` edits and `bytes` bytes of keys and
    /// values. Waits while log or deltas are at their limit, and for space that is being freed.
    pub fn admit(
        self: &Arc<Self>,
        tier: Tier,
        edits: usize,
        bytes: usize,
    ) -> impl Future<Output = Result<Credit, PoolError>> + Send {
        self.admit_freeing(tier, edits, bytes, 0)
    }

    /// As [`Self::admit`], of a transaction that also frees so many runs, which takes room in the
    /// log only.
    pub async fn admit_freeing(
        self: &Arc<Self>,
        tier: Tier,
        edits: usize,
        bytes: usize,
        runs: usize,
    ) -> Result<Credit, PoolError> {
        self.check_writable()?;
        self.note_asked(tier);
        if let Some(credit) = self.admit_now(tier, edits, bytes, runs) {
            return Ok(credit);
        }
        let since = self.rt.now();
        let grows = growth_of(edits, bytes);
        let blocks = record_blocks(edits + runs, bytes);
        // Space first: its steps ask for room themselves, and no request that has room waits for
        // them. The internal tier waits for no space; its room bounds the growth that it holds.
        let early = match tier {
            Tier::Internal => Some(self.wait_for_room(blocks).await?),
            _ => None,
        };
        let held = match self.grow(grows, tier) {
            Some(held) => held,
            // In a box: few requests come here, and all have the memory for it.
            None => Box::pin(self.reserve(Growth::blocks(grows), tier)).await?,
        };
        let room = match early {
            Some(room) => room,
            None => self.wait_for_room(blocks).await?,
        };
        let waited = self.rt.now().saturating_sub(since);
        Ok(self.credit(grows, held, room, waited))
    }

    fn credit(&self, bytes: u64, growth: Reservation, room: LogRoom, waited: Nanos) -> Credit {
        Credit { bytes, growth: Some(growth), room, waited, ticket: self.join_first() }
    }

    fn admit_now(&self, tier: Tier, edits: usize, bytes: usize, runs: usize) -> Option<Credit> {
        if self.is_full() {
            return None;
        }
        let room = self.room_now(record_blocks(edits + runs, bytes))?;
        let grows = growth_of(edits, bytes);
        Some(self.credit(grows, self.grow(grows, tier)?, room, 0))
    }

    /// Room in the log for records that are not there yet (LOGROOM-A3).
    fn room_now(&self, blocks: u64) -> Option<LogRoom> {
        let is_short = || !self.is_log_full() || self.sabotaged(Sabotage::AdmitAboveLimit);
        self.admission.room.take(blocks, is_short, |largest| self.journal.room(largest))
    }

    /// As [`Self::admit_freeing`], but never waits: `None` when it would have to.
    pub fn try_admit_freeing(
        &self,
        tier: Tier,
        edits: usize,
        bytes: usize,
        runs: usize,
    ) -> Option<Credit> {
        self.check_writable().ok()?;
        self.note_asked(tier);
        self.admit_now(tier, edits, bytes, runs)
    }

    fn note_asked(&self, tier: Tier) {
        if tier != Tier::FinishSubvolume {
            self.admission.asked.fetch_add(1, Relaxed);
        }
    }

    /// A count of users' requests: transactions, except those that free deleted data, and data
    /// reads from the device. Background tasks derive from it whether the pool is idle.
    pub fn asked(&self) -> u64 {
        let reads = self.devices.counters().purposes[Purpose::Data as usize].reads;
        self.admission.asked() + reads
    }

    /// Transactions that used more growth than their credit held since the pool was opened: none,
    /// unless an estimate is wrong (ADMIT-A4).
    pub fn overdrawn(&self) -> u64 {
        self.admission.overdrawn.load(Relaxed)
    }

    fn grow(&self, bytes: u64, tier: Tier) -> Option<Reservation> {
        self.space.reserve(Growth::blocks(bytes), self.tier(tier)).ok()
    }

    /// Whether user transactions have to wait for a flush.
    pub(crate) fn is_full(&self) -> bool {
        self.pressure() > 1.0
    }

    /// Waits until the log is below its limit, and for room in it.
    async fn wait_for_room(self: &Arc<Self>, blocks: u64) -> Result<LogRoom, PoolError> {
        self.wait_for_flush().await?;
        if let Some(room) = self.room_now(blocks) {
            return Ok(room);
        }
        // The commit places the gathered records; other admitted transactions follow by
        // themselves.
        self.commit(self.open_txg()).await?;
        let find = || match self.health.check() {
            Ok(()) => self.room_now(blocks).map(Ok),
            Err(stopped) => Some(Err(stopped)),
        };
        std::future::poll_fn(|cx| self.admission.room.poll(cx, find)).await
    }

    async fn wait_for_flush(&self) -> Result<(), PoolError> {
        self.wait_for_rounds(|| !self.is_full()).await
    }

    /// Waits until flush rounds have made `has_room` true, or the pool stops.
    pub(crate) async fn wait_for_rounds(
        &self,
        has_room: impl Fn() -> bool,
    ) -> Result<(), PoolError> {
        let look = || match self.health.check() {
            Ok(()) => has_room().then_some(Ok(())),
            Err(stopped) => Some(Err(stopped)),
        };
        std::future::poll_fn(|cx| {
            if let Some(found) = look() {
                return Poll::Ready(found);
            }
            self.admission.wake_later(cx.waker());
            self.flusher.kick();
            // A record that was applied, and a pool that stopped, before the waker was registered,
            // have not woken it.
            look().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Credit for the pool's own work to trim the log: never refused, never waiting (R21). `runs`:
    /// of space that is allocated or freed, which take log space only.
    pub(crate) fn internal_credit(
        &self,
        edits: usize,
        bytes: usize,
        runs: usize,
    ) -> Result<Credit, PoolError> {
        self.check_writable()?;
        let grows = growth_of(edits, bytes);
        let growth = self.space.reserve(Growth::blocks(grows), Tier::Internal)?;
        let room = self.admission.room.take_anyway(record_blocks(edits + runs, bytes));
        Ok(self.credit(grows, growth, room, 0))
    }

    /// Holds the growth of an applied transaction until its edits are flushed. `used`: the growth
    /// of its edits, compared with the credit (ADMIT-A4).
    pub(crate) fn spend(&self, credit: Credit, used: u64) {
        let Credit { bytes, growth, .. } = credit;
        if used > bytes {
            self.admission.overdrawn.fetch_add(1, Relaxed);
            tracing::warn!(used, bytes, "a transaction used more than its credit");
        }
        self.admission.take(Growth { bytes, held: growth });
        // With others in one frame its records take less of the log than was held for them.
        self.admission.room.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(edits: i64, value_bytes: i64) -> Weight {
        let bytes = edits * (EDIT_BYTES as i64 + value_bytes);
        Weight { edits, bytes, partitions: 1 }
    }

    #[test]
    fn small_edits_that_reach_a_base_leave_large_ones_their_growth() {
        let admission = Admission::default();
        let (small, large) = (growth_of(10_000, 10_000 * 40), growth_of(10, 10 * 60_000));
        for bytes in [small, large] {
            admission.take(Growth { bytes, held: None });
        }
        admission.settled(|| memory(10, 60_000));
        let left = admission.growth.lock().bytes;
        assert!(left >= large, "ADMIT-A2: {left} bytes are promised, {large} may be needed");
        assert!(left < large + large / 10, "{left} bytes stay promised, {large} may be needed");
        admission.settled(Weight::default);
        assert_eq!(admission.growth.lock().bytes, 0);
    }

    #[test]
    fn large_edits_that_reach_a_base_give_back_nearly_all() {
        let admission = Admission::default();
        let (small, large) = (growth_of(1000, 1000 * 40), growth_of(10, 10 * 60_000));
        admission.take(Growth { bytes: small + large, held: None });
        admission.settled(|| memory(1000, 0));
        let left = admission.growth.lock().bytes;
        assert!((small..small * 3 / 2).contains(&left), "{left} bytes for {small}");
    }
}
