//! The journal: the pool's side of the log. Writes pieces, batches and marks, knows which batches
//! are still needed, and moves the head.
//!
//! JOURNAL-J1  A batch is placed only while its txg is being committed, one at a time (GROUP-C1).
//! JOURNAL-J2  The head of an uberblock is at or before the start of every batch that holds an edit
//!             not in a durable base, and before every piece of a txg that is not durable.
//! JOURNAL-J3  An uberblock names durable txgs only, and the descriptor of the table of tables as
//!             the last durable batch has it (rule R6).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_format::label::Label;
use copyhold_format::log::{Batch, FrameHead, FrameKind, Payload, PieceRef, encode_frame};
use copyhold_format::uberblock::Uberblock;
use copyhold_log::{Appender, Recovered, RecoveredBatch, Ring, RingFull, UBERBLOCKS_KEPT};
use copyhold_sync::{Mutex, of};
use copyhold_types::{BLOCK_BYTES, Buf, Digest, Incarnation, PoolId, Txg};

use crate::config::Limits;
use crate::devices::Devices;
use crate::flush_figures::FlushRow;
use crate::health::Health;
use crate::{PoolError, Sabotage, log_room, uberblocks};

/// Where the uberblock comes late, on purpose: only one of so many is written.
const LATE: u64 = 4;

pub(crate) struct Journal {
    devices: Devices,
    pool: PoolId,
    /// Of the pool: where the second label area is.
    blocks: AtomicU64,
    ring: Ring,
    incarnation: Incarnation,
    /// Read only for the rule that is broken on purpose.
    limits: Limits,
    state: Mutex<JournalState, of::Journal>,
}

struct JournalState {
    appender: Appender,
    /// Batches that are durable, oldest first, from the head on.
    batches: VecDeque<BatchMark>,
    /// Edits in all of them.
    edits: u64,
    /// Batches and edits that became durable since the pool was opened.
    came: Came,
    /// First position of a txg's pieces, while its batch is not durable.
    pieces: BTreeMap<Txg, u64>,
    last: LastBatch,
    /// The last batch that was marked as durable.
    marked: Option<Txg>,
    uberblock: u64,
}

/// The commits since the pool was opened, and the sums of their additions to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Came {
    pub(crate) commits: u64,
    pub(crate) edits: u64,
    /// Blocks of the log. Here it is the position behind them: differences count.
    pub(crate) blocks: u64,
}

/// A batch that recovery would have to apply.
#[derive(Clone, Copy, Debug)]
struct BatchMark {
    txg: Txg,
    start: u64,
    edits: u64,
    before: Digest,
    before_txg: u64,
}

#[derive(Clone, Debug)]
struct LastBatch {
    txg: u64,
    digest: Digest,
    tables: Vec<u8>,
}

/// The state that recovery passes to the journal.
pub(crate) struct Resume {
    pub(crate) incarnation: Incarnation,
    pub(crate) next_position: u64,
    pub(crate) uberblock: Uberblock,
    /// Heads of uberblocks, up to that of this one, which is the last.
    pub(crate) heads: Vec<u64>,
    pub(crate) last_txg: u64,
    pub(crate) last_digest: Digest,
    pub(crate) tables: Vec<u8>,
}

/// A batch that is being written to the ring.
pub(crate) struct PlacedBatch {
    position: u64,
    frame: Buf,
    mark: BatchMark,
    last: LastBatch,
}

/// How full the log is, for the flush policy and for `info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogUse {
    /// Blocks that a recovery would read.
    pub live_blocks: u64,
    /// Blocks of one copy of the ring.
    pub ring_blocks: u64,
    /// Edits that a recovery would replay.
    pub edits: u64,
    pub batches: u64,
}

impl Journal {
    pub(crate) fn new(
        devices: Devices,
        label: &Label,
        ring: Ring,
        resume: Resume,
        recovered: &Recovered,
        limits: &Limits,
    ) -> Journal {
        let mut before = (resume.uberblock.before_head, resume.uberblock.before_head_txg);
        let marks: VecDeque<BatchMark> = recovered
            .batches
            .iter()
            .map(|b| {
                let mark = BatchMark {
                    txg: b.txg,
                    start: b.start,
                    edits: count_edits(b),
                    before: before.0,
                    before_txg: before.1,
                };
                before = (b.digest, b.txg.get());
                mark
            })
            .collect();
        Journal {
            state: Mutex::new(JournalState {
                appender: Appender::new(ring.blocks(), resume.next_position, &resume.heads),
                edits: marks.iter().map(|b| b.edits).sum(),
                came: Came::default(),
                batches: marks,
                pieces: BTreeMap::new(),
                last: LastBatch {
                    txg: resume.last_txg,
                    digest: resume.last_digest,
                    tables: resume.tables,
                },
                marked: Txg::new(recovered.last).filter(|_| recovered.confirmed),
                uberblock: resume.uberblock.number,
            }),
            devices,
            pool: label.pool,
            blocks: AtomicU64::new(label.blocks),
            ring,
            incarnation: resume.incarnation,
            limits: limits.clone(),
        }
    }

    pub(crate) fn usage(&self) -> LogUse {
        let state = self.state.lock();
        LogUse {
            live_blocks: state.appender.live(),
            ring_blocks: self.ring.blocks(),
            edits: state.edits,
            batches: state.batches.len() as u64,
        }
    }

    /// How full the part of the log is that user transactions may fill: half the ring or less
    /// (ADMIT-A1), or the edits that recovery may have to replay.
    pub(crate) fn pressure(&self, replay_edits: u64) -> f64 {
        let (blocks, edits) = self.used();
        (blocks as f64 / self.user_blocks() as f64).max(edits as f64 / replay_edits as f64)
    }

    /// Blocks of the ring that hold what a kept uberblock needs, and edits that recovery would
    /// replay.
    pub(crate) fn used(&self) -> (u64, u64) {
        let state = self.state.lock();
        let free = state.appender.free().min(self.ring.blocks());
        (self.ring.blocks() - free, state.edits)
    }

    /// Blocks of one copy of the ring that users may fill (ADMIT-A1).
    pub(crate) fn user_blocks(&self) -> u64 {
        (self.ring.blocks() / 2).min(self.limits.log_bytes / BLOCK_BYTES as u64).max(1)
    }

    pub(crate) fn came(&self) -> Came {
        let state = self.state.lock();
        Came { blocks: state.appender.next(), ..state.came }
    }

    /// The log in rows, oldest first: each ends with the batch by which it has as many blocks, or
    /// edits, as given.
    pub(crate) fn rows(&self, blocks: u64, edits: u64) -> Vec<FlushRow> {
        let state = self.state.lock();
        let mut rows: Vec<FlushRow> = Vec::new();
        let mut starts = state.batches.iter().skip(1).map(|batch| batch.start);
        for batch in &state.batches {
            let end = starts.next().unwrap_or(state.appender.next());
            let is_open = |row: &&mut FlushRow| row.blocks < blocks && row.edits < edits;
            match rows.last_mut().filter(is_open) {
                Some(row) => {
                    row.last = batch.txg;
                    row.blocks += end.saturating_sub(batch.start);
                    row.edits += batch.edits;
                }
                None => rows.push(FlushRow {
                    last: batch.txg,
                    blocks: end.saturating_sub(batch.start),
                    edits: batch.edits,
                    units: 0,
                }),
            }
        }
        rows
    }

    /// Blocks of the log that admitted records may take: up to three quarters of the ring
    /// (LOGROOM-A3). `largest`: blocks of the largest transaction among them.
    pub(crate) fn room(&self, largest: u64) -> u64 {
        let piece = log_room::piece_bytes(self.ring.blocks()) as u64;
        let frame = log_room::blocks_of(piece) + largest;
        let room = self.state.lock().appender.room(frame);
        room.saturating_sub(self.ring.blocks() / 4)
    }

    fn head_of(&self, kind: FrameKind, position: u64, txg: Txg) -> FrameHead {
        FrameHead {
            pool: self.ring.pool(),
            secret: self.ring.secret(),
            kind,
            incarnation: self.incarnation,
            position,
            txg,
        }
    }

    /// Writes records of an open or closing txg, without a flush.
    pub(crate) async fn write_piece(
        &self,
        txg: Txg,
        records: &[u8],
    ) -> Result<PieceRef, PoolError> {
        let records = self.limits.scribbled_log(records);
        let payload = Payload::new(&records);
        let blocks = payload.blocks();
        let position = {
            let mut state = self.state.lock();
            let position = state.appender.place(blocks).map_err(full)?;
            state.pieces.entry(txg).or_insert(position);
            position
        };
        let (frame, digest) = encode_frame(self.head_of(FrameKind::Piece, position, txg), &payload);
        self.write_frame(position, &frame).await?;
        Ok(PieceRef { position, blocks, digest })
    }

    async fn write_frame(&self, position: u64, frame: &Buf) -> Result<(), PoolError> {
        if self.limits.breaks(Sabotage::OneLogCopy) {
            return Ok(self.ring.write_copy(0, position, frame).await?);
        }
        Ok(self.ring.write(position, frame).await?)
    }

    /// The batch that closes a txg, behind the last durable one.
    pub(crate) fn close_batch(&self, closing: Closing) -> Batch {
        let state = self.state.lock();
        Batch {
            before: state.last.digest,
            durable: state.last.txg,
            data_flushed: closing.data_flushed,
            pieces: closing.pieces,
            tables: closing.tables,
            records: closing.records,
        }
    }

    /// Finds the place of a txg's batch and encodes it. Nothing is written yet.
    pub(crate) fn place_batch(
        &self,
        txg: Txg,
        batch: &Batch,
        edits: u64,
    ) -> Result<PlacedBatch, RingFull> {
        let bytes = batch.encode();
        let bytes = self.limits.scribbled_log(&bytes);
        let payload = Payload::new(&bytes);
        let mut state = self.state.lock();
        let position = state.appender.place(payload.blocks())?;
        let start = *state.pieces.entry(txg).or_insert(position);
        drop(state);
        let (frame, digest) = encode_frame(self.head_of(FrameKind::Batch, position, txg), &payload);
        Ok(PlacedBatch {
            position,
            frame,
            mark: BatchMark { txg, start, edits, before: batch.before, before_txg: batch.durable },
            last: LastBatch { txg: txg.get(), digest, tables: batch.tables.clone() },
        })
    }

    pub(crate) async fn write_batch(&self, batch: &PlacedBatch) -> Result<(), PoolError> {
        self.write_frame(batch.position, &batch.frame).await
    }

    /// The batch was flushed.
    pub(crate) fn batch_durable(&self, batch: PlacedBatch) {
        let mut state = self.state.lock();
        state.pieces.remove(&batch.mark.txg);
        state.edits += batch.mark.edits;
        state.came.edits += batch.mark.edits;
        state.came.commits += 1;
        state.batches.push_back(batch.mark);
        state.last = batch.last;
    }

    /// Records, without a flush, that `txg` is durable (rule R14). Does nothing when it is not the
    /// last or has its mark, and when the log needs its space for more than hints.
    pub(crate) async fn write_mark(&self, txg: Txg) -> Result<(), PoolError> {
        let position = {
            let mut state = self.state.lock();
            let marked = state.marked == Some(txg);
            let scarce = state.appender.free() < self.ring.blocks() / 4;
            if marked || scarce || state.last.txg != txg.get() || !state.pieces.is_empty() {
                return Ok(());
            }
            state.marked = Some(txg);
            match state.appender.place(1) {
                Ok(position) => position,
                Err(RingFull { .. }) => return Ok(()),
            }
        };
        let payload = Payload::new(&[]);
        let (frame, _) = encode_frame(self.head_of(FrameKind::Mark, position, txg), &payload);
        self.write_frame(position, &frame).await
    }

    async fn write_uberblock(&self, uberblock: &Uberblock) -> Result<(), PoolError> {
        let blocks = self.blocks.load(Relaxed);
        uberblocks::write_uberblock(self.devices.home(), blocks, uberblock).await
    }

    /// The pool has so many blocks now. Called by the leader, as [`Self::move_head`] is.
    pub(crate) fn grown(&self, blocks: u64) {
        self.blocks.store(blocks, Relaxed);
    }

    /// Moves the head to the oldest batch that is still needed: the first of a txg not older than
    /// `oldest_pin`, which must count flushed edits without a durable record as pinned. Called by
    /// the leader, so that no batch is being written (JOURNAL-J1). Returns whether there was
    /// anything to move.
    pub(crate) async fn move_head(
        &self,
        oldest_pin: Option<Txg>,
        health: &Health,
    ) -> Result<bool, PoolError> {
        let Some(uberblock) = self.next_uberblock(oldest_pin) else { return Ok(false) };
        let late = self.limits.breaks(Sabotage::ReuseLogAtOnce);
        if late {
            self.state.lock().appender.reuse_before(uberblock.head);
        }
        if !late || uberblock.number.is_multiple_of(LATE) {
            self.write_uberblock(&uberblock).await?;
            let again = self.limits.breaks(Sabotage::TrustSecondFlush);
            health.flush(&self.devices, again).await?;
        }
        let mut state = self.state.lock();
        state.uberblock = uberblock.number;
        state.appender.uberblock_written(uberblock.head);
        while let Some(first) = state.batches.front().copied()
            && first.txg.get() <= uberblock.before_head_txg
        {
            state.edits -= first.edits;
            state.batches.pop_front();
        }
        Ok(true)
    }

    /// Writes an uberblock that was the newest once as the newest three, durably: the state of
    /// later ones is discarded, also if two of the three are lost (UBER-U1). The highest number
    /// goes first, so that after any crash none is behind a later one.
    pub(crate) async fn go_back_to(
        &self,
        uberblock: &Uberblock,
        health: &Health,
    ) -> Result<(), PoolError> {
        let given_up = self.state.lock().uberblock;
        let last = given_up + UBERBLOCKS_KEPT as u64;
        for number in (given_up + 1..=last).rev() {
            let again = Uberblock { number, ..uberblock.clone() };
            self.write_uberblock(&again).await?;
            health.flush(&self.devices, false).await?;
        }
        self.state.lock().uberblock = last;
        Ok(())
    }

    /// Overwrites the discarded log. Blocks that a kept uberblock needs are left unchanged (R6).
    pub(crate) async fn give_up(&self, recovered: &Recovered) -> Result<(), PoolError> {
        let end = self.state.lock().appender.limit();
        Ok(self.ring.give_up(&recovered.unverified, end).await?)
    }

    /// Writes over blocks behind the log that cannot be read. It is a hint to the device, and may
    /// fail.
    pub(crate) async fn renew(&self, recovered: &Recovered) {
        let (unreadable, end) = (&recovered.unreadable, self.state.lock().appender.limit());
        if let Err(error) = self.ring.renew(unreadable, end).await {
            tracing::warn!("a bad block of the log could not be rewritten: {error}");
        }
    }

    /// The txg before the head of the log, and the number of the uberblock that names it.
    pub(crate) fn head(&self) -> (u64, u64) {
        let state = self.state.lock();
        let before = state.batches.front().map_or(state.last.txg, |first| first.before_txg);
        (before, state.uberblock)
    }

    fn next_uberblock(&self, oldest_pin: Option<Txg>) -> Option<Uberblock> {
        let state = self.state.lock();
        let durable = Txg::new(state.last.txg)?;
        let needed = |b: &&BatchMark| oldest_pin.is_some_and(|pin| b.txg >= pin);
        let first = state.batches.iter().find(needed);
        let (before_head, before_head_txg) =
            first.map_or((state.last.digest, state.last.txg), |b| (b.before, b.before_txg));
        let head = state
            .batches
            .iter()
            .filter(needed)
            .map(|b| b.start)
            .chain(state.pieces.values().copied())
            .fold(state.appender.next(), u64::min);
        // Moved or not, a further uberblock releases the log that only older ones needed.
        let behind = state.appender.head() < head || state.appender.floor() < head;
        behind.then(|| Uberblock {
            pool: self.pool,
            number: state.uberblock + 1,
            incarnation: self.incarnation,
            durable,
            head,
            before_head,
            before_head_txg,
            tables: state.last.tables.clone(),
        })
    }
}

/// The data that a closing txg passes to its batch.
pub(crate) struct Closing {
    pub(crate) data_flushed: bool,
    pub(crate) pieces: Vec<PieceRef>,
    pub(crate) tables: Vec<u8>,
    pub(crate) records: Vec<u8>,
}

pub(crate) fn full(full: RingFull) -> PoolError {
    PoolError::Stopped { why: full.to_string() }
}

fn count_edits(batch: &RecoveredBatch) -> u64 {
    batch.records().map(|bytes| copyhold_format::log::Records::new(bytes).count() as u64).sum()
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Journal({:?})", self.usage())
    }
}
