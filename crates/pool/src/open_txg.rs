//! The open txg: transactions join it, and a commit takes it.
//!
//! A transaction joins by holding the gate shared while the edits are applied; closing takes it
//! exclusively for a moment. A holder of the gate waits for nothing else (rule R1), so the order
//! of locks above is the order of txgs, and a close waits only for edits being made. Asking for
//! the number takes no gate: a joined transaction may ask again while a close is waiting for it,
//! and a second shared hold would queue behind the close.
//!
//! TXG-T1  All records of a transaction are in the txg whose number it received.
//! TXG-T2  Records of a txg are in the order in which their transactions joined, piece by piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use copyhold_format::log::PieceRef;
use copyhold_sync::{Mutex, RwLock, RwLockReadGuard, of};
use copyhold_types::{BLOCK_BYTES, Txg};

use crate::log_room::{LogRoom, blocks_of};
use crate::{PoolError, Transaction};

/// The gate and the records that gather behind it.
#[derive(Debug)]
pub(crate) struct OpenTxg {
    gate: RwLock<Txg, of::TxgGate>,
    /// The number under the gate, for lock-free readers; changes while the gate is held
    /// exclusively.
    number: AtomicU64,
    gathered: Mutex<Gathered, of::TxgGathered>,
    /// Records are written as a piece when this many bytes have gathered.
    piece_bytes: usize,
}

/// The records of a txg so far.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) records: Vec<u8>,
    /// Their log space.
    pub(crate) room: LogRoom,
    /// Tickets of the transactions in `records`, with their bytes, if transactions have any.
    pub(crate) tickets: Vec<(u64, usize)>,
    pub(crate) pieces: Vec<Arc<PieceSlot>>,
    /// Transactions that joined.
    pub(crate) joined: u64,
    /// Edits of tables and space.
    pub(crate) edits: u64,
    pub(crate) introduced: Introduced,
}

/// Data whose pointers came in with a txg, and that no flush has covered: recovery reads it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Introduced {
    pub(crate) bytes: u64,
    /// Some of it has no checksums in its items.
    pub(crate) is_unverifiable: bool,
}

impl Introduced {
    pub(crate) fn by(tx: &Transaction) -> Introduced {
        let blocks: u64 = tx.allocated().map(|run| u64::from(run.blocks)).sum();
        let bytes = blocks * BLOCK_BYTES as u64;
        Introduced { bytes, is_unverifiable: tx.introduces_unverifiable }
    }

    fn add(&mut self, more: Introduced) {
        self.bytes += more.bytes;
        self.is_unverifiable |= more.is_unverifiable;
    }
}

/// Receives the result of a piece that is being written.
#[derive(Debug)]
pub(crate) struct PieceSlot {
    done: async_lock::OnceCell<Result<PieceRef, PoolError>>,
}

impl PieceSlot {
    pub(crate) fn tell(&self, result: Result<PieceRef, PoolError>) {
        let first = self.done.set_blocking(result).is_ok();
        assert!(first, "a piece is written once");
    }

    pub(crate) async fn wait(&self) -> Result<PieceRef, PoolError> {
        self.done.wait().await.clone()
    }
}

/// A full piece; the transaction that filled it writes it.
pub(crate) struct FullPiece {
    pub(crate) txg: Txg,
    pub(crate) records: Vec<u8>,
    /// To be dropped when they have a place in the log.
    pub(crate) room: LogRoom,
    pub(crate) slot: Arc<PieceSlot>,
}

/// Held while a transaction is applied.
pub(crate) struct Joined<'a> {
    txg: RwLockReadGuard<'a, Txg>,
    gathered: &'a Mutex<Gathered, of::TxgGathered>,
    piece_bytes: usize,
}

impl OpenTxg {
    pub(crate) fn new(txg: Txg, piece_bytes: usize) -> OpenTxg {
        let number = AtomicU64::new(txg.get());
        OpenTxg { gate: RwLock::new(txg), number, gathered: Mutex::default(), piece_bytes }
    }

    /// The txg that is open, or was a moment ago.
    pub(crate) fn number(&self) -> Txg {
        Txg::new(self.number.load(Ordering::Acquire)).expect("txgs count from one")
    }

    pub(crate) fn join(&self) -> Joined<'_> {
        self.joined_by(self.gate.read())
    }

    /// As [`Self::join`], if that need not wait.
    pub(crate) fn try_join(&self) -> Option<Joined<'_>> {
        Some(self.joined_by(self.gate.try_read()?))
    }

    fn joined_by<'a>(&'a self, txg: RwLockReadGuard<'a, Txg>) -> Joined<'a> {
        Joined { txg, gathered: &self.gathered, piece_bytes: self.piece_bytes }
    }

    /// Transactions that have joined it.
    pub(crate) fn joined(&self) -> u64 {
        self.gathered.lock().joined
    }

    /// Closes the open txg and opens the next. `while_closed` runs when the last transaction has
    /// left and none has joined the next; it may still add records.
    pub(crate) fn close<T>(
        &self,
        while_closed: impl FnOnce(Txg, &mut Gathered) -> T,
    ) -> (Txg, Gathered, T) {
        let mut gate = self.gate.write();
        let txg = *gate;
        let mut gathered = std::mem::take(&mut *self.gathered.lock());
        let result = while_closed(txg, &mut gathered);
        *gate = txg.next();
        self.number.store(gate.get(), Ordering::Release);
        (txg, gathered, result)
    }
}

impl Joined<'_> {
    pub(crate) fn txg(&self) -> Txg {
        *self.txg
    }

    /// Adds a transaction's records. Returns a piece when enough has gathered.
    pub(crate) fn gather(
        &self,
        records: &[u8],
        room: LogRoom,
        ticket: Option<u64>,
        edits: u64,
        introduced: Introduced,
    ) -> Option<FullPiece> {
        let mut gathered = self.gathered.lock();
        match ticket {
            None => gathered.records.extend_from_slice(records),
            Some(ticket) => gathered.insert(ticket, records),
        }
        gathered.room.join(room);
        let blocks = blocks_of(gathered.records.len() as u64);
        gathered.room.shrink_to(blocks);
        gathered.joined += 1;
        gathered.edits += edits;
        gathered.introduced.add(introduced);
        if gathered.records.len() < self.piece_bytes {
            return None;
        }
        let slot = Arc::new(PieceSlot { done: async_lock::OnceCell::new() });
        gathered.pieces.push(slot.clone());
        gathered.tickets.clear();
        let records =
            std::mem::replace(&mut gathered.records, Vec::with_capacity(self.piece_bytes * 9 / 8));
        let room = std::mem::take(&mut gathered.room);
        Some(FullPiece { txg: self.txg(), records, room, slot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE_BYTES: usize = 128 << 10;

    #[test]
    fn a_piece_is_cut_when_enough_has_gathered_and_the_rest_closes_with_the_txg() {
        let open = OpenTxg::new(Txg::FIRST, PIECE_BYTES);
        let half = vec![1; PIECE_BYTES / 2];
        assert!(
            open.join().gather(&half, LogRoom::default(), None, 1, Introduced::default()).is_none()
        );
        let piece = open
            .join()
            .gather(&half, LogRoom::default(), None, 1, Introduced::default())
            .expect("full");
        assert_eq!((piece.txg, piece.records.len()), (Txg::FIRST, PIECE_BYTES));
        assert!(
            open.join().gather(&[2], LogRoom::default(), None, 1, Introduced::default()).is_none()
        );
        let (txg, gathered, ()) = open.close(|_, _| ());
        assert_eq!((txg, gathered.records, gathered.pieces.len()), (Txg::FIRST, vec![2], 1));
        assert_eq!(open.number(), Txg::FIRST.next());
    }

    #[test]
    fn the_number_can_be_asked_for_while_the_txg_closes() {
        let open = OpenTxg::new(Txg::FIRST, PIECE_BYTES);
        let (_, _, while_closed) = open.close(|_, _| open.number());
        assert_eq!(while_closed, Txg::FIRST);
    }
}
