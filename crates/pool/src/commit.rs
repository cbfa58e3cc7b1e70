//! Commits: making a txg durable.
//!
//! ```text
//!   close the txg · wait for its pieces · [flush its data, when there is much] ·
//!   write attached data and batch in parallel · flush once · durable
//! ```
//!
//! Data was written before its transaction joined (rule R31), so the one flush covers data,
//! attached data, pieces and batch; recovery verifies the data that the last batch introduces,
//! since nothing orders them among each other. Data without checksums in its items, which recovery
//! cannot verify, is flushed before the batch is written, as much data is (R8). Any failure here is
//! final (rule R12).

use std::sync::Arc;

use copyhold_format::log::Batch;
use copyhold_runtime::{Finishing, finishing};
use copyhold_types::{Purpose, Txg};

use crate::births::BlockMode;
use crate::group::{Lead, Turn};
use crate::journal::{Closing, PlacedBatch, full};
use crate::open_txg::{FullPiece, Gathered};
use crate::{Pool, PoolError, Sabotage, Transaction};

/// Attached data is joined into requests of up to this many blocks.
const WRITE_BLOCKS_MAX: usize = 256;

impl Pool {
    /// Waits until `txg` is durable, and commits it if no other task does. A txg without
    /// transactions is as durable as the one before.
    pub async fn commit(self: &Arc<Self>, txg: Txg) -> Result<(), PoolError> {
        let txg = txg.min(self.last_joined());
        while self.group.turn(txg, &self.health).await? == Turn::Lead {
            self.lead().await?;
        }
        Ok(())
    }

    /// Waits until `txg` is durable without hastening it.
    pub async fn wait_durable(&self, txg: Txg) -> Result<(), PoolError> {
        self.group.follow(txg, &self.health).await
    }

    /// Commits even an empty txg: blocks that earlier txgs freed come closer to use (R22).
    pub(crate) async fn commit_empty(self: &Arc<Self>) -> Result<(), PoolError> {
        self.check_writable()?;
        self.group.lead(&self.health).await?;
        self.lead().await
    }

    /// Runs one commit; the caller has just become the leader. If the caller is cancelled, the
    /// commit continues: others wait for it.
    fn lead(self: &Arc<Self>) -> Finishing<Result<(), PoolError>> {
        let pool = self.clone();
        finishing(&self.rt, async move {
            let lead = Lead::begin(&pool.group, &pool.health);
            match pool.commit_once().await {
                Ok((txg, before)) => {
                    lead.end(Some(txg));
                    pool.after_commit(txg, before);
                    Ok(())
                }
                Err(error) => {
                    pool.stop(&format!("a commit failed: {error}"));
                    lead.end(None);
                    Err(error)
                }
            }
        })
    }

    async fn commit_once(&self) -> Result<(Txg, Txg), PoolError> {
        let before = self.group.durable();
        let (txg, gathered, tables) = self.open.close(|txg, gathered| {
            self.close_with_totals(txg, gathered);
            self.tables.check();
            self.tables.root_descriptor()
        });
        self.join_waits.closed(gathered.joined);
        let Gathered { records, room, pieces: slots, edits, introduced, .. } = gathered;
        let mut pieces = Vec::with_capacity(slots.len());
        for slot in slots {
            pieces.push(slot.wait().await?);
        }
        let data_flushed = introduced.bytes > self.limits.tail_verify_bytes
            || (introduced.is_unverifiable && !self.sabotaged(Sabotage::NoFlushBeforeGuard));
        let data = self.write_attached(txg);
        let batch = self.journal.close_batch(Closing { data_flushed, pieces, tables, records });
        let batch = self.place_batch(txg, batch, edits).await?;
        drop(room);
        if data_flushed {
            data.await?;
            self.flush_device().await?;
            self.journal.write_batch(&batch).await?;
        } else {
            let (data, log) = futures_util::join!(data, self.journal.write_batch(&batch));
            data.and(log)?;
        }
        self.flush_for_commit().await?;
        self.journal.batch_durable(batch);
        self.data.attached.forget(txg);
        Ok((txg, before))
    }

    /// Adds the edits that belong to the txg as a whole (R24). No transaction is joined.
    fn close_with_totals(&self, txg: Txg, gathered: &mut Gathered) {
        if gathered.joined == 0 {
            return;
        }
        let mut tx = Transaction::new();
        for (table, key, edit) in self.tenancy().closing(txg) {
            tx.edit(table, key, edit);
        }
        let records = tx.records(true);
        gathered.edits += tx.len() as u64;
        gathered.records.extend_from_slice(&records);
        let edits = tx.edits.into_iter();
        let more = edits.map(|(table, key, edit)| self.tables.apply(txg, table, key, edit)).sum();
        self.edited(more);
    }

    /// The device flush that a commit acknowledges by.
    async fn flush_for_commit(&self) -> Result<(), PoolError> {
        if self.sabotaged(Sabotage::NoFlushBeforeAcknowledgement) {
            return Ok(());
        }
        self.flush_device().await
    }

    pub(crate) async fn flush_device(&self) -> Result<(), PoolError> {
        let again = self.sabotaged(Sabotage::TrustSecondFlush);
        let flushed = self.health.flush(&self.devices, again).await;
        flushed.inspect_err(|error| self.stop(&error.to_string()))
    }

    /// Blocks freed by a txg that a durable batch declares durable can be used, if no reader pins
    /// them.
    pub(crate) fn after_commit(&self, txg: Txg, before: Txg) {
        let proven = if self.sabotaged(Sabotage::ReuseFreesAtOnce) { txg } else { before };
        self.proven.fetch_max(proven.get(), std::sync::atomic::Ordering::AcqRel);
        self.release_deferred();
        // Nothing has reached a base, but edits that were replaced need nothing any more.
        self.admission.settled(|| self.unflushed());
        self.flusher.kick();
        self.marker.kick();
    }

    /// Releases deferred frees that are proven and not pinned (rule R3).
    pub(crate) fn release_deferred(&self) {
        let proven = Txg::new(self.proven.load(std::sync::atomic::Ordering::Acquire));
        let unpinned = match self.pins.oldest() {
            Some(pin) if !self.sabotaged(Sabotage::IgnorePins) => pin.prev(),
            _ => proven,
        };
        if let (Some(proven), Some(unpinned)) = (proven, unpinned) {
            self.space.release_deferred(proven.min(unpinned));
        }
    }

    /// Writes the data that travels with a txg, adjacent runs in one request.
    async fn write_attached(&self, txg: Txg) -> Result<(), PoolError> {
        let mut writes = self.data.attached.of(txg, WRITE_BLOCKS_MAX);
        // Mostly there is one, which needs no list of futures.
        if writes.len() <= 1 {
            let Some((run, data)) = writes.pop() else { return Ok(()) };
            return self.write(run, data, Purpose::Data, BlockMode::PLAIN).await;
        }
        let writes = writes
            .into_iter()
            .map(|(run, data)| self.write(run, data, Purpose::Data, BlockMode::PLAIN));
        futures_util::future::join_all(writes).await.into_iter().collect()
    }

    /// Writes a full piece in the background; the commit of its txg waits for it.
    pub(crate) fn write_piece(self: &Arc<Self>, piece: FullPiece) {
        let pool = self.clone();
        self.rt.spawn(Box::pin(async move {
            let result = pool.journal.write_piece(piece.txg, &piece.records).await;
            drop(piece.room);
            piece.slot.tell(result);
        }));
    }
}

impl Pool {
    /// Finds the batch's place. If the ring is full, uberblocks release the log that only older
    /// ones needed (rule R6); admission guarantees that this is enough (ADMIT-A1).
    async fn place_batch(
        &self,
        txg: Txg,
        batch: Batch,
        edits: u64,
    ) -> Result<PlacedBatch, PoolError> {
        for _ in 0..3 {
            match self.journal.place_batch(txg, &batch, edits) {
                Ok(placed) => return Ok(placed),
                Err(_) => self.journal.move_head(self.oldest_pin(), &self.health).await?,
            };
        }
        self.journal.place_batch(txg, &batch, edits).map_err(full)
    }
}
