//! Admission: log, memory and metadata space for a transaction, before it joins (rules R1, R20,
//! R21).
//!
//! Every edit in memory will be flushed one day, and that takes space: its own bytes in some leaf,
//! in two copies, at the leaf's fill. That *growth* is promised when the edit is admitted and
//! given back when the edit has reached a base. A merge may need far more, where leaves are shared
//! with snapshots and give nothing back; it is made where users' space has room for that, and else
//! the edits become a layer, which takes what was promised: its bytes, and for each partition with
//! edits one block more in two copies. What a flush needs only for a while (new nodes before the
//! old ones are free) comes out of the reserve, which user transactions cannot touch.
//!
//! A1  User transactions are admitted while the log is below its limit; flush, ids and whatever
//!     else trims it use the rest of the ring.
//!     What is admitted and not there yet is counted, too (`log_room`).
//! A2  The growth that is promised covers every edit that is in no base. An edit that replaces
//!     another has brought growth of its own: a flush gives back what nothing is left for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};

use copyhold_space::{Reservation, Space, Tier};
use copyhold_sync::{Mutex, of};
use copyhold_table::Weight;
use copyhold_types::{BLOCK_BYTES, Nanos, Purpose};

use crate::log_room::{LogRoom, Room};
use crate::nodes::COPIES;
use crate::transaction::Credit;
use crate::{Pool, PoolError};

/// Bytes that an edit takes in a leaf beside its value, and the worst fill of leaves.
const EDIT_OVERHEAD: u64 = 16;
const WORST_FILL: u64 = 3;
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
    /// Credits that were asked for, but for freeing what was deleted.
    asked: AtomicU64,
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
fn growth_of(edits: usize, bytes: usize) -> u64 {
    (bytes as u64 + edits as u64 * EDIT_OVERHEAD) * COPIES * WORST_FILL
}

/// Bytes that `edits` edits of `bytes` bytes take in the log, before it is compressed.
fn records_of(edits: usize, bytes: usize) -> u64 {
    bytes as u64 + edits as u64 * EDIT_OVERHEAD
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
    /// Edits have reached a base (or `share` of all that is unflushed has): gives growth back, and
    /// keeps no more than what is `left` may need.
    pub(crate) fn settled(&self, share: f64, left: impl FnOnce() -> Weight) {
        let mut growth = self.growth.lock();
        let part = (growth.bytes as f64 * share.clamp(0.0, 1.0)) as u64;
        // Looked at under the lock: an edit is counted before its growth comes here.
        let Weight { edits, bytes, .. } = left();
        let most = growth_of(edits.max(0) as usize, bytes.max(0) as usize);
        growth.bytes = growth.bytes.saturating_sub(part).min(most);
        let keep = Growth::blocks(growth.bytes);
        let spare = growth.held_blocks().saturating_sub(keep);
        if let Some(held) = &mut growth.held {
            held.give_back(spare);
        }
    }

    /// So many partitions have edits now. Their transactions were admitted, so this is not refused;
    /// who comes next finds less.
    pub(crate) fn are_dirty(&self, space: &Space, partitions: impl FnOnce() -> u64) {
        let mut layers = self.layers.lock();
        hold(&mut layers, space, partitions() * LAYER_BLOCKS);
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
    /// Obtains what a transaction of at most `edits` edits and `bytes` bytes of keys and values
    /// needs. Waits while log or deltas are at their limit, and for space that is on its way.
    pub async fn admit(
        self: &Arc<Self>,
        tier: Tier,
        edits: usize,
        bytes: usize,
    ) -> Result<Credit, PoolError> {
        self.check_writable()?;
        self.note_asked(tier);
        if let Some(credit) = self.admit_now(tier, edits, bytes) {
            return Ok(credit);
        }
        let since = self.rt.now();
        let room = self.wait_for_room(records_of(edits, bytes)).await?;
        let grows = growth_of(edits, bytes);
        let held = match self.grow(grows, tier) {
            Some(held) => held,
            None => self.reserve(Growth::blocks(grows), tier).await?,
        };
        let waited = self.rt.now().saturating_sub(since);
        Ok(self.credit(grows, held, room, waited))
    }

    fn credit(&self, bytes: u64, growth: Reservation, room: LogRoom, waited: Nanos) -> Credit {
        Credit { bytes, growth: Some(growth), room, waited, ticket: self.join_first() }
    }

    fn admit_now(&self, tier: Tier, edits: usize, bytes: usize) -> Option<Credit> {
        if self.is_full() {
            return None;
        }
        let room = self.room_now(records_of(edits, bytes))?;
        let grows = growth_of(edits, bytes);
        Some(self.credit(grows, self.grow(grows, tier)?, room, 0))
    }

    /// Room in the log for records that are not there yet (A3).
    fn room_now(&self, bytes: u64) -> Option<LogRoom> {
        self.admission.room.take(bytes, self.journal.room())
    }

    /// As [`Self::admit`], but never waits: `None` when it would have to.
    pub fn try_admit(&self, tier: Tier, edits: usize, bytes: usize) -> Option<Credit> {
        self.check_writable().ok()?;
        self.note_asked(tier);
        self.admit_now(tier, edits, bytes)
    }

    fn note_asked(&self, tier: Tier) {
        if tier != Tier::FinishSubvolume {
            self.admission.asked.fetch_add(1, Relaxed);
        }
    }

    /// A count of what users have asked for: transactions, but for those that free what was
    /// deleted, and data from the device. Who works for them in the background can tell from it
    /// whether anybody is there.
    pub fn asked(&self) -> u64 {
        let reads = self.counters().purposes[Purpose::Data as usize].reads;
        self.admission.asked.load(Relaxed) + reads
    }

    fn grow(&self, bytes: u64, tier: Tier) -> Option<Reservation> {
        self.space.reserve(Growth::blocks(bytes), self.tier(tier)).ok()
    }

    /// Whether user transactions have to wait for a flush.
    pub(crate) fn is_full(&self) -> bool {
        self.pressure() > 1.0
    }

    /// Waits until the log is below its limit, and for room in it.
    async fn wait_for_room(self: &Arc<Self>, bytes: u64) -> Result<LogRoom, PoolError> {
        self.wait_for_flush().await?;
        if let Some(room) = self.room_now(bytes) {
            return Ok(room);
        }
        // What has gathered gets its place; what others were admitted for comes by itself.
        self.commit(self.open_txg()).await?;
        let find = || match self.health.check() {
            Ok(()) => self.room_now(bytes).map(Ok),
            Err(stopped) => Some(Err(stopped)),
        };
        std::future::poll_fn(|cx| self.admission.room.poll(cx, find)).await
    }

    async fn wait_for_flush(&self) -> Result<(), PoolError> {
        std::future::poll_fn(|cx| {
            if let Err(stopped) = self.health.check() {
                return Poll::Ready(Err(stopped));
            }
            if !self.is_full() {
                return Poll::Ready(Ok(()));
            }
            self.admission.waiters.lock().push(cx.waker().clone());
            self.flusher.kick();
            // What was settled before the waker stood there has not woken it.
            if self.is_full() { Poll::Pending } else { Poll::Ready(Ok(())) }
        })
        .await
    }

    /// Credit for what the pool does itself to trim the log: never refused, never waiting (R21).
    pub(crate) fn internal_credit(&self, edits: usize, bytes: usize) -> Result<Credit, PoolError> {
        self.check_writable()?;
        let grows = growth_of(edits, bytes);
        let growth = self.space.reserve(Growth::blocks(grows), Tier::Internal)?;
        let room = self.admission.room.take_anyway(records_of(edits, bytes));
        Ok(self.credit(grows, growth, room, 0))
    }

    /// The transaction is applied: its growth is held until its edits are flushed.
    pub(crate) fn spend(&self, credit: Credit) {
        let Credit { bytes, growth, .. } = credit;
        self.admission.take(Growth { bytes, held: growth });
    }
}
