//! A batch as recovery reads it.

use std::sync::Arc;

use copyhold_format::log::Batch;
use copyhold_types::{Digest, Incarnation, Txg};

/// One batch in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredBatch {
    pub txg: Txg,
    pub incarnation: Incarnation,
    pub digest: Digest,
    /// First position that belongs to it, a piece's or its own.
    pub start: u64,
    pub batch: Batch,
    /// Payloads of its pieces, in order; its last records are `batch.records`.
    pub pieces: Vec<Arc<[u8]>>,
}

impl RecoveredBatch {
    /// Encoded records in order, a piece at a time.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| &**piece).chain([&*self.batch.records])
    }
}
